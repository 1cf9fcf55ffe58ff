"""A parameter that moves along straight lines between milestones."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

from shoal.errors import UsageError
from shoal.handlers.param_scheduler import ParamScheduler

__all__ = ["PiecewiseLinear", "checked_milestones", "line_between"]


class PiecewiseLinear(ParamScheduler):
    """Linear between milestones, constant before the first and from the last one on.

    A warm-up over 100 iterations and a decay to 0 at iteration 1000::

        scheduler = PiecewiseLinear(optimizer, "lr", milestones_values=[(0, 0.0), (100, 0.4), (1000, 0.0)])
        trainer.add_event_handler(Events.ITERATION_STARTED, scheduler)

    Iteration i (from 1) then trains with ``value_at(i - 1)``: the first one with the warm-up's first value.

    Args:
        optimizer: a torch optimizer, or anything with ``param_groups``.
        param_name: the parameter's name in a group, e.g. ``"lr"``.
        milestones_values: pairs (event index, value), the indices never falling. Where two pairs have one index the
            value jumps there, to that of the later pair.
        save_history: as in :class:`ParamScheduler`.
        param_group_index: as in :class:`ParamScheduler`.

    Raises:
        UsageError: as :class:`ParamScheduler`, or the milestones cannot work.
    """

    def __init__(
        self,
        optimizer: Any,
        param_name: str,
        milestones_values: Sequence[tuple[int, float]],
        save_history: bool = False,
        param_group_index: int | None = None,
    ) -> None:
        super().__init__(optimizer, param_name, save_history, param_group_index)
        self.milestones, self.values = checked_milestones(milestones_values)

    def value_at(self, event_index: int) -> float:
        """The value at an occurrence of the event, counted from 0."""
        return line_between(self.milestones, self.values, event_index)

    def config(self) -> dict[str, Any]:
        """What the schedule is, as primitives."""
        pairs = [[milestone, value] for milestone, value in zip(self.milestones, self.values, strict=True)]
        return super().config() | {"milestones_values": pairs}


def line_between(milestones: Sequence[int], values: Sequence[float], index: int) -> float:
    """The value at ``index`` on the lines between points, level beyond them."""
    right = bisect_right(milestones, index)
    if right == 0:
        return values[0]
    if right == len(milestones):
        return values[-1]
    start, end = milestones[right - 1], milestones[right]
    first, last = values[right - 1], values[right]
    return first + (last - first) * (index - start) / (end - start)


def checked_milestones(pairs: object) -> tuple[list[int], list[float]]:
    """Pairs (event index, value) as two lists; raises UsageError where they cannot work."""
    if not isinstance(pairs, Sequence) or not pairs:
        raise UsageError(f"asked for milestones_values={pairs!r}; give at least one pair (event index, value)")
    milestones: list[int] = []
    values: list[float] = []
    for pair in pairs:
        if not isinstance(pair, Sequence) or len(pair) != 2:
            raise UsageError(f"milestones_values holds {pair!r}; give pairs (event index, value)")
        milestone, value = pair
        if isinstance(milestone, bool) or not isinstance(milestone, Integral):
            raise UsageError(f"milestones_values holds the event index {milestone!r}; give whole numbers")
        if not isinstance(value, Real) or not math.isfinite(value):
            raise UsageError(f"milestones_values holds the value {value!r}; give finite numbers")
        if milestones and milestone < milestones[-1]:
            raise UsageError(f"milestones_values goes back from {milestones[-1]} to {milestone}; give rising indices")
        milestones.append(int(milestone))
        values.append(float(value))
    return milestones, values
