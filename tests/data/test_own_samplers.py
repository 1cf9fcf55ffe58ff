from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from shoal.data import (
    ReplicatedBatchSampler,
    ReplicatedSampler,
    ShardedDataLoader,
    SplitBatchSampler,
    SplitSampler,
    UnknownLengthError,
)
from shoal.errors import DataError, UsageError

DATA = list(range(100, 123))


def global_batches(orders: list[Any]) -> list[list[int]]:
    """What all ranks load at each step, of loaders that are run side by side."""
    parts = [ShardedDataLoader(DATA, order) for order in orders]
    assert len({len(part) for part in parts}) == 1
    batches = [[x for batch in batches for x in batch.tolist()] for batches in zip(*parts, strict=True)]
    assert len(batches) == len(parts[0])
    return batches


def replicated(make: Any, world_size: int, **options: Any) -> list[ReplicatedSampler]:
    return [ReplicatedSampler(make(), rank=rank, world_size=world_size, **options) for rank in range(world_size)]


class Numbers:
    """A sampler of any behaviour."""

    def __init__(self, indices: Any, length: int | None = None) -> None:
        self.indices = indices
        self.length = length
        self.epochs: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        return iter(self.indices() if callable(self.indices) else self.indices)

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError("no length")
        return self.length


@pytest.mark.parametrize(
    "make",
    [
        lambda: SequentialSampler(DATA),
        lambda: RandomSampler(DATA),
        lambda: SubsetRandomSampler(range(3, 20)),
        lambda: WeightedRandomSampler([1.0] * 22 + [9.0], 30),
        lambda: Numbers(lambda: [random.randrange(23) for _ in range(11)], 11),
        lambda: Numbers(lambda: np.random.permutation(23).tolist(), 23),
    ],
)
def test_ranks_share_what_one_process_draws_whatever_their_seeds(make: Any) -> None:
    # Trap 24.
    torch.manual_seed(7)
    expected = global_batches(replicated(make, 1, batch_size=5))
    for world_size in (2, 3):
        orders = replicated(make, world_size, batch_size=5)
        torch.manual_seed(world_size)
        random.seed(world_size)
        np.random.seed(world_size)
        assert global_batches(orders) == expected


def test_a_sampler_s_draws_leave_the_global_state_and_differ_by_epoch_and_seed() -> None:
    (order,) = replicated(lambda: RandomSampler(DATA), 1, batch_size=23)
    loader = ShardedDataLoader(DATA, order)
    torch.manual_seed(3)
    expected = torch.rand(())
    torch.manual_seed(3)
    first, second = (batch.tolist() for _ in range(2) for batch in loader)
    assert torch.rand(()) == expected
    assert first != second
    loader.set_epoch(0)
    assert [batch.tolist() for batch in loader] == [first]
    assert global_batches(replicated(lambda: RandomSampler(DATA), 1, batch_size=23, seed=1)) != [first]


def test_a_generator_of_its_own_is_respected() -> None:
    def drawn(seed: int) -> list[list[int]]:
        return global_batches(
            replicated(lambda: RandomSampler(DATA, generator=torch.Generator().manual_seed(seed)), 1, batch_size=23)
        )

    assert drawn(1) == drawn(1) != drawn(2)


def test_seek_passes_over_indices_without_loading_them() -> None:
    for rank in range(2):
        order = ReplicatedSampler(RandomSampler(DATA), batch_size=4, rank=rank, world_size=2)
        order.set_epoch(0)
        loader = ShardedDataLoader(DATA, order)
        expected = [batch.tolist() for batch in loader]
        loader.seek(4)
        assert [batch.tolist() for batch in loader] == expected[4:]
    assert list(ReplicatedSampler(range(7), batch_size=4, rank=1, world_size=2)) == [2, 3, 6]


def test_drop_last_leaves_out_what_fills_no_batch() -> None:
    assert global_batches(replicated(lambda: range(23), 3, batch_size=5, drop_last=True)) == [
        [100 + i for i in range(start, start + 5)] for start in (0, 5, 10, 15)
    ]


def test_a_sampler_without_length_or_end_is_read_as_far_as_needed() -> None:
    order = ReplicatedSampler(Numbers(lambda: itertools.cycle(range(23))), batch_size=10)
    loader = ShardedDataLoader(DATA, order)
    batches = [batch.tolist() for batch in itertools.islice(loader, 4)]
    assert [x for batch in batches for x in batch] == [100 + i % 23 for i in range(40)]
    assert loader.share(3).total == 10
    with pytest.raises(UnknownLengthError):
        len(loader)
    with pytest.raises(UnknownLengthError, match="step 4"):
        loader.share(4)
    assert isinstance(UnknownLengthError("x"), TypeError)


@pytest.mark.parametrize(("given", "found"), [(5, "5 indices"), (9, "more indices")])
def test_a_sampler_whose_length_is_wrong_is_named(given: int, found: str) -> None:
    loader = ShardedDataLoader(DATA, ReplicatedSampler(Numbers(range(given), 7), batch_size=4))
    with pytest.raises(DataError, match=f"sampler Numbers has length 7 but gave {found}"):
        list(loader)


def test_an_endless_sampler_with_a_length_is_not_drawn_forever() -> None:
    loader = ShardedDataLoader(DATA, ReplicatedSampler(Numbers(lambda: itertools.count(), 7), batch_size=4))
    with pytest.raises(DataError, match="more"):
        list(loader)


def test_the_epoch_of_a_sampler_may_be_set_at_either_end() -> None:
    sampler: DistributedSampler[int] = DistributedSampler(DATA, num_replicas=1, rank=0, seed=2)  # type: ignore[arg-type]
    order = ReplicatedSampler(sampler, batch_size=23)
    loader = ShardedDataLoader(DATA, order)
    sampler.set_epoch(4)
    assert loader.epoch == 4
    at_four = [batch.tolist() for batch in loader]
    loader.set_epoch(2)
    assert sampler.epoch == 2
    assert [batch.tolist() for batch in loader] != at_four
    loader.set_epoch(4)
    assert [batch.tolist() for batch in loader] == at_four


def test_batches_of_a_batch_sampler_are_the_job_s() -> None:
    batches = [[0, 1, 2], [3], [4, 5, 6, 7, 8], [9, 10]]
    for world_size in (1, 2, 4):
        orders = [ReplicatedBatchSampler(batches, rank=rank, world_size=world_size) for rank in range(world_size)]
        assert global_batches(orders) == [[100 + i for i in batch] for batch in batches]
        loader = ShardedDataLoader(DATA, orders[-1])
        next(iter(loader))
        assert [loader.share(step).total for step in range(4)] == [3, 1, 5, 2]
        loader.seek(2)
        assert [len(batch) for batch in loader] == [5 // world_size, 2 // world_size]
    assert list(ReplicatedBatchSampler(batches, rank=1, world_size=2)) == [[2], [], [7, 8], [10]]


def test_a_random_batch_sampler_draws_the_same_on_every_rank() -> None:
    def make() -> BatchSampler:
        return BatchSampler(RandomSampler(DATA), 5, drop_last=True)

    expected = global_batches([ReplicatedBatchSampler(make())])
    torch.manual_seed(99)
    assert global_batches([ReplicatedBatchSampler(make(), rank=r, world_size=3) for r in range(3)]) == expected
    assert len(expected) == 4


def test_a_batch_sampler_whose_length_is_wrong_or_batch_is_empty_is_named() -> None:
    with pytest.raises(DataError, match="length 3 but gave 2 batches"):
        list(ShardedDataLoader(DATA, ReplicatedBatchSampler(Numbers([[1], [2]], 3))))
    with pytest.raises(DataError, match="empty list"):
        list(ShardedDataLoader(DATA, ReplicatedBatchSampler([[1], []])))


def test_a_distributed_sampler_is_not_sharded_again() -> None:
    # Trap 22.
    def sampler(rank: int) -> DistributedSampler[int]:
        return DistributedSampler(DATA, num_replicas=2, rank=rank, shuffle=False)  # type: ignore[arg-type]

    orders = [SplitSampler(sampler(rank), batch_size=5, rank=rank, world_size=2) for rank in range(2)]
    parts = [[batch.tolist() for batch in ShardedDataLoader(DATA, order)] for order in orders]
    assert [x for batch in parts[0] for x in batch] == DATA[0::2]
    assert [x for batch in parts[1] for x in batch] == [*DATA[1::2], 100]  # torch pads
    assert [len(part) for part in parts] == [len(orders[0].plan.lengths) * 3] * 2
    assert [orders[0].plan.share(step, 0).total for step in range(6)] == [5, 5, 5, 5, 2, 2]


def test_a_sharded_sampler_needs_a_length_and_a_sample_a_rank() -> None:
    with pytest.raises(UsageError, match="has no length"):
        SplitSampler(Numbers(lambda: range(4)), batch_size=2, rank=0, world_size=2)
    with pytest.raises(UsageError, match="at least 2"):
        SplitSampler(range(4), batch_size=1, rank=0, world_size=2)
    with pytest.raises(DataError, match="length 7 but gave 5"):
        list(ShardedDataLoader(DATA, SplitSampler(Numbers(range(5), 7), batch_size=4)))


def test_a_sharded_batch_sampler_is_taken_as_it_is() -> None:
    loader = ShardedDataLoader(DATA, SplitBatchSampler([[1, 2], [3]]))
    assert [batch.tolist() for batch in loader] == [[101, 102], [103]]
    assert len(loader) == 2
    assert loader.share(1).total == 1
