"""Whether data was divided among the ranks before it came here."""

from __future__ import annotations

from typing import NamedTuple

from shoal.errors import UsageError

__all__ = ["Shard", "is_sharded", "shard_of"]

_NUM_SHARDS = ("num_replicas", "world_size")


class Shard(NamedTuple):
    """Which part of how many an object says that it gives."""

    rank: int
    num_shards: int


def shard_of(data: object) -> Shard | None:
    """What ``data`` says of itself by ``rank`` and ``num_replicas`` or ``world_size``, or None where it says nothing.

    A batch sampler is asked for its ``sampler``, too, and a data set of the Hugging Face hub for the split that
    ``split_dataset_by_node`` gave it.
    """
    for part in (data, getattr(data, "_distributed", None), getattr(data, "sampler", None)):
        rank = getattr(part, "rank", None)
        for name in _NUM_SHARDS:
            num_shards = getattr(part, name, None)
            if type(rank) is int and type(num_shards) is int:
                return Shard(rank, num_shards)
    return None


def is_sharded(data: object, *, kind: str, declared: bool | None, rank: int, world_size: int) -> bool | None:
    """Whether ``data`` gives one rank's samples only; None where it doesn't say and nobody declared it.

    Args:
        data: a data set, a sampler or a batch sampler.
        kind: what it is, for errors.
        declared: what the user says; None where he doesn't.
        rank, world_size: of this process.

    Raises:
        UsageError: it says that it is another rank's, or made for another world, or the opposite of ``declared``.
    """
    found = shard_of(data)
    if found is None or (found == Shard(0, 1) and (world_size == 1 or not declared)):
        return declared if found is None or world_size == 1 else False
    name = f"the {kind} {type(data).__name__}"
    if found != Shard(rank, world_size):
        raise UsageError(
            f"{name} says that it is part {found.rank} of {found.num_shards}, and this is rank {rank} of {world_size}; "
            "make it for this rank, or leave the sharding to auto_dataloader"
        )
    if declared is False:
        raise UsageError(
            f"sharded=False was given, and {name} says that it is part {found.rank} of {found.num_shards}; "
            "leave sharded= out, or give one that isn't sharded"
        )
    return True
