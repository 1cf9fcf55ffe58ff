"""Random draws that belong to a sample, whoever loads it: Python's, NumPy's and torch's CPU state, set and put back.

CUDA generators are never touched: seeding them would start CUDA in a loader's worker and wait for it elsewhere.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import get_worker_info

from shoal.data.permutation import mix, scramble

__all__ = ["RandomStream", "SampleSeeds", "isolated", "sample_words", "seed_with"]


class _States(NamedTuple):
    python: tuple[Any, ...]
    numpy: Any
    torch_cpu: torch.Tensor


def sample_words(base: int, first: int, count: int) -> list[int]:
    """64 random bits for each of ``count`` positions from ``first`` on; ``base`` stands for seed and epoch."""
    words: list[int] = scramble(np.arange(first, first + count, dtype=np.int64).view(np.uint64), base).tolist()
    return words


def seed_with(word: int) -> None:
    """Set the three states from 64 random bits.

    NumPy and torch run the same generator from 32 bits each, so they get different halves of the word: from the same
    one they would draw the same numbers.
    """
    _seed_python(word)
    _seed_numpy(word)
    _seed_torch(word)


def _seed_torch(word: int) -> None:
    torch.default_generator.manual_seed(word & 0xFFFFFFFF)


@contextmanager
def isolated() -> Iterator[None]:
    """Put the three states back at the end, except in a loader's worker process, where nobody else draws."""
    if get_worker_info() is not None:
        yield
        return
    before = _states()
    try:
        yield
    finally:
        _restore(before)


class SampleSeeds:
    """Seeds the generators before each sample of a batch, as cheaply as is exact.

    Torch's takes 1 µs and is always seeded; Python's and NumPy's take 5 µs and 2 µs, and most data sets use neither.
    So each of these two is seeded for every sample while it is unknown or known to be drawn from. When a whole batch
    has left it alone, it is seeded once a batch, and one number drawn at the end shows whether it was left alone
    again. If not, the batch has to be loaded again, with all seeds; that happens once, if at all.

    Not seen is who draws and then puts the state back without having set one: he then draws the same for all samples
    of a batch.
    """

    def __init__(self) -> None:
        self._unknown = [_Watched(_seed_python, _draw_python), _Watched(_seed_numpy, _draw_numpy)]
        self._drawn_from: list[_Watched] = []
        self._left_alone: list[_Watched] = []

    def begin(self, word: int) -> None:
        """A batch begins whose first sample has ``word``."""
        for watched in self._left_alone:
            watched.seed_and_note(word)

    def seed(self, word: int) -> None:
        """The sample that has ``word`` comes next."""
        _seed_torch(word)
        for watched in self._drawn_from:
            watched.seed(word)
        for watched in self._unknown:
            watched.seed_and_note(word)

    def note(self) -> None:
        """The sample has been loaded."""
        if self._unknown:
            used = [watched for watched in self._unknown if watched.was_drawn_from()]
            self._drawn_from += used
            self._unknown = [watched for watched in self._unknown if watched not in used]

    def is_exact(self) -> bool:
        """The batch has ended: whether every sample had the seeds that it should have, or it must be loaded again."""
        late = [watched for watched in self._left_alone if watched.was_drawn_from()]
        self._drawn_from += late
        self._left_alone = [watched for watched in self._left_alone if watched not in late] + self._unknown
        self._unknown = []
        return not late


class _Watched:
    """A generator of which a draw can be noticed."""

    def __init__(self, seed: Callable[[int], None], draw: Callable[[], float]) -> None:
        self.seed = seed
        self._draw = draw
        self._first = 0.0

    def seed_and_note(self, word: int) -> None:
        self.seed(word)
        self._first = self._draw()
        self.seed(word)

    def was_drawn_from(self) -> bool:
        return self._draw() != self._first


# Functions of this module, since a worker that is spawned gets them by name: a method of a generator would bring its
# own copy of the generator along.


def _seed_python(word: int) -> None:
    random.seed(word)


def _draw_python() -> float:
    return random.random()


def _seed_numpy(word: int) -> None:
    np.random.seed(word >> 32)


def _draw_numpy() -> float:
    return float(np.random.random_sample())


class RandomStream:
    """A state of its own for code that draws from the global generators, entered as often as the code runs on.

    Args:
        key: any integers; the same ones start the same stream.
    """

    def __init__(self, *key: int) -> None:
        self._key = key
        self._own: _States | None = None
        self._outer: list[_States] = []

    def __enter__(self) -> None:
        self._outer.append(_states())
        if self._own is None:
            seed_with(mix(*self._key))
        else:
            _restore(self._own)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._own = _states()
        _restore(self._outer.pop())


def _states() -> _States:
    return _States(random.getstate(), np.random.get_state(), torch.default_generator.get_state())


def _restore(states: _States) -> None:
    random.setstate(states.python)
    np.random.set_state(states.numpy)
    torch.default_generator.set_state(states.torch_cpu)
