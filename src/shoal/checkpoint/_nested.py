"""Objects by name, some of them in dicts and lists below a name: walked as one flat mapping."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = ["is_container", "leaves", "map_leaves", "state_at"]

Path = tuple[str | int, ...]


def is_container(item: Any, method: str) -> bool:
    """Whether ``item`` is a dict, a list or a tuple of objects rather than an object that has ``method`` itself."""
    return isinstance(item, (Mapping, list, tuple)) and not hasattr(item, method)


def leaves(objects: Mapping[str, Any], method: str) -> dict[Path, Any]:
    """The objects by where they are: ``("optimizers", 0)`` for ``{"optimizers": [adam, sgd]}``."""
    return dict(_walk((), objects, method))


def map_leaves(function: Callable[[Any], Any], item: Any, method: str) -> Any:
    """``function`` of each object, in dicts and lists as the objects are."""
    if not is_container(item, method):
        return function(item)
    if isinstance(item, Mapping):
        return {name: map_leaves(function, inner, method) for name, inner in item.items()}
    return [map_leaves(function, inner, method) for inner in item]


def state_at(checkpoint: Any, path: Path) -> Any:
    """What is at a place of a checkpoint; raises KeyError where that is nothing."""
    for part in path:
        try:
            checkpoint = checkpoint[part]
        except (IndexError, TypeError) as error:
            raise KeyError(part) from error
    return checkpoint


def _walk(path: Path, item: Any, method: str) -> Iterator[tuple[Path, Any]]:
    if not is_container(item, method):
        yield path, item
        return
    for key, inner in item.items() if isinstance(item, Mapping) else enumerate(item):
        yield from _walk((*path, key), inner, method)
