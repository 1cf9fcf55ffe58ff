"""A batch without samples, of the structure that the batches of the same loader have."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from shoal.errors import DataError

__all__ = ["empty_batch"]


def empty_batch(collate: Callable[[list[Any]], Any], sample: Any) -> Any:
    """The batch that ``collate`` would make of no sample.

    ``collate`` makes a batch of one and one of two copies of ``sample``; whatever has a different size in them counts
    samples and is cut to nothing, the rest is structure and stays. So the batch dimension need not be the first, and
    a list of one entry a sample is told from a pair of inputs and targets.

    Raises:
        DataError: a batch holds an object whose samples cannot be taken away.
    """
    return _without_samples(collate([sample]), collate([sample, sample]))


def _without_samples(one: Any, two: Any) -> Any:
    if isinstance(one, torch.Tensor | np.ndarray) and len(one.shape) == len(two.shape):
        return _cut(one, two)
    if isinstance(one, str | bytes):
        return one
    if isinstance(one, Mapping):
        return _like_mapping(one, {key: _without_samples(one[key], two[key]) for key in one})
    if isinstance(one, Sequence):
        if len(one) != len(two):
            return one[:0]
        parts = [_without_samples(*pair) for pair in zip(one, two, strict=True)]
        return type(one)(*parts) if hasattr(one, "_fields") else type(one)(parts)  # type: ignore[call-arg]
    if dataclasses.is_dataclass(one) and not isinstance(one, type):
        names = [field.name for field in dataclasses.fields(one) if field.init]
        parts_by_name = {name: _without_samples(getattr(one, name), getattr(two, name)) for name in names}
        return dataclasses.replace(one, **parts_by_name)
    if one is None or isinstance(one, bool | int | float | complex):
        return one
    raise DataError(
        f"a rank without a sample needs an empty batch, and batches hold a {type(one).__module__}."
        f"{type(one).__qualname__}, which cannot be emptied; let collate_fn return tensors in tuples, lists, dicts or "
        "dataclasses, or choose a batch_size that leaves no rank without a sample"
    )


def _cut(one: Any, two: Any) -> Any:
    for dim, (size_of_one, size_of_two) in enumerate(zip(one.shape, two.shape, strict=True)):
        if size_of_one != size_of_two:
            return one[(slice(None),) * dim + (slice(0, 0),)]
    return one


def _like_mapping(original: Mapping[Any, Any], parts: dict[Any, Any]) -> Mapping[Any, Any]:
    if type(original) is dict:
        return parts
    try:
        return type(original)(parts)  # type: ignore[call-arg]
    except TypeError:
        return parts  # as torch's default_collate does for mappings that cannot be built from a dict
