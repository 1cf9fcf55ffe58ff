"""What every order of samples has in common: an epoch, a place to start, and batches as keys."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

from shoal import runtime
from shoal._types import Share
from shoal.data.plan import Plan, as_count
from shoal.errors import UsageError

__all__ = ["NO_SHARE", "BatchKey", "Order", "UnknownLengthError"]

NO_SHARE = Share(0, 0, 0)
"""Marks an empty batch that belongs to no step: it comes first and shows the structure where ranks must agree."""


class UnknownLengthError(UsageError, TypeError):
    """A length or a share was asked of data that tells it only while it is read.

    Also a TypeError, as ``len()`` of something without a length is.
    """


class BatchKey(NamedTuple):
    """All that a worker process has to know to load this rank's part of one global batch.

    Attributes:
        epoch: the epoch; it travels with the key so that workers that outlive an epoch know the next one.
        position: place of the first sample in the epoch's order, for the random state of each sample.
        indices: what the data set is asked for. With ``share.local == 0``, one sample of the data set, or none where
            there is none, from which the structure of an empty batch is made.
        share: how the global batch is split.
    """

    epoch: int
    position: int
    indices: list[Any]
    share: Share


class Order(ABC):
    """Which samples this rank loads at which step.

    Args:
        seed: of the order and of the random states of samples; the same on every rank.
        rank, world_size: of the process; by default those of ``runtime.current()``.
    """

    # Whether each rank numbers its samples for itself, since they were divided before they came here.
    is_sharded = False

    def __init__(self, seed: int, rank: int | None, world_size: int | None) -> None:
        world = runtime.current()
        if isinstance(seed, bool) or not hasattr(seed, "__index__"):
            raise UsageError(f"seed={seed!r} cannot be used; give a whole number, the same on every rank")
        self.seed = int(seed)
        self.world_size = as_count(world.world_size if world_size is None else world_size, "world_size", 1)
        self.rank = as_count(world.rank if rank is None else rank, "rank", 0)
        if self.rank >= self.world_size:
            raise UsageError(f"rank={rank} was asked for in a world of {self.world_size}; ranks are counted from 0")
        self._epoch = 0
        self._epoch_was_set = False
        self._start = 0

    @property
    def num_replicas(self) -> int:
        """The world size, under the name that torch's DistributedSampler has for it."""
        return self.world_size

    @property
    def is_agreed(self) -> bool:
        """Whether ranks learn only from each other, step by step, who still has samples."""
        return False

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration, counted from 0."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; iterations that run keep theirs.

        While nobody calls this, the epoch goes up by one after every iteration that is carried to its end.

        Raises:
            UsageError: ``epoch`` is no whole number from 0 up.
        """
        self._epoch_was_set = True
        self.move_to(as_count(epoch, "epoch", 0))

    def move_to(self, epoch: int) -> None:
        """Choose the epoch of the next iteration and let it go up by itself where it did before."""
        self._epoch = epoch

    def finish(self, epoch: int) -> None:
        """Note that an iteration of ``epoch`` has been carried to its end."""
        if not self._epoch_was_set and epoch == self.epoch:
            self.move_to(epoch + 1)

    def seek(self, step: int) -> None:
        """Let the next iteration, and only that one, start at ``step``, counted from 0 within the epoch.

        Raises:
            UsageError: ``step`` is no whole number, or lies beyond the end of an epoch whose length is known.
        """
        step = as_count(step, "step", 0)
        plan = self.plan
        if plan is not None and step > plan.num_steps:
            raise UsageError(f"step {step} was asked of an epoch of {plan.num_steps} steps; seek from 0 to its end")
        self._start = step

    def take_start(self) -> int:
        """The step at which the iteration that begins now starts."""
        start, self._start = self._start, 0
        return start

    @property
    def plan(self) -> Plan | None:
        """What is known about an epoch before it begins, or None."""
        return None

    @property
    def num_steps(self) -> int:
        """Global batches of an epoch, the same on every rank.

        Raises:
            UnknownLengthError: it shows only while the data is read.
        """
        plan = self.plan
        if plan is None:
            raise UnknownLengthError("this data has no length that is known before it is read; count its batches")
        return plan.num_steps

    @property
    @abstractmethod
    def local_batch_size(self) -> int:
        """Samples of this rank in a full global batch."""

    @abstractmethod
    def keys(self, epoch: int, start: int) -> Iterator[BatchKey]:
        """This rank's batches of ``epoch`` from the step ``start`` on, one for every step."""
