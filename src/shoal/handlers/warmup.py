"""A warm-up before a schedule."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

from torch.optim.lr_scheduler import LRScheduler as TorchLRScheduler

from shoal.errors import UsageError
from shoal.handlers.concat_scheduler import ConcatScheduler
from shoal.handlers.lr_scheduler import LRScheduler
from shoal.handlers.param_group_scheduler import ParamGroupScheduler
from shoal.handlers.param_scheduler import ParamScheduler, simulate
from shoal.handlers.piecewise_linear import PiecewiseLinear

__all__ = ["create_lr_scheduler_with_warmup"]


def create_lr_scheduler_with_warmup(
    lr_scheduler: ParamScheduler | TorchLRScheduler,
    warmup_start_value: float,
    warmup_duration: int,
    warmup_end_value: float | None = None,
    save_history: bool = False,
    output_simulated_values: list[Any] | None = None,
) -> ConcatScheduler:
    """A schedule that comes after a linear warm-up. ::

        decay = ExponentialLR(optimizer, gamma=0.98)
        scheduler = create_lr_scheduler_with_warmup(decay, warmup_start_value=0.0, warmup_duration=100)
        trainer.add_event_handler(Events.ITERATION_STARTED, scheduler)

    The first step uses ``warmup_start_value``, step ``warmup_duration`` the end value. Where that is the schedule's
    first value (in all groups), which then isn't repeated, the next step uses the second one; otherwise the first.
    With one of torch's schedules, warm-up and schedule count optimizer steps; see :class:`LRScheduler`.

    Args:
        lr_scheduler: one of Shoal's or of torch's, not used yet.
        warmup_start_value: the first value.
        warmup_duration: events of the warm-up, at least 2.
        warmup_end_value: the last value; None (default) is the schedule's first one, in each parameter group.
        save_history: as in :class:`ParamScheduler`.
        output_simulated_values: a list that is filled with ``[event_index, value, ...]``, as many as it is long, e.g.
            ``[None] * 200``.

    Raises:
        UsageError: an argument cannot work; the text says which.
    """
    if isinstance(lr_scheduler, TorchLRScheduler):
        lr_scheduler = LRScheduler(lr_scheduler)
    if not isinstance(lr_scheduler, ParamScheduler) or not lr_scheduler.is_function_of_index:
        raise UsageError(
            f"asked to warm up a {type(lr_scheduler).__qualname__}; give a schedule of shoal.handlers or of torch that "
            "goes by events"
        )
    groups = lr_scheduler.optimizer.param_groups
    for group, name in lr_scheduler._columns():
        if name != lr_scheduler.param_name or not any(group is one for one in groups):
            raise UsageError(
                f"asked to warm up a {type(lr_scheduler).__qualname__} of several parameters or optimizers, which "
                "would all get this warm-up; warm up each of its schedules, and make a ParamGroupScheduler of them"
            )
    if isinstance(warmup_duration, bool) or not isinstance(warmup_duration, int) or warmup_duration < 2:
        raise UsageError(f"asked for warmup_duration={warmup_duration!r}; give a whole number of at least 2")
    for name, value in (("warmup_start_value", warmup_start_value), ("warmup_end_value", warmup_end_value)):
        if not (name == "warmup_end_value" and value is None) and not (
            isinstance(value, Real) and math.isfinite(value)
        ):
            raise UsageError(f"asked for {name}={value!r}; give a finite number")
    if output_simulated_values is not None and not isinstance(output_simulated_values, list):
        raise UsageError(
            f"asked for output_simulated_values={output_simulated_values!r}; give a list as long as what you want to "
            "see, e.g. [None] * 200"
        )
    firsts = simulate(lr_scheduler, 1)[0][1:]
    ends = firsts if warmup_end_value is None else [warmup_end_value] * len(firsts)
    warmup = _warmup(lr_scheduler, warmup_start_value, ends, warmup_duration)
    duration = warmup_duration - 1 if ends == firsts else warmup_duration
    scheduler = ConcatScheduler([warmup, lr_scheduler], durations=[duration], save_history=save_history)
    if output_simulated_values is not None:
        output_simulated_values[:] = simulate(scheduler, len(output_simulated_values))
    return scheduler


def _warmup(scheduler: ParamScheduler, start: float, ends: list[float], duration: int) -> ParamScheduler:
    """One line for all groups, or for each its own, as ``scheduler`` has values."""
    optimizer, name = scheduler.optimizer, scheduler.param_name

    def line(end: float, group: int | None) -> PiecewiseLinear:
        return PiecewiseLinear(optimizer, name, [(0, start), (duration - 1, end)], param_group_index=group)

    if len(ends) == 1:
        return line(ends[0], scheduler.param_group_index)
    places = {id(group): index for index, group in enumerate(optimizer.param_groups)}
    groups = [places[id(group)] for group, _ in scheduler._columns()]
    return ParamGroupScheduler([line(end, group) for end, group in zip(ends, groups, strict=True)])
