"""What runs in a loader's worker: from a key to a batch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset, default_collate, get_worker_info

from shoal._types import Share
from shoal.data.empty import empty_batch
from shoal.data.order import BatchKey
from shoal.data.permutation import mix
from shoal.data.randomness import SampleSeeds, isolated, sample_words, seed_with
from shoal.errors import DataError

__all__ = ["BatchFetcher", "Collate", "InitWorker", "Loaded", "collated", "draws_nothing", "named", "same"]

Collate = Callable[[list[Any]], Any]


class Loaded(NamedTuple):
    """A batch and how the global batch that it is a part of is split."""

    share: Share
    batch: Any


class BatchFetcher(Dataset[Loaded]):
    """Loads whole batches, each sample under a random state that belongs to its place in the epoch.

    Args:
        dataset: map-style: ``dataset[index]``, or ``__getitems__`` for a batch at once.
        collate: makes a batch of a list of samples.
        seed: of the random states.
        stream: 0 where positions are numbered for all ranks together; else a number that only this rank has.
        seed_samples: whether random states are set at all.
    """

    def __init__(self, dataset: Any, collate: Collate, *, seed: int, stream: int, seed_samples: bool) -> None:
        self._dataset = dataset
        self._collate = collate
        self._seed = seed
        self._stream = stream
        self._is_seeded = seed_samples and not draws_nothing(dataset, collate)
        self._fetches_at_once = _fetches_batches(dataset)
        self._seeds = SampleSeeds()
        self._sample: list[Any] = []

    def __getitem__(self, key: BatchKey) -> Loaded:
        words = sample_words(self._base(key.epoch), key.position, len(key.indices)) if self._is_seeded else []
        with isolated() if words else nullcontext():
            if key.share.local:
                samples = self._samples(key.indices, words)
            else:
                samples = self._sample = self._sample or self._some_sample(key.indices, words)
            if words:
                seed_with(words[0] ^ 1)  # collate draws from a state of its own, whatever the samples drew
            if key.share.local:
                return Loaded(key.share, collated(self._collate, samples, key.indices))
            return Loaded(key.share, empty_batch(self._collate, samples[0]))

    def _base(self, epoch: int) -> int:
        return mix(self._seed, epoch, 0, self._stream)

    def _some_sample(self, indices: list[Any], words: list[int]) -> list[Any]:
        """What an empty batch takes its structure from."""
        if not indices:
            raise DataError("an empty list came as a batch from a batch sampler; let each batch have a sample")
        return self._samples(indices[:1], words)

    def _samples(self, indices: list[Any], words: list[int]) -> list[Any]:
        if self._fetches_at_once:
            return self._all_at_once(indices, words)
        if not words:
            return [self._sample_at(index) for index in indices]
        seeds = self._seeds
        while True:
            seeds.begin(words[0])
            samples = []
            for index, word in zip(indices, words, strict=False):
                seeds.seed(word)
                samples.append(self._sample_at(index))
                seeds.note()
            if seeds.is_exact():
                return samples

    def _sample_at(self, index: Any) -> Any:
        try:
            return self._dataset[index]
        except Exception as error:
            raise _explained(error, self._dataset, f"sample {index!r}") from error

    def _all_at_once(self, indices: list[Any], words: list[int]) -> list[Any]:
        if words:
            seed_with(words[0])
        try:
            return list(self._dataset.__getitems__(indices))
        except Exception as error:
            raise _explained(error, self._dataset, f"one of the samples {named(indices)}") from error


def collated(collate: Collate, samples: list[Any], indices: list[Any]) -> Any:
    """The batch of ``samples``.

    Raises:
        DataError: ``collate`` cannot put them together.
    """
    try:
        return collate(samples)
    except Exception as error:
        raise DataError(
            f"the samples {named(indices)} could not be put into one batch: {type(error).__name__}: {error}; "
            "let all samples have the same structure and shapes, or give a collate_fn that takes these"
        ) from error


def _explained(error: Exception, dataset: object, what: str) -> DataError:
    return DataError(f"{what} of the data set {type(dataset).__name__} raised {type(error).__name__}: {error}")


def named(indices: list[Any]) -> str:
    """The first few of ``indices``, for an error."""
    return ", ".join(map(repr, indices[:8])) + (f", … ({len(indices)} in all)" if len(indices) > 8 else "")


def draws_nothing(dataset: object, collate: Collate) -> bool:
    """Whether no sample and no batch can draw a random number: ready data of types that are known, collated by torch.

    Seeding costs some 10 µs a sample, which is more than such a sample itself.
    """
    if collate is not default_collate:
        return False
    while type(dataset) is Subset:
        dataset = dataset.dataset
    if type(dataset) is ConcatDataset:
        return all(draws_nothing(part, collate) for part in dataset.datasets)
    return type(dataset) in (TensorDataset, list, tuple, range, np.ndarray, torch.Tensor)


def _fetches_batches(dataset: Any) -> bool:
    """Whether the data set wants to be asked for a batch at once; torch's Subset does if what it holds does."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return callable(getattr(dataset, "__getitems__", None))


class InitWorker:
    """Prepares a worker process: ``get_worker_info().dataset`` is the user's data set there, as torch promises."""

    def __init__(self, dataset: Any, then: Callable[[int], None] | None) -> None:
        self._dataset = dataset
        self._then = then

    def __call__(self, worker_id: int) -> None:
        """Run in the worker, before it loads anything."""
        # Torch guards its record against assignment; what it holds here is the fetcher, which users never see.
        object.__setattr__(get_worker_info(), "dataset", self._dataset)
        if self._then is not None:
            self._then(worker_id)


def same(loaded: Loaded) -> Loaded:
    """What has been collated already, as it is."""
    return loaded
