"""Which process of a job this is."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["World"]


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The place of this process in its job; it never changes while a process group lives.

    Attributes:
        rank: number of this process in the job, from 0.
        local_rank: number of this process on its node, from 0.
        world_size: processes of the job.
        local_world_size: processes on this node.
        node_rank: number of this node, from 0.
        num_nodes: nodes of the job.
        backend: name of the communication backend, or None for a single process without one.
        device: where this process computes.
    """

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    node_rank: int
    num_nodes: int
    backend: str | None
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0
