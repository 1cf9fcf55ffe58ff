"""Build a shuffled sampler of rank 0 of 2, ask for its first index, and say how long it took and what it held.

python first_index.py shoal|torch NUM_SAMPLES
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterable

import numpy as np  # noqa: F401 (both sides need it: its import is no part of what is compared)
from torch.utils.data import Dataset, DistributedSampler

SEED = 17


class Numbers(Dataset[int]):
    """A dataset of any length that holds nothing."""

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> int:
        return index


def torch_builder() -> Callable[[int], Iterable[int]]:
    def build(num_samples: int) -> Iterable[int]:
        numbers = Numbers(num_samples)
        sampler: DistributedSampler[int] = DistributedSampler(numbers, num_replicas=2, rank=0, seed=SEED)
        sampler.set_epoch(1)
        return sampler

    return build


def shoal_builder() -> Callable[[int], Iterable[int]]:
    from shoal.data.sampler import ShardedSampler

    def build(num_samples: int) -> Iterable[int]:
        sampler = ShardedSampler(Numbers(num_samples), batch_size=64, shuffle=True, seed=SEED, rank=0, world_size=2)
        sampler.set_epoch(1)
        return sampler

    return build


def peak_bytes() -> int:
    """The most memory that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    name, num_samples = sys.argv[1], int(sys.argv[2])
    build = {"shoal": shoal_builder, "torch": torch_builder}[name]()
    before_bytes = peak_bytes()
    started = time.perf_counter()
    index = next(iter(build(num_samples)))
    took_s = time.perf_counter() - started
    if not 0 <= index < num_samples:
        raise RuntimeError(f"{index} is no index of {num_samples} samples")
    print("measured: " + json.dumps({"took_s": took_s, "grown_bytes": peak_bytes() - before_bytes}))


if __name__ == "__main__":
    main()
