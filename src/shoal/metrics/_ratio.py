"""The base of metrics that are one sum divided by another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from shoal.metrics._sums import Sums

__all__ = ["Ratio"]


class Ratio(Sums):
    """A sum over samples divided by their number: the sums ``sum`` and ``count``, both without dimensions."""

    sums: tuple[str, ...] = ("sum", "count")

    def compute_from(self, state: Mapping[str, torch.Tensor]) -> float:
        """``sum / count``."""
        count = self.count_of(state)
        return float(state["sum"].item() / count)

    def peek(self) -> Any:
        """This rank's value as a tensor, without waiting for the device; None before the first sample."""
        return self._sums["sum"] / self._sums["count"] if "sum" in self._sums else None
