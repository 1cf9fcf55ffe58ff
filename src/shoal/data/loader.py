"""A DataLoader whose batches are this rank's part of the job's."""

from __future__ import annotations

import itertools
import multiprocessing
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler

from shoal._registry import nearest
from shoal._types import Share
from shoal.data.agreement import agreed
from shoal.data.fetch import BatchFetcher, InitWorker, Loaded, same
from shoal.data.order import BatchKey, Order, UnknownLengthError
from shoal.data.own import ReplicatedBatchSampler
from shoal.data.permutation import mix
from shoal.data.plan import as_count
from shoal.data.split import SplitBatchSampler
from shoal.data.stream import StreamFetcher, StreamOrder
from shoal.errors import DataError, UsageError
from shoal.runtime.logs import get_logger

__all__ = ["ShardedDataLoader"]

_SHARES_KEPT = 1024  # Shares of steps that were yielded, where no plan knows them.


_OPTIONS = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
    "in_order",
)


@dataclass(slots=True)
class _Progress:
    """Where one iteration is."""

    epoch: int
    step: int
    is_finished: bool = False


class ShardedDataLoader(DataLoader[Any]):
    """Brings this rank's part of each global batch, the same number of batches on every rank.

    A rank without a sample at a step gets a batch of the usual structure without samples, so that loops stay in step.
    Each sample is loaded under a state of Python's, NumPy's and torch's CPU generators that comes from seed, epoch and
    its place in the epoch's order: what it draws doesn't depend on workers or ranks, and the process's own random
    state is left as it was. A data set with ``__getitems__`` is asked for a rank's whole part of a batch at once and
    draws from the state of the part's first sample. What draws from a generator of its own is the data set's affair.

    As torch's loader, but for this: several iterations may run at once; workers are forked unless
    ``multiprocessing_context`` says otherwise; an error of the data set arrives as a DataError that names the sample.

    Args:
        dataset: map-style or iterable.
        order: which samples come at which step: a ``ShardedSampler``, or one of ``shoal.data.own``, or a
            ``StreamOrder`` for an iterable data set.
        seed_samples: False leaves random states alone while samples are loaded; they are then as torch has them.
        options: as torch's DataLoader takes them: ``num_workers`` (of this process), ``collate_fn``, ``pin_memory``,
            ``timeout``, ``worker_init_fn``, ``multiprocessing_context``, ``generator`` (of the workers' base seeds;
            the order comes from ``order``), ``prefetch_factor``, ``persistent_workers``.

    Raises:
        UsageError: an option that cannot work here.
    """

    def __init__(self, dataset: Any, order: Order, *, seed_samples: bool = True, **options: Any) -> None:
        _check(dataset, order, options)
        num_workers = options.get("num_workers", 0)
        if num_workers and "multiprocessing_context" not in options:
            options["multiprocessing_context"] = _default_context()
        if isinstance(order, StreamOrder):
            super().__init__(dataset, max(1, order.local_batch_size), drop_last=order.drop_last, **options)
        elif isinstance(order, ReplicatedBatchSampler | SplitBatchSampler):
            super().__init__(dataset, batch_sampler=order, **options)
        else:
            drop_last = bool(getattr(order, "drop_last", False))
            size = max(1, order.local_batch_size)
            super().__init__(dataset, size, sampler=order, drop_last=drop_last, **options)  # type: ignore[arg-type]
        self.order = order
        self.seed_samples = seed_samples
        self._base_seeds = torch.Generator().manual_seed(mix(order.seed))
        self._lasting: DataLoader[Loaded] | None = None
        self._lasting_user: tuple[weakref.ref[Iterator[Any]], _Progress] | None = None
        self._progress = _Progress(order.epoch, 0)
        self._shares: dict[int, Share] = {}

    def __len__(self) -> int:
        """Global batches of an epoch: the number of batches that every rank gets.

        Raises:
            UnknownLengthError: the data tells only while it is read.
        """
        return self.order.num_steps

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration, counted from 0."""
        return self.order.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; iterations that run keep theirs.

        While nobody chooses one, here or at the sampler, it goes up by one after each iteration that is carried to
        its end.
        """
        self.order.set_epoch(epoch)

    def seek(self, step: int) -> None:
        """Let the next iteration, and only that one, start at ``step``, counted from 0 within the epoch.

        O(1) where Shoal makes the order; an own sampler draws what lies before, and an iterable data set reads it.

        Raises:
            UsageError: ``step`` is no whole number, or lies beyond the end of the epoch.
        """
        self.order.seek(step)

    def share(self, step: int) -> Share:
        """How the global batch at ``step`` of an epoch, counted from 0, is split, without asking other ranks.

        Raises:
            UnknownLengthError: the split shows only when the step has been read, and it hasn't been yet.
            UsageError: the epoch has no such step.
        """
        plan = self.order.plan
        if plan is not None:
            return plan.share(step, self.order.rank)
        drawn = self.order.share_of(step) if isinstance(self.order, ReplicatedBatchSampler) else None
        share = drawn or self._shares.get(step)
        if share is None:
            raise UnknownLengthError(
                f"the split of step {step} was asked of data that tells it only while it is read; ask after the batch"
            )
        return share

    def state_dict(self) -> dict[str, int]:
        """Where the latest iteration is: its epoch, and the step whose batch comes next."""
        progress = self._progress
        if progress.is_finished:
            return {"epoch": progress.epoch + 1, "step": 0}
        return {"epoch": progress.epoch, "step": progress.step}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Let the next iteration begin where ``state`` was taken, at any number of ranks and workers.

        Raises:
            UsageError: ``state`` isn't one of ``state_dict``, or lies beyond the end of the epoch.
        """
        if not {"epoch", "step"} <= set(state):
            raise UsageError(f"a loader's state has an epoch and a step; this one has {sorted(state)}")
        self.order.move_to(as_count(state["epoch"], "epoch", 0))
        self.order.seek(state["step"])
        self._progress = _Progress(state["epoch"], state["step"])

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # an iterator, but not torch's own
        epoch, start = self.order.epoch, self.order.take_start()
        lasts = bool(self.persistent_workers) and not self._lasting_is_in_use()
        if self._lasting is None or not lasts:
            inner = self._inner()
            self._lasting = inner if lasts else self._lasting
        else:
            inner = self._lasting
        begin = inner.dataset if isinstance(self.order, StreamOrder) else inner.sampler
        begin.begin(epoch, start)  # type: ignore[union-attr]  # both are ours
        progress = self._progress = _Progress(epoch, start)
        batches = self._batches(iter(inner), progress)
        if lasts:
            self._lasting_user = weakref.ref(batches), progress
        return batches

    def _lasting_is_in_use(self) -> bool:
        """Whether the iteration that has the lasting workers goes on: torch would start them anew under it."""
        if self._lasting_user is None:
            return False
        iteration, progress = self._lasting_user
        return iteration() is not None and not progress.is_finished

    def _batches(self, items: Iterator[Loaded], progress: _Progress) -> Iterator[Any]:
        order, start = self.order, progress.step
        if isinstance(order, StreamOrder) and start:
            get_logger("shoal.data").info("Reading past %d batches of an iterable data set", start)
            items = _past(items, start, has_structure=order.is_agreed)
        if order.is_agreed:
            full = order.batch_size if isinstance(order, StreamOrder) and order.drop_last else None
            items = agreed(items, full_size=full)
        is_unplanned = order.plan is None
        try:
            for share, batch in items:
                if is_unplanned:
                    self._shares[progress.step] = share
                    self._shares.pop(progress.step - _SHARES_KEPT, None)
                progress.step += 1
                yield batch
        except DataError as error:
            if not self.num_workers:
                raise
            # The text has the worker's traceback. Torch's own frames would keep all workers alive as long as the error.
            del items
            raise error.with_traceback(None) from error.__cause__
        progress.is_finished = True
        order.finish(progress.epoch)

    def _inner(self) -> DataLoader[Loaded]:
        """The torch loader that one iteration, or one after the other, runs on: one item is one whole batch."""
        order, num_workers = self.order, self.num_workers
        fetcher: StreamFetcher | BatchFetcher
        if isinstance(order, StreamOrder):
            fetcher, keys = (
                StreamFetcher(order, self.collate_fn, seed_samples=self.seed_samples, in_workers=num_workers > 0),
                None,
            )
        else:
            stream = 1 + order.rank if order.is_sharded else 0
            fetcher, keys = (
                BatchFetcher(
                    self.dataset, self.collate_fn, seed=order.seed, stream=stream, seed_samples=self.seed_samples
                ),
                _Keys(order),
            )
        return DataLoader(
            fetcher,
            batch_size=None,
            sampler=keys,
            num_workers=num_workers,
            collate_fn=same,  # type: ignore[arg-type]  # one item is a batch, not a list
            pin_memory=self.pin_memory,
            timeout=self.timeout,
            worker_init_fn=InitWorker(self.dataset, self.worker_init_fn),
            multiprocessing_context=self.multiprocessing_context,
            generator=self.generator or self._base_seeds,
            prefetch_factor=self.prefetch_factor if num_workers else None,
            persistent_workers=bool(self.persistent_workers),
            pin_memory_device=self.pin_memory_device,
        )


class _Keys(Sampler[BatchKey]):
    """Hands an order's keys to torch's loader, which knows no epoch."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._epoch = self._start = 0

    def begin(self, epoch: int, start: int) -> None:
        """What the next iteration is about."""
        self._epoch, self._start = epoch, start

    def __iter__(self) -> Iterator[BatchKey]:
        return self._order.keys(self._epoch, self._start)


def _past(items: Iterator[Loaded], num_batches: int, *, has_structure: bool) -> Iterator[Loaded]:
    """``items`` without the first batches; what shows their structure stays."""
    kept = list(itertools.islice(items, 1)) if has_structure else []
    return itertools.chain(kept, itertools.islice(items, num_batches, None))


def _default_context() -> str | None:
    # A worker started by "forkserver" or "spawn" unpickles the data set by name, and its class may live in a cell.
    return "fork" if "fork" in multiprocessing.get_all_start_methods() else None


def _check(dataset: Any, order: Order, options: Mapping[str, Any]) -> None:
    for name in options:
        if name not in _OPTIONS:
            raise UsageError(
                f"a loader has no option {name!r}{nearest(name, list(_OPTIONS))}; options are: {', '.join(_OPTIONS)}"
            )
    is_stream = isinstance(dataset, IterableDataset)
    if is_stream != isinstance(order, StreamOrder):
        raise UsageError(
            f"the data set {type(dataset).__name__} is {'iterable' if is_stream else 'map-style'} and cannot be read "
            f"by a {type(order).__name__}; iterable data sets take a StreamOrder, map-style ones a sampler"
        )
    num_workers = as_count(options.get("num_workers", 0), "num_workers", 0)
    if isinstance(order, StreamOrder) and not order.is_sharded and num_workers > 1:
        raise UsageError(
            f"num_workers={num_workers} would read the iterable data set {type(dataset).__name__} that many times "
            "over; give num_workers=1, or shard it by rank and worker and declare it sharded"
        )
    for name in ("persistent_workers", "prefetch_factor", "multiprocessing_context"):
        if options.get(name) and not num_workers:
            raise UsageError(f"{name}={options[name]!r} needs worker processes; give num_workers of at least 1")
    if not options.get("in_order", True):
        raise UsageError("in_order=False was asked for, but a step's batch must be the same in every run; leave it out")
