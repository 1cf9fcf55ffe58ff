"""From objects to plain state and back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from shoal._registry import nearest
from shoal.errors import CheckpointError, UsageError

__all__ = ["check_objects", "collect_states", "restore_states"]

_log = logging.getLogger(__name__)
_WRAPPER_PREFIXES = ("module.", "_orig_mod.")


def check_objects(objects: object, *, argument: str, method: str) -> None:
    """Refuse, at the door, anything but a mapping from names to objects that have ``method``.

    Raises:
        UsageError: the text names the argument, and the entry that does not fit.
    """
    if not isinstance(objects, Mapping) or not objects:
        raise UsageError(
            f"asked for {argument}={objects!r}; give a dict such as {{'model': model, 'optimizer': optimizer}}"
        )
    for name, item in objects.items():
        if not isinstance(name, str):
            raise UsageError(f"{argument} has the key {name!r}; use strings as keys")
        if not callable(getattr(item, method, None)):
            raise UsageError(
                f"{argument}[{name!r}] is a {type(item).__qualname__} without {method}(); "
                "give an object that has state_dict() and load_state_dict()"
            )


def collect_states(objects: Mapping[str, Any], unwrap: Callable[[Any], Any] = lambda item: item) -> dict[str, Any]:
    """The state of each object, by name.

    Args:
        objects: objects with ``state_dict()``.
        unwrap: takes the wrapping for data parallelism off a module, so that its file fits the bare module.
    """
    return {name: unwrap(item).state_dict() for name, item in objects.items()}


def restore_states(
    objects: Mapping[str, Any],
    checkpoint: Mapping[str, Any],
    *,
    strict: bool = True,
    unwrap: Callable[[Any], Any] = lambda item: item,
) -> None:
    """Load into each object its state in ``checkpoint``.

    A single object also takes a checkpoint that is its own state. A module takes a state that was saved with or
    without wrapping.

    Args:
        objects: objects with ``load_state_dict()``.
        checkpoint: states by name.
        strict: whether a module's state must have exactly the module's keys; otherwise what differs is logged.
        unwrap: as in :func:`collect_states`.

    Raises:
        CheckpointError: an object has no state in the checkpoint, or does not take it.
    """
    if len(objects) == 1:
        ((name, item),) = objects.items()
        if isinstance(checkpoint.get(name), Mapping):
            _restore(name, unwrap(item), checkpoint[name], strict=strict)
            return
        if _is_own_state(unwrap(item), checkpoint):
            _restore(name, unwrap(item), checkpoint, strict=strict)
            return
    missing = [name for name in objects if name not in checkpoint]
    if missing:
        hints = "".join(f"; {name!r} is missing{nearest(name, [str(key) for key in checkpoint])}" for name in missing)
        keys = [str(key) for key in checkpoint]
        shown = ", ".join(keys[:10]) + (f", … ({len(keys)} in all)" if len(keys) > 10 else "")
        raise CheckpointError(
            f"asked to load {', '.join(map(repr, objects))}, found a checkpoint of {shown}{hints}; "
            "load only what it holds, or use another checkpoint"
        )
    for name, item in objects.items():
        _restore(name, unwrap(item), checkpoint[name], strict=strict)


def _is_own_state(item: Any, state: Mapping[str, Any]) -> bool:
    """Whether ``state`` looks like what the object saves of itself; torch's schedulers would take anything."""
    known = set(item.state_dict())
    found = set(_without_wrapper_prefix(state, known)) if isinstance(item, nn.Module) else set(state)
    return not known or bool(known & found)


def _restore(name: str, item: Any, state: Any, *, strict: bool) -> None:
    try:
        if isinstance(item, nn.Module):
            _restore_module(name, item, state, strict=strict)
        else:
            item.load_state_dict(state)
    except CheckpointError:
        raise
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"asked to load the state of {name!r} into a {type(item).__qualname__}, which does not take it: {error}. "
            "Use a checkpoint of the same kind of object, or leave this one out of to_load"
        ) from error


def _restore_module(name: str, module: nn.Module, state: Mapping[str, Any], *, strict: bool) -> None:
    fitting = _without_wrapper_prefix(state, set(module.state_dict()))
    result = module.load_state_dict(fitting, strict=strict)
    if result.missing_keys or result.unexpected_keys:
        _log.warning(
            "Loaded the state of '%s' with strict=False: left missing keys %s as they are, ignored unexpected keys %s",
            name,
            result.missing_keys,
            result.unexpected_keys,
        )


def _without_wrapper_prefix(state: Mapping[str, Any], wanted: set[str]) -> Mapping[str, Any]:
    """The state under the bare module's keys, where a wrapper has put its own name before every key."""
    for _ in range(len(_WRAPPER_PREFIXES)):
        if wanted & set(state):
            break
        prefix = next((p for p in _WRAPPER_PREFIXES if state and all(str(key).startswith(p) for key in state)), None)
        if prefix is None:
            break
        state = {key.removeprefix(prefix): value for key, value in state.items()}
    return state
