"""From objects to plain state and back."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from shoal._registry import nearest
from shoal.checkpoint._fit import Differences, check_fit, fit_names, is_checkable
from shoal.checkpoint._nested import is_container, leaves, map_leaves, state_at
from shoal.errors import CheckpointError, UsageError

__all__ = ["check_objects", "collect_states", "restore_states"]

_log = logging.getLogger(__name__)


def check_objects(objects: object, *, argument: str, method: str) -> None:
    """Refuse, at the door, anything but a mapping from names to objects that have ``method``.

    Raises:
        UsageError: the text names the argument, and the entry that does not fit.
    """
    if not isinstance(objects, Mapping) or not objects:
        raise UsageError(
            f"asked for {argument}={objects!r}; give a dict such as {{'model': model, 'optimizer': optimizer}}"
        )
    for path, item in leaves(objects, method).items():
        name = _named(path)
        strange = [key for key in path if not isinstance(key, (str, int))]
        if strange or not isinstance(path[0], str):
            raise UsageError(f"{argument} has the key {[*strange, path[0]][0]!r}; use strings as keys")
        if not callable(getattr(item, method, None)):
            raise UsageError(
                f"{argument}[{name!r}] is a {type(item).__qualname__} without {method}(); "
                "give an object that has state_dict() and load_state_dict()"
            )


def collect_states(objects: Mapping[str, Any], unwrap: Callable[[Any], Any] = lambda item: item) -> dict[str, Any]:
    """The state of each object, by name.

    Args:
        objects: objects with ``state_dict()``, or dicts and lists of them, which become the same of states.
        unwrap: takes the wrapping for data parallelism off a module, so that its file fits the bare module.
    """
    return {
        name: map_leaves(lambda leaf: unwrap(leaf).state_dict(), item, "state_dict") for name, item in objects.items()
    }


def restore_states(
    objects: Mapping[str, Any],
    checkpoint: Mapping[str, Any],
    *,
    strict: bool = True,
    assign: bool = False,
    unwrap: Callable[[Any], Any] = lambda item: item,
) -> None:
    """Load into each object its state in ``checkpoint``, or leave all of them as they were and raise.

    A single object also takes a checkpoint that is its own state. A module takes a state that was saved with or
    without wrapping.

    All states are looked for, and modules and torch's optimizers are compared with theirs, before anything is changed.
    Then the other objects load, as well as modules and optimizers with a way of loading of their own; where one fails,
    those before it get back what ``state_dict()`` gave before (a copy of it is kept meanwhile). What was compared
    loads last. What remains: an object that does not take back its own state, an optimizer whose state is spread over
    the ranks, and what an optimizer of one's own finds out only when it steps.

    Args:
        objects: objects with ``load_state_dict()``, or dicts and lists of them.
        checkpoint: states by name.
        strict: whether a module's state must have exactly the module's keys; otherwise what differs is logged.
        assign: whether a module takes the tensors of the state themselves, as in ``nn.Module.load_state_dict``.
        unwrap: as in :func:`collect_states`.

    Raises:
        CheckpointError: an object has no state in the checkpoint, or does not take it.
    """
    states = _states_for(objects, checkpoint, unwrap)
    bare = {_named(path): unwrap(item) for path, item in leaves(objects, "load_state_dict").items()}
    for name, item in bare.items():
        if isinstance(item, nn.Module) and isinstance(states[name], Mapping):
            states[name] = fit_names(item, states[name])
    checked = [name for name, item in bare.items() if is_checkable(item)]
    for name in checked:
        check_fit(name, bare[name], states[name], strict=strict)
    done: list[tuple[str, Any, Any]] = []
    for name in (name for name in bare if name not in checked):
        done.append((name, bare[name], copy.deepcopy(_state_of(bare[name]))))
        try:
            _restore(name, bare[name], states[name], strict=strict, assign=assign)
        except BaseException as error:
            _give_back(done, error)
            raise
    for name in checked:
        _restore(name, bare[name], states[name], strict=strict, assign=assign)


def _states_for(
    objects: Mapping[str, Any], checkpoint: Mapping[str, Any], unwrap: Callable[[Any], Any]
) -> dict[str, Any]:
    """Each object's state, by its name; raises CheckpointError where one is missing."""
    places = leaves(objects, "load_state_dict")
    if len(objects) == 1:
        ((name, item),) = objects.items()
        alone = not is_container(item, "load_state_dict") and not isinstance(checkpoint.get(name), Mapping)
        if alone and _is_own_state(unwrap(item), checkpoint):
            return {name: checkpoint}
    states, missing = {}, []
    for path in places:
        try:
            states[_named(path)] = state_at(checkpoint, path)
        except KeyError:
            missing.append(_named(path))
    if missing:
        keys = [str(key) for key in checkpoint]
        hints = "".join(f"; {name!r} is missing{nearest(name, keys)}" for name in missing)
        shown = ", ".join(keys[:10]) + (f", … ({len(keys)} in all)" if len(keys) > 10 else "")
        raise CheckpointError(
            f"asked to load {', '.join(map(repr, objects))}, found a checkpoint of {shown}{hints}; "
            "load only what it holds, or use another checkpoint"
        )
    return states


def _named(path: tuple[str | int, ...]) -> str:
    return ".".join(map(str, path))


def _is_own_state(item: Any, state: Mapping[str, Any]) -> bool:
    """Whether ``state`` looks like what the object saves of itself; torch's schedulers would take anything."""
    own = _state_of(item)
    known = set(own) if isinstance(own, Mapping) else set()
    found = set(fit_names(item, state)) if isinstance(item, nn.Module) else set(state)
    return not known or bool(known & found)


def _state_of(item: Any) -> Any:
    """The object's state; None where it cannot be had now, or not on one rank alone."""
    if not hasattr(item, "state_dict") or hasattr(item, "consolidate_state_dict"):
        return None
    try:
        return item.state_dict()
    except (RuntimeError, ValueError, TypeError, AttributeError, KeyError):
        return None  # as of an engine whose own keys only loading will set


def _give_back(done: list[tuple[str, Any, Any]], error: BaseException) -> None:
    """Undo what was loaded before something failed; what cannot be undone is added to the error."""
    for name, item, before in reversed(done):
        if before is None:
            continue
        try:
            item.load_state_dict(before)
        except Exception as again:
            error.add_note(f"The state of {name!r} could not be given back: {type(again).__name__}: {again}")


def _restore(name: str, item: Any, state: Any, *, strict: bool, assign: bool) -> None:
    try:
        if isinstance(item, nn.Module):
            _restore_module(name, item, state, strict=strict, assign=assign)
        else:
            item.load_state_dict(state)
    except CheckpointError:
        raise
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"asked to load the state of {name!r} into a {type(item).__qualname__}, which does not take it: {error}. "
            "Use a checkpoint of the same kind of object, or leave this one out of to_load"
        ) from error


def _restore_module(name: str, module: nn.Module, state: Mapping[str, Any], *, strict: bool, assign: bool) -> None:
    result = module.load_state_dict(state, strict=strict, assign=assign)
    found = Differences(missing=result.missing_keys, unexpected=result.unexpected_keys)
    if found.missing or found.unexpected:
        _log.warning("Loaded the state of '%s' with strict=False, only what both have; %s", name, found)
