"""The metrics by name."""

from __future__ import annotations

from shoal._registry import Entry, Registry

__all__ = ["METRICS"]

METRICS = Registry(
    "metric",
    {
        "Accuracy": Entry("shoal.metrics.accuracy:Accuracy"),
        "ConfusionMatrix": Entry("shoal.metrics.confusion_matrix:ConfusionMatrix"),
        "DiceCoefficient": Entry("shoal.metrics.matrix_scores:DiceCoefficient"),
        "IoU": Entry("shoal.metrics.matrix_scores:IoU"),
        "JaccardIndex": Entry("shoal.metrics.matrix_scores:JaccardIndex"),
        "Loss": Entry("shoal.metrics.loss:Loss"),
        "RunningAverage": Entry("shoal.metrics.running_average:RunningAverage"),
        "cmAccuracy": Entry("shoal.metrics.matrix_scores:cmAccuracy"),
        "cmPrecision": Entry("shoal.metrics.matrix_scores:cmPrecision"),
        "cmRecall": Entry("shoal.metrics.matrix_scores:cmRecall"),
        "mIoU": Entry("shoal.metrics.matrix_scores:mIoU"),
    },
)
