"""The area under the curve of false against true positives."""

from __future__ import annotations

from shoal.metrics._ranked import RankedScores
from shoal.metrics._ranking import mean_over_labels, roc_auc

__all__ = ["ROC_AUC"]


class ROC_AUC(RankedScores):  # noqa: N801 - the name that users know
    """The area under the ROC curve: the share of pairs of a positive and a negative that the scores put in order.

    Equal scores count one half (the trapezoidal rule). ``update`` takes scores and targets of 0 and 1, of shape
    ``(N,)`` or ``(N, 1)``; or of shape ``(N, C)`` for C labels, whose areas are averaged. All are kept until the value
    is asked for.

    Args:
        output_transform: see ``Metric``.
        check_compute_fn: whether the first batch is computed at once to see that it can be; False by default.
        device: see ``Metric``.
        skip_unrolling: see ``Metric``.

    The value is ``sklearn.metrics.roc_auc_score``'s, computed in whole numbers with one rounding: the same, bit for
    bit, at every world size, and NaN where there is no positive or no negative. Unlike Ignite's it needs no
    scikit-learn. Source: Hanley and McNeil (1982).
    """

    compute_ranked = staticmethod(mean_over_labels("ROC_AUC", roc_auc))
