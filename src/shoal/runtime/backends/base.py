"""What a backend does: a few operations on tensors, on which everything else is built."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch

from shoal.runtime.environments.base import Placement

__all__ = ["Backend", "Capabilities", "Group"]

Group = Any
"""A backend's handle for a group of ranks; None is all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend needs done differently.

    Attributes:
        wraps_model: gradients are averaged by wrapping the model (DistributedDataParallel).
        launches_itself: its own launcher starts the processes; Shoal only joins.
    """

    wraps_model: bool
    launches_itself: bool = False


class Backend(ABC):
    """One way to communicate.

    Tensors handed to the operations are contiguous and lie on ``transport_device``.

    Args:
        name: the backend's name, as the user gave it.
    """

    capabilities: Capabilities

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def missing(self) -> str:
        """Why it cannot run on this machine, as the end of a sentence; empty where it can."""

    @abstractmethod
    def start(self, placement: Placement, timeout: timedelta | None) -> None:
        """Join the group of all ranks. ``timeout`` None keeps the backend's own default."""

    def adopt(self, placement: Placement) -> None:  # noqa: B027 - most backends have nothing to take over
        """Serve a group that the user made; ``stop`` will leave it alone."""

    @abstractmethod
    def stop(self) -> None:
        """Leave the group; a no-op when it never started."""

    @abstractmethod
    def device(self, placement: Placement) -> torch.device:
        """The device on which a process at this place computes."""

    @property
    @abstractmethod
    def transport_device(self) -> torch.device:
        """Where tensors must lie to be sent."""

    @abstractmethod
    def all_reduce(self, tensor: torch.Tensor, op: str, group: Group) -> None:
        """Combine in place over the ranks of ``group``; ``op`` is one of ``collectives.REDUCTIONS``."""

    @abstractmethod
    def all_gather(self, tensor: torch.Tensor, group: Group) -> list[torch.Tensor]:
        """The tensors of all ranks of ``group``, by rank; same shape and dtype everywhere."""

    @abstractmethod
    def broadcast(self, tensor: torch.Tensor, src: int, group: Group) -> None:
        """Fill ``tensor`` in place with that of global rank ``src``."""

    @abstractmethod
    def barrier(self, group: Group) -> None:
        """Wait until every rank of ``group`` is here."""

    @abstractmethod
    def new_group(self, ranks: Sequence[int], timeout: timedelta | None) -> Group:
        """A handle for these global ranks; every rank of the job calls it."""

    @abstractmethod
    def group_ranks(self, group: Group) -> list[int]:
        """The global ranks of ``group``, ascending."""
