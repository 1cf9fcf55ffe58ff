"""The place of a run in primitives, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast, get_args

from shoal._registry import nearest
from shoal.engine._feed import Feed
from shoal.engine.state import State
from shoal.errors import UsageError

__all__ = ["Ending", "LengthFrom", "load_into", "saved"]

# Where the epoch's length comes from: run()'s argument, the data's own len(), or where the data ended.
LengthFrom: TypeAlias = Literal["argument", "data", "end_of_data"]

# What terminate_epoch() asked for: EPOCH_COMPLETED at the end of the epoch, or none.
Ending: TypeAlias = Literal["fire", "skip"]

_KEYS = (
    "iteration", "epoch", "epoch_length", "max_epochs", "max_iters",
    "in_epoch", "epoch_iteration", "epoch_length_from", "data_epoch", "data_iteration", "data_ended",
    "epoch_ending", "event_counts",
)  # fmt: skip

_COUNTS = {  # the least that each may be; all may be None, or missing
    "iteration": 0, "epoch": 0, "epoch_length": 1, "max_epochs": 0, "max_iters": 0,
    "epoch_iteration": 0, "data_epoch": -1, "data_iteration": 0,
}  # fmt: skip
_CHOICES: dict[str, tuple[Any, ...]] = {
    "in_epoch": (True, False),
    "data_ended": (True, False),
    "epoch_length_from": get_args(LengthFrom),
    "epoch_ending": (None, *get_args(Ending)),
}


def saved(
    state: State, feed: Feed, done: int, in_epoch: bool, length_from: LengthFrom, user_keys: Sequence[str]
) -> dict[str, Any]:
    """The place of a run of which ``done`` iterations are complete.

    Raises:
        UsageError: a user key is no attribute of the state.
    """
    missing = [key for key in user_keys if not hasattr(state, key)]
    if missing:
        raise UsageError(f"state_dict_user_keys names {missing}, which engine.state doesn't have; set them first")
    data_epoch, position = feed.place(done - state.data_base)
    own = {
        "iteration": done,
        "epoch": state.epoch,
        "epoch_length": state.epoch_length,
        "max_epochs": state.max_epochs,
        "max_iters": state.max_iters,
        "in_epoch": in_epoch,
        "epoch_iteration": done - state.epoch_base if in_epoch else 0,
        "epoch_length_from": length_from,
        "data_epoch": data_epoch,
        "data_iteration": 0 if feed.ended else position,
        "data_ended": feed.ended,
    }
    return {**own, **{key: getattr(state, key) for key in user_keys}}


def load_into(
    state: State, feed: Feed, state_dict: Mapping[str, Any], user_keys: Sequence[str]
) -> tuple[bool, LengthFrom]:
    """Put what ``saved`` returned into ``state`` and ``feed``.

    Returns:
        Whether the place is in the middle of an epoch, and where the epoch's length came from.

    Raises:
        UsageError: ``state_dict`` is no such mapping; nothing is changed then.
    """
    _check(state_dict, user_keys)
    length = state_dict.get("epoch_length")
    iteration = state_dict.get("iteration")
    if iteration is None:
        iteration = state_dict["epoch"] * length
    # Where only iterations were saved, the rest follows from whole epochs.
    open_iterations = iteration % length if length else 0
    in_epoch = state_dict.get("in_epoch", open_iterations > 0)
    epoch_iteration = state_dict.get("epoch_iteration", open_iterations)
    epoch = state_dict.get("epoch") if "in_epoch" in state_dict or not length else -(-iteration // length)
    state.iteration = iteration
    state.epoch = epoch or 0
    state.epoch_length = length
    state.max_epochs = state_dict.get("max_epochs")
    state.max_iters = state_dict.get("max_iters")
    position = state_dict.get("data_iteration", epoch_iteration)
    state.epoch_base = iteration - epoch_iteration
    state.data_base = iteration - position
    feed.restore(
        number=state_dict.get("data_epoch", state.epoch - 1),
        position=position,
        ended=state_dict.get("data_ended", not in_epoch),
    )
    for key in user_keys:
        setattr(state, key, state_dict[key])
    return in_epoch, cast("LengthFrom", state_dict.get("epoch_length_from", "argument"))


def _check(state_dict: Mapping[str, Any], user_keys: Sequence[str]) -> None:
    if not isinstance(state_dict, Mapping):
        raise UsageError(f"load_state_dict() was given a {type(state_dict).__name__}; give what state_dict() returned")
    known = [*_KEYS, *user_keys]
    unknown = [key for key in state_dict if key not in known]
    if unknown:
        raise UsageError(
            f"the engine's state has an unknown key {unknown[0]!r}{nearest(str(unknown[0]), known)}; it takes {known}: "
            "add keys of your own to state_dict_user_keys before loading"
        )
    missing = [key for key in user_keys if key not in state_dict]
    if missing:
        raise UsageError(f"the engine's state lacks the keys {missing}, which state_dict_user_keys names")
    _check_values(state_dict)
    length, iteration, epoch = (state_dict.get(key) for key in ("epoch_length", "iteration", "epoch"))
    if iteration is None and (epoch is None or (epoch > 0 and not length)):
        raise UsageError(
            f"the engine's state with keys {list(state_dict)} doesn't tell its place; it needs 'iteration', or 'epoch' "
            "and 'epoch_length'"
        )
    if (iteration or epoch) and state_dict.get("max_epochs") is None and state_dict.get("max_iters") is None:
        raise UsageError("the engine's state has neither 'max_epochs' nor 'max_iters'; it needs one of them")


def _check_values(state_dict: Mapping[str, Any]) -> None:
    """Find what no run can have saved, as a file that was changed by hand, before it is believed."""
    for key, least in _COUNTS.items():
        value = state_dict.get(key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            raise UsageError(
                f"the engine's state has {key}={value!r}, which must be a whole number of at least {least}, or None"
            )
    for key, choices in _CHOICES.items():
        if key in state_dict and state_dict[key] not in choices:
            raise UsageError(f"the engine's state has {key}={state_dict[key]!r}, which must be one of {list(choices)}")
    firings = state_dict.get("event_counts", {})
    if not isinstance(firings, Mapping) or not all(isinstance(count, int) for count in firings.values()):
        raise UsageError(f"the engine's state has event_counts={firings!r}, which must hold whole numbers by event")
    begun, iteration = state_dict.get("epoch_iteration"), state_dict.get("iteration")
    if begun is not None and iteration is not None and begun > iteration:
        raise UsageError(f"the engine's state has epoch_iteration={begun} of iteration={iteration}, which is more")
