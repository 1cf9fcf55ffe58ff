from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.data.permutation import MAX_SAMPLES, SMALL, permute
from shoal.errors import UsageError

seeds = st.integers(-(2**70), 2**70)
epochs = st.integers(0, 2**40)


@given(num_samples=st.one_of(st.integers(0, 70), st.integers(SMALL - 3, SMALL + 70)), seed=seeds, epoch=epochs)
@settings(max_examples=60, deadline=None)
def test_every_index_comes_exactly_once(num_samples: int, seed: int, epoch: int) -> None:
    order = permute(np.arange(num_samples), num_samples=num_samples, seed=seed, epoch=epoch)
    assert np.array_equal(np.sort(order), np.arange(num_samples))


@pytest.mark.parametrize("num_samples", [2**13, 2**16 - 1, 2**16, 2**16 + 1, 50_000, 100_003])
def test_every_index_comes_exactly_once_at_sizes_around_powers_of_two(num_samples: int) -> None:
    order = permute(np.arange(num_samples), num_samples=num_samples, seed=1, epoch=2)
    assert np.array_equal(np.sort(order), np.arange(num_samples))


@given(num_samples=st.integers(1, MAX_SAMPLES), seed=seeds, epoch=epochs, data=st.data())
@settings(max_examples=60, deadline=None)
def test_one_position_gives_what_an_array_gives_there_and_stays_in_range(
    num_samples: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    positions = data.draw(st.lists(st.integers(0, num_samples - 1), min_size=1, max_size=8, unique=True))
    indices = permute(np.array(positions), num_samples=num_samples, seed=seed, epoch=epoch)
    assert [permute(p, num_samples=num_samples, seed=seed, epoch=epoch) for p in positions] == indices.tolist()
    assert len(set(indices.tolist())) == len(positions)
    assert all(0 <= index < num_samples for index in indices.tolist())


def test_shape_of_the_positions_is_kept() -> None:
    positions = np.arange(6).reshape(2, 3)
    order = permute(positions, num_samples=10_000, seed=0, epoch=0)
    assert order.shape == (2, 3)
    assert order.dtype == np.int64
    assert isinstance(permute(3, num_samples=10_000, seed=0, epoch=0), int)


@pytest.mark.parametrize("num_samples", [100, 10_000])
def test_epochs_and_seeds_have_orders_of_their_own_that_never_change(num_samples: int) -> None:
    def order(seed: int, epoch: int) -> tuple[int, ...]:
        return tuple(permute(np.arange(num_samples), num_samples=num_samples, seed=seed, epoch=epoch).tolist())

    assert order(0, 0) == order(0, 0)
    assert len({order(seed, epoch) for seed in range(4) for epoch in range(4)}) == 16


def test_the_order_is_the_same_in_every_release() -> None:
    # A resumed run relies on it: a change of these numbers is a change of every order.
    assert permute(np.arange(8), num_samples=8, seed=0, epoch=0).tolist() == [6, 0, 3, 2, 4, 7, 5, 1]
    assert permute(np.arange(4), num_samples=10**12, seed=7, epoch=3).tolist() == [
        643312177286,
        258076042031,
        132149260324,
        997304059952,
    ]


@pytest.mark.parametrize("num_samples", [3, 4, 5])
def test_all_orders_of_a_small_set_are_about_equally_frequent(num_samples: int) -> None:
    orders = math.factorial(num_samples)
    counts: dict[tuple[int, ...], int] = {}
    for epoch in range(100 * orders):
        order = tuple(permute(np.arange(num_samples), num_samples=num_samples, seed=5, epoch=epoch).tolist())
        counts[order] = counts.get(order, 0) + 1
    chi_squared = sum((count - 100) ** 2 / 100 for count in counts.values()) + 100 * (orders - len(counts))
    assert chi_squared < orders - 1 + 4 * math.sqrt(2 * (orders - 1))


@pytest.mark.parametrize("num_samples", [4097, 2**14, 50_000])
def test_a_large_order_looks_like_a_random_one(num_samples: int) -> None:
    positions = np.arange(num_samples)
    scores, fixed, neighbours = [], [], []
    for epoch in range(60):
        order = permute(positions, num_samples=num_samples, seed=2, epoch=epoch)
        scores.append(np.corrcoef(positions, order)[0, 1] * math.sqrt(num_samples))
        fixed.append(int((order == positions).sum()))
        neighbours.append(int((np.abs(np.diff(order)) == 1).sum()))
    # Of a random permutation: correlation 0 with deviation 1/sqrt(N), 1 fixed point, 2 pairs of neighbours.
    assert abs(float(np.mean(scores))) < 4 / math.sqrt(60)
    assert 0.6 < float(np.std(scores)) < 1.4
    assert abs(float(np.mean(fixed)) - 1) < 4 / math.sqrt(60)
    assert abs(float(np.mean(neighbours)) - 2) < 4 * math.sqrt(2 / 60)


def test_a_position_among_a_trillion_needs_no_memory_for_the_others() -> None:
    permute(0, num_samples=10**12, seed=0, epoch=0)
    tracemalloc.start()
    try:
        permute(10**12 - 1, num_samples=10**12, seed=0, epoch=1)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 100_000


@pytest.mark.parametrize(
    ("position", "num_samples"), [(-1, 10), (10, 10), (0, 0), (10**12, 10**12), (0, MAX_SAMPLES + 1), (0, -1)]
)
def test_a_position_outside_of_the_set_is_refused(position: int, num_samples: int) -> None:
    with pytest.raises(UsageError):
        permute(position, num_samples=num_samples, seed=0, epoch=0)
