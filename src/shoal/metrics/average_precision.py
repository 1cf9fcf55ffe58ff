"""The area under the curve of recall against precision."""

from __future__ import annotations

from shoal.metrics._ranked import RankedScores
from shoal.metrics._ranking import average_precision, mean_over_labels

__all__ = ["AveragePrecision"]


class AveragePrecision(RankedScores):
    """Average precision: the sum over thresholds of the gain in recall times the precision there.

    Equal scores are one threshold. ``update`` takes scores and targets of 0 and 1, of shape ``(N,)`` or ``(N, 1)``; or
    of shape ``(N, C)`` for C labels, whose values are averaged. All are kept until the value is asked for.

    Args:
        output_transform: see ``Metric``.
        check_compute_fn: whether the first batch is computed at once to see that it can be; False by default.
        device: see ``Metric``.
        skip_unrolling: see ``Metric``.

    The value is ``sklearn.metrics.average_precision_score``'s; 0.0 where there is no positive. Unlike Ignite's it
    needs no scikit-learn.
    """

    compute_ranked = staticmethod(mean_over_labels("AveragePrecision", average_precision))
