"""Trap 40, from its other side: what would be saved and never load is refused before the file before it goes."""

from __future__ import annotations

import types
from collections import ChainMap, Counter, OrderedDict, defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from shoal import checkpoint
from shoal.errors import CheckpointError


class _Tensor(torch.Tensor):
    pass


class _Dict(dict):
    pass


class _Spread(torch.Tensor):
    """Stands for a DTensor, whose real kind needs a process group: see tests/handlers/test_spread_states.py."""

    placements = ("Shard(0)",)


@pytest.mark.parametrize(
    ("value", "loaded"),
    [
        (defaultdict(list, a=[1]), {"a": [1]}),
        (_Dict(a=1), {"a": 1}),
        (types.MappingProxyType({"a": 1}), {"a": 1}),
        (ChainMap({"a": 1}, {"b": 2}), {"a": 1, "b": 2}),
        (frozenset({1, 2}), {1, 2}),
        (np.str_("a"), "a"),
        (np.complex64(1j), 1j),
        ({(1, "a"): {2}}, {(1, "a"): {2}}),
    ],
)
def test_containers_that_need_code_become_plain(value, loaded, tmp_path):
    checkpoint.save({"v": value}, tmp_path / "a.pt")
    assert torch.load(tmp_path / "a.pt", weights_only=True) == {"v": loaded}


@pytest.mark.parametrize("value", [OrderedDict(b=1, a=2), Counter("abb"), nn.Parameter(torch.ones(2))])
def test_what_loads_stays_of_its_kind(value, tmp_path):
    checkpoint.save({"v": value}, tmp_path / "a.pt")
    assert type(torch.load(tmp_path / "a.pt", weights_only=True)["v"]) is type(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.datetime64("2020-01-01"), "datetime.date"),
        (np.timedelta64(3, "s"), "datetime.timedelta"),
        (np.longdouble(1), "longdouble"),
        (torch.ones(2).as_subclass(_Tensor), "of the class .*_Tensor.*add_safe_globals"),
        (torch.ones(2).as_subclass(_Spread), "this rank holds a part"),
        (nn.LazyLinear(2).state_dict(), "UninitializedParameter"),
        ({(Path("a"), 1): 1}, "the key .*Path"),
    ],
)
def test_what_would_not_load_is_refused_and_the_file_before_stays(value, text, tmp_path):
    checkpoint.save({"v": 1}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match=text):
        checkpoint.save({"v": value}, tmp_path / "a.pt")
    assert checkpoint.load(tmp_path / "a.pt") == {"v": 1}


def test_a_tensor_class_that_torch_was_told_of_is_saved(tmp_path):
    with torch.serialization.safe_globals([_Tensor]):
        checkpoint.save({"v": torch.ones(2).as_subclass(_Tensor)}, tmp_path / "a.pt")
        assert type(checkpoint.load(tmp_path / "a.pt")["v"]) is _Tensor


def test_no_altered_bit_of_a_records_entry_changes_what_is_loaded(tmp_path):
    # One makes torch read another record, one nothing at all, and one asks for zlib.
    path = tmp_path / "a.pt"
    weights = torch.arange(6.0)
    checkpoint.save({"w": weights, "v": -weights}, path)
    whole = path.read_bytes()
    name = whole.rindex(b"data/0")
    num_refused = 0
    for at in range(whole.rindex(b"PK\x01\x02", 0, name), name + len("data/0")):
        for bit in range(8):
            altered = bytearray(whole)
            altered[at] ^= 1 << bit
            path.write_bytes(altered)
            try:
                loaded = checkpoint.load(path)
            except CheckpointError:
                num_refused += 1
            else:
                assert torch.equal(loaded["w"], weights) and torch.equal(loaded["v"], -weights), (at, bit)
    assert num_refused > 100


def test_a_name_that_no_file_can_have_is_an_error_like_others():
    with pytest.raises(CheckpointError, match="null byte"):
        checkpoint.load("a\0b")
