"""State as plain data: what a file may hold so that it loads with ``weights_only=True``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from shoal.errors import CheckpointError

__all__ = ["to_plain"]

_LEAVES = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    bytearray,
    type(None),
    torch.Tensor,
    torch.Size,
    torch.dtype,
    torch.device,
)


def to_plain(value: Any, where: str = "state") -> Any:
    """Return ``value`` if it holds tensors, primitives and containers of them only; NumPy scalars become Python's.

    A container is handed back as it is, with its own attributes, unless something inside it had to change.

    Args:
        value: dicts, lists, tuples and sets, to any depth, of tensors and primitives.
        where: what the value is called in an error.

    Raises:
        CheckpointError: something else is inside; the text says what and at which key.
    """
    kind = type(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, _LEAVES) and (isinstance(value, torch.Tensor) or kind in _LEAVES):
        return value
    if isinstance(value, Mapping):
        items = {key: to_plain(inner, f"{where}[{key!r}]") for key, inner in value.items()}
        for key in items:
            _check_key(key, where)
        return value if all(items[key] is value[key] for key in items) else items
    if kind in (list, tuple):
        inner = [to_plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
        return value if all(new is old for new, old in zip(inner, value, strict=True)) else kind(inner)
    if kind in (set, frozenset):
        return kind(to_plain(item, f"an item of {where}") for item in value)
    raise CheckpointError(
        f"asked to save {where}, found a {kind.__module__}.{kind.__qualname__} there; a checkpoint holds tensors, "
        "numbers, strings and containers of them only, so that loading it runs no code: convert it in state_dict()"
    )


def _check_key(key: object, where: str) -> None:
    if type(key) not in (str, int, float, bool, bytes, tuple, type(None)):
        raise CheckpointError(
            f"asked to save {where}, found the key {key!r} of type {type(key).__qualname__}; "
            "use strings or numbers as keys"
        )
