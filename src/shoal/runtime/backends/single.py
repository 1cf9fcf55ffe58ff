"""One process: nobody to talk to."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch

from shoal.runtime.backends.base import Backend, Capabilities, Group
from shoal.runtime.environments.base import Placement

__all__ = ["Single"]


class Single(Backend):
    """The group of one rank: every operation is the identity."""

    capabilities = Capabilities(wraps_model=False)

    def __init__(self) -> None:
        super().__init__("none")

    def missing(self) -> str:
        """Never missing."""
        return ""

    def start(self, placement: Placement, timeout: timedelta | None) -> None:
        """Nothing to join."""

    def stop(self) -> None:
        """Nothing to leave."""

    def device(self, placement: Placement) -> torch.device:  # noqa: ARG002
        """The machine's accelerator where there is one, else the CPU."""
        if torch.accelerator.is_available():
            accelerator = torch.accelerator.current_accelerator()
            if accelerator is not None:
                return torch.device(accelerator.type, 0) if accelerator.type == "cuda" else accelerator
        return torch.device("cpu")

    @property
    def transport_device(self) -> torch.device:
        """The CPU; nothing is ever sent."""
        return torch.device("cpu")

    def all_reduce(self, tensor: torch.Tensor, op: str, group: Group) -> None:
        """The tensor as it is."""

    def all_gather(self, tensor: torch.Tensor, group: Group) -> list[torch.Tensor]:  # noqa: ARG002
        """The one tensor."""
        return [tensor]

    def broadcast(self, tensor: torch.Tensor, src: int, group: Group) -> None:
        """The tensor as it is."""

    def barrier(self, group: Group) -> None:
        """Nobody to wait for."""

    def new_group(self, ranks: Sequence[int], timeout: timedelta | None) -> Group:  # noqa: ARG002
        """The group of rank 0."""
        return None

    def group_ranks(self, group: Group) -> list[int]:  # noqa: ARG002
        """Rank 0."""
        return [0]
