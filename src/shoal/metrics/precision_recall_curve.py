"""The curve of recall against precision."""

from __future__ import annotations

from shoal.metrics._ranked import RankedScores
from shoal.metrics._ranking import one_curve, precision_recall_curve

__all__ = ["PrecisionRecallCurve"]


class PrecisionRecallCurve(RankedScores):
    """Precision and recall for every threshold that occurs.

    ``update`` takes scores and targets of 0 and 1, of shape ``(N,)`` or ``(N, 1)``. All are kept until the value is
    asked for.

    Args:
        output_transform: see ``Metric``.
        check_compute_fn: whether the first batch is computed at once to see that it can be; False by default.
        device: see ``Metric``.
        skip_unrolling: see ``Metric``.

    The value is ``(precision, recall, thresholds)``, float64 tensors; the first two end with 1 and 0, for which there
    is no threshold, as in ``sklearn.metrics.precision_recall_curve``. Unlike Ignite's it needs no scikit-learn, and is
    computed on every rank instead of being sent.
    """

    compute_ranked = staticmethod(one_curve("PrecisionRecallCurve", precision_recall_curve))
    takes_labels = False
