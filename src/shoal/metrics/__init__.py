"""Values over samples, exact at every world size."""

from __future__ import annotations

from shoal.metrics._table import METRICS
from shoal.metrics.accuracy import Accuracy
from shoal.metrics.averages import Average, GeometricAverage, VariableAccumulation
from shoal.metrics.base import Metric
from shoal.metrics.confusion_matrix import ConfusionMatrix
from shoal.metrics.epoch_metric import EpochMetric, EpochMetricWarning
from shoal.metrics.frequency import Frequency
from shoal.metrics.loss import Loss
from shoal.metrics.matrix_scores import DiceCoefficient, IoU, JaccardIndex, cmAccuracy, cmPrecision, cmRecall, mIoU
from shoal.metrics.metric_group import MetricGroup
from shoal.metrics.metrics_lambda import MetricsLambda
from shoal.metrics.running_average import RunningAverage
from shoal.metrics.usage import (
    BatchFiltered,
    BatchWise,
    EpochWise,
    MetricUsage,
    RunningBatchWise,
    RunningEpochWise,
    SingleEpochRunningBatchWise,
)

__all__ = [
    "METRICS",
    "Accuracy",
    "Average",
    "BatchFiltered",
    "BatchWise",
    "ConfusionMatrix",
    "DiceCoefficient",
    "EpochMetric",
    "EpochMetricWarning",
    "EpochWise",
    "Frequency",
    "GeometricAverage",
    "IoU",
    "JaccardIndex",
    "Loss",
    "Metric",
    "MetricGroup",
    "MetricUsage",
    "MetricsLambda",
    "RunningAverage",
    "RunningBatchWise",
    "RunningEpochWise",
    "SingleEpochRunningBatchWise",
    "VariableAccumulation",
    "cmAccuracy",
    "cmPrecision",
    "cmRecall",
    "mIoU",
]
