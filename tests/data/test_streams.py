from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import IterableDataset, get_worker_info

from shoal.data import ShardedDataLoader, StreamOrder, UnknownLengthError
from shoal.errors import DataError, UsageError


class Stream(IterableDataset[Any]):
    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Any]:
        return iter(self.samples)


class Sized(Stream):
    def __len__(self) -> int:
        return len(self.samples)


class ByWorker(Stream):
    """Divides itself among workers, as torch asks of data sets."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        return itertools.islice(self.samples, info.id if info else 0, None, info.num_workers if info else 1)


class Noisy(Stream):
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        offset = random.random()
        return ((sample, self.epoch, offset + random.random() + float(torch.rand(()))) for sample in self.samples)


def loaders(dataset: Any, batch_size: int, world_size: int, *, drop_last: bool = False, **options: Any) -> list[Any]:
    orders = [
        StreamOrder(dataset, batch_size=batch_size, drop_last=drop_last, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    return [ShardedDataLoader(dataset, order, **options) for order in orders]


@given(
    num_samples=st.integers(0, 40),
    batch_size=st.integers(1, 9),
    world_size=st.integers(1, 5),
    drop_last=st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_a_stream_that_every_rank_reads_is_cut_into_the_same_global_batches(
    num_samples: int, batch_size: int, world_size: int, drop_last: bool
) -> None:
    # Trap 23: short tails, and ranks without a sample.
    parts = loaders(Stream(range(num_samples)), batch_size, world_size, drop_last=drop_last)
    order = []
    for step, batches in enumerate(zip(*parts, strict=True)):
        whole = [x for batch in batches for x in batch.tolist()]
        order += whole
        assert {part.share(step).total for part in parts} == {len(whole)}
        assert [part.share(step).local for part in parts] == [len(batch) for batch in batches]
    assert order == list(range(num_samples // batch_size * batch_size if drop_last else num_samples))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_samples_of_varying_length_are_never_cut_or_stacked_by_others(num_workers: int) -> None:
    texts = ["x" * n for n in (3, 1, 4, 1, 5, 9, 2)]
    parts = loaders(Stream(texts), 3, 2, collate_fn=lambda samples: samples, num_workers=num_workers)
    assert [a + b for a, b in zip(*parts, strict=True)] == [texts[:3], texts[3:6], texts[6:]]


def test_what_samples_of_a_stream_draw_does_not_depend_on_ranks_workers_or_batches() -> None:
    def drawn(batch_size: int, world_size: int, epoch: int, **options: Any) -> list[tuple[Any, ...]]:
        parts = loaders(Noisy(range(12)), batch_size, world_size, **options)
        found = []
        for part in parts:
            part.set_epoch(epoch)
            found += [row for batch in part for row in zip(*(column.tolist() for column in batch), strict=True)]
        return sorted(found)

    expected = drawn(12, 1, 2)
    assert {epoch for _, epoch, _ in expected} == {2}
    assert len({number for _, _, number in expected}) == 12
    for options in ({}, {"num_workers": 1}):
        assert drawn(5, 2, 2, **options) == expected
    assert drawn(12, 1, 1) != expected


def test_a_stream_leaves_the_global_random_state_alone() -> None:
    random.seed(5)
    torch.manual_seed(5)
    expected = (random.random(), torch.rand(3).tolist())
    random.seed(5)
    torch.manual_seed(5)
    seen = []
    for _ in loaders(Noisy(range(4)), 2, 1)[0]:
        seen += [torch.rand(()).item()]
    assert (random.random(), [*seen, torch.rand(()).item()]) == expected


def test_kept_workers_read_the_new_epoch() -> None:
    (loader,) = loaders(Noisy(range(6)), 3, 1, num_workers=1, persistent_workers=True)
    for epoch in (0, 1, 7):
        loader.set_epoch(epoch)
        kept = [batch[2].tolist() for batch in loader]
        (plain,) = loaders(Noisy(range(6)), 3, 1)
        plain.set_epoch(epoch)
        assert kept == [batch[2].tolist() for batch in plain]


def test_iterations_of_a_stream_at_once_do_not_disturb_each_other() -> None:
    (loader,) = loaders(Stream(range(8)), 2, 1)
    assert [(a.tolist(), b.tolist()) for a, b in zip(loader, loader, strict=True)] == [
        ([i, i + 1], [i, i + 1]) for i in (0, 2, 4, 6)
    ]


def test_seek_reads_past_what_lies_before() -> None:
    for part in loaders(Stream(range(11)), 4, 2):
        expected = [batch.tolist() for batch in part]
        part.seek(2)
        assert [batch.tolist() for batch in part] == expected[2:]
        assert [batch.tolist() for batch in part] == expected
        assert part.share(2).total == 3


def test_a_length_counts_global_batches_where_there_is_one() -> None:
    assert {len(part) for part in loaders(Sized(range(11)), 4, 2)} == {3}
    assert {len(part) for part in loaders(Sized(range(11)), 4, 2, drop_last=True)} == {2}
    (endless,) = loaders(Stream(itertools.count()), 4, 1)
    with pytest.raises(UnknownLengthError, match="no length"):
        len(endless)
    assert [batch.tolist() for batch in itertools.islice(endless, 2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_stream_alone_is_divided_among_workers_by_itself() -> None:
    order = StreamOrder(ByWorker(range(10)), batch_size=2, sharded=True)
    loader = ShardedDataLoader(order.dataset, order, num_workers=2)
    assert sorted(x for batch in loader for x in batch.tolist()) == list(range(10))
    assert loader.share(5).total == 1


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_says_how_many_samples_came_before(num_workers: int) -> None:
    def samples() -> Iterator[int]:
        yield from range(5)
        raise OSError("shard 3 is truncated")

    class Failing(Stream):
        def __iter__(self) -> Iterator[Any]:
            return samples()

    for part in loaders(Failing(None), 2, 2, num_workers=num_workers):
        with pytest.raises(DataError, match="Failing raised OSError after 5 samples: shard 3 is truncated"):
            list(part)


def test_what_cannot_be_read_exactly_is_refused() -> None:
    with pytest.raises(UsageError, match="many times over"):
        loaders(Stream(range(4)), 2, 1, num_workers=2)
    with pytest.raises(UsageError, match="at least 3"):
        StreamOrder(Stream([]), batch_size=2, sharded=True, rank=0, world_size=3)
    with pytest.raises(UsageError, match="iterable and cannot be read by a ShardedSampler"):
        from shoal.data import ShardedSampler

        ShardedDataLoader(Stream([]), ShardedSampler(3))
    with pytest.raises(UsageError, match="single samples"):
        next(StreamOrder(Stream([1])).keys(0, 0))
