"""The mean of squared errors, and its root."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from shoal.metrics._errors_of_numbers import MeanOfErrors

__all__ = ["MeanSquaredError", "RootMeanSquaredError"]


class MeanSquaredError(MeanOfErrors):
    """The mean over samples of the squared distance: sum over i of ||y_pred_i - y_i||² / N, added up in float64.

    ``update`` takes ``(y_pred, y)`` of one shape ``(N, ...)``; ``(N,)`` and ``(N, 1)`` fit, too. As in Ignite, a sample
    is an entry of the first dimension, and the squares of its further numbers are added, not averaged: for D numbers a
    sample the value is D times that of ``torch.nn.MSELoss`` and ``sklearn.metrics.mean_squared_error``. Flatten both by
    ``output_transform`` for the mean over all numbers. Unlike there, shapes that would be broadcast are refused.

    Args:
        output_transform: see ``Metric``.
        device: see ``Metric``.
        skip_unrolling: see ``Metric``.
    """

    def error(self, difference: torch.Tensor) -> torch.Tensor:
        """Its square."""
        return difference.square()


class RootMeanSquaredError(MeanSquaredError):
    """The square root of ``MeanSquaredError`` over all samples.

    Args:
        output_transform: see ``Metric``.
        device: see ``Metric``.
        skip_unrolling: see ``Metric``.
    """

    def compute_from(self, state: Mapping[str, torch.Tensor]) -> float:
        """``sqrt(sum / count)``."""
        return math.sqrt(super().compute_from(state))

    def peek(self) -> Any:
        """This rank's value as a tensor, without waiting for the device; None before the first sample."""
        mean = super().peek()
        return mean if mean is None else mean.sqrt()
