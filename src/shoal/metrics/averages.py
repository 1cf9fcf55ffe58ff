"""Averages of one variable."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any

import torch

from shoal.errors import NotComputableError, UsageError
from shoal.metrics._sums import Sums

__all__ = ["Average", "GeometricAverage", "VariableAccumulation"]


class VariableAccumulation(Sums):
    """One variable, put together by an operation of one's own, and the number of its examples.

    ``update`` takes a number or a tensor. A number, and a tensor with no dimension or one, is one example; a tensor
    ``(N, ...)`` of more dimensions is N examples. (So a vector is averaged place by place: for one number a sample,
    give ``(N, 1)``.) Tensors are taken on in float64 (float32 on MPS), which is what ``op`` gets.

    Args:
        op: ``(accumulator, x) -> accumulator``, starting with 0.0. The accumulators of ranks are added, so what it does
            has to be a sum, of whatever it makes of ``x``.
        output_transform, device, skip_unrolling: see ``Metric``.

    Raises:
        UsageError: ``op`` is not callable.
    """

    required_output_keys = None
    sums = ("accumulator", "num_examples")

    def __init__(
        self,
        op: Callable[[Any, Any], Any],
        output_transform: Callable[[Any], Any] | None = None,
        device: torch.device | str | None = None,
        skip_unrolling: bool = False,
    ) -> None:
        if not callable(op):
            raise UsageError(f"{type(self).__name__} was given op={op!r}, which is not callable")
        self._op = op
        super().__init__(output_transform, device, skip_unrolling)

    @torch.no_grad()
    def update(self, output: Any) -> None:
        """Take a number or a tensor; one without elements changes nothing.

        Raises:
            UsageError: it is something else, or ``op`` cannot take it to what it has made so far.
        """
        if isinstance(output, torch.Tensor):
            if output.numel() == 0:
                return
            value: Any = self._prepared(output, as_real=True)
            count = value.shape[0] if value.dim() > 1 else 1
        elif isinstance(output, numbers.Real):
            value, count = float(output), 1
        else:
            raise UsageError(
                f"{type(self).__name__} was given a {type(output).__name__} and takes a number or a tensor; pick one "
                "by output_transform"
            )
        self._accumulate(value, count)

    def compute_from(self, state: Mapping[str, torch.Tensor]) -> Any:
        """The accumulator (a float64 tensor) and the number of examples.

        Raises:
            NotComputableError: there is none.
        """
        return state["accumulator"].clone(), self.weight_of(state)

    def weight_of(self, state: Mapping[str, torch.Tensor]) -> float:
        """The number of examples, or the sum of their weights.

        Raises:
            NotComputableError: it is 0.
        """
        weight = state["num_examples"].sum().item()
        if not weight:
            raise NotComputableError(
                f"{type(self).__name__} was computed before any rank had seen an example; update it first"
            )
        return weight

    def _accumulate(self, value: Any, count: int | torch.Tensor) -> None:
        known = self._sums.get("accumulator", 0.0)
        if isinstance(known, torch.Tensor) and isinstance(value, torch.Tensor) and known.device != value.device:
            known = self._prepared(known, value.device)  # it was loaded, or the outputs lie elsewhere now
        try:
            total = self._op(known, value)
        except (RuntimeError, ValueError) as error:
            raise UsageError(
                f"{type(self).__name__} has accumulated {_shape_of(known)} and was given {_shape_of(value)}, and its "
                f"op cannot put them together: {error}. A tensor of one dimension is one example; give (N, ...) for N"
            ) from error
        self._sums["accumulator"] = total
        self.add(num_examples=count)


class Average(VariableAccumulation):
    """The arithmetic mean of one variable over its examples; a float, or a tensor where examples have dimensions.

    ``update`` takes what ``VariableAccumulation`` takes; of ``(N, ...)`` each of the N is an example. It also takes a
    pair ``(value, weight)``, the weight being a number or a tensor without dimensions: the value, itself a mean over
    that much, counts so often. (In Ignite there are no weights.)

    The perplexity of a language model, exact however unequally tokens are spread over batches and ranks::

        loss = Average(output_transform=lambda out: (out["loss"], out["num_tokens"]))  # of a batch's mean
        perplexity = loss.exp()

    or from the sums that each iteration gives::

        log_likelihood = Average(output_transform=lambda out: out["nll_sum"])
        num_tokens = Average(output_transform=lambda out: out["num_tokens"])
        perplexity = (log_likelihood / num_tokens).exp()

    Args:
        output_transform, device, skip_unrolling: see ``Metric``.
    """

    def __init__(
        self,
        output_transform: Callable[[Any], Any] | None = None,
        device: torch.device | str | None = None,
        skip_unrolling: bool = False,
    ) -> None:
        super().__init__(_plus, output_transform, device, skip_unrolling)

    def update(self, output: Any) -> None:
        """Take a number, a tensor, or a pair ``(value, weight)``.

        Raises:
            UsageError: it is something else, or of another shape than before.
        """
        if isinstance(output, tuple | list) and len(output) == 2:
            self._weigh(*output)
        else:
            super().update(output)

    def compute_from(self, state: Mapping[str, torch.Tensor]) -> Any:
        """The mean.

        Raises:
            NotComputableError: there is no example.
        """
        return _plain(state["accumulator"] / self.weight_of(state))

    def peek(self) -> Any:
        """This rank's value as a tensor or a float, without waiting for the device; None before the first example."""
        if "accumulator" not in self._sums:
            return None
        return self._sums["accumulator"] / self._sums["num_examples"]

    def peek_weight(self) -> Any:
        """The weights of this rank's examples, where they lie; None before the first."""
        return self._sums.get("num_examples")

    @torch.no_grad()
    def _weigh(self, value: Any, weight: Any) -> None:
        for part, most in ((value, 1), (weight, 0)):
            if not isinstance(part, torch.Tensor | numbers.Real) or getattr(part, "ndim", 0) > most:
                raise UsageError(
                    f"{type(self).__name__} was given a pair of {_shape_of(value)} and {_shape_of(weight)} and takes "
                    "one example, of one dimension at most, and its weight, without dimensions"
                )
        if isinstance(value, torch.Tensor):
            value = self._prepared(value, as_real=True)
        if isinstance(weight, torch.Tensor):
            weight = weight.detach().to(value.device if isinstance(value, torch.Tensor) else weight.device)
            weighted = self._prepared(value * weight, as_real=True)
            # The mean over nothing is NaN, which would spoil the sum.
            self._accumulate(torch.where(weight != 0, weighted, torch.zeros_like(weighted)), weight)
        elif weight:
            self._accumulate(value * float(weight), weight)


class GeometricAverage(VariableAccumulation):
    """The geometric mean of one positive variable: exp of the mean of its logarithms.

    ``update`` takes what ``VariableAccumulation`` takes. A 0 among the examples gives 0, a negative tensor NaN.

    Args:
        output_transform, device, skip_unrolling: see ``Metric``.
    """

    def __init__(
        self,
        output_transform: Callable[[Any], Any] | None = None,
        device: torch.device | str | None = None,
        skip_unrolling: bool = False,
    ) -> None:
        super().__init__(_plus_log, output_transform, device, skip_unrolling)

    def update(self, output: Any) -> None:
        """Take a number or a tensor.

        Raises:
            UsageError: it is something else, a negative number, or of another shape than before.
        """
        if isinstance(output, numbers.Real) and output < 0:
            raise UsageError(f"GeometricAverage was given {output!r}, and negative numbers have no geometric mean")
        super().update(output)

    def compute_from(self, state: Mapping[str, torch.Tensor]) -> Any:
        """The geometric mean; a float, or a tensor where examples have dimensions.

        Raises:
            NotComputableError: there is no example.
        """
        return _plain((state["accumulator"] / self.weight_of(state)).exp())


def _plus(total: Any, value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dim() > 1:
        value = value.sum(dim=0)
    if isinstance(total, torch.Tensor) and isinstance(value, torch.Tensor) and total.shape != value.shape:
        raise ValueError(f"examples of shape {tuple(total.shape)} and {tuple(value.shape)} have no mean")
    return total + value


def _plus_log(total: Any, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _plus(total, value.log())
    return _plus(total, math.log(value) if value else -math.inf)


def _plain(value: torch.Tensor) -> Any:
    return value.item() if value.dim() == 0 else value


def _shape_of(value: Any) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
