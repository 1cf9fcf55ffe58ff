"""Gradient accumulation as arithmetic: which micro-batches make one optimizer step, and how much each weighs.

The gradient of a window is that of the mean loss over all its samples, on all ranks together: ranks average their
gradients over the world size, so a micro-batch of a rank weighs its samples times the world size over the window's
samples. Where nobody knows the samples, micro-batches weigh the same.
"""

from __future__ import annotations

from typing import NamedTuple

from shoal._types import HasShares, Share
from shoal.errors import UsageError

__all__ = ["ALONE", "MicroBatch", "Window"]


class MicroBatch(NamedTuple):
    """One micro-batch in its window.

    Attributes:
        is_first: it opens the window: gradients are cleared before it.
        is_last: it closes the window: the optimizer steps after it.
        weight: factor of this rank's mean loss.
        is_sparse: some rank has no sample in some micro-batch of the window, so gradients are averaged by hand.
        share: this rank's samples and all ranks', where they are known.
        part: of the window's loss, over all ranks: the parts of a whole window add up to 1.
    """

    is_first: bool
    is_last: bool
    weight: float
    is_sparse: bool = False
    share: Share | None = None
    part: float = 1.0


ALONE = MicroBatch(is_first=True, is_last=True, weight=1.0)
"""A micro-batch that is a window of its own."""


class Window:
    """Places micro-batches in windows of ``length``, anew in every epoch.

    Args:
        length: micro-batches an optimizer step; the last window of an epoch may have fewer and is weighed so.
        epoch_length: micro-batches an epoch; None while it isn't known, when the end of an epoch must be told by
            ``SupervisedStep.finish_window``.
        loader: tells how each global batch is split, or None where nobody knows.
        world_size: ranks among which gradients are averaged.
    """

    def __init__(self, length: int, epoch_length: int | None, loader: HasShares | None, world_size: int) -> None:
        self._length = length
        self._epoch_length = epoch_length
        self._loader = loader
        self._world_size = world_size
        self._shares: tuple[int, list[Share]] = (-1, [])  # of the window that begins at a step

    def at(self, index: int, step: int | None = None) -> MicroBatch:
        """The micro-batch at ``index`` of its epoch, counted from 0.

        Args:
            step: its place in the loader's pass over the data; None: ``index``. They differ where an epoch is not one
                pass.
        """
        start = index - index % self._length
        end = start + self._length
        if self._epoch_length is not None:
            end = min(end, self._epoch_length)
        is_first, is_last = index == start, index == end - 1
        if self._loader is None:
            part = 1.0 / (end - start)
            return MicroBatch(is_first, is_last, part, part=part)
        here = index if step is None else step
        own = self._loader.share(here)
        shares = self._shares_of(here + start - index, end - start, own)
        total = max(1, sum(share.total for share in shares))
        is_sparse = any(share.smallest == 0 for share in shares)
        weight = own.local * self._world_size / total
        return MicroBatch(is_first, is_last, weight, is_sparse, own, own.total / total)

    def _shares_of(self, first: int, count: int, own: Share) -> list[Share]:
        """The shares of a window's micro-batches, asked for once a window."""
        assert self._loader is not None
        if count == 1:
            return [own]
        if self._shares[0] == first and len(self._shares[1]) == count:
            return self._shares[1]
        try:
            shares = [self._loader.share(step) for step in range(first, first + count)]
        except UsageError:
            # The loader tells a share only once its batch was read, or the window lies in two passes over the data:
            # its micro-batches weigh the same, and any of them may leave a rank without a sample.
            return [own._replace(smallest=0)] * count
        self._shares = (first, shares)
        return shares
