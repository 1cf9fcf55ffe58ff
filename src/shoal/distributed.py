"""Everything about processes and what runs on several of them, usually imported as ``idist``."""

from __future__ import annotations

from datetime import timedelta

import torch

from shoal import runtime
from shoal.data import auto_dataloader
from shoal.launch import Parallel, spawn
from shoal.runtime import (
    World,
    all_gather,
    all_reduce,
    available_backends,
    barrier,
    broadcast,
    finalize,
    hostname,
    new_group,
    one_rank_first,
    one_rank_only,
)
from shoal.training import auto_model, auto_optim, unwrap_model

__all__ = [
    "Parallel",
    "World",
    "all_gather",
    "all_reduce",
    "auto_dataloader",
    "auto_model",
    "auto_optim",
    "available_backends",
    "backend",
    "barrier",
    "broadcast",
    "device",
    "finalize",
    "get_local_rank",
    "get_nnodes",
    "get_node_rank",
    "get_nproc_per_node",
    "get_rank",
    "get_world_size",
    "hostname",
    "initialize",
    "new_group",
    "one_rank_first",
    "one_rank_only",
    "show_config",
    "spawn",
    "unwrap_model",
]

_LOGGER = "shoal.distributed"


def initialize(backend: str | None = None, timeout: timedelta | float | None = None) -> None:
    """Join the processes that a launcher (torchrun, ``shoal launch``, …) started; see ``Parallel`` for the arguments.

    Raises:
        UsageError: the backend cannot run here, or this process has joined already.
    """
    runtime.initialize(backend, timeout=timeout)


def backend() -> str | None:
    """The name of the backend; None for a process on its own."""
    return runtime.current().backend


def device() -> torch.device:
    """Where this process computes."""
    return runtime.current().device


def get_rank() -> int:
    """The number of this process in the job; 0 for a process on its own."""
    return runtime.current().rank


def get_local_rank() -> int:
    """The number of this process on its node."""
    return runtime.current().local_rank


def get_world_size() -> int:
    """The number of processes of the job."""
    return runtime.current().world_size


def get_nproc_per_node() -> int:
    """The number of processes on this node."""
    return runtime.current().local_world_size


def get_nnodes() -> int:
    """The number of nodes of the job."""
    return runtime.current().num_nodes


def get_node_rank() -> int:
    """The number of this node."""
    return runtime.current().node_rank


def show_config() -> None:
    """Log where this process is in its job; rank 0's lines are shown."""
    logger = runtime.get_logger(_LOGGER)
    world = runtime.current()
    for line in (
        f"backend: {world.backend}",
        f"device: {world.device}",
        f"hostname: {hostname()}",
        f"world size: {world.world_size}",
        f"rank: {world.rank}",
        f"local rank: {world.local_rank}",
        f"num processes per node: {world.local_world_size}",
        f"num nodes: {world.num_nodes}",
        f"node rank: {world.node_rank}",
    ):
        logger.info(line)
