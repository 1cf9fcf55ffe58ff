"""Orders that come from a sampler or batch sampler which gives one rank's samples only, such as DistributedSampler."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch.utils.data import DistributedSampler, Sampler

from shoal import runtime
from shoal._types import Share
from shoal.data.order import NO_SHARE, BatchKey, UnknownLengthError
from shoal.data.own import OwnOrder, length_of, name_of
from shoal.data.plan import ShardPlan, as_count, piece
from shoal.errors import DataError, UsageError

__all__ = ["SplitBatchSampler", "SplitSampler"]


class SplitSampler(OwnOrder, Sampler[int]):
    """A sampler that gives this rank's samples only, such as torch's DistributedSampler: taken as it is.

    How many samples each rank has is asked of all ranks once, the first time that it matters (``len(loader)``,
    a share, an iteration), which is a collective call then; a DistributedSampler's ranks all have the same number.

    Args:
        sampler: gives what the data set is asked for, for this rank; with a length.
        batch_size: samples of one global batch, all ranks together; at least one a rank.
        drop_last: stop before the first step at which some rank has less than its part; False by default.
        seed: of what the sampler draws from the global generators.
        rank, world_size: of the process; by default those of ``runtime.current()``.
    """

    is_sharded = True

    def __init__(
        self,
        sampler: Iterable[Any],
        *,
        batch_size: int = 1,
        drop_last: bool = False,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        super().__init__(sampler, seed, rank, world_size)
        self.batch_size = as_count(batch_size, "batch_size", 1)
        self.drop_last = bool(drop_last)
        if length_of(sampler) is None:
            raise UsageError(
                f"{name_of(sampler)} is already sharded and has no length, so ranks cannot tell how many steps they "
                "share; give it a __len__, or give batches through batch_sampler="
            )
        self._lengths: tuple[int, ...] | None = None
        # Until lengths are asked of the ranks; a batch_size that leaves one unread is refused now.
        self._plan = ShardPlan((0,) * self.world_size, self.batch_size)

    @property
    def sampler(self) -> Iterable[Any]:
        """The sampler that was given."""
        return self.source

    @property
    def plan(self) -> ShardPlan:
        """How an epoch is split over the ranks."""
        if self._lengths is None:
            own = len(self)
            equal = self.world_size == 1 or isinstance(self.source, DistributedSampler)
            self._lengths = (own,) * self.world_size if equal else tuple(runtime.all_gather(own))
            self._plan = ShardPlan(self._lengths, self.batch_size, self.drop_last)
        return self._plan

    @property
    def local_batch_size(self) -> int:
        """Samples of this rank in a full global batch."""
        return len(piece(self.batch_size, self.rank, self.world_size))

    def seek(self, step: int) -> None:
        """Let the next iteration, and only that one, start at ``step``, counted from 0 within the epoch."""
        self._start = as_count(step, "step", 0)

    def __len__(self) -> int:
        """Samples of this rank in a whole epoch."""
        return length_of(self.source) or 0

    def __iter__(self) -> Iterator[Any]:
        keys = self.keys(self.epoch, self.take_start())
        return (index for key in keys if key.share.local for index in key.indices)

    @property
    def is_agreed(self) -> bool:
        """Whether some rank has no sample at all and must learn from another what its empty batches look like."""
        return 0 in self.plan.lengths and any(self.plan.lengths)

    def keys(self, epoch: int, start: int) -> Iterator[BatchKey]:
        """This rank's batches of ``epoch`` from the step ``start`` on, one for every step.

        Where ranks agree on steps: those that have samples, and before them the structure of an empty one.
        """
        plan, is_agreed = self.plan, self.is_agreed
        indices = itertools.chain.from_iterable(self.drawn(epoch))
        position = 0
        some_index: list[Any] = []
        for step in range(plan.num_steps):
            share = plan.share(step, self.rank)
            batch = list(itertools.islice(indices, share.local))
            if len(batch) < share.local:
                raise DataError(
                    f"{name_of(self.source)} has length {len(self)} but gave {position + len(batch)} indices; "
                    "let its __len__ say how many it gives"
                )
            some_index = batch[:1] or some_index
            if is_agreed and step == 0 and batch:
                yield BatchKey(epoch, 0, some_index, NO_SHARE)
            if step >= start and (batch or not is_agreed):
                yield BatchKey(epoch, position, batch or some_index, share)
            position += share.local


class SplitBatchSampler(OwnOrder, Sampler[list[Any]]):
    """A batch sampler that gives this rank's batches only: taken as it is.

    Nobody knows the other ranks' batches before they are drawn, so ranks agree on every step (see ``agreement``).

    Args:
        batch_sampler: gives lists of what the data set is asked for, for this rank.
        seed: of what it draws from the global generators.
        rank, world_size: of the process; by default those of ``runtime.current()``.
    """

    is_sharded = True

    def __init__(
        self,
        batch_sampler: Iterable[Sequence[Any]],
        *,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        super().__init__(batch_sampler, seed, rank, world_size)
        self._num_steps: int | None = None

    @property
    def is_agreed(self) -> bool:
        """Whether ranks learn only from each other who still has samples: where there are several."""
        return self.world_size > 1

    @property
    def num_steps(self) -> int:
        """Global batches of an epoch: those of the rank that has most. Asked of all ranks, once."""
        own = length_of(self.source)
        if own is None:
            raise UnknownLengthError(f"{name_of(self.source)} has no length")
        if self._num_steps is None:
            self._num_steps = max(runtime.all_gather(own)) if self.world_size > 1 else own
        return self._num_steps

    @property
    def local_batch_size(self) -> int:
        """Samples of this rank in a full batch, as far as the batch sampler says what full is."""
        return int(getattr(self.source, "batch_size", None) or 1)

    def __len__(self) -> int:
        return self.num_steps

    def __iter__(self) -> Iterator[list[Any]]:
        return (key.indices for key in self.keys(self.epoch, self.take_start()) if key.share.local)

    def keys(self, epoch: int, start: int) -> Iterator[BatchKey]:
        """This rank's batches of ``epoch`` from the step ``start`` on; before them, the structure of an empty one."""
        position = 0
        batches = itertools.chain.from_iterable(self.drawn(epoch))
        for step, batch in enumerate(batches):
            if step == 0 and self.is_agreed:
                yield BatchKey(epoch, 0, list(batch[:1]), NO_SHARE)
            if step >= start:
                yield BatchKey(epoch, position, list(batch), Share(len(batch), len(batch), len(batch)))
            position += len(batch)
