"""What runs in a loader's worker: from a key to a batch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset, default_collate, get_worker_info

from shoal._types import Share
from shoal.data.empty import empty_batch
from shoal.data.order import BatchKey
from shoal.data.permutation import mix
from shoal.data.randomness import isolated, sample_words, seed_with
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
        self._sample: list[Any] = []

    def __getitem__(self, key: BatchKey) -> Loaded:
        scope: AbstractContextManager[None] = isolated() if self._is_seeded else nullcontext()
        with scope:
            if not key.share.local:
                return Loaded(key.share, self._empty(key))
            return Loaded(key.share, collated(self._collate, self._samples(key), key.indices))

    def _empty(self, key: BatchKey) -> Any:
        if not key.indices:
            raise DataError("an empty list came as a batch from a batch sampler; let each batch have a sample")
        if not self._sample:
            self._sample = self._samples(key)[:1]
        return empty_batch(self._collate, self._sample[0])

    def _samples(self, key: BatchKey) -> list[Any]:
        words = self._words(key)
        if self._fetches_at_once:
            if words:
                seed_with(words[0])
            return list(self._guarded(lambda: self._dataset.__getitems__(key.indices), key.indices))
        samples = []
        dataset = self._dataset
        for place, index in enumerate(key.indices):
            if words:
                seed_with(words[place])
            try:
                samples.append(dataset[index])
            except Exception as error:
                raise _explained(error, dataset, f"sample {index!r}") from error
        return samples

    def _guarded(self, load: Callable[[], Any], indices: list[Any]) -> Any:
        try:
            return load()
        except Exception as error:
            raise _explained(error, self._dataset, f"one of the samples {named(indices)}") from error

    def _words(self, key: BatchKey) -> list[int]:
        if not self._is_seeded:
            return []
        return sample_words(mix(self._seed, key.epoch, 0, self._stream), key.position, len(key.indices))


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
