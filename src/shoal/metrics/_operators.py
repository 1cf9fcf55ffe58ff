"""What makes of metrics others by arithmetic: ``2 * precision * recall / (precision + recall)``."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from shoal.metrics.metrics_lambda import MetricsLambda

__all__ = ["Operators"]


class Operators:
    """Operators on values that are known later; each gives a ``MetricsLambda``.

    The other side is a metric, a number, or a tensor or array that fits the value. An index and a method of tensors
    apply to the value: ``recall[0]``, ``precision.mean()``. A division of numbers by zero gives an infinity or NaN, and
    a root of a negative number NaN, as of tensors. There are no comparisons: metrics compare, and hash, by identity.
    """

    __array_ufunc__ = None  # NumPy leaves ``array * metric`` to the metric
    __iter__ = None  # an index is taken of the value, whose length isn't known
    __contains__ = None

    def __add__(self, other: Any) -> MetricsLambda:
        return _later(operator.add, self, other)

    def __radd__(self, other: Any) -> MetricsLambda:
        return _later(operator.add, other, self)

    def __sub__(self, other: Any) -> MetricsLambda:
        return _later(operator.sub, self, other)

    def __rsub__(self, other: Any) -> MetricsLambda:
        return _later(operator.sub, other, self)

    def __mul__(self, other: Any) -> MetricsLambda:
        return _later(operator.mul, self, other)

    def __rmul__(self, other: Any) -> MetricsLambda:
        return _later(operator.mul, other, self)

    def __truediv__(self, other: Any) -> MetricsLambda:
        return _later(_truediv, self, other)

    def __rtruediv__(self, other: Any) -> MetricsLambda:
        return _later(_truediv, other, self)

    def __floordiv__(self, other: Any) -> MetricsLambda:
        return _later(_floordiv, self, other)

    def __rfloordiv__(self, other: Any) -> MetricsLambda:
        return _later(_floordiv, other, self)

    def __mod__(self, other: Any) -> MetricsLambda:
        return _later(_mod, self, other)

    def __rmod__(self, other: Any) -> MetricsLambda:
        return _later(_mod, other, self)

    def __pow__(self, other: Any) -> MetricsLambda:
        return _later(_pow, self, other)

    def __rpow__(self, other: Any) -> MetricsLambda:
        return _later(_pow, other, self)

    def __matmul__(self, other: Any) -> MetricsLambda:
        return _later(operator.matmul, self, other)

    def __rmatmul__(self, other: Any) -> MetricsLambda:
        return _later(operator.matmul, other, self)

    def __neg__(self) -> MetricsLambda:
        return _later(operator.neg, self)

    def __pos__(self) -> MetricsLambda:
        return _later(operator.pos, self)

    def __abs__(self) -> MetricsLambda:
        return _later(operator.abs, self)

    def __getitem__(self, index: Any) -> MetricsLambda:
        return _later(operator.itemgetter(index), self)

    def __getattr__(self, name: str) -> Callable[..., MetricsLambda]:
        """A method of the value, called later; only names that tensors have, so that a slip of the pen is found."""
        if name.startswith("_") or not callable(getattr(torch.Tensor, name, None)):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

        def method(*args: Any, **kwargs: Any) -> MetricsLambda:
            return _later(_call_of(name), self, *args, **kwargs)

        return method


def _truediv(one: Any, other: Any) -> Any:
    return _as_tensors_do(operator.truediv, one, other)


def _floordiv(one: Any, other: Any) -> Any:
    return _as_tensors_do(operator.floordiv, one, other)


def _mod(one: Any, other: Any) -> Any:
    return _as_tensors_do(operator.mod, one, other)


def _pow(one: Any, other: Any) -> Any:
    return _as_tensors_do(operator.pow, one, other)


def _as_tensors_do(operation: Callable[[Any, Any], Any], one: Any, other: Any) -> Any:
    """Of numbers too, what is too large or divided by zero is an infinity or NaN: it must not end a training."""
    try:
        value = operation(one, other)
    except (ZeroDivisionError, OverflowError):
        value = None
    if value is None or isinstance(value, complex):  # a root of a negative number
        return operation(torch.tensor(float(one), dtype=torch.float64), float(other)).item()
    return value


def _later(function: Callable[..., Any], *args: Any, **kwargs: Any) -> MetricsLambda:
    from shoal.metrics.metrics_lambda import MetricsLambda  # it is a metric itself

    # NumPy would not leave ``array - tensor`` to the tensor.
    operands = [torch.as_tensor(arg) if isinstance(arg, np.ndarray) else arg for arg in args]
    return MetricsLambda(function, *operands, **kwargs)


def _call_of(name: str) -> Callable[..., Any]:
    """A function that calls the method of that name, of a number as of a tensor without dimensions."""

    def call(value: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(value, bool | int | float) and not hasattr(value, name):
            value = torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)
        return getattr(value, name)(*args, **kwargs)

    return call
