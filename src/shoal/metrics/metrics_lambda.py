"""A function of other metrics' values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from shoal.errors import UsageError
from shoal.metrics._composite import Composite
from shoal.metrics.base import Metric

__all__ = ["MetricsLambda"]


class MetricsLambda(Composite):
    """A function of other metrics' values, also what arithmetic between metrics gives.

    ``f1 = precision * recall * 2 / (precision + recall)`` and
    ``MetricsLambda(lambda p, r: 2 * p * r / (p + r), precision, recall)`` are the same. A metric that occurs several
    times, or in several lambdas, or is attached itself, too, takes each output once and is gathered once, all in the
    one collective of the engine's metrics. ``detach`` leaves the metrics that it is made of attached where they were.

    It may be attached at any time, and may be used without an engine: ``update`` gives the batch to every metric that
    it is made of. (Ignite's forbids to attach one that was updated, and to update one that is attached.)

    Args:
        f: takes the values of ``args`` and ``kwargs``. Tensors among these are on the CPU.
        args: metrics and anything else, also lists, tuples and dicts with metrics inside.
        skip_unrolling: as if each of the metrics had been made with it.
        kwargs: as ``args``, by name.

    Raises:
        UsageError: ``f`` is not callable.
    """

    def __init__(self, f: Callable[..., Any], *args: Any, skip_unrolling: bool = False, **kwargs: Any) -> None:
        if not callable(f):
            raise UsageError(f"MetricsLambda was given {f!r} as its function, which is not callable")
        self.function = f
        self.args = args
        self.kwargs = kwargs
        inlets = [inlet for metric in _metrics_in((args, kwargs)) for inlet in metric.inlets()]
        if skip_unrolling:
            inlets = [replace(inlet, skip_unrolling=True) for inlet in inlets]
        super().__init__(inlets, skip_unrolling=skip_unrolling)

    def compute_from_parts(self, merged: Sequence[Mapping[str, torch.Tensor]]) -> Any:
        """``f`` of the values.

        Raises:
            NotComputableError: one of the metrics has seen no sample.
        """
        return self._of_values(lambda metric: self.of(metric, merged))

    def peek(self) -> Any:
        """``f`` of this rank's values, as tensors where the metrics have them as such; None before the first sample."""
        values = {id(metric): metric.peek() for metric in _metrics_in((self.args, self.kwargs))}
        if any(value is None for value in values.values()):
            return None
        return self._of_values(lambda metric: values[id(metric)])

    def _of_values(self, value_of: Callable[[Metric], Any]) -> Any:
        return self.function(*_filled(self.args, value_of), **_filled(self.kwargs, value_of))


def _metrics_in(tree: Any) -> Iterator[Metric]:
    if isinstance(tree, Metric):
        yield tree
    elif isinstance(tree, Mapping):
        for item in tree.values():
            yield from _metrics_in(item)
    elif isinstance(tree, tuple | list):
        for item in tree:
            yield from _metrics_in(item)


def _filled(tree: Any, value_of: Callable[[Metric], Any]) -> Any:
    """The tree with the metrics' values in their place."""
    if isinstance(tree, Metric):
        return value_of(tree)
    if isinstance(tree, Mapping):
        return {key: _filled(item, value_of) for key, item in tree.items()}
    if isinstance(tree, tuple | list):
        items = [_filled(item, value_of) for item in tree]
        return items if isinstance(tree, list) else tuple(items)
    return tree.cpu() if isinstance(tree, torch.Tensor) else tree
