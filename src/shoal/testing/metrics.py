"""What every metric promises, as one check: for Shoal's metrics, and for those that its users write."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from shoal.errors import NotComputableError, UsageError
from shoal.metrics import Metric
from shoal.metrics.base import merged_parts

__all__ = ["check_metric"]

_UNKNOWN = object()


def check_metric(
    make_metric: Callable[[], Metric],
    samples: Sequence[torch.Tensor],
    *,
    expected: Any = _UNKNOWN,
    tolerance: float = 1e-6,
    num_trials: int = 10,
    max_ranks: int = 4,
    seed: int = 0,
) -> Any:
    """Check that a metric gives one value, however the samples come; needs no processes.

    Any split of the samples over 1 to ``max_ranks`` ranks (some without any) and any batch sizes have to give the value
    of one process that takes all samples as one batch; and

    - asking for the value changes nothing, and more samples may follow;
    - a batch without samples changes nothing; ``reset`` forgets all; no sample is a ``NotComputableError``
    - no tensor of the caller is kept: it may be filled anew after ``update``
    - partial results are CPU tensors whose keys are the same on ranks with and without samples
    - a ``state_dict`` loads with ``weights_only=True``, and what it was loaded into gives the value and goes on.

    Args:
        make_metric: returns a new metric; each call one that shares nothing with the others.
        samples: what ``update`` takes: tensors whose first dimension is the samples, one or more of them.
        expected: the value, of scikit-learn say. By default the value of one process is taken for right.
        tolerance: by how much values may differ, relative to the larger where that is above 1; 0.0: bit for bit.
        num_trials: how many random splits are tried.
        max_ranks: the most ranks of a split.
        seed: of the splits.

    Returns:
        The value of one process.

    Raises:
        AssertionError: a promise is broken; the text says which.
        UsageError: there is no sample, or the tensors have different numbers of them.
    """
    if not samples or not all(len(part) == len(samples[0]) > 0 for part in samples):
        raise UsageError(
            f"check_metric was given samples of lengths {[len(part) for part in samples]}; give one tensor or more, "
            "with one sample or more, the same number in each"
        )
    check = _Check(make_metric, tuple(samples), tolerance)
    whole = check.value_of([[len(samples[0])]])
    if expected is not _UNKNOWN:
        check.same("the value of one process", whole, "what was expected", expected)
    check.has_the_same_keys()
    generator = torch.Generator().manual_seed(seed)
    for trial in range(num_trials):
        split = check.split(generator, 1 + trial % max_ranks)
        check.same(f"the value of ranks with batches of {split}", check.value_of(split), "that of one process", whole)
    check.goes_on(whole)
    check.has_a_state(whole)
    return whole


class _Check:
    def __init__(self, make_metric: Callable[[], Metric], samples: tuple[torch.Tensor, ...], tolerance: float) -> None:
        self.make, self.samples, self.tolerance = make_metric, samples, tolerance
        self.size = len(samples[0])
        self.name = type(make_metric()).__name__

    def split(self, generator: torch.Generator, num_ranks: int) -> list[list[int]]:
        """Batch sizes by rank."""

        def draw(high: int) -> int:
            return int(torch.randint(0, high, (1,), generator=generator))

        edges = [0, *sorted(draw(self.size + 1) for _ in range(num_ranks - 1)), self.size]
        sizes = [stop - start for start, stop in itertools.pairwise(edges)]
        split = []
        for size in sizes:
            batch = 1 + draw(self.size)
            split.append([min(batch, size - start) for start in range(0, size, batch)])
        return split

    def feed(self, metric: Metric, start: int, stop: int) -> None:
        """Give the samples in a batch that is overwritten afterwards."""
        batch = tuple(part[start:stop].clone() for part in self.samples)
        metric.update(batch if len(batch) > 1 else batch[0])
        for part in batch:
            part.zero_()

    def value_of(self, split: Sequence[Sequence[int]]) -> Any:
        """The value of ranks that took batches of these sizes."""
        ranks, start = [], 0
        for sizes in split:
            metric = self.make()
            for size in sizes:
                self.feed(metric, start, start + size)
                start += size
            ranks.append(metric)
        by_rank = [[part.state() for part in metric.parts()] for metric in ranks]
        return ranks[0].compute_from_parts(merged_parts(ranks[0].parts(), by_rank))

    def goes_on(self, whole: Any) -> None:
        """Computing, batches without samples and resetting do what they should."""
        metric, half = self.make(), self.size // 2
        self.not_computable(metric, "before any sample")
        self.feed(metric, 0, 0)
        self.not_computable(metric, "after a batch without samples")
        if half:
            self.feed(metric, 0, half)
            self.same("a value asked for again", metric.compute(), "the first", metric.compute())
        self.feed(metric, half, half)
        self.feed(metric, half, self.size)
        self.same("the value after one in between, and a batch without samples", metric.compute(), "the value", whole)
        metric.reset()
        self.not_computable(metric, "after reset()")
        self.feed(metric, 0, self.size)
        self.same("the value after reset()", metric.compute(), "the value", whole)

    def has_a_state(self, whole: Any) -> None:
        """States can be saved, loaded and gone on with."""
        metric, half = self.make(), self.size // 2
        if half:
            self.feed(metric, 0, half)
        file = io.BytesIO()
        torch.save(metric.state_dict(), file)
        file.seek(0)
        loaded = self.make()
        loaded.load_state_dict(torch.load(file, weights_only=True))
        if half:
            self.same("the value of a loaded state", loaded.compute(), "that of the saved one", metric.compute())
        self.feed(loaded, half, self.size)
        self.same("the value after loading and going on", loaded.compute(), "the value", whole)

    def has_the_same_keys(self) -> None:
        """States are tensors on the CPU, as many with samples as without."""
        metric = self.make()
        keys = [set(part.state()) for part in metric.parts()]
        self.feed(metric, 0, self.size)
        for part, without in zip(metric.parts(), keys, strict=True):
            state = part.state()
            self.holds(state.keys() == without, f"has keys {sorted(state)} with and {sorted(without)} without samples")
            for key, tensor in state.items():
                on_cpu = isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu"
                self.holds(on_cpu, f"has a partial result {key!r} that is no CPU tensor: {tensor!r}")

    def not_computable(self, metric: Metric, when: str) -> None:
        try:
            value = metric.compute()
        except NotComputableError:
            return
        except Exception as error:
            raise AssertionError(
                f"{self.name} raises {type(error).__name__} ({error}) {when}, where compute() has to raise "
                "NotComputableError"
            ) from error
        self.holds(False, f"has the value {value!r} {when}, where compute() has to raise NotComputableError")

    def same(self, what: str, value: Any, other: str, wanted: Any) -> None:
        self.holds(_equal(value, wanted, self.tolerance), f"gives {what} as {value!r}, and {other} as {wanted!r}")

    def holds(self, truth: bool, otherwise: str) -> None:
        if not truth:
            raise AssertionError(f"{self.name} {otherwise}")


def _equal(one: Any, other: Any, tolerance: float) -> bool:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_equal(one[key], other[key], tolerance) for key in one)
    if isinstance(one, str) or isinstance(other, str):
        return bool(one == other)
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(_equal(a, b, tolerance) for a, b in zip(one, other, strict=True))
    if isinstance(one, int | float) and isinstance(other, int | float):
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) and math.isnan(other)
        return one == other or abs(one - other) <= tolerance * max(1.0, abs(one), abs(other))
    a, b = (torch.as_tensor(x if isinstance(x, torch.Tensor) else np.array(x)) for x in (one, other))
    return a.shape == b.shape and all(map(_equal, a.flatten().tolist(), b.flatten().tolist(), [tolerance] * a.numel()))
