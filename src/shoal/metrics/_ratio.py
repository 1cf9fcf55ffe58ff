"""The base of metrics that are one sum divided by another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from shoal.errors import NotComputableError
from shoal.metrics.base import Metric, State

__all__ = ["Ratio"]


class Ratio(Metric):
    """A sum over samples divided by their number.

    Attributes:
        sum_dtype: what the numerator is added up in: int64 for counts, float64 for all else.
    """

    sum_dtype: torch.dtype = torch.float64

    def reset(self) -> None:
        """Forget all samples."""
        self._sum: torch.Tensor | None = None
        self._count: int | torch.Tensor = 0

    def add(self, part: torch.Tensor, count: int | torch.Tensor) -> None:
        """Add to both sums, where ``part`` lies; never waits for the device."""
        part = part.detach().to(device=self.device or part.device, dtype=self.sum_dtype)
        self._sum = part if self._sum is None else self._sum + part.to(self._sum.device)
        self._count = self._count + count

    def state(self) -> State:
        """``sum`` (``sum_dtype``) and ``count`` (int64), both without dimension."""
        total = torch.zeros((), dtype=self.sum_dtype) if self._sum is None else self._sum.cpu()
        return {"sum": total, "count": torch.as_tensor(self._count).detach().cpu().to(torch.int64)}

    def compute_from(self, state: Mapping[str, torch.Tensor]) -> float:
        """``sum / count``."""
        count = int(state["count"])
        if count == 0:
            raise NotComputableError(
                f"{type(self).__name__} was computed before any rank had seen a sample; update it first"
            )
        return float(state["sum"].item() / count)

    def peek(self) -> Any:
        """This rank's value as a tensor, without waiting for the device; None before the first sample."""
        return None if self._sum is None else self._sum / self._count
