"""Values over samples, exact at every world size."""

from __future__ import annotations

from shoal.metrics._table import METRICS
from shoal.metrics.accuracy import Accuracy
from shoal.metrics.average_precision import AveragePrecision
from shoal.metrics.averages import Average, GeometricAverage, VariableAccumulation
from shoal.metrics.base import Metric
from shoal.metrics.classification_report import ClassificationReport
from shoal.metrics.cohen_kappa import CohenKappa
from shoal.metrics.confusion_matrix import ConfusionMatrix
from shoal.metrics.epoch_metric import EpochMetric, EpochMetricWarning
from shoal.metrics.fbeta import Fbeta
from shoal.metrics.frequency import Frequency
from shoal.metrics.from_torchmetrics import from_torchmetrics
from shoal.metrics.loss import Loss
from shoal.metrics.matrix_scores import DiceCoefficient, IoU, JaccardIndex, cmAccuracy, cmPrecision, cmRecall, mIoU
from shoal.metrics.mean_absolute_error import MeanAbsoluteError
from shoal.metrics.mean_pairwise_distance import MeanPairwiseDistance
from shoal.metrics.mean_squared_error import MeanSquaredError, RootMeanSquaredError
from shoal.metrics.metric_group import MetricGroup
from shoal.metrics.metrics_lambda import MetricsLambda
from shoal.metrics.precision import Precision
from shoal.metrics.precision_recall_curve import PrecisionRecallCurve
from shoal.metrics.r2_score import R2Score
from shoal.metrics.recall import Recall
from shoal.metrics.roc_auc import ROC_AUC
from shoal.metrics.roc_curve import RocCurve
from shoal.metrics.running_average import RunningAverage
from shoal.metrics.top_k_categorical_accuracy import TopKCategoricalAccuracy
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
    "ROC_AUC",
    "Accuracy",
    "Average",
    "AveragePrecision",
    "BatchFiltered",
    "BatchWise",
    "ClassificationReport",
    "CohenKappa",
    "ConfusionMatrix",
    "DiceCoefficient",
    "EpochMetric",
    "EpochMetricWarning",
    "EpochWise",
    "Fbeta",
    "Frequency",
    "GeometricAverage",
    "IoU",
    "JaccardIndex",
    "Loss",
    "MeanAbsoluteError",
    "MeanPairwiseDistance",
    "MeanSquaredError",
    "Metric",
    "MetricGroup",
    "MetricUsage",
    "MetricsLambda",
    "Precision",
    "PrecisionRecallCurve",
    "R2Score",
    "Recall",
    "RocCurve",
    "RootMeanSquaredError",
    "RunningAverage",
    "RunningBatchWise",
    "RunningEpochWise",
    "SingleEpochRunningBatchWise",
    "TopKCategoricalAccuracy",
    "VariableAccumulation",
    "cmAccuracy",
    "cmPrecision",
    "cmRecall",
    "from_torchmetrics",
    "mIoU",
]
