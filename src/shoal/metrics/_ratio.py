"""The base of metrics that are one sum divided by another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from shoal.metrics._sums import Sums

__all__ = ["Ratio"]


class Ratio(Sums):
    """A sum over samples divided by their number: the sums ``sum`` and ``count``, both without dimensions.

    Further sums count what is out of place, for which ``compute_from`` has to raise.
    """

    sums: tuple[str, ...] = ("sum", "count")

    def compute_from(self, state: Mapping[str, torch.Tensor]) -> float:
        """``sum / count``."""
        count = self.count_of(state)
        return float(state["sum"].item() / count)

    def peek(self) -> Any:
        """This rank's value as a tensor, without waiting for the device; None before the first sample.

        NaN where something was out of place, since nothing can be raised without waiting.
        """
        if "sum" not in self._sums:
            return None
        value = self._sums["sum"] / self._sums["count"]
        for name in self.sums[2:]:
            spoilt = self._sums.get(name)
            if isinstance(spoilt, torch.Tensor):
                value = torch.where(spoilt == 0, value, torch.nan)
        return value

    def peek_weight(self) -> Any:
        """The number of samples of this rank, where it lies; None before the first."""
        return self._sums.get("count")
