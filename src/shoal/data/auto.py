"""One call that makes the right loader in every world."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DistributedSampler, IterableDataset

from shoal import runtime
from shoal.data.detect import is_sharded
from shoal.data.loader import ShardedDataLoader
from shoal.data.order import Order
from shoal.data.own import ReplicatedBatchSampler, ReplicatedSampler
from shoal.data.permutation import mix
from shoal.data.plan import as_count
from shoal.data.sampler import ShardedSampler
from shoal.data.split import SplitBatchSampler, SplitSampler
from shoal.data.stream import StreamOrder
from shoal.errors import UsageError
from shoal.runtime.logs import get_logger

__all__ = ["auto_dataloader"]

_OF_THE_ORDER = ("batch_size", "drop_last", "sampler", "batch_sampler")
_LOGGER = "shoal.distributed.auto.auto_dataloader"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What decides on the order of samples."""

    dataset: Any
    batch_size: int
    shuffle: bool
    drop_last: bool
    sampler: Iterable[Any] | None
    batch_sampler: Iterable[Sequence[Any]] | None
    sharded: bool | None
    seed: int


def auto_dataloader(
    dataset: Any,
    *,
    batch_size: int = 1,
    shuffle: bool | None = None,
    drop_last: bool = False,
    num_workers: int = 0,
    sampler: Iterable[Any] | None = None,
    batch_sampler: Iterable[Sequence[Any]] | None = None,
    pin_memory: bool | None = None,
    persistent_workers: bool = False,
    seed: int = 0,
    sharded: bool | None = None,
    **options: Any,
) -> ShardedDataLoader:
    """A loader that gives every rank its part of each global batch: every sample once, at every world size.

    The last global batch is split as evenly as it goes and nothing is padded. All ranks get the same number of
    batches; one without a sample at a step gets an empty batch. It logs what it uses, on rank 0. It doesn't
    communicate; call it on every rank with the same arguments.

    Args:
        dataset: map-style or iterable. An iterable one, in a world of several ranks, has to be declared by
            ``sharded`` unless it says by ``rank`` and ``world_size`` (or ``num_replicas``) that it is one rank's.
        batch_size: samples of one step of the whole job, all ranks together; 1 by default. Exact at every world size.
        shuffle: a new random order every epoch, the same at every world size; by default the data set's own order.
        drop_last: leave out the last global batch when it isn't full; False by default.
        num_workers: worker processes a node, divided among its ranks and rounded up; 0 by default.
        sampler: gives indices. One that gives all ranks' is split: rank 0's draw counts. One that gives one rank's
            (torch's DistributedSampler, anything with ``rank`` and ``num_replicas``) is used as it is.
        batch_sampler: likewise gives lists of indices: batches of the whole job, or, where it is sharded, one rank's.
        pin_memory: by default where this process computes on CUDA.
        persistent_workers: keep workers from epoch to epoch; False by default.
        seed: of the order and of what samples draw (augmentation); 0 by default, the same on every rank. The global
            random state, and so ``manual_seed``, has no part in it.
        sharded: whether what gives the samples (``batch_sampler``, ``sampler``, or the data set) gives one rank's
            alone. By default as it says itself, and False where it says nothing.
        options: as torch's DataLoader takes them: ``collate_fn``, ``worker_init_fn``, ``timeout``,
            ``prefetch_factor``, ``multiprocessing_context``, ``generator``; and ``seed_samples=False`` to leave
            random states alone while samples are loaded.

    Returns:
        The loader. ``loader.sampler.set_epoch`` (or ``loader.set_epoch``) works as with torch's DistributedSampler;
        without a call the epoch goes up by one after each complete iteration.

    Raises:
        UsageError: arguments that cannot be used, or not together.
    """
    world = runtime.current()
    for name, value in (("shuffle", shuffle), ("drop_last", drop_last), ("sharded", sharded)):
        if not any(value is choice for choice in (None, True, False)):
            raise UsageError(f"{name}={value!r} was given; give True or False")
    asked = _Asked(
        dataset=dataset,
        batch_size=as_count(batch_size, "batch_size", 1),
        shuffle=bool(shuffle),
        drop_last=bool(drop_last),
        sampler=sampler,
        batch_sampler=batch_sampler,
        sharded=sharded,
        seed=seed,
    )
    _check(asked)
    order = _order_of(asked, world)
    local_workers = -(-as_count(num_workers, "num_workers", 0) // world.local_world_size)
    if isinstance(order, StreamOrder) and not order.is_sharded and local_workers > 1:
        _say(
            logging.WARNING,
            "num_workers=%d was asked for, and every worker would read all of an iterable data set; 1 a rank is used",
            num_workers,
        )
        local_workers = 1
    if options.get("generator") is not None and asked.shuffle:
        _say(logging.WARNING, "generator= has no effect on the order of samples; it comes from seed=%d", seed)
    used = {
        **({} if batch_sampler is not None else {"batch_size": order.local_batch_size}),
        "num_workers": local_workers,
        **({"drop_last": True} if asked.drop_last else {}),
        **_named(order),
        "pin_memory": world.device.type == "cuda" if pin_memory is None else pin_memory,
        **({"persistent_workers": True} if persistent_workers else {}),
        **options,
    }
    _say(logging.INFO, "Use data loader kwargs for dataset '%s': \n\t%s", _title(dataset), used)
    loading = {name: value for name, value in used.items() if name not in _OF_THE_ORDER}
    return ShardedDataLoader(dataset, order, **loading)


def _say(level: int, text: str, *parts: object) -> None:
    """Log on rank 0; the other ranks would say the same."""
    get_logger(_LOGGER).log(level if runtime.current().rank == 0 else logging.DEBUG, text, *parts)


def _check(asked: _Asked) -> None:
    """Refuse what contradicts itself, as torch's DataLoader does."""
    given = [
        name
        for name, is_given in (
            ("sampler", asked.sampler is not None),
            ("shuffle", asked.shuffle),
            ("batch_size", asked.batch_size != 1),
            ("drop_last", asked.drop_last),
        )
        if is_given
    ]
    if asked.batch_sampler is not None and given:
        raise UsageError(f"batch_sampler= makes the batches, and {given[0]}= was given, too; leave one of them out")
    if asked.sampler is not None and asked.shuffle:
        raise UsageError("sampler= makes the order, and shuffle=True was given, too; leave one of them out")
    if isinstance(asked.dataset, IterableDataset):
        for name in ("sampler", "batch_sampler"):
            if getattr(asked, name) is not None:
                raise UsageError(f"{name}= was given for an iterable data set, which cannot be asked for samples")
        if asked.shuffle:
            raise UsageError(
                "shuffle=True was given for an iterable data set; let it shuffle itself, or make it map-style"
            )


def _order_of(asked: _Asked, world: runtime.World) -> Order:
    if isinstance(asked.dataset, IterableDataset):
        return _stream_order(asked, world)
    if asked.batch_sampler is not None:
        split = _is_sharded(asked.batch_sampler, "batch sampler", asked, world)
        batch_order = SplitBatchSampler if split else ReplicatedBatchSampler
        return batch_order(asked.batch_sampler, seed=asked.seed, rank=world.rank, world_size=world.world_size)
    if isinstance(asked.sampler, ShardedSampler):
        return _as_given(asked.sampler, asked)
    if asked.sampler is not None:
        split = _is_sharded(asked.sampler, "sampler", asked, world)
        if split and isinstance(asked.sampler, DistributedSampler):
            _warn_of_padding(asked.sampler)
        return _sampler_order(SplitSampler if split else ReplicatedSampler, asked.sampler, asked, world)
    if _is_sharded(asked.dataset, "data set", asked, world):
        # Each rank's own shard, in its own order: the sampler of a world of one, told apart by the rank.
        own_seed = mix(asked.seed, world.rank)
        own = ShardedSampler(asked.dataset, shuffle=asked.shuffle, seed=own_seed, rank=0, world_size=1)
        return _sampler_order(SplitSampler, own, asked, world)
    return _whole_order(asked, world)


def _is_sharded(data: object, kind: str, asked: _Asked, world: runtime.World) -> bool | None:
    return is_sharded(data, kind=kind, declared=asked.sharded, rank=world.rank, world_size=world.world_size)


def _sampler_order(
    kind: type[SplitSampler | ReplicatedSampler], sampler: Iterable[Any], asked: _Asked, world: runtime.World
) -> Order:
    return kind(
        sampler,
        batch_size=asked.batch_size,
        drop_last=asked.drop_last,
        seed=asked.seed,
        rank=world.rank,
        world_size=world.world_size,
    )


def _whole_order(asked: _Asked, world: runtime.World) -> ShardedSampler:
    if asked.batch_size < world.world_size:
        _say(
            logging.WARNING,
            "batch_size=%d (of all ranks together) over %d ranks leaves %d of them without a sample at every step",
            asked.batch_size,
            world.world_size,
            world.world_size - asked.batch_size,
        )
    return ShardedSampler(
        asked.dataset,
        batch_size=asked.batch_size,
        shuffle=asked.shuffle,
        drop_last=asked.drop_last,
        seed=asked.seed,
        rank=world.rank,
        world_size=world.world_size,
    )


def _stream_order(asked: _Asked, world: runtime.World) -> StreamOrder:
    split = _is_sharded(asked.dataset, "data set", asked, world)
    if split is None and world.world_size > 1:
        raise UsageError(
            f"the iterable data set {type(asked.dataset).__name__} doesn't say whether its samples are one rank's or "
            f"all {world.world_size} ranks'; give sharded=True where each rank's iterator has samples of its own, "
            "sharded=False where each has all of them"
        )
    return StreamOrder(
        asked.dataset,
        batch_size=asked.batch_size,
        drop_last=asked.drop_last,
        sharded=split is not False,  # a process alone reads as torch does: workers divide the data set, or repeat it
        seed=asked.seed,
        rank=world.rank,
        world_size=world.world_size,
    )


def _as_given(sampler: ShardedSampler, asked: _Asked) -> ShardedSampler:
    if asked.batch_size not in (1, sampler.plan.batch_size) or asked.drop_last not in (False, sampler.drop_last):
        raise UsageError(
            f"batch_size={asked.batch_size}, drop_last={asked.drop_last} were given with a ShardedSampler of "
            f"batch_size={sampler.plan.batch_size}, drop_last={sampler.drop_last}, which makes the batches; "
            "give them to the sampler alone"
        )
    return sampler


def _warn_of_padding(sampler: DistributedSampler[Any]) -> None:
    size = len(sampler.dataset)  # type: ignore[arg-type]  # the sampler itself needs its length
    if sampler.total_size > size:
        _say(
            logging.WARNING,
            "the DistributedSampler repeats %d samples to give all ranks the same number; leave sampler= out to have "
            "every sample once",
            sampler.total_size - size,
        )


def _named(order: Order) -> dict[str, Order]:
    if isinstance(order, StreamOrder):
        return {}
    return {"batch_sampler" if isinstance(order, ReplicatedBatchSampler | SplitBatchSampler) else "sampler": order}


def _title(dataset: object) -> str:
    """A few words for the log: the first line of the data set's own representation, or its type."""
    if isinstance(dataset, list | tuple | dict | torch.Tensor) or type(dataset).__repr__ is object.__repr__:
        return f"Dataset {type(dataset).__name__}"
    return repr(dataset).strip().partition("\n")[0][:60]
