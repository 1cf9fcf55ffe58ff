"""Several metrics under one name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from shoal.errors import NotComputableError, UsageError
from shoal.metrics._composite import Composite
from shoal.metrics.base import Inlet, Metric

__all__ = ["MetricGroup"]


class MetricGroup(Composite):
    """Several metrics that are attached, updated, computed and saved as one; the value is a dict by name.

    An engine puts the dict into ``state.metrics`` under the group's name, and each value under its own, too::

        group = MetricGroup({"accuracy": Accuracy(), "loss": Loss(nn.CrossEntropyLoss())})
        group.attach(evaluator, "evaluation")
        evaluator.run(loader).metrics["accuracy"]

    Args:
        metrics: by name. One that is also attached itself, or part of another, takes each output once all the same.
        output_transform: makes of an engine's output what the members take, each of which applies its own after it.
        skip_unrolling: True: no member unrolls outputs (see ``Metric``). False (default): each does as it was made.
            (In Ignite the group's choice overrides the members'.)

    Raises:
        UsageError: there is no metric, or something else among them.
    """

    def __init__(
        self,
        metrics: Mapping[str, Metric],
        output_transform: Callable[[Any], Any] | None = None,
        skip_unrolling: bool = False,
    ) -> None:
        if not isinstance(metrics, Mapping) or not metrics:
            raise UsageError(f"MetricGroup was given {metrics!r}; give a dict of metrics by name, with one at least")
        for name, metric in metrics.items():
            if not isinstance(metric, Metric):
                raise UsageError(f"MetricGroup was given {metric!r} as {name!r}, which is no metric")
        self.metrics = dict(metrics)
        before = () if output_transform is None else (output_transform,)
        super().__init__(_inlets_of(self.metrics, before, skip_unrolling), output_transform, skip_unrolling)

    def compute_from_parts(self, merged: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, Any]:
        """The values by name.

        Raises:
            NotComputableError: one of them has seen no sample; the text names it.
        """
        values = {}
        for name, metric in self.metrics.items():
            try:
                values[name] = self.of(metric, merged)
            except NotComputableError as error:
                raise NotComputableError(f"{name!r} of the group: {error}") from error
        return values

    def peek(self) -> dict[str, Any] | None:
        """This rank's values by name, of those that have seen a sample; None where none has."""
        values = {name: metric.peek() for name, metric in self.metrics.items()}
        return {name: value for name, value in values.items() if value is not None} or None


def _inlets_of(
    metrics: Mapping[str, Metric], before: tuple[Callable[[Any], Any], ...], skip_unrolling: bool
) -> Iterator[Inlet]:
    for metric in metrics.values():
        for inlet in metric.inlets():
            yield replace(
                inlet,
                transforms=before + inlet.transforms,
                skip_unrolling=skip_unrolling or inlet.skip_unrolling,
                transforms_updates=True,
            )
