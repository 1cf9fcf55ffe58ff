"""Which positions of an epoch's order go to which rank at which step: arithmetic, without any data.

A global batch is cut into one contiguous piece a rank; pieces differ by one sample at most and the larger ones come
first. The last global batch is cut the same way. Nothing is padded and nothing is given twice.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Protocol

from shoal._types import Share
from shoal.errors import UsageError

__all__ = ["BatchPlan", "Plan", "ShardPlan", "as_count", "piece"]


def as_count(value: object, name: str, smallest: int) -> int:
    """``value`` as an int, for anything that is one (NumPy's too).

    Raises:
        UsageError: it is no whole number, a bool, or less than ``smallest``.
    """
    try:
        count = operator.index(value)  # type: ignore[arg-type]  # what it raises is the check
    except TypeError:
        count = None
    if count is None or isinstance(value, bool) or count < smallest:
        raise UsageError(f"{name}={value!r} cannot be used; give a whole number of at least {smallest}")
    return count


def piece(num_samples: int, rank: int, world_size: int) -> range:
    """The part of ``range(num_samples)`` that is ``rank``'s when it is cut into ``world_size`` contiguous pieces."""
    size, larger = divmod(num_samples, world_size)
    start = rank * size + min(rank, larger)
    return range(start, start + size + (rank < larger))


class Plan(Protocol):
    """What a loader has to know about an epoch before it begins."""

    @property
    def num_steps(self) -> int:
        """Global batches of an epoch, the same on every rank."""
        ...

    def share(self, step: int, rank: int) -> Share:
        """How the global batch at ``step``, counted from 0, is split, as ``rank`` sees it."""
        ...


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """One order of samples, cut into global batches, each cut into one piece a rank. All answers are O(1).

    Args:
        num_samples: samples of an epoch, 0 or more.
        batch_size: samples of one global batch, all ranks together.
        world_size: ranks that share each global batch.
        drop_last: leave out the last global batch when it isn't full.

    Raises:
        UsageError: a number is no whole number or too small.
    """

    num_samples: int
    batch_size: int
    world_size: int
    drop_last: bool = False

    def __post_init__(self) -> None:
        for name, smallest in (("num_samples", 0), ("batch_size", 1), ("world_size", 1)):
            object.__setattr__(self, name, as_count(getattr(self, name), name, smallest))

    @property
    def num_full_steps(self) -> int:
        """Global batches that have ``batch_size`` samples; they come first."""
        return self.num_samples // self.batch_size

    @property
    def num_steps(self) -> int:
        """Global batches of an epoch, the same on every rank."""
        return self.num_full_steps + (not self.drop_last and self.num_samples % self.batch_size > 0)

    def share(self, step: int, rank: int) -> Share:
        """How the global batch at ``step``, counted from 0, is split, as ``rank`` sees it.

        Raises:
            UsageError: the epoch has no such step.
        """
        total = self._size(step)
        return Share(len(piece(total, rank, self.world_size)), total, total // self.world_size)

    def positions(self, step: int, rank: int) -> range:
        """Positions in the epoch's order of the samples of ``rank`` at ``step``, counted from 0; perhaps empty.

        Raises:
            UsageError: the epoch has no such step.
        """
        own = piece(self._size(step), rank, self.world_size)
        start = step * self.batch_size
        return range(start + own.start, start + own.stop)

    def num_local(self, rank: int) -> int:
        """Samples of ``rank`` in the whole epoch."""
        full = self.num_full_steps * len(piece(self.batch_size, rank, self.world_size))
        has_tail = self.num_steps > self.num_full_steps
        return full + (self.share(self.num_full_steps, rank).local if has_tail else 0)

    def _size(self, step: int) -> int:
        check_step(step, self.num_steps)
        return min(self.batch_size, self.num_samples - step * self.batch_size)


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """Samples that were divided among the ranks before they came here, each rank batching its own.

    A rank takes its piece of ``batch_size`` at every step until it has no more. Answers are O(world size).

    Args:
        lengths: samples of each rank, by rank.
        batch_size: samples of one global batch, all ranks together; at least one a rank.
        drop_last: stop before the first step at which some rank has less than its piece.

    Raises:
        UsageError: ``batch_size`` is smaller than the number of ranks, so that some rank would never be read.
    """

    lengths: tuple[int, ...]
    batch_size: int
    drop_last: bool = False

    def __post_init__(self) -> None:
        if self.batch_size < len(self.lengths):
            raise UsageError(
                f"batch_size={self.batch_size} (of all ranks together) leaves some of {len(self.lengths)} ranks "
                f"without a sample at every step, and their part of data that is already sharded would never be read; "
                f"give a batch_size of at least {len(self.lengths)}"
            )

    @property
    def num_steps(self) -> int:
        """Global batches of an epoch, the same on every rank."""
        counts = [(length, self._piece(rank)) for rank, length in enumerate(self.lengths)]
        if self.drop_last:
            return min(length // size for length, size in counts)
        return max(-(-length // size) for length, size in counts)

    def share(self, step: int, rank: int) -> Share:
        """How the global batch at ``step``, counted from 0, is split, as ``rank`` sees it.

        Raises:
            UsageError: the epoch has no such step.
        """
        check_step(step, self.num_steps)
        sizes = [
            max(0, min(self._piece(other), length - step * self._piece(other)))
            for other, length in enumerate(self.lengths)
        ]
        return Share(sizes[rank], sum(sizes), min(sizes))

    def _piece(self, rank: int) -> int:
        return len(piece(self.batch_size, rank, len(self.lengths)))


def check_step(step: int, num_steps: int) -> None:
    """Raise a UsageError unless an epoch of ``num_steps`` has ``step``."""
    if not 0 <= step < num_steps:
        raise UsageError(
            f"step {step} was asked of an epoch of {num_steps} steps; steps are counted from 0 within an epoch"
        )
