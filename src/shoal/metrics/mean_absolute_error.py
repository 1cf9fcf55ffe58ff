"""The mean of absolute errors."""

from __future__ import annotations

import torch

from shoal.metrics._errors_of_numbers import MeanOfErrors

__all__ = ["MeanAbsoluteError"]


class MeanAbsoluteError(MeanOfErrors):
    """The mean over samples of the absolute error: sum over i of |y_pred_i - y_i| / N, added up in float64.

    ``update`` takes ``(y_pred, y)`` of one shape ``(N, ...)``; ``(N,)`` and ``(N, 1)`` fit, too. As in Ignite, the
    errors of a sample's further numbers are added, not averaged; see ``MeanSquaredError``.

    Args:
        output_transform: see ``Metric``.
        device: see ``Metric``.
        skip_unrolling: see ``Metric``.
    """

    def error(self, difference: torch.Tensor) -> torch.Tensor:
        """Its absolute value."""
        return difference.abs()
