"""Small types that several rooms speak in."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

__all__ = ["HasShares", "Share"]


class Share(NamedTuple):
    """How one global batch is split over the ranks, as one of them sees it.

    Attributes:
        local: samples of this rank, 0 at the least.
        total: samples of all ranks together.
        smallest: samples of the rank that has the fewest; 0 means that some rank has none.
    """

    local: int
    total: int
    smallest: int


@runtime_checkable
class HasShares(Protocol):
    """A loader that knows, without asking other ranks, how each of its global batches is split."""

    def share(self, step: int) -> Share:
        """The split of the global batch at ``step`` of an epoch, counted from 0."""
        ...
