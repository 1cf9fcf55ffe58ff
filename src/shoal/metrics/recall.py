"""The share of a class's targets that are found."""

from __future__ import annotations

from shoal.metrics._class_counts import AveragedScore

__all__ = ["Recall"]


class Recall(AveragedScore):
    """The share of a class's targets that are predicted: TP / (TP + FN), 0 for a class without a target.

    Takes, averages and differs from Ignite's as ``Precision`` does; the averages are those of
    ``sklearn.metrics.recall_score`` with ``zero_division=0``.

    Args:
        output_transform: see ``Metric``.
        average: see ``Precision``.
        is_multilabel: whether the labels of a sample do not exclude each other.
        device: see ``Metric``.
        skip_unrolling: see ``Metric``.

    Raises:
        UsageError: there is no such average, or it is for multilabel samples and these are not.
    """

    divisor = "actual"
