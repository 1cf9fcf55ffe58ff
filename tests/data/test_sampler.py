from __future__ import annotations

import itertools
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.data import ShardedSampler
from shoal.errors import UsageError


def by_step(num_samples: int, batch_size: int, world_size: int, **options: object) -> list[list[int]]:
    """The global batches, put together from every rank's keys."""
    ranks = [
        list(
            ShardedSampler(
                num_samples,
                batch_size=batch_size,
                rank=rank,
                world_size=world_size,
                **options,  # type: ignore[arg-type]
            ).keys(3, 0)
        )
        for rank in range(world_size)
    ]
    return [[index for key in keys if key.share.local for index in key.indices] for keys in zip(*ranks, strict=True)]


@given(
    num_samples=st.integers(0, 120),
    batch_size=st.integers(1, 40),
    world_size=st.integers(1, 8),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_global_batches_are_those_of_one_process(
    num_samples: int, batch_size: int, world_size: int, drop_last: bool, shuffle: bool
) -> None:
    options = {"drop_last": drop_last, "shuffle": shuffle, "seed": 5}
    batches = by_step(num_samples, batch_size, world_size, **options)
    assert batches == by_step(num_samples, batch_size, 1, **options)
    order = [index for batch in batches for index in batch]
    if drop_last:
        assert len(order) == len(set(order)) == num_samples // batch_size * batch_size
    else:
        assert sorted(order) == list(range(num_samples))
    if not shuffle:
        assert order == list(range(len(order)))


@given(num_samples=st.integers(0, 60), batch_size=st.integers(1, 20), world_size=st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_iterating_gives_this_rank_s_indices_and_its_length(num_samples: int, batch_size: int, world_size: int) -> None:
    order = []
    for rank in range(world_size):
        sampler = ShardedSampler(num_samples, batch_size=batch_size, shuffle=True, rank=rank, world_size=world_size)
        indices = list(sampler)
        assert len(indices) == len(sampler)
        order += indices
    assert sorted(order) == list(range(num_samples))


def test_the_same_steps_come_however_many_are_computed_at_once() -> None:
    sampler = ShardedSampler(50_000, batch_size=64, shuffle=True, rank=1, world_size=3)
    keys = list(sampler.keys(2, 0))
    for start in (1, 191, 192, 193, 400, len(keys) - 1, len(keys)):
        assert list(itertools.islice(sampler.keys(2, start), 3)) == keys[start : start + 3]


def test_epochs_differ_and_come_back() -> None:
    sampler = ShardedSampler(100, shuffle=True)
    first = list(sampler)
    sampler.set_epoch(1)
    assert sampler.epoch == 1
    second = list(sampler)
    sampler.set_epoch(0)
    assert first != second
    assert list(sampler) == first
    assert sorted(first) == sorted(second)


def test_seek_counts_for_the_next_iteration_alone() -> None:
    sampler = ShardedSampler(10, batch_size=4)
    sampler.seek(1)
    assert list(sampler) == [4, 5, 6, 7, 8, 9]
    assert list(sampler) == list(range(10))
    sampler.seek(3)
    assert list(sampler) == []


def test_a_running_iteration_keeps_its_epoch() -> None:
    sampler = ShardedSampler(5_000, shuffle=True)
    expected = list(sampler)
    running = iter(sampler)
    head = [next(running) for _ in range(3)]
    sampler.set_epoch(7)
    assert head + list(running) == expected


def test_a_step_among_a_trillion_samples_is_reached_at_once_in_constant_memory() -> None:
    sampler = ShardedSampler(10**12, batch_size=512, shuffle=True, rank=1, world_size=2)
    next(sampler.keys(0, 0))
    tracemalloc.start()
    try:
        sampler.seek(10**12 // 512 - 1)
        indices = list(itertools.islice(sampler, 256))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(set(indices)) == 256
    assert peak_bytes < 4_000_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 2.5}, "batch_size=2.5"),
        ({"rank": 2, "world_size": 2}, "rank=2"),
        ({"rank": -1, "world_size": 2}, "rank=-1"),
        ({"world_size": 0}, "world_size=0"),
    ],
)
def test_numbers_that_cannot_be_used_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ShardedSampler(10, **arguments)  # type: ignore[arg-type]


def test_data_without_a_length_is_refused() -> None:
    with pytest.raises(UsageError, match="has no length"):
        ShardedSampler(iter([1]))  # type: ignore[arg-type]


def test_an_epoch_or_step_that_is_no_number_is_refused() -> None:
    sampler = ShardedSampler(10, batch_size=4)
    with pytest.raises(UsageError, match="epoch=-1"):
        sampler.set_epoch(-1)
    with pytest.raises(UsageError, match="epoch='1'"):
        sampler.set_epoch("1")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="3 steps"):
        sampler.seek(4)
