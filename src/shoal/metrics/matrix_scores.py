"""Scores of classes that are made from a confusion matrix."""

from __future__ import annotations

import torch

from shoal.errors import UsageError
from shoal.metrics.confusion_matrix import ConfusionMatrix
from shoal.metrics.metrics_lambda import MetricsLambda

__all__ = ["DiceCoefficient", "IoU", "JaccardIndex", "cmAccuracy", "cmPrecision", "cmRecall", "mIoU"]


class IoU(MetricsLambda):
    """Intersection over union of each class, also known as the Jaccard index: TP / (TP + FP + FN).

    Args:
        cm: the matrix, without average or with ``"samples"``. Several scores of one matrix count once.
        ignore_index: a class whose score is left out (the background's, say); what is mistaken for it still counts.

    Raises:
        UsageError: no such matrix, or no such class.

    The value is a float64 tensor of shape ``(C,)``, or ``(C - 1,)`` with ``ignore_index``. A class that occurs in
    neither targets nor predictions has 0. Source: Jaccard (1912), as ``sklearn.metrics.jaccard_score(average=None)``.
    """

    def __init__(self, cm: ConfusionMatrix, ignore_index: int | None = None) -> None:
        _check(type(self).__name__, cm, ignore_index)
        super().__init__(lambda matrix: _leave_out(_iou(matrix), ignore_index), cm)


class JaccardIndex(IoU):
    """The same as ``IoU``, under its other name."""


class mIoU(MetricsLambda):  # noqa: N801 - the name that users know
    """The mean of ``IoU`` over the classes, those that do not occur included (as 0).

    Args:
        cm: see ``IoU``.
        ignore_index: see ``IoU``.

    Raises:
        UsageError: no such matrix, or no such class.
    """

    def __init__(self, cm: ConfusionMatrix, ignore_index: int | None = None) -> None:
        _check("mIoU", cm, ignore_index)
        super().__init__(lambda matrix: float(_leave_out(_iou(matrix), ignore_index).mean()), cm)


class DiceCoefficient(MetricsLambda):
    """The Dice coefficient of each class, which is its F1 score: 2 TP / (2 TP + FP + FN).

    Args:
        cm: see ``IoU``.
        ignore_index: see ``IoU``.

    Raises:
        UsageError: no such matrix, or no such class.

    The value is a float64 tensor of shape ``(C,)``, or ``(C - 1,)`` with ``ignore_index``; 0 for a class that does not
    occur. Source: Dice (1945), as ``sklearn.metrics.f1_score(average=None)``.
    """

    def __init__(self, cm: ConfusionMatrix, ignore_index: int | None = None) -> None:
        _check("DiceCoefficient", cm, ignore_index)
        super().__init__(lambda matrix: _leave_out(_dice(matrix), ignore_index), cm)


class cmAccuracy(MetricsLambda):  # noqa: N801 - the name that users know
    """The share of counts on the diagonal of a matrix.

    Args:
        cm: the matrix, without average or with ``"samples"``.

    Raises:
        UsageError: no such matrix.
    """

    def __init__(self, cm: ConfusionMatrix) -> None:
        _check("cmAccuracy", cm, None)
        super().__init__(lambda matrix: float(_ratio(matrix.double().diag().sum(), matrix.double().sum())), cm)


class cmPrecision(MetricsLambda):  # noqa: N801 - the name that users know
    """The precision of each class: TP / (TP + FP); 0 for a class that is never predicted.

    Args:
        cm: the matrix, without average or with ``"samples"``.
        average: True (default) gives the mean over classes, False a float64 tensor of shape ``(C,)``.

    Raises:
        UsageError: no such matrix.
    """

    def __init__(self, cm: ConfusionMatrix, average: bool = True) -> None:
        _check("cmPrecision", cm, None)
        super().__init__(lambda matrix: _per_class(matrix, 0, average), cm)


class cmRecall(MetricsLambda):  # noqa: N801 - the name that users know
    """The recall of each class: TP / (TP + FN); 0 for a class that has no target.

    Args:
        cm: the matrix, without average or with ``"samples"``.
        average: True (default) gives the mean over classes, False a float64 tensor of shape ``(C,)``.

    Raises:
        UsageError: no such matrix.
    """

    def __init__(self, cm: ConfusionMatrix, average: bool = True) -> None:
        _check("cmRecall", cm, None)
        super().__init__(lambda matrix: _per_class(matrix, 1, average), cm)


def _check(owner: str, cm: object, ignore_index: int | None) -> None:
    if not isinstance(cm, ConfusionMatrix):
        raise UsageError(f"{owner} was given a {type(cm).__name__} and is made from a ConfusionMatrix")
    if cm.average not in (None, "samples"):
        raise UsageError(
            f"{owner} was given a ConfusionMatrix with average={cm.average!r}, whose counts are gone; give one with "
            "average=None"
        )
    if ignore_index is None:
        return
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, int) or not 0 <= ignore_index < cm.num_classes:
        raise UsageError(
            f"{owner} was given ignore_index={ignore_index!r}; give a class of this matrix, 0 to {cm.num_classes - 1}"
        )


def _ratio(part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """``part / whole``, 0 where there is nothing."""
    return torch.where(whole > 0, part / torch.where(whole > 0, whole, 1), 0.0)


def _iou(matrix: torch.Tensor) -> torch.Tensor:
    counts = matrix.double()
    hits = counts.diag()
    return _ratio(hits, counts.sum(dim=0) + counts.sum(dim=1) - hits)


def _dice(matrix: torch.Tensor) -> torch.Tensor:
    counts = matrix.double()
    return _ratio(2 * counts.diag(), counts.sum(dim=0) + counts.sum(dim=1))


def _per_class(matrix: torch.Tensor, dim: int, average: bool) -> torch.Tensor | float:
    counts = matrix.double()
    scores = _ratio(counts.diag(), counts.sum(dim=dim))
    return float(scores.mean()) if average else scores


def _leave_out(scores: torch.Tensor, index: int | None) -> torch.Tensor:
    return scores if index is None else torch.cat([scores[:index], scores[index + 1 :]])
