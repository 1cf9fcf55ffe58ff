"""Batches: moved to a device, whatever they are made of."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence
from typing import Any, cast

import torch

from shoal.errors import UsageError

__all__ = ["convert_tensor", "map_tensors", "prepare_batch"]


def map_tensors(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """Apply ``function`` to every tensor in nested mappings, sequences and named tuples; the structure is kept.

    Strings, numbers, None and other objects stay as they are.
    """
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, str | bytes):
        return value
    if isinstance(value, MutableMapping | MutableSequence):
        return _copied(function, value)
    if isinstance(value, Mapping):
        return {key: map_tensors(function, item) for key, item in value.items()}
    if isinstance(value, tuple):
        items = [map_tensors(function, item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return value


def _copied(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """A copy of the container's own kind, whatever its constructor takes, with its items mapped."""
    result = copy.copy(value)
    for key in value if isinstance(value, MutableMapping) else range(len(value)):
        result[key] = map_tensors(function, value[key])
    return result


def convert_tensor(value: Any, device: torch.device | str | None = None, non_blocking: bool = False) -> Any:
    """Move every tensor in ``value`` to ``device``.

    Args:
        value: a tensor, or mappings, sequences and named tuples of them, nested.
        device: None leaves tensors where they are.
        non_blocking: copy from pinned memory without waiting.
    """
    if device is None:
        return value
    return map_tensors(lambda tensor: tensor.to(device=device, non_blocking=non_blocking), value)


def prepare_batch(batch: Any, device: torch.device | str | None = None, non_blocking: bool = False) -> tuple[Any, Any]:
    """Split a batch ``(x, y)`` and move both to ``device``.

    Raises:
        UsageError: the batch is no tuple or list of two.
    """
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        found = f" of {len(batch)} items" if hasattr(batch, "__len__") else ""
        raise UsageError(
            f"a batch of (x, y) was expected, but a {type(batch).__name__}{found} came from the loader; "
            "pass prepare_batch=... that makes (x, y) of it"
        )
    x, y = batch
    if device is None:
        return x, y
    return _moved(x, device, non_blocking), _moved(y, device, non_blocking)


def _moved(value: Any, device: torch.device | str, non_blocking: bool) -> Any:
    if isinstance(value, torch.Tensor):
        return value if value.device == device else value.to(device, non_blocking=non_blocking)
    return cast("Any", convert_tensor(value, device, non_blocking))
