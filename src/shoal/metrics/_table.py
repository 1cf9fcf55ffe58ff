"""The metrics by name."""

from __future__ import annotations

from shoal._registry import Entry, Registry

__all__ = ["METRICS"]

METRICS = Registry(
    "metric",
    {
        "Accuracy": Entry("shoal.metrics.accuracy:Accuracy"),
        "Average": Entry("shoal.metrics.averages:Average"),
        "AveragePrecision": Entry("shoal.metrics.average_precision:AveragePrecision"),
        "ClassificationReport": Entry("shoal.metrics.classification_report:ClassificationReport"),
        "CohenKappa": Entry("shoal.metrics.cohen_kappa:CohenKappa"),
        "ConfusionMatrix": Entry("shoal.metrics.confusion_matrix:ConfusionMatrix"),
        "DiceCoefficient": Entry("shoal.metrics.matrix_scores:DiceCoefficient"),
        "EpochMetric": Entry("shoal.metrics.epoch_metric:EpochMetric"),
        "Fbeta": Entry("shoal.metrics.fbeta:Fbeta"),
        "Frequency": Entry("shoal.metrics.frequency:Frequency"),
        "GeometricAverage": Entry("shoal.metrics.averages:GeometricAverage"),
        "IoU": Entry("shoal.metrics.matrix_scores:IoU"),
        "JaccardIndex": Entry("shoal.metrics.matrix_scores:JaccardIndex"),
        "Loss": Entry("shoal.metrics.loss:Loss"),
        "MeanAbsoluteError": Entry("shoal.metrics.mean_absolute_error:MeanAbsoluteError"),
        "MeanPairwiseDistance": Entry("shoal.metrics.mean_pairwise_distance:MeanPairwiseDistance"),
        "MeanSquaredError": Entry("shoal.metrics.mean_squared_error:MeanSquaredError"),
        "MetricGroup": Entry("shoal.metrics.metric_group:MetricGroup"),
        "MetricsLambda": Entry("shoal.metrics.metrics_lambda:MetricsLambda"),
        "Precision": Entry("shoal.metrics.precision:Precision"),
        "PrecisionRecallCurve": Entry("shoal.metrics.precision_recall_curve:PrecisionRecallCurve"),
        "R2Score": Entry("shoal.metrics.r2_score:R2Score"),
        "ROC_AUC": Entry("shoal.metrics.roc_auc:ROC_AUC"),
        "Recall": Entry("shoal.metrics.recall:Recall"),
        "RocCurve": Entry("shoal.metrics.roc_curve:RocCurve"),
        "RootMeanSquaredError": Entry("shoal.metrics.mean_squared_error:RootMeanSquaredError"),
        "RunningAverage": Entry("shoal.metrics.running_average:RunningAverage"),
        "TopKCategoricalAccuracy": Entry("shoal.metrics.top_k_categorical_accuracy:TopKCategoricalAccuracy"),
        "VariableAccumulation": Entry("shoal.metrics.averages:VariableAccumulation"),
        "cmAccuracy": Entry("shoal.metrics.matrix_scores:cmAccuracy"),
        "cmPrecision": Entry("shoal.metrics.matrix_scores:cmPrecision"),
        "cmRecall": Entry("shoal.metrics.matrix_scores:cmRecall"),
        "mIoU": Entry("shoal.metrics.matrix_scores:mIoU"),
    },
)
