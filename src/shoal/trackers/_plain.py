"""The loose values that people hand to a tracker, made plain: numbers, and configurations of any types."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from numbers import Number
from pathlib import PurePath
from typing import Any

import torch

from shoal.trackers._names import readable

__all__ = ["flat_config", "plain_config", "scalars"]

_MAX_DEPTH = 20
_MAX_FLOAT = int(sys.float_info.max)


def scalars(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """The numbers in a metric's value: one, or several as ``name/0``, ``name/1``, … or ``name/key``; none of a text."""
    if isinstance(value, torch.Tensor):
        value = () if value.is_meta else value.detach().to_dense().cpu().tolist()
    elif hasattr(value, "tolist") and not isinstance(value, Number):
        value = value.tolist()  # a NumPy array
    if isinstance(value, int) and abs(value) > _MAX_FLOAT:
        yield name, math.copysign(math.inf, value > 0 or -1)
    elif isinstance(value, (bool, int, float)):
        yield name, float(value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from scalars(f"{name}/{key}", item)
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        for index, item in enumerate(value):
            yield from scalars(f"{name}/{index}", item)
    elif isinstance(value, Number) and not isinstance(value, complex):
        yield name, float(value)  # type: ignore[arg-type]  # NumPy's and the standard library's numbers convert


def plain_config(value: Any, depth: int = 0) -> Any:
    """A configuration's value in dicts, lists, strings, numbers, booleans and None; what is unusual becomes text."""
    if value is None or (isinstance(value, (bool, int)) and not isinstance(value, enum.Enum)):
        return value
    if isinstance(value, str) and not isinstance(value, enum.Enum):
        return readable(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if depth >= _MAX_DEPTH:
        return readable(value)
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, PurePath):
        return readable(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {readable(key): plain_config(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_config(item, depth + 1) for item in value]
    if isinstance(value, AbstractSet):
        return sorted((plain_config(item, depth + 1) for item in value), key=str)
    if isinstance(value, torch.Tensor) and value.numel() <= 16:
        return plain_config(value.detach().cpu().tolist(), depth + 1)
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return plain_config(value.item(), depth + 1)  # a NumPy number
    return readable(value)


def flat_config(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """A plain configuration as texts by ``outer.inner`` names, for services that keep pairs; a list is its JSON."""
    flat: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat.update(flat_config(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = (
                json.dumps(value, ensure_ascii=False) if isinstance(value, (list, dict)) else str(value)
            )
    return flat
