"""Orders that come from a sampler or batch sampler of the user's, the same on every rank."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch.utils.data import Sampler

from shoal import runtime
from shoal._types import Share
from shoal.data.order import BatchKey, Order, UnknownLengthError
from shoal.data.plan import BatchPlan, as_count, piece
from shoal.data.randomness import RandomStream
from shoal.errors import DataError

__all__ = ["OwnOrder", "ReplicatedBatchSampler", "ReplicatedSampler", "length_of", "name_of"]

_CHUNK = 16384  # Indices, or batches, that are drawn and sent in one message.
_SAMPLER_DRAWS = 1  # Keeps a sampler's random stream apart from those of samples.


class OwnOrder(Order):
    """An order drawn from ``source``, which may have an epoch of its own and draw from the global generators."""

    def __init__(self, source: Iterable[Any], seed: int, rank: int | None, world_size: int | None) -> None:
        super().__init__(seed, rank, world_size)
        self.source = source

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration: the source's own where it has one, so that either may be set."""
        for owner in (self.source, getattr(self.source, "sampler", None)):
            epoch = getattr(owner, "epoch", None)
            if callable(getattr(owner, "set_epoch", None)) and isinstance(epoch, int):
                return epoch
        return self._epoch

    def move_to(self, epoch: int) -> None:
        """Choose the epoch of the next iteration and let it go up by itself where it did before."""
        super().move_to(epoch)
        for owner in (self.source, getattr(self.source, "sampler", None)):
            set_epoch = getattr(owner, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(epoch)

    def drawn(self, epoch: int) -> Iterator[list[Any]]:
        """The source's items in chunks. Its random draws come from ``seed`` and ``epoch`` alone.

        Of a source with a length, one more than that at the most: it may go on without an end.
        """
        stream = RandomStream(self.seed, epoch, _SAMPLER_DRAWS, self.rank if self.is_sharded else 0)
        if self.epoch != epoch:
            self.move_to(epoch)
        promised = length_of(self.source)
        items: Iterator[Any] | None = None
        while True:
            try:
                with stream:
                    if items is None:
                        items = itertools.islice(self.source, None if promised is None else promised + 1)
                    chunk = list(itertools.islice(items, _CHUNK))
            except Exception as error:
                raise DataError(f"{name_of(self.source)} raised {type(error).__name__}: {error}") from error
            if not chunk:
                return
            yield chunk

    def agreed(self, epoch: int) -> Iterator[Any]:
        """What rank 0 draws, on every rank: a source may hold a generator that each rank seeded differently.

        Of a source with a length all is drawn and sent at once, before the first batch: later, ranks with different
        numbers of workers would come to it at different steps, in the midst of other collectives.
        """
        chunks = self._sent(epoch)
        return itertools.chain.from_iterable(chunks if length_of(self.source) is None else list(chunks))

    def _sent(self, epoch: int) -> Iterator[list[Any]]:
        if self.world_size == 1 or runtime.current().world_size != self.world_size:
            yield from self.drawn(epoch)
            return
        chunks = self.drawn(epoch) if self.rank == 0 else iter(())
        while True:
            chunk, problem = None, None
            try:
                chunk = next(chunks, None)
            except DataError as error:
                problem = error
            sent_chunk, sent_problem = runtime.broadcast((chunk, None if problem is None else str(problem)))
            if problem is not None:
                raise problem
            if sent_problem is not None:
                raise DataError(f"rank 0, which draws for all ranks, failed: {sent_problem}")
            if sent_chunk is None:
                return
            yield sent_chunk


class ReplicatedSampler(OwnOrder, Sampler[int]):
    """This rank's part of the order that a sampler draws, which is the same on every rank.

    Rank 0 draws and sends its order to the others before the first batch: to iterate is a collective call.
    What the sampler takes from the global random generators comes from ``seed`` and the epoch and leaves these as
    they were; a generator of its own is used as rank 0 has it.

    Args:
        sampler: gives what the data set is asked for; perhaps without a length or an end.
        batch_size: samples of one global batch, all ranks together.
        drop_last: leave out the last global batch when it isn't full; False by default.
        seed: of what the sampler draws from the global generators.
        rank, world_size: of the process; by default those of ``runtime.current()``.
    """

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
        self._plan: BatchPlan | None = None

    @property
    def sampler(self) -> Iterable[Any]:
        """The sampler that was given."""
        return self.source

    @property
    def plan(self) -> BatchPlan | None:
        """How an epoch is split, or None where the sampler has no length."""
        length = length_of(self.source)
        if length is None:
            return None
        if self._plan is None or self._plan.num_samples != length:
            self._plan = BatchPlan(length, self.batch_size, self.world_size, self.drop_last)
        return self._plan

    @property
    def local_batch_size(self) -> int:
        """Samples of this rank in a full global batch."""
        return len(piece(self.batch_size, self.rank, self.world_size))

    def __len__(self) -> int:
        """Samples of this rank in a whole epoch."""
        if self.plan is None:
            raise UnknownLengthError(f"{name_of(self.source)} has no length")
        return self.plan.num_local(self.rank)

    def __iter__(self) -> Iterator[Any]:
        keys = self.keys(self.epoch, self.take_start())
        return (index for key in keys if key.share.local for index in key.indices)

    def keys(self, epoch: int, start: int) -> Iterator[BatchKey]:
        """This rank's batches of ``epoch`` from the step ``start`` on, one for every step."""
        promised = length_of(self.source)
        indices = self.agreed(epoch)
        num_drawn = 0
        for step in itertools.count():
            batch = list(itertools.islice(indices, self.batch_size))
            num_drawn += len(batch)
            is_last = len(batch) < self.batch_size
            if promised is not None and (num_drawn > promised or (is_last and num_drawn < promised)):
                raise DataError(
                    f"{name_of(self.source)} has length {promised} but gave {'more' if not is_last else num_drawn} "
                    "indices; let its __len__ say how many it gives"
                )
            if not batch or (is_last and self.drop_last):
                return
            if step >= start:
                yield _cut_key(epoch, step * self.batch_size, batch, self.rank, self.world_size)


class ReplicatedBatchSampler(OwnOrder, Sampler[list[Any]]):
    """This rank's part of each batch that a batch sampler draws; its batches are those of all ranks together.

    Drawing is agreed as in ``ReplicatedSampler``.

    Args:
        batch_sampler: gives lists of what the data set is asked for.
        seed: of what it draws from the global generators.
        rank, world_size: of the process; by default those of ``runtime.current()``.
    """

    def __init__(
        self,
        batch_sampler: Iterable[Sequence[Any]],
        *,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        super().__init__(batch_sampler, seed, rank, world_size)
        self._shares: dict[int, Share] = {}

    @property
    def num_steps(self) -> int:
        """Global batches of an epoch, the same on every rank."""
        length = length_of(self.source)
        if length is None:
            raise UnknownLengthError(f"{name_of(self.source)} has no length")
        return length

    @property
    def local_batch_size(self) -> int:
        """Samples of this rank in a full global batch, as far as the batch sampler says what full is."""
        return len(piece(int(getattr(self.source, "batch_size", None) or 1), self.rank, self.world_size))

    def share_of(self, step: int) -> Share | None:
        """The split at ``step`` of the epoch drawn last, where the batch sampler has a length."""
        return self._shares.get(step)

    def __len__(self) -> int:
        return self.num_steps

    def __iter__(self) -> Iterator[list[Any]]:
        return (key.indices if key.share.local else [] for key in self.keys(self.epoch, self.take_start()))

    def keys(self, epoch: int, start: int) -> Iterator[BatchKey]:
        """This rank's batches of ``epoch`` from the step ``start`` on, one for every step."""
        promised = length_of(self.source)
        shares = self._shares = {}
        position = 0
        batches = self.agreed(epoch)
        if promised is not None:
            drawn = list(batches)
            if len(drawn) != promised:
                found = "more" if len(drawn) > promised else len(drawn)
                raise DataError(
                    f"{name_of(self.source)} has length {promised} but gave {found} batches; "
                    "let its __len__ say how many it gives"
                )
            shares.update(enumerate(_share(len(batch), self.rank, self.world_size) for batch in drawn))
            batches = iter(drawn)
        for step, batch in enumerate(batches):
            if step >= start:
                yield _cut_key(epoch, position, batch, self.rank, self.world_size)
            position += len(batch)


def _cut_key(epoch: int, position: int, batch: Sequence[Any], rank: int, world_size: int) -> BatchKey:
    """The key of ``rank``'s part of a global batch that begins at ``position``."""
    own = piece(len(batch), rank, world_size)
    indices = list(batch[own.start : own.stop] or batch[:1])
    return BatchKey(epoch, position + own.start, indices, _share(len(batch), rank, world_size))


def _share(total: int, rank: int, world_size: int) -> Share:
    return Share(len(piece(total, rank, world_size)), total, total // world_size)


def length_of(source: Iterable[Any]) -> int | None:
    """The length of a sampler, or None where it has none."""
    try:
        return len(source)  # type: ignore[arg-type]  # what it raises is the check
    except (TypeError, NotImplementedError):
        return None


def name_of(source: object) -> str:
    """What an error calls a sampler."""
    return f"the {'sampler' if 'Batch' not in type(source).__name__ else 'batch sampler'} {type(source).__name__}"
