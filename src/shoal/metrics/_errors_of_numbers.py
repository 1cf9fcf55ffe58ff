"""The base of metrics that are a mean, over samples, of a distance between numbers."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch

from shoal.metrics._inputs import aligned, pair_of, widened
from shoal.metrics._ratio import Ratio

__all__ = ["MeanOfErrors"]


class MeanOfErrors(Ratio):
    """The sum of every number's error, divided by the number of samples N."""

    @torch.no_grad()
    def update(self, output: Any) -> None:
        """Take one batch: ``(y_pred, y)``, of one shape ``(N, ...)``.

        Raises:
            UsageError: the output is no pair of tensors whose shapes fit.
        """
        owner = type(self).__name__
        y_pred, y = aligned(owner, *pair_of(owner, output))
        if y.numel():
            self.add(sum=self.error(widened(y_pred) - widened(y)).sum(), count=len(y))

    @abstractmethod
    def error(self, difference: torch.Tensor) -> torch.Tensor:
        """The error of each number."""
