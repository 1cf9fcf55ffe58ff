"""What a call of ``run`` asks for, measured against where the engine is: start, go on, or nothing to do."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from shoal.engine.state import State
from shoal.errors import UsageError

__all__ = ["Decision", "Standing", "check_arguments", "decide", "finished", "goal_of", "set_goal"]

Decision = Literal["start", "resume", "nothing"]

_RESTART = "set engine.state.max_epochs = None before run() to start from nothing"


@dataclass(frozen=True, slots=True)
class Standing:
    """How the last run of an engine was left.

    Attributes:
        in_epoch: in the middle of an epoch.
        ending: in one that ``terminate_epoch()`` is about to end.
        paused: by ``interrupt()``.
        failed: by an exception.
        loaded: by ``load_state_dict``.
    """

    in_epoch: bool
    ending: bool
    paused: bool
    failed: bool
    loaded: bool


def check_arguments(max_epochs: int | None, max_iters: int | None, epoch_length: int | None) -> None:
    """Raise UsageError for numbers that no run could have."""
    if max_epochs is not None and max_iters is not None:
        raise UsageError(
            f"run() was given max_epochs={max_epochs} and max_iters={max_iters}, which exclude each other; give one"
        )
    for name, value, least in (
        ("max_epochs", max_epochs, 0),
        ("max_iters", max_iters, 0),
        ("epoch_length", epoch_length, 1),
    ):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise UsageError(f"run() was given {name}={value!r}; give a whole number of at least {least}")


def finished(state: State, *, in_epoch: bool) -> bool:
    """Whether the run has reached its goal, EPOCH_COMPLETED of its last epoch included."""
    if state.max_iters is not None:
        full = in_epoch and state.epoch_length is not None and state.epoch_iteration >= state.epoch_length
        return state.iteration >= state.max_iters and not full
    return state.max_epochs is not None and not in_epoch and state.epoch >= state.max_epochs


def decide(state: State, standing: Standing, max_epochs: int | None, max_iters: int | None) -> Decision:
    """What ``run`` has to do.

    A run that reached its goal is done once more from nothing where no goal is given, or where it was one pass over the
    data at the most, as an evaluation is; one whose state was loaded is not, unless it is such a pass without a goal.

    Raises:
        UsageError: the goal lies before the place that the run has reached.
    """
    given = max_epochs is not None or max_iters is not None
    # Where max_iters is the goal, max_epochs is set too once an epoch has a length: None was put there by hand.
    anew = state.max_epochs is None and (state.max_iters is None or state.epoch_length is not None)
    if anew and not standing.loaded:
        return "start"
    if standing.failed and not given and state.epoch <= 1:
        return "start"  # an evaluation that broke off is worth nothing half done
    if finished(state, in_epoch=standing.in_epoch) and not standing.paused and not standing.ending:
        one_pass = state.epoch <= 1
        if not given:
            return "nothing" if standing.loaded and not one_pass else "start"
        if max_epochs == state.epoch or (max_iters is not None and max_iters == state.iteration):
            return "start" if one_pass and not standing.loaded else "nothing"
    if max_epochs is not None and max_epochs < state.epoch:
        raise UsageError(f"run() was given max_epochs={max_epochs} in epoch {state.epoch}; give more, or {_RESTART}")
    if max_iters is not None and max_iters < state.iteration:
        raise UsageError(
            f"run() was given max_iters={max_iters} after iteration {state.iteration}; give more, or {_RESTART}"
        )
    return "resume"


def set_goal(state: State, max_epochs: int | None, max_iters: int | None) -> None:
    """Put the goal into ``state``: as given, else as it was, else one epoch.

    With ``max_iters``, ``max_epochs`` tells how many epochs these take, where that is known.
    """
    if max_iters is not None:
        state.max_iters = max_iters
    elif max_epochs is not None:
        state.max_iters, state.max_epochs = None, max_epochs
    elif state.max_iters is None and state.max_epochs is None:
        state.max_epochs = 1
    if state.max_iters is not None:
        state.max_epochs = math.ceil(state.max_iters / state.epoch_length) if state.epoch_length else None


def goal_of(state: State) -> str:
    """The goal in words."""
    return f"max_epochs={state.max_epochs}" if state.max_iters is None else f"max_iters={state.max_iters}"
