"""The metrics by name."""

from __future__ import annotations

from shoal._registry import Entry, Registry

__all__ = ["METRICS"]

METRICS = Registry(
    "metric",
    {
        "Accuracy": Entry("shoal.metrics.accuracy:Accuracy"),
        "Average": Entry("shoal.metrics.averages:Average"),
        "ConfusionMatrix": Entry("shoal.metrics.confusion_matrix:ConfusionMatrix"),
        "DiceCoefficient": Entry("shoal.metrics.matrix_scores:DiceCoefficient"),
        "EpochMetric": Entry("shoal.metrics.epoch_metric:EpochMetric"),
        "Frequency": Entry("shoal.metrics.frequency:Frequency"),
        "GeometricAverage": Entry("shoal.metrics.averages:GeometricAverage"),
        "IoU": Entry("shoal.metrics.matrix_scores:IoU"),
        "JaccardIndex": Entry("shoal.metrics.matrix_scores:JaccardIndex"),
        "Loss": Entry("shoal.metrics.loss:Loss"),
        "MetricGroup": Entry("shoal.metrics.metric_group:MetricGroup"),
        "MetricsLambda": Entry("shoal.metrics.metrics_lambda:MetricsLambda"),
        "RunningAverage": Entry("shoal.metrics.running_average:RunningAverage"),
        "VariableAccumulation": Entry("shoal.metrics.averages:VariableAccumulation"),
        "cmAccuracy": Entry("shoal.metrics.matrix_scores:cmAccuracy"),
        "cmPrecision": Entry("shoal.metrics.matrix_scores:cmPrecision"),
        "cmRecall": Entry("shoal.metrics.matrix_scores:cmRecall"),
        "mIoU": Entry("shoal.metrics.matrix_scores:mIoU"),
    },
)
