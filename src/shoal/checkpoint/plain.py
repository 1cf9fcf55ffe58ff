"""State as plain data: what a file may hold so that it loads with ``weights_only=True``."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

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
    torch.Size,
    torch.dtype,
    torch.device,
)
_TENSORS = (torch.Tensor, nn.Parameter)
_MAPPINGS = (dict, OrderedDict, Counter)  # others would need code to load


def to_plain(value: Any, where: str = "state") -> Any:
    """Return ``value`` if it holds tensors, primitives and containers of them only.

    NumPy scalars become Python's, other mappings a dict, and a frozenset a set. A container is handed back as it is,
    with its own attributes, unless it, or something inside it, had to change.

    Args:
        value: dicts, lists, tuples and sets, to any depth, of tensors and primitives.
        where: what the value is called in an error.

    Raises:
        CheckpointError: something else is inside, or a tensor of which other ranks hold a part; the text says what and
            at which key.
    """
    if isinstance(value, np.generic):
        value = value.item()  # of a date or a long double no number
    kind = type(value)
    if kind in _LEAVES:
        return value
    if isinstance(value, torch.Tensor):
        _check_tensor(value, where)
        return value
    if isinstance(value, Mapping):
        items = {key: to_plain(inner, f"{where}[{key!r}]") for key, inner in value.items()}
        for key in items:
            _check_key(key, where)
        return value if kind in _MAPPINGS and all(items[key] is value[key] for key in items) else items
    if kind in (list, tuple):
        inner = [to_plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
        return value if all(new is old for new, old in zip(inner, value, strict=True)) else kind(inner)
    if kind in (set, frozenset):
        return {to_plain(item, f"an item of {where}") for item in value}
    raise CheckpointError(
        f"asked to save {where}, found a {kind.__module__}.{kind.__qualname__} there; a checkpoint holds tensors, "
        "numbers, strings and containers of them only, so that loading it runs no code: convert it in state_dict()"
    )


def _check_tensor(tensor: torch.Tensor, where: str) -> None:
    kind = type(tensor)
    if hasattr(tensor, "placements"):
        raise CheckpointError(
            f"asked to save {where}, found a {kind.__qualname__} there, of which this rank holds a part: the others' "
            "would be lost; gather the whole of it in state_dict(), as by torch.distributed.checkpoint.state_dict"
        )
    if kind not in _TENSORS and kind not in torch.serialization.get_safe_globals():
        raise CheckpointError(
            f"asked to save {where}, found a tensor of the class {kind.__module__}.{kind.__qualname__} there, which "
            "needs code to load; make it an ordinary tensor, or tell torch.serialization.add_safe_globals of the class"
        )


def _check_key(key: object, where: str) -> None:
    if type(key) is tuple:
        for part in key:
            _check_key(part, where)
    elif type(key) not in (str, int, float, bool, bytes, type(None)):
        raise CheckpointError(
            f"asked to save {where}, found the key {key!r} of type {type(key).__qualname__}; "
            "use strings or numbers as keys"
        )
