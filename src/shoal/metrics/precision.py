"""The share of predictions of a class that are right."""

from __future__ import annotations

from shoal.metrics._class_counts import AveragedScore

__all__ = ["Precision"]


class Precision(AveragedScore):
    """The share of a class's predictions that are right: TP / (TP + FP), 0 for a class that is never predicted.

    ``update`` takes ``(y_pred, y)`` of the shapes that ``Accuracy`` takes: ``(N, C, ...)`` scores and ``(N, ...)``
    classes; ``(N, ...)`` twice, of 0 and 1 (binary); or, with ``is_multilabel``, ``(N, C, ...)`` twice, of 0 and 1.
    Each of the further places is a sample.

    Args:
        output_transform: see ``Metric``.
        average: how the classes (or labels) become one value:

            - False (default): not at all, a float64 tensor of shape ``(C,)``; for binary samples class 1 alone, a float
            - None: the same, also for binary samples: class 0 and class 1
            - True, ``"macro"``: the mean over the classes
            - ``"weighted"``: the mean weighted by how many targets each class has
            - ``"micro"``: all classes' counts together; for classes that exclude each other that is the accuracy
            - ``"samples"``: the mean over samples of each one's own share; with ``is_multilabel`` only
        is_multilabel: whether the labels of a sample do not exclude each other.
        device: see ``Metric``.
        skip_unrolling: see ``Metric``.

    Raises:
        UsageError: there is no such average, or it is for multilabel samples and these are not.

    The averages are Ignite's, and ``sklearn.metrics.precision_score``'s with ``zero_division=0``. Unlike Ignite's, a
    perfect score is exactly 1.0 (nothing is added to the divisor); values that are neither 0 nor 1 and targets that are
    no class are counted and reported when the value is computed, so that no update waits for the device.
    """

    divisor = "predicted"
