"""Values over samples, exact at every world size."""

from __future__ import annotations

from shoal.metrics._table import METRICS
from shoal.metrics.accuracy import Accuracy
from shoal.metrics.base import Metric
from shoal.metrics.loss import Loss
from shoal.metrics.running_average import RunningAverage

__all__ = ["METRICS", "Accuracy", "Loss", "Metric", "RunningAverage"]
