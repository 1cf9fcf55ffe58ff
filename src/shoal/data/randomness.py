"""Random draws that belong to a sample, whoever loads it: Python's, NumPy's and torch's CPU state, set and put back.

CUDA generators are never touched: seeding them would start CUDA in a loader's worker and wait for it elsewhere.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import get_worker_info

from shoal.data.permutation import mix, scramble

__all__ = ["RandomStream", "isolated", "sample_words", "seed_with"]


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
    random.seed(word)
    np.random.seed(word >> 32)
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
