"""Iterable data sets: read by every rank and cut, or sharded before they came here."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from shoal._types import Share
from shoal.data.empty import empty_batch
from shoal.data.fetch import Collate, Loaded, collated
from shoal.data.order import NO_SHARE, BatchKey, Order, UnknownLengthError
from shoal.data.permutation import mix
from shoal.data.plan import BatchPlan, as_count, piece
from shoal.data.randomness import isolated, sample_words, seed_with
from shoal.errors import DataError, UsageError

__all__ = ["StreamFetcher", "StreamOrder"]

_BEFORE_THE_FIRST = -1  # The position whose random state the data set's __iter__ itself runs under.


class StreamOrder(Order):
    """How an iterable data set is read.

    Args:
        dataset: the data set.
        batch_size: samples of one global batch, all ranks together.
        drop_last: leave out what doesn't fill a global batch; False by default.
        sharded: True: each rank's iterator gives samples of its own. False: each gives all samples, in the same order;
            then every rank reads all and keeps its part of each global batch.
        seed: of the random states of samples.
        rank, world_size: of the process; by default those of ``runtime.current()``.
    """

    def __init__(
        self,
        dataset: IterableDataset[Any],
        *,
        batch_size: int = 1,
        drop_last: bool = False,
        sharded: bool = False,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        super().__init__(seed, rank, world_size)
        self.dataset = dataset
        self.batch_size = as_count(batch_size, "batch_size", 1)
        self.drop_last = bool(drop_last)
        self.is_sharded = bool(sharded)
        if self.is_sharded and self.batch_size < self.world_size:
            raise UsageError(
                f"batch_size={batch_size} (of all ranks together) leaves some of {self.world_size} ranks without a "
                f"sample, and their part of a sharded data set would never be read; give at least {self.world_size}"
            )

    @property
    def is_agreed(self) -> bool:
        """Whether ranks learn only from each other who still has samples: where there are several shards."""
        return self.is_sharded and self.world_size > 1

    def move_to(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; the data set is told where it has a ``set_epoch``."""
        super().move_to(epoch)
        set_epoch = getattr(self.dataset, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)

    @property
    def plan(self) -> BatchPlan | None:
        """How an epoch is split, where every rank reads all of a data set with a length; else None."""
        length = self._length()
        if self.is_sharded or length is None:
            return None
        return BatchPlan(length, self.batch_size, self.world_size, self.drop_last)

    @property
    def num_steps(self) -> int:
        """Global batches of an epoch, the same on every rank.

        Raises:
            UnknownLengthError: the data set has no length, or only that of one rank.
        """
        length = self._length()
        if length is None or self.is_agreed:
            reason = "has no length" if length is None else "is sharded, so its length is one rank's"
            raise UnknownLengthError(
                f"the data set {type(self.dataset).__name__} {reason}; count its batches, or give epoch_length="
            )
        return BatchPlan(length, self.batch_size, self.world_size, self.drop_last).num_steps

    def _length(self) -> int | None:
        try:
            return len(self.dataset)  # type: ignore[arg-type]  # what it raises is the check
        except (TypeError, NotImplementedError):
            return None

    @property
    def local_batch_size(self) -> int:
        """Samples of this rank in a full global batch."""
        return len(piece(self.batch_size, self.rank, self.world_size))

    def keys(self, epoch: int, start: int) -> Iterator[BatchKey]:
        """Refused: a stream has no keys."""
        del epoch, start
        raise UsageError("an iterable data set cannot be asked for single samples; iterate over its loader")


class StreamFetcher(IterableDataset[Loaded]):
    """Reads a stream and makes this rank's batches of it, in the process or in a worker.

    Args:
        order: how it is read.
        collate: makes a batch of a list of samples.
        seed_samples: whether random states are set for each sample.
        in_workers: whether worker processes will read it.
    """

    def __init__(self, order: StreamOrder, collate: Collate, *, seed_samples: bool, in_workers: bool) -> None:
        self._order = order
        self._collate = collate
        self._seed_samples = seed_samples
        self._epoch = torch.zeros((), dtype=torch.int64)
        if in_workers:  # Workers that outlive an epoch see the next one in memory that they share.
            self._epoch.share_memory_()

    def begin(self, epoch: int, start: int) -> None:
        """What the next iteration is about, in workers too; they read from the beginning whatever ``start`` is."""
        del start
        self._epoch.fill_(epoch)

    def __iter__(self) -> Iterator[Loaded]:
        order, epoch = self._order, int(self._epoch)
        if get_worker_info() is not None and callable(getattr(order.dataset, "set_epoch", None)):
            order.dataset.set_epoch(epoch)  # type: ignore[attr-defined]  # checked above
        samples = _Samples(order, epoch, self._seed_samples)
        return self._own_batches(samples) if order.is_sharded else self._cut_batches(samples)

    def _cut_batches(self, samples: _Samples) -> Iterator[Loaded]:
        """This rank's part of each global batch, of a stream that every rank reads."""
        order = self._order
        for batch in samples.batches(order.batch_size):
            if len(batch) < order.batch_size and order.drop_last:
                return
            own = piece(len(batch), order.rank, order.world_size)
            share = Share(len(own), len(batch), len(batch) // order.world_size)
            part = batch[own.start : own.stop]
            with samples.scope():
                made = self._collated(part, samples) if part else empty_batch(self._collate, batch[0])
            yield Loaded(share, made)

    def _own_batches(self, samples: _Samples) -> Iterator[Loaded]:
        """Batches of a stream that is this rank's alone."""
        order = self._order
        for step, batch in enumerate(samples.batches(order.local_batch_size)):
            if step == 0 and order.is_agreed:
                with samples.scope():
                    structure = empty_batch(self._collate, batch[0])
                yield Loaded(NO_SHARE, structure)
            if len(batch) < order.local_batch_size and order.drop_last and not order.is_agreed:
                return
            with samples.scope():
                made = self._collated(batch, samples)
            yield Loaded(Share(len(batch), len(batch), len(batch)), made)

    def _collated(self, part: list[Any], samples: _Samples) -> Any:
        samples.seed_batch(len(part))
        return collated(self._collate, part, list(range(samples.num_read - len(part), samples.num_read)))


class _Samples:
    """The samples of one pass, each drawn under a random state of its own."""

    def __init__(self, order: StreamOrder, epoch: int, is_seeded: bool) -> None:
        info = get_worker_info()
        stream = (1 + order.rank, info.id if info is not None else 0) if order.is_sharded else (0, 0)
        self._base = mix(order.seed, epoch, 0, *stream)
        self._dataset = order.dataset
        self._is_seeded = is_seeded
        self.num_read = 0

    def scope(self) -> Any:
        """Keeps the process's own random state as it is."""
        return isolated() if self._is_seeded else nullcontext()

    def seed_batch(self, size: int) -> None:
        """Give what collates the latest ``size`` samples the random state of the first of them, one number on."""
        if self._is_seeded:
            seed_with(sample_words(self._base + 1, self.num_read - size, 1)[0])

    def batches(self, size: int) -> Iterator[list[Any]]:
        """Lists of ``size`` samples, the last one perhaps shorter."""
        with self.scope():
            self._seed(_BEFORE_THE_FIRST)
            items = iter(self._dataset)
        while True:
            with self.scope():
                batch = list(itertools.islice(self._read(items), size))
            if batch:
                yield batch
            if len(batch) < size:
                return

    def _read(self, items: Iterator[Any]) -> Iterator[Any]:
        while True:
            self._seed(self.num_read)
            try:
                sample = next(items)
            except StopIteration:
                return
            except Exception as error:
                raise DataError(
                    f"the data set {type(self._dataset).__name__} raised {type(error).__name__} after "
                    f"{self.num_read} samples: {error}"
                ) from error
            self.num_read += 1
            yield sample

    def _seed(self, position: int) -> None:
        if self._is_seeded:
            seed_with(sample_words(self._base, position, 1)[0])
