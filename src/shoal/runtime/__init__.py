"""Which process am I, and how do we talk."""

from __future__ import annotations

from shoal.runtime.backends import BACKENDS, Backend, Group, available_backends, backend_for, default_backend
from shoal.runtime.collectives import REDUCTIONS, all_gather, all_reduce, barrier, broadcast, gather_states
from shoal.runtime.context import (
    active,
    as_timeout,
    current,
    finalize,
    hostname,
    initialize,
    is_initialized,
    new_group,
    placement,
)
from shoal.runtime.environments import ENVIRONMENTS, Placement
from shoal.runtime.logs import get_logger, setup_logger
from shoal.runtime.random import manual_seed
from shoal.runtime.ranks import one_rank_first, one_rank_only
from shoal.runtime.world import World

__all__ = [
    "BACKENDS",
    "ENVIRONMENTS",
    "REDUCTIONS",
    "Backend",
    "Group",
    "Placement",
    "World",
    "active",
    "all_gather",
    "all_reduce",
    "as_timeout",
    "available_backends",
    "backend_for",
    "barrier",
    "broadcast",
    "current",
    "default_backend",
    "finalize",
    "gather_states",
    "get_logger",
    "hostname",
    "initialize",
    "is_initialized",
    "manual_seed",
    "new_group",
    "one_rank_first",
    "one_rank_only",
    "placement",
    "setup_logger",
]
