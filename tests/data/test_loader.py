from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, Subset, get_worker_info

from shoal._types import HasShares
from shoal.data import ShardedDataLoader, ShardedSampler
from shoal.errors import DataError, UsageError


class Squares(Dataset[Any]):
    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((2,), float(index) ** 2), index


def loaders(
    dataset: Any, batch_size: int, world_size: int, *, shuffle: bool = False, drop_last: bool = False, **options: Any
) -> list[ShardedDataLoader]:
    return [
        ShardedDataLoader(
            dataset,
            ShardedSampler(
                dataset, batch_size=batch_size, shuffle=shuffle, drop_last=drop_last, rank=rank, world_size=world_size
            ),
            **options,
        )
        for rank in range(world_size)
    ]


def labels(loader: ShardedDataLoader) -> list[list[int]]:
    return [y.tolist() for _, y in loader]


@given(
    num_samples=st.integers(0, 40),
    batch_size=st.integers(1, 7),
    world_size=st.integers(1, 5),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
)
@settings(max_examples=120, deadline=None)
def test_every_sample_is_counted_once_and_ranks_stay_in_step(
    num_samples: int, batch_size: int, world_size: int, drop_last: bool, shuffle: bool
) -> None:
    # Trap 16: also where ranks hold fewer samples at the end, or none.
    parts = loaders(Squares(num_samples), batch_size, world_size, shuffle=shuffle, drop_last=drop_last)
    counted = []
    for step, batches in enumerate(zip(*parts, strict=True)):
        for part, (x, y) in zip(parts, batches, strict=True):
            assert x.shape == (len(y), 2)
            assert y.dtype == torch.int64
            assert part.share(step).local == len(y)
            counted += y.tolist()
    assert {len(part) for part in parts} == {len(parts[0])}
    expected = num_samples // batch_size * batch_size if drop_last else num_samples
    assert len(counted) == len(set(counted)) == expected
    assert counted == [
        label
        for batch in labels(loaders(Squares(num_samples), batch_size, 1, shuffle=shuffle, drop_last=drop_last)[0])
        for label in batch
    ]


@pytest.mark.parametrize("world_size", [1, 3])
def test_ten_thousand_images_are_ten_thousand(world_size: int) -> None:
    assert sum(len(y) for part in loaders(Squares(10_000), 64, world_size) for _, y in part) == 10_000


def test_a_batch_size_is_the_job_s_and_exact() -> None:
    # Trap 19.
    assert [[len(y) for y in labels(part)] for part in loaders(Squares(10), 5, 2)] == [[3, 3], [2, 2]]
    assert [[len(y) for y in labels(part)] for part in loaders(Squares(3), 1, 2)] == [[1, 1, 1], [0, 0, 0]]


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_without_shuffle_the_order_is_the_data_set_s(world_size: int) -> None:
    # Trap 20.
    parts = [labels(part) for part in loaders(Squares(11), 4, world_size)]
    assert [label for batches in zip(*parts, strict=True) for part in batches for label in part] == list(range(11))


def test_the_public_face_is_that_of_a_torch_loader() -> None:
    dataset = Squares(10)
    (loader,) = loaders(dataset, 4, 1, drop_last=True)
    assert isinstance(loader, DataLoader)
    assert isinstance(loader, HasShares)
    assert loader.dataset is dataset
    assert isinstance(loader.sampler, ShardedSampler)
    assert (loader.batch_size, loader.drop_last, loader.num_workers) == (4, True, 0)
    assert list(loader.batch_sampler) == [[0, 1, 2, 3], [4, 5, 6, 7]]  # type: ignore[arg-type]


def test_epochs_have_orders_of_their_own_without_and_with_set_epoch() -> None:
    (loader,) = loaders(Squares(20), 8, 1, shuffle=True)
    first, second = labels(loader), labels(loader)
    assert first != second
    loader.sampler.set_epoch(0)  # type: ignore[union-attr]
    assert labels(loader) == first
    assert labels(loader) == first  # whoever sets epochs sets all of them
    loader.set_epoch(1)
    assert labels(loader) == second


def test_an_iteration_that_was_left_early_does_not_count_as_an_epoch() -> None:
    (loader,) = loaders(Squares(20), 8, 1, shuffle=True)
    first = next(iter(loader))[1].tolist()
    assert next(iter(loader))[1].tolist() == first


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 1, "persistent_workers": True}])
def test_iterations_at_once_or_left_early_do_not_disturb_each_other(options: dict[str, Any]) -> None:
    # Trap 25.
    (loader,) = loaders(Squares(40), 4, 1, shuffle=True, **options)
    expected = labels(loader)
    loader.set_epoch(0)
    outer = []
    for _, y in loader:
        outer.append(y.tolist())
        if len(outer) == 2:
            loader.set_epoch(3)
            assert labels(loader) != expected
            loader.set_epoch(0)
        if len(outer) == 4:
            next(iter(loader))
            for _ in loader:
                break
    assert outer == expected
    loader.set_epoch(0)
    assert labels(loader) == expected


def test_kept_workers_see_the_new_epoch_and_are_the_same_processes() -> None:
    class WithWorker(Squares):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            return torch.tensor([get_worker_info().seed]), index

    (kept,) = loaders(WithWorker(20), 4, 1, shuffle=True, num_workers=2, persistent_workers=True)
    (plain,) = loaders(WithWorker(20), 4, 1, shuffle=True)
    plain = loaders(Squares(20), 4, 1, shuffle=True)[0]
    seeds = set()
    for epoch in (0, 1, 5):
        kept.set_epoch(epoch)
        plain.set_epoch(epoch)
        batches = list(kept)
        assert [y.tolist() for _, y in batches] == labels(plain)
        seeds |= {int(seed) for x, _ in batches for seed in x.unique()}
    assert len(seeds) == 2


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
def test_seek_starts_the_next_iteration_alone_at_a_step(options: dict[str, Any]) -> None:
    for loader in loaders(Squares(22), 4, 2, shuffle=True, **options):
        loader.set_epoch(1)
        expected = labels(loader)
        for step in (3, 5, 6):
            loader.seek(step)
            assert labels(loader) == expected[step:]
            assert labels(loader) == expected


def test_seek_is_constant_in_the_number_of_samples() -> None:
    class Endless(Squares):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            return torch.zeros(1), index

    (loader,) = loaders(Endless(10**12), 8, 1, shuffle=True)
    loader.seek(10**12 // 8 - 2)
    assert [len(y) for y in labels(loader)] == [8, 8]


def test_the_state_says_which_batch_comes_next_at_any_world_size() -> None:
    (whole,) = loaders(Squares(22), 4, 1, shuffle=True)
    whole.set_epoch(2)
    expected = labels(whole)
    whole.set_epoch(2)
    iteration = iter(whole)
    for _ in range(3):
        next(iteration)
    state = whole.state_dict()
    assert state == {"epoch": 2, "step": 3}
    parts = loaders(Squares(22), 4, 3, shuffle=True, num_workers=1)
    for part in parts:
        part.load_state_dict(state)
        assert part.state_dict() == state
    rest = [[label for part in batches for label in part] for batches in zip(*map(labels, parts), strict=True)]
    assert rest == expected[3:]
    assert parts[0].state_dict() == {"epoch": 3, "step": 0}


def test_a_state_that_is_none_is_refused() -> None:
    (loader,) = loaders(Squares(4), 2, 1)
    with pytest.raises(UsageError, match="epoch and a step"):
        loader.load_state_dict({"epoch": 1})
    with pytest.raises(UsageError, match="2 steps"):
        loader.load_state_dict({"epoch": 1, "step": 3})


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_sample_that_raises_is_named(num_workers: int) -> None:
    class Broken(Squares):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            if index == 17:
                raise OSError("cannot read image")
            return super().__getitem__(index)

    (loader,) = loaders(Broken(20), 4, 1, num_workers=num_workers)
    with pytest.raises(DataError, match=r"sample 17 of the data set Broken raised OSError: cannot read image"):
        list(loader)


def test_samples_that_fit_no_batch_are_named() -> None:
    class Ragged(Squares):
        def __getitem__(self, index: int) -> Any:
            return torch.zeros(index)

    (loader,) = loaders(Ragged(20), 10, 1)
    with pytest.raises(DataError, match=r"samples 0, 1, 2, 3, 4, 5, 6, 7, … \(10 in all\) could not be put into one"):
        list(loader)


def test_a_data_set_without_samples_has_no_batches() -> None:
    for loader in loaders(Squares(0), 4, 3, shuffle=True):
        assert len(loader) == 0
        assert list(loader) == []


def test_data_sets_that_load_a_batch_at_once_are_asked_so() -> None:
    class Batched(Squares):
        def __init__(self, num_samples: int) -> None:
            super().__init__(num_samples)
            self.asked: list[list[int]] = []

        def __getitems__(self, indices: list[int]) -> list[Any]:
            self.asked.append(indices)
            if 18 in indices:
                raise KeyError("no such row")
            return [self[index] for index in indices]

    dataset = Batched(18)
    assert [label for batch in labels(loaders(dataset, 4, 1)[0]) for label in batch] == list(range(18))
    assert dataset.asked[0] == [0, 1, 2, 3]
    assert labels(loaders(Subset(dataset, [5, 6, 7]), 2, 1)[0]) == [[5, 6], [7]]
    assert labels(loaders(Subset(Squares(9), [5, 6, 7]), 2, 1)[0]) == [[5, 6], [7]]
    assert labels(loaders(dataset, 1, 2)[1])[0] == []
    with pytest.raises(DataError, match="one of the samples 16, 17, 18, 19"):
        list(loaders(Batched(20), 4, 1)[0])


class Named(NamedTuple):
    text: Any
    number: Any


@pytest.mark.parametrize("num_workers", [0, 1])
def test_every_kind_of_sample_keeps_its_structure_also_when_empty(num_workers: int) -> None:
    kinds = {
        "dict": ({"x": torch.zeros(2), "name": "a"}, lambda b: (b["x"].shape[0], len(b["name"]))),
        "named": (Named("a", 1), lambda b: (len(b.number), len(b.text))),
        "text": ("a", lambda b: (len(b),)),
        "number": (1.5, lambda b: (len(b),)),
    }
    for sample, sizes in kinds.values():
        parts = loaders([sample] * 7, 4, 4, num_workers=num_workers)
        counts = [[sizes(batch) for batch in part] for part in parts]
        assert [tuple(c[0] for c in part) for part in counts] == [(1, 1), (1, 1), (1, 1), (1, 0)]
        assert all(len(set(count)) == 1 for part in counts for count in part)


def test_collate_and_worker_functions_are_the_user_s() -> None:
    started = torch.zeros(2, dtype=torch.int64).share_memory_()

    def start(worker_id: int) -> None:
        info = get_worker_info()
        assert isinstance(info.dataset, Squares)
        info.dataset.offset = 100
        started[worker_id] = 1

    class Shifted(Squares):
        offset = 0

        def __getitem__(self, index: int) -> Any:
            return index + self.offset

    loader = loaders(Shifted(8), 2, 1, num_workers=2, collate_fn=lambda samples: samples, worker_init_fn=start)[0]
    assert list(loader) == [[100, 101], [102, 103], [104, 105], [106, 107]]
    assert started.tolist() == [1, 1]


def test_data_sets_of_a_cell_or_a_test_arrive_in_workers() -> None:
    # They could not be unpickled by name: the workers have to be forked, whatever the start method of this process.
    class Local(Squares):
        pass

    (loader,) = loaders(Local(6), 2, 1, num_workers=1)
    assert loader.multiprocessing_context.get_start_method() == "fork"  # type: ignore[union-attr]
    assert labels(loader) == [[0, 1], [2, 3], [4, 5]]


def test_workers_prefetch_no_further_than_asked_and_stop_when_left() -> None:
    (loader,) = loaders(Squares(1000), 1, 1, num_workers=2, prefetch_factor=3)
    assert [y.tolist() for _, y in itertools.islice(loader, 5)] == [[0], [1], [2], [3], [4]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"persistent_workers": True}, "persistent_workers=True needs worker processes"),
        ({"prefetch_factor": 2}, "prefetch_factor=2 needs worker processes"),
        ({"num_workers": -1}, "num_workers=-1"),
        ({"num_workers": 1.5}, "num_workers=1.5"),
        ({"in_order": False}, "in_order=False"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        loaders(Squares(4), 2, 1, **options)


def test_a_share_outside_of_the_epoch_is_refused() -> None:
    with pytest.raises(UsageError, match="2 steps"):
        loaders(Squares(4), 2, 1)[0].share(2)
