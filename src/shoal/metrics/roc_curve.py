"""The curve of false against true positives."""

from __future__ import annotations

from shoal.metrics._ranked import RankedScores
from shoal.metrics._ranking import one_curve, roc_curve

__all__ = ["RocCurve"]


class RocCurve(RankedScores):
    """The rates of false and of true positives for every threshold that matters.

    ``update`` takes scores and targets of 0 and 1, of shape ``(N,)`` or ``(N, 1)``. All are kept until the value is
    asked for.

    Args:
        output_transform: see ``Metric``.
        check_compute_fn: whether the first batch is computed at once to see that it can be; False by default.
        device: see ``Metric``.
        skip_unrolling: see ``Metric``.

    The value is ``(false_positive_rate, true_positive_rate, thresholds)``, float64 tensors of one length that begin
    with 0, 0 and infinity; points on a straight line between two others are dropped, as ``sklearn.metrics.roc_curve``
    does. Unlike Ignite's it needs no scikit-learn, and is computed on every rank instead of being sent.
    """

    compute_ranked = staticmethod(one_curve("RocCurve", roc_curve))
    takes_labels = False
