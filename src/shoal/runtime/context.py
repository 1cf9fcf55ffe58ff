"""The current world: joined, asked for, left. The one piece of state of the runtime."""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import torch.distributed as dist

from shoal.errors import UsageError
from shoal.runtime.backends import Backend, Group, backend_for, default_backend
from shoal.runtime.environments import Placement, detect
from shoal.runtime.world import World

__all__ = [
    "active",
    "as_timeout",
    "current",
    "finalize",
    "hostname",
    "initialize",
    "is_initialized",
    "new_group",
    "placement",
]


@dataclass(slots=True)
class _Active:
    """A joined world with what is needed to talk in it."""

    world: World
    backend: Backend
    timeout: timedelta | None = None
    groups: dict[tuple[int, ...], Group] = field(default_factory=dict)


_active: _Active | None = None
_LONGEST_S = 31 * 24 * 3600.0


def placement() -> Placement:
    """Where the environment of this process places it."""
    return detect(os.environ)


def initialize(backend: str | None = None, *, timeout: timedelta | float | None = None) -> World:
    """Join the job that the environment describes.

    Under a launcher (torchrun, ``shoal launch``, ``Parallel``'s own workers) this makes the process group; on its own
    a process needs no backend, and with one it becomes a group of one rank.

    Args:
        backend: name of the backend. None (default): what the machine has (nccl on GPUs, else gloo) under a launcher,
            and no group at all for a process on its own.
        timeout: how long a collective may take, as a timedelta or in seconds; reaches every group, also those made
            later. None keeps the backend's default.

    Returns:
        The world that is now current.

    Raises:
        UsageError: the backend is unknown or cannot run here, the timeout is not positive, or this process is in a
            group already.
        EnvironmentConflictError: the launcher's variables contradict each other.
    """
    global _active  # noqa: PLW0603 - the one piece of state of the runtime
    if is_initialized():
        raise UsageError(
            f"initialize() was called, but this process is already in a job ({current()}); call finalize() first"
        )
    place = placement()
    limit = as_timeout(timeout)
    if backend is None and place.placed:
        backend = place.backend or default_backend(place.local_world_size)
    talker = backend_for(backend)
    talker.start(place, limit)
    world = World(
        rank=place.rank,
        local_rank=place.local_rank,
        world_size=place.world_size,
        local_world_size=place.local_world_size,
        node_rank=place.node_rank,
        num_nodes=place.num_nodes,
        backend=backend,
        device=talker.device(place),
    )
    _active = _Active(world, talker, limit)
    return world


def finalize() -> None:
    """Leave the job: destroy the process groups that ``initialize`` made. A no-op when there are none."""
    global _active  # noqa: PLW0603
    if _active is not None:
        _active.backend.stop()
        _active = None


def is_initialized() -> bool:
    """Whether this process has joined a job, through ``initialize`` or by a torch call of the user's own."""
    return _active is not None or (dist.is_available() and dist.is_initialized())


def current() -> World:
    """The place of this process; rank 0 of 1 when it has joined nothing. Never communicates."""
    return active().world


def active() -> _Active:
    """The current world with its backend; adopts a group that the user made by torch's own calls."""
    global _active  # noqa: PLW0603
    if _active is not None:
        if _active.world.backend is None or dist.is_initialized():
            return _active
        _active = None  # the user destroyed the group by torch's own call
    if dist.is_available() and dist.is_initialized():
        _active = _adopted()
        return _active
    return _alone_without_backend()


def new_group(ranks: Sequence[int]) -> Group:
    """A group of some ranks, made once for the same ranks and kept.

    Args:
        ranks: global ranks, in any order. Every rank of the job must call, members or not.

    Raises:
        UsageError: a rank is given twice or does not exist.
    """
    here = active()
    key = tuple(sorted(ranks))
    wrong = [rank for rank in key if not 0 <= rank < here.world.world_size]
    if not key or wrong or len(set(key)) != len(key):
        raise UsageError(
            f"a group of ranks {list(ranks)} was asked for in a world of {here.world.world_size}; "
            f"give different ranks from 0 to {here.world.world_size - 1}, at least one"
        )
    if key not in here.groups:
        here.groups[key] = here.backend.new_group(key, here.timeout)
    return here.groups[key]


def hostname() -> str:
    """The name of this node."""
    return socket.gethostname()


@functools.cache
def _alone_without_backend() -> _Active:
    backend = backend_for(None)
    place = Placement(source="local", placed=False)
    return _Active(
        World(
            rank=0,
            local_rank=0,
            world_size=1,
            local_world_size=1,
            node_rank=0,
            num_nodes=1,
            backend=None,
            device=backend.device(place),
        ),
        backend,
    )


def _adopted() -> _Active:
    """The world of a group that the user made with ``torch.distributed.init_process_group``."""
    name = dist.get_backend()
    place = placement()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    talker = backend_for(name)
    talker.adopt(place)
    return _Active(
        World(
            rank=rank,
            local_rank=place.local_rank,
            world_size=world_size,
            local_world_size=place.local_world_size if place.placed else world_size,
            node_rank=place.node_rank,
            num_nodes=place.num_nodes,
            backend=name,
            device=talker.device(place),
        ),
        talker,
    )


def as_timeout(timeout: timedelta | float | None) -> timedelta | None:
    """A timeout as users give it, checked: a timedelta, a number of seconds, or None for the backend's default.

    Raises:
        UsageError: it is none of these, or not longer than zero.
    """
    if timeout is None or isinstance(timeout, timedelta):
        limit = timeout
    elif isinstance(timeout, int | float) and not isinstance(timeout, bool) and abs(timeout) < _LONGEST_S:
        limit = timedelta(seconds=timeout)
    else:
        raise UsageError(
            f"timeout={timeout!r} was given; give a timedelta, or seconds up to {_LONGEST_S:.0f} (a month)"
        )
    if limit is not None and limit <= timedelta(0):
        raise UsageError(f"timeout={timeout!r} was given; a timeout must be longer than zero")
    return limit
