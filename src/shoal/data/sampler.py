"""The order that Shoal makes itself: in sequence or shuffled, computed for each position."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

from shoal.data.order import BatchKey, Order
from shoal.data.permutation import permute
from shoal.data.plan import BatchPlan, piece
from shoal.errors import UsageError

__all__ = ["ShardedSampler"]

_CHUNK = 4096  # Positions that are permuted at once: enough to spread NumPy's cost a call, little to wait for.


class ShardedSampler(Order, Sampler[int]):
    """This rank's indices of one order that is the same at every world size.

    Nothing is stored a sample: any step is reached in O(1), at any number of samples.

    Args:
        data: the data set, or the number of its samples.
        batch_size: samples of one global batch, all ranks together.
        shuffle: whether each epoch has a random order, computed from ``seed`` and the epoch alone; False by default.
        drop_last: leave out the last global batch when it isn't full; False by default.
        seed: of the order; give every rank the same.
        rank, world_size: of the process; by default those of ``runtime.current()``.

    Raises:
        UsageError: a number that cannot be used, or data without a length.
    """

    def __init__(
        self,
        data: Sized | int,
        *,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        super().__init__(seed, rank, world_size)
        self.shuffle = bool(shuffle)
        self._plan = BatchPlan(_size(data), batch_size, self.world_size, bool(drop_last))

    @property
    def plan(self) -> BatchPlan:
        """How an epoch is cut into global batches and these into shares."""
        return self._plan

    @property
    def drop_last(self) -> bool:
        """Whether a last global batch that isn't full is left out."""
        return self._plan.drop_last

    @property
    def local_batch_size(self) -> int:
        """Samples of this rank in a full global batch."""
        return len(piece(self._plan.batch_size, self.rank, self.world_size))

    def __repr__(self) -> str:
        order = f"shuffled, seed {self.seed}" if self.shuffle else "in order"
        return f"ShardedSampler({self._plan.num_samples} samples, {order}, rank {self.rank} of {self.world_size})"

    def __len__(self) -> int:
        """Samples of this rank in a whole epoch."""
        return self._plan.num_local(self.rank)

    def __iter__(self) -> Iterator[int]:
        keys = self.keys(self.epoch, self.take_start())
        return (index for key in keys if key.share.local for index in key.indices)

    def keys(self, epoch: int, start: int) -> Iterator[BatchKey]:
        """This rank's batches of ``epoch`` from the step ``start`` on, one for every step."""
        plan, local = self._plan, self.local_batch_size
        steps_at_once = max(1, _CHUNK // max(1, local))
        for first in range(start, plan.num_full_steps, steps_at_once):
            steps = range(first, min(first + steps_at_once, plan.num_full_steps))
            yield from self._full_keys(epoch, steps)
        for step in range(max(start, plan.num_full_steps), plan.num_steps):
            own = plan.positions(step, self.rank)
            wanted = own or range(step * plan.batch_size, step * plan.batch_size + 1)
            yield BatchKey(epoch, own.start, self._indices(np.array(wanted), epoch), plan.share(step, self.rank))

    def _full_keys(self, epoch: int, steps: range) -> Iterator[BatchKey]:
        plan = self._plan
        share, first = plan.share(steps.start, self.rank), plan.positions(steps.start, self.rank).start
        starts = first + plan.batch_size * np.arange(len(steps))
        if share.local:
            rows = self._indices(starts[:, None] + np.arange(share.local), epoch)
        else:
            rows = [self._indices(np.array([steps.start * plan.batch_size]), epoch)] * len(steps)
        for position, row in zip(starts.tolist(), rows, strict=True):
            yield BatchKey(epoch, position, row, share)

    def _indices(self, positions: NDArray[np.int64], epoch: int) -> list[Any]:
        if self.shuffle:
            positions = permute(positions, num_samples=self._plan.num_samples, seed=self.seed, epoch=epoch)
        indices: list[Any] = positions.tolist()
        return indices


def _size(data: Sized | int) -> int:
    if isinstance(data, int):
        return data
    try:
        return len(data)
    except TypeError as error:
        raise UsageError(
            f"the data set {type(data).__name__} has no length, which an order of its samples needs; "
            "give it a __len__, give a sampler, or make it an IterableDataset"
        ) from error
