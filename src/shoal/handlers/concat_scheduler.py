"""Schedules one after the other."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from shoal.errors import CheckpointError, UsageError
from shoal.handlers.param_scheduler import ParamScheduler, check_part, simulate

__all__ = ["ConcatScheduler"]


class ConcatScheduler(ParamScheduler):
    """Runs schedules of one parameter one after the other, each from its first value on. ::

        warm_up = LinearCyclicalScheduler(optimizer, "lr", 0.0, 0.4, 200)
        decay = CosineAnnealingScheduler(optimizer, "lr", 0.4, 0.0, 1000)
        scheduler = ConcatScheduler([warm_up, decay], durations=[100])
        trainer.add_event_handler(Events.ITERATION_STARTED, scheduler)

    Args:
        schedulers: two or more, of the same optimizer and parameter, each given once.
        durations: events of each of them but the last, which goes on for ever; at least 1.
        save_history: as in :class:`ParamScheduler`; that of the schedulers is not looked at.

    Raises:
        UsageError: an argument cannot work; the text says which.
    """

    def __init__(
        self, schedulers: Sequence[ParamScheduler], durations: Sequence[int], save_history: bool = False
    ) -> None:
        self.schedulers = _checked(schedulers)
        first = self.schedulers[0]
        super().__init__(first.optimizer, first.param_name, save_history, _common_group(self.schedulers))
        if not isinstance(durations, Sequence) or len(durations) != len(self.schedulers) - 1:
            raise UsageError(
                f"asked for durations={durations!r} of {len(self.schedulers)} schedulers; give one for each but the "
                f"last: {len(self.schedulers) - 1}"
            )
        for duration in durations:
            if isinstance(duration, bool) or not isinstance(duration, int) or duration < 1:
                raise UsageError(f"durations holds {duration!r}; give whole numbers of at least 1")
        self.durations = list(durations)
        self._starts = [0, *accumulate(self.durations)]
        self.per_optimizer_step = any(scheduler._counts_steps() for scheduler in self.schedulers)

    def value_at(self, event_index: int) -> Any:
        """The value at an occurrence of the event, counted from 0; a list where groups differ."""
        scheduler, index = self._part_at(event_index)
        return scheduler.value_at(index)

    def state_dict(self) -> dict[str, Any]:
        """Where the schedule and its parts are, as primitives."""
        return super().state_dict() | {"schedulers": [scheduler.state_dict() for scheduler in self.schedulers]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where another schedule was; see :meth:`BaseParamScheduler.load_state_dict`.

        Raises:
            CheckpointError: the state isn't that of as many schedules in a row.
        """
        load_parts(self, self.schedulers, state_dict)
        super().load_state_dict(state_dict)

    def config(self) -> dict[str, Any]:
        """What the schedule is, as primitives, but for its parts."""
        return super().config() | {"durations": list(self.durations)}

    @classmethod
    def simulate_values(  # type: ignore[override]  # the schedulers are there already
        cls,
        num_events: int,
        schedulers: Sequence[ParamScheduler],
        durations: Sequence[int],
        param_names: Sequence[str] | None = None,
    ) -> list[list[float]]:
        """What the schedules would set; neither they nor their optimizer are changed.

        Args:
            num_events: how many occurrences.
            schedulers: as in the constructor.
            durations: as in the constructor.
            param_names: parameters of the first group to show instead, e.g. ``["lr", "momentum"]`` of a OneCycleLR.

        Returns:
            ``[event_index, value, ...]`` for each occurrence; a value for each group where they may differ.
        """
        return simulate(cls(schedulers, durations), num_events, param_names)

    def _put(self, index: int) -> None:
        scheduler, own_index = self._part_at(index)
        scheduler._put(own_index)
        scheduler.event_index = own_index + 1

    def _columns(self) -> list[tuple[dict[str, Any], str]]:
        return max((scheduler._columns() for scheduler in self.schedulers), key=len)

    def _part_at(self, event_index: int) -> tuple[ParamScheduler, int]:
        part = bisect_right(self._starts, event_index) - 1
        return self.schedulers[part], event_index - self._starts[part]


def load_parts(whole: ParamScheduler, parts: Sequence[ParamScheduler], state_dict: Mapping[str, Any]) -> None:
    """Load the states of the schedules that another is made of.

    Raises:
        CheckpointError: there are not as many states.
    """
    states = state_dict.get("schedulers") if isinstance(state_dict, Mapping) else None
    if not isinstance(states, Sequence) or len(states) != len(parts):
        found = f"one of {len(states)}" if isinstance(states, Sequence) else "another one"
        raise CheckpointError(
            f"asked to restore a {type(whole).__name__} of {len(parts)} schedulers from a state, found {found}; make "
            "it of the same schedulers as in the run that was saved"
        )
    for part, state in zip(parts, states, strict=True):
        part.load_state_dict(state)


def _checked(schedulers: object) -> list[ParamScheduler]:
    if not isinstance(schedulers, Sequence) or len(schedulers) < 2:
        raise UsageError(f"asked for schedulers={schedulers!r}; give two or more, in a list")
    for scheduler in schedulers:
        check_part(scheduler)
    first = schedulers[0]
    for scheduler in schedulers[1:]:
        if scheduler.optimizer is not first.optimizer or scheduler.param_name != first.param_name:
            raise UsageError(
                f"schedulers sets {first.param_name!r} and {scheduler.param_name!r}"
                f"{'' if scheduler.optimizer is first.optimizer else ' of another optimizer'}; a ConcatScheduler is "
                "of one parameter of one optimizer"
            )
    if len({id(scheduler) for scheduler in schedulers}) < len(schedulers):
        raise UsageError("schedulers holds one object twice; make one for each place")
    return list(schedulers)


def _common_group(schedulers: Sequence[ParamScheduler]) -> int | None:
    indices = {scheduler.param_group_index for scheduler in schedulers}
    return indices.pop() if len(indices) == 1 else None
