from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from shoal.data.empty import empty_batch
from shoal.errors import DataError


class Point(NamedTuple):
    x: Any
    y: Any


@dataclass
class Pair:
    image: Any
    size: int


def test_torch_s_collate_gives_tensors_without_rows() -> None:
    image, label = empty_batch(default_collate, (torch.zeros(3, 4), 7))
    assert image.shape == (0, 3, 4)
    assert label.shape == (0,)
    assert label.dtype == torch.int64


def test_dicts_named_tuples_strings_and_arrays_keep_their_structure() -> None:
    sample = {"image": torch.zeros(2), "name": "a", "at": Point(1.0, np.zeros(3)), "tags": ("x", "y")}
    empty = empty_batch(default_collate, sample)
    assert list(empty) == ["image", "name", "at", "tags"]
    assert empty["image"].shape == (0, 2)
    assert empty["name"] == []
    assert isinstance(empty["at"], Point)
    assert empty["at"].x.dtype == torch.float64
    assert empty["at"].y.shape == (0, 3)
    assert [list(tag) for tag in empty["tags"]] == [[], []]


def test_a_list_of_one_entry_a_sample_is_told_from_a_pair() -> None:
    def collate(samples: list[Any]) -> Any:
        return tuple(zip(*samples, strict=True))

    assert empty_batch(collate, (torch.zeros(3, 5, 5), {"boxes": torch.zeros(2, 4)})) == ((), ())
    assert empty_batch(lambda samples: samples, torch.zeros(2)) == []


def test_the_batch_dimension_need_not_be_the_first() -> None:
    tokens = empty_batch(lambda samples: torch.stack(samples, dim=1), torch.zeros(9, 4))
    assert tokens.shape == (9, 0, 4)


def test_what_does_not_count_samples_stays() -> None:
    def collate(samples: list[Any]) -> Any:
        return OrderedDict(x=torch.stack(samples), scale=torch.tensor(2.0), kind="digits", mean=0.5, none=None)

    empty = empty_batch(collate, torch.zeros(2))
    assert isinstance(empty, OrderedDict)
    assert empty["x"].shape == (0, 2)
    assert empty["scale"] == 2.0
    assert (empty["kind"], empty["mean"], empty["none"]) == ("digits", 0.5, None)


def test_dataclasses_and_numpy_arrays_are_cut() -> None:
    empty = empty_batch(lambda samples: Pair(np.stack(samples), 3), np.zeros((2, 2)))
    assert isinstance(empty, Pair)
    assert empty.image.shape == (0, 2, 2)
    assert empty.size == 3


def test_an_object_that_cannot_be_emptied_is_named() -> None:
    class Opaque:
        pass

    with pytest.raises(DataError, match="Opaque"):
        empty_batch(lambda samples: Opaque(), 1)
