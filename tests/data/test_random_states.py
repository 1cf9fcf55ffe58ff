from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate

from shoal.data import ShardedDataLoader, ShardedSampler
from shoal.data.fetch import BatchFetcher, draws_nothing
from shoal.data.randomness import RandomStream, isolated, sample_words, seed_with


def draws() -> tuple[float, float, float, float]:
    return random.random(), float(np.random.random_sample()), float(np.random.randn()), float(torch.rand(()))


class Noisy(Dataset[Any]):
    """What each of the three generators draws for a sample, in the ways that data sets do it."""

    def __init__(self, num_samples: int, draw: Callable[[int], float]) -> None:
        self.num_samples = num_samples
        self.draw = draw
        self.num_loaded = 0

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> tuple[int, float]:
        self.num_loaded += 1
        return index, self.draw(index)


def all_three(index: int) -> float:
    return sum(draws())


def numpy_normal(index: int) -> float:
    return float(np.random.randn())  # keeps a second number for the next call


def python_gauss(index: int) -> float:
    return random.gauss(0, 1)  # keeps a second number, too


def late_python(index: int) -> float:
    return random.random() if index >= 20 else 0.0


def late_numpy(index: int) -> float:
    return float(np.random.rand()) if index == 13 else 0.0


def torch_only(index: int) -> float:
    return float(torch.rand(()))


def drawn(
    dataset: Dataset[Any],
    *,
    batch_size: int = 4,
    world_size: int = 1,
    shuffle: bool = True,
    epochs: int = 1,
    **options: Any,
) -> list[dict[int, float]]:
    """For each epoch, what was drawn for each sample, over all ranks."""
    loaders = []
    for rank in range(world_size):
        order = ShardedSampler(
            dataset, batch_size=batch_size, shuffle=shuffle, rank=rank, world_size=world_size, seed=3
        )
        loaders.append(ShardedDataLoader(dataset, order, **options))
    result = []
    for epoch in range(epochs):
        values: dict[int, float] = {}
        for loader in loaders:
            loader.set_epoch(epoch)
            for indices, numbers in loader:
                values.update(zip(indices.tolist(), numbers.tolist(), strict=True))
        result.append(values)
    return result


@pytest.mark.parametrize(
    "draw", [all_three, numpy_normal, python_gauss, late_python, late_numpy, torch_only], ids=lambda f: f.__name__
)
def test_what_a_sample_draws_does_not_depend_on_ranks_or_batches(draw: Callable[[int], float]) -> None:
    expected = drawn(Noisy(26, draw), batch_size=1, epochs=2)
    assert len(expected[0]) == 26
    for batch_size, world_size in ((26, 1), (4, 1), (4, 3), (7, 2), (2, 4)):
        assert drawn(Noisy(26, draw), batch_size=batch_size, world_size=world_size, epochs=2) == expected
    if draw in (all_three, torch_only):
        assert len(set(expected[0].values())) == 26
        assert not set(expected[0].values()) & set(expected[1].values())


def test_what_a_sample_draws_does_not_depend_on_workers() -> None:
    for draw in (all_three, late_python):
        expected = drawn(Noisy(26, draw), epochs=2)
        for options in ({"num_workers": 1}, {"num_workers": 2, "persistent_workers": True}):
            assert drawn(Noisy(26, draw), epochs=2, **options) == expected


def test_a_collate_that_draws_does_not_depend_on_workers() -> None:
    def mixed(samples: list[Any]) -> Any:
        indices, numbers = default_collate(samples)
        return indices, numbers + torch.rand(len(samples)) + random.random() + np.random.rand()

    expected = drawn(Noisy(10, torch_only), collate_fn=mixed)
    assert drawn(Noisy(10, torch_only), collate_fn=mixed, num_workers=2) == expected
    assert expected != drawn(Noisy(10, torch_only))


def test_a_batch_is_loaded_again_only_when_a_generator_is_drawn_from_late() -> None:
    for draw, num_loaded in ((all_three, 26), (torch_only, 26), (late_python, 30)):
        dataset = Noisy(26, draw)
        drawn(dataset, batch_size=4, shuffle=False)
        assert dataset.num_loaded == num_loaded


@pytest.mark.parametrize("seeds", [(100, 101)])
def test_a_loader_never_touches_the_global_random_state(seeds: tuple[int, int]) -> None:
    after = []
    for seed in seeds:
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        np.random.randn()  # NumPy now keeps a second number, which has to survive as well
        random.gauss(0, 1)
        expected = (draws(), random.gauss(0, 1))
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        np.random.randn()
        random.gauss(0, 1)
        drawn(Noisy(10, all_three), world_size=2)
        drawn(Noisy(10, all_three), num_workers=1)
        assert (draws(), random.gauss(0, 1)) == expected
        after.append(draws())
    assert after[0] != after[1]


def test_the_global_state_survives_between_the_batches_and_after_an_early_end() -> None:
    dataset = Noisy(10, all_three)
    torch.manual_seed(1)
    expected = [float(torch.rand(())) for _ in range(3)]
    torch.manual_seed(1)
    seen = []
    for _ in ShardedDataLoader(dataset, ShardedSampler(dataset, batch_size=3)):
        seen.append(float(torch.rand(())))
        if len(seen) == 3:
            break
    assert seen == expected


def test_without_seeds_samples_draw_from_the_global_state() -> None:
    dataset = Noisy(4, torch_only)
    torch.manual_seed(5)
    expected = [float(torch.rand(())) for _ in range(4)]
    torch.manual_seed(5)
    assert list(drawn(dataset, shuffle=False, seed_samples=False)[0].values()) == expected


def test_a_fetcher_seeds_the_same_where_it_was_sent_by_pickle() -> None:
    dataset = Noisy(8, all_three)
    here = BatchFetcher(dataset, default_collate, seed=3, stream=0, seed_samples=True)
    there = pickle.loads(pickle.dumps(here))
    for key in ShardedSampler(dataset, batch_size=4).keys(0, 0):
        assert there[key].batch[1].tolist() == here[key].batch[1].tolist()


def test_words_of_positions_do_not_depend_on_where_a_batch_begins() -> None:
    assert sample_words(9, 0, 10)[4:7] == sample_words(9, 4, 3)
    assert len(set(sample_words(9, 0, 1000))) == 1000
    assert sample_words(9, -1, 1) != sample_words(8, -1, 1)


def test_numpy_and_torch_do_not_draw_the_same_numbers() -> None:
    seed_with(0x1234567812345678 ^ 0xFFFF)
    assert abs(float(np.random.rand()) - float(torch.rand((), dtype=torch.float64))) > 1e-9


def test_isolated_puts_the_state_back_after_an_error() -> None:
    seed_with(1)
    expected = draws()
    seed_with(1)
    with pytest.raises(KeyError), isolated():
        draws()
        raise KeyError
    assert draws() == expected


def test_a_stream_goes_on_where_it_was_left() -> None:
    whole, parts = RandomStream(1, 2), RandomStream(1, 2)
    with whole:
        expected = [draws(), draws()]
    with parts:
        first = draws()
    draws()
    with parts:
        second = draws()
    assert [first, second] == expected
    with RandomStream(1, 3):
        assert draws() != expected[0]


def test_ready_data_is_known_to_draw_nothing() -> None:
    tensors = TensorDataset(torch.zeros(4))
    assert draws_nothing(tensors, default_collate)
    assert draws_nothing(Subset(tensors, [1, 2]), default_collate)
    assert draws_nothing([1, 2], default_collate)
    assert not draws_nothing(Noisy(3, torch_only), default_collate)
    assert not draws_nothing(Subset(Noisy(3, torch_only), [1]), default_collate)
    assert not draws_nothing([1, 2], lambda samples: samples)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_cuda_s_state_is_never_touched() -> None:
    before = torch.cuda.get_rng_state()
    drawn(Noisy(10, all_three))
    assert torch.equal(torch.cuda.get_rng_state(), before)


def test_loading_never_initialises_cuda() -> None:
    before = torch.cuda.is_initialized()
    drawn(Noisy(10, all_three))
    assert torch.cuda.is_initialized() == before
