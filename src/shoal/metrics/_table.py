"""The metrics by name."""

from __future__ import annotations

from shoal._registry import Entry, Registry

__all__ = ["METRICS"]

METRICS = Registry(
    "metric",
    {
        "Accuracy": Entry("shoal.metrics.accuracy:Accuracy"),
        "Loss": Entry("shoal.metrics.loss:Loss"),
        "RunningAverage": Entry("shoal.metrics.running_average:RunningAverage"),
    },
)
