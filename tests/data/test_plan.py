from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.data.plan import BatchPlan, ShardPlan
from shoal.errors import UsageError

sizes = st.integers(0, 200)
worlds = st.integers(1, 8)
batch_sizes = st.integers(1, 70)


@given(num_samples=sizes, batch_size=batch_sizes, world_size=worlds, drop_last=st.booleans())
@settings(max_examples=300, deadline=None)
def test_every_position_goes_to_exactly_one_rank_at_one_step(
    num_samples: int, batch_size: int, world_size: int, drop_last: bool
) -> None:
    plan = BatchPlan(num_samples, batch_size, world_size, drop_last)
    given_out = [
        position
        for step in range(plan.num_steps)
        for rank in range(world_size)
        for position in plan.positions(step, rank)
    ]
    expected = num_samples // batch_size * batch_size if drop_last else num_samples
    assert given_out == list(range(expected))  # also: in the same global order at every world size


@given(num_samples=sizes, batch_size=batch_sizes, world_size=worlds, drop_last=st.booleans())
@settings(max_examples=200, deadline=None)
def test_shares_agree_with_positions_on_every_rank(
    num_samples: int, batch_size: int, world_size: int, drop_last: bool
) -> None:
    plan = BatchPlan(num_samples, batch_size, world_size, drop_last)
    for step in range(plan.num_steps):
        local = [len(plan.positions(step, rank)) for rank in range(world_size)]
        shares = [plan.share(step, rank) for rank in range(world_size)]
        assert [share.local for share in shares] == local
        assert {share.total for share in shares} == {sum(local)}
        assert {share.smallest for share in shares} == {min(local)}
        assert max(local) - min(local) <= 1
        assert sum(local) == batch_size or (step == plan.num_steps - 1 and not drop_last)
    assert [plan.num_local(rank) for rank in range(world_size)] == [
        sum(len(plan.positions(step, rank)) for step in range(plan.num_steps)) for rank in range(world_size)
    ]


def test_the_job_s_batch_size_is_exact_at_every_world_size() -> None:
    assert [BatchPlan(100, 5, 2).share(0, rank).local for rank in (0, 1)] == [3, 2]
    assert [BatchPlan(100, 1, 2).share(0, rank).local for rank in (0, 1)] == [1, 0]


def test_a_share_at_the_tail_is_never_larger_than_that_of_a_full_batch() -> None:
    for tail in range(1, 12):
        plan = BatchPlan(12 + tail, 12, 5)
        assert all(plan.share(1, rank).local <= plan.share(0, rank).local for rank in range(5))


def test_a_trillion_samples_are_planned_without_memory_for_them() -> None:
    plan = BatchPlan(10**12, 512, 7)
    last = plan.num_steps - 1
    assert last == (10**12 - 1) // 512
    assert plan.positions(last, 6).stop == 10**12
    assert plan.share(last - 1, 0).total == 512


def test_numpy_numbers_are_numbers() -> None:
    assert BatchPlan(np.int64(10), np.int32(4), 1) == BatchPlan(10, 4, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("batch_size", [0, -1, 2.0, "8", None, True])
def test_a_batch_size_that_is_no_positive_whole_number_is_refused(batch_size: object) -> None:
    with pytest.raises(UsageError, match="batch_size"):
        BatchPlan(10, batch_size, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("step", [-1, 3, 100])
def test_a_step_outside_of_the_epoch_is_refused(step: int) -> None:
    with pytest.raises(UsageError, match="3 steps"):
        BatchPlan(10, 4, 2).share(step, 0)
    with pytest.raises(UsageError, match="3 steps"):
        BatchPlan(10, 4, 2).positions(step, 0)


@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=5),
    extra=st.integers(0, 12),
    drop_last=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_sharded_lengths_are_used_up_exactly(lengths: list[int], extra: int, drop_last: bool) -> None:
    plan = ShardPlan(tuple(lengths), len(lengths) + extra, drop_last)
    shares = [[plan.share(step, rank) for rank in range(len(lengths))] for step in range(plan.num_steps)]
    given_out = [sum(step[rank].local for step in shares) for rank in range(len(lengths))]
    if drop_last:
        assert all(share.total == plan.batch_size for step in shares for share in step)
    else:
        assert given_out == lengths
    for step in shares:
        assert {share.total for share in step} == {sum(share.local for share in step)}
        assert {share.smallest for share in step} == {min(share.local for share in step)}


def test_sharded_data_that_would_never_be_read_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 3"):
        ShardPlan((5, 5, 5), 2)
