"""Schedules that repeat: a cycle after the other, each perhaps longer or lower than the one before."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, NamedTuple

from shoal.errors import UsageError
from shoal.handlers.param_scheduler import ParamScheduler

__all__ = ["CyclicalScheduler", "LinearCyclicalScheduler"]

_SHORTEST = 2
"""Events of a cycle, at the least: with one, nothing moves."""


class Place(NamedTuple):
    """Where an occurrence of the event is.

    Attributes:
        cycle: complete cycles before this one.
        done: occurrences of this cycle before this one; from ``size`` on it is in the warm-up to the next cycle.
        size: occurrences of this cycle without that warm-up.
        warmup: occurrences of that warm-up.
    """

    cycle: int
    done: int
    size: int
    warmup: int


class CyclicalScheduler(ParamScheduler):
    """What schedules of repeated cycles have in common; a cycle of one's own defines :meth:`value_in_cycle`.

    Args:
        optimizer: a torch optimizer, or anything with ``param_groups``.
        param_name: the parameter's name in a group, e.g. ``"lr"``.
        start_value: at the start of the first cycle.
        end_value: at its end, or in its middle; the subclass says which.
        cycle_size: events of the first cycle, at least 2.
        cycle_mult: what each next cycle is longer by, as a factor; rounded down to whole events, and never below 2
            (where Ignite divides by zero in the end).
        start_value_mult: what ``start_value`` is multiplied by after each cycle.
        end_value_mult: what ``end_value`` is multiplied by after each cycle.
        warmup_duration: events between the first cycle and the second, in which the value moves linearly from the end
            value of the one to the start value of the other; ``cycle_mult`` applies to it as to the cycles.
        save_history: as in :class:`ParamScheduler`.
        param_group_index: as in :class:`ParamScheduler`.

    Raises:
        UsageError: as :class:`ParamScheduler`, or a number is out of range.
    """

    def __init__(
        self,
        optimizer: Any,
        param_name: str,
        start_value: float,
        end_value: float,
        cycle_size: int,
        cycle_mult: float = 1.0,
        start_value_mult: float = 1.0,
        end_value_mult: float = 1.0,
        warmup_duration: int = 0,
        save_history: bool = False,
        param_group_index: int | None = None,
    ) -> None:
        super().__init__(optimizer, param_name, save_history, param_group_index)
        for name, number, least in (("cycle_size", cycle_size, _SHORTEST), ("warmup_duration", warmup_duration, 0)):
            if isinstance(number, bool) or not isinstance(number, int) or number < least:
                raise UsageError(f"asked for {name}={number!r}; give a whole number of at least {least}")
        factors = {"start_value_mult": start_value_mult, "end_value_mult": end_value_mult, "cycle_mult": cycle_mult}
        for name, value in {"start_value": start_value, "end_value": end_value, **factors}.items():
            if not isinstance(value, Real) or not math.isfinite(value):
                raise UsageError(f"asked for {name}={value!r}; give a finite number")
        if cycle_mult <= 0:
            raise UsageError(f"asked for cycle_mult={cycle_mult!r}; give a number above 0")
        self.start_value = float(start_value)
        self.end_value = float(end_value)
        self.cycle_size = cycle_size
        self.cycle_mult = float(cycle_mult)
        self.start_value_mult = float(start_value_mult)
        self.end_value_mult = float(end_value_mult)
        self.warmup_duration = warmup_duration

    def value_in_cycle(self, start_value: float, end_value: float, progress: float) -> float:
        """The value after a part of a cycle.

        Args:
            start_value: of this cycle.
            end_value: of this cycle.
            progress: from 0 (its first event) to below 1.
        """
        raise NotImplementedError

    def value_at(self, event_index: int) -> float:
        """The value at an occurrence of the event, counted from 0."""
        place = self.place_at(event_index)
        start_value = self.start_value * self.start_value_mult**place.cycle
        end_value = self.end_value * self.end_value_mult**place.cycle
        if place.done < place.size:
            return self.value_in_cycle(start_value, end_value, place.done / place.size)
        next_value = self.start_value * self.start_value_mult ** (place.cycle + 1)
        return end_value + (next_value - end_value) * (place.done - place.size) / place.warmup

    def place_at(self, event_index: int) -> Place:
        """In which cycle an occurrence is, and where there."""
        cycle, done, size, warmup = 0, event_index, self.cycle_size, self.warmup_duration
        while done >= size + warmup:
            longer = max(_SHORTEST, int(size * self.cycle_mult)), int(warmup * self.cycle_mult)
            if longer == (size, warmup):  # and so for all that follow
                passed, done = divmod(done, size + warmup)
                return Place(cycle + passed, done, size, warmup)
            done -= size + warmup
            cycle, (size, warmup) = cycle + 1, longer
        return Place(cycle, done, size, warmup)

    def config(self) -> dict[str, Any]:
        """What the schedule is, as primitives."""
        own = (
            "start_value", "end_value", "cycle_size", "cycle_mult", "start_value_mult", "end_value_mult",
            "warmup_duration",
        )  # fmt: skip
        return super().config() | {name: getattr(self, name) for name in own}


class LinearCyclicalScheduler(CyclicalScheduler):
    """Along straight lines from the start value to the end value in the middle of a cycle, and back.

    With ``monotonic=True`` it reaches the end value at the end of the cycle and jumps back. (L. N. Smith, "Cyclical
    Learning Rates for Training Neural Networks", 2017.) ::

        scheduler = LinearCyclicalScheduler(optimizer, "lr", 1e-3, 1e-1, len(loader))
        trainer.add_event_handler(Events.ITERATION_STARTED, scheduler)

    Args:
        args: as in :class:`CyclicalScheduler`.
        monotonic: whether there is no way back. ``warmup_duration`` needs it: the way back ends where the next cycle
            starts.
        kwargs: as in :class:`CyclicalScheduler`.

    Raises:
        UsageError: as :class:`CyclicalScheduler`, or a warm-up is asked for without ``monotonic``.
    """

    def __init__(self, *args: Any, monotonic: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.monotonic = monotonic
        if self.warmup_duration > 0 and not monotonic:
            raise UsageError(
                f"asked for warmup_duration={self.warmup_duration} without monotonic=True, where each cycle ends at "
                "its start value; give monotonic=True, or no warmup_duration"
            )

    def value_in_cycle(self, start_value: float, end_value: float, progress: float) -> float:
        """See :class:`CyclicalScheduler`."""
        if self.monotonic:
            return start_value + (end_value - start_value) * progress
        return end_value + (start_value - end_value) * abs(progress - 0.5) * 2

    def config(self) -> dict[str, Any]:
        """What the schedule is, as primitives."""
        return super().config() | {"monotonic": self.monotonic}
