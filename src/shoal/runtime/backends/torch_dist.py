"""Backends of ``torch.distributed``: gloo, nccl, mpi, and any that is registered with c10d."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore
from torch.distributed.rendezvous import rendezvous

from shoal.errors import UsageError
from shoal.runtime.backends.base import Backend, Capabilities, Group
from shoal.runtime.environments.base import Placement

__all__ = ["TorchDist"]

_starts = itertools.count()

_OPS = {
    "SUM": dist.ReduceOp.SUM,
    "PRODUCT": dist.ReduceOp.PRODUCT,
    "MIN": dist.ReduceOp.MIN,
    "MAX": dist.ReduceOp.MAX,
}


class TorchDist(Backend):
    """A c10d process group.

    Only nccl computes on a GPU; the others compute and send on the CPU.
    """

    capabilities = Capabilities(wraps_model=True)

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._started = False
        self._device = torch.device("cpu")

    def missing(self) -> str:
        """Whether torch was built with the backend and, for nccl, whether there is a GPU."""
        if not dist.is_available():
            return "this torch was built without torch.distributed"
        built = {"gloo": dist.is_gloo_available, "nccl": dist.is_nccl_available, "mpi": dist.is_mpi_available}
        if self.name in built and not built[self.name]():
            return "this torch was built without it"
        if self.name == "nccl" and torch.cuda.device_count() == 0:
            return "it needs an NVIDIA GPU and no CUDA device is visible here"
        return ""

    def start(self, placement: Placement, timeout: timedelta | None) -> None:
        """Join through the store at MASTER_ADDR:MASTER_PORT, which the launcher of the processes named.

        A process that nobody placed becomes a group of one, in a store of its own.
        """
        self._device = self.device(placement)
        limits: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
        options = dict(limits)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
            options["device_id"] = self._device
        if self.name == "mpi":  # MPI itself knows the ranks
            dist.init_process_group(self.name, **options)
        elif not placement.placed:
            dist.init_process_group(self.name, store=HashStore(), rank=0, world_size=1, **options)
        else:
            store, _, _ = next(rendezvous("env://", placement.rank, placement.world_size, **limits))
            # A group of an earlier start has left its addresses in the launcher's store, under the same keys.
            store = PrefixStore(f"shoal/{next(_starts)}", store)
            dist.init_process_group(
                self.name, store=store, rank=placement.rank, world_size=placement.world_size, **options
            )
        self._started = True

    def adopt(self, placement: Placement) -> None:
        """Take the device that the group's maker is expected to use; the group stays its maker's to destroy."""
        self._device = self.device(placement)

    def stop(self) -> None:
        """Destroy every process group, where this backend made them."""
        if self._started and dist.is_initialized():
            dist.destroy_process_group()
        self._started = False

    def device(self, placement: Placement) -> torch.device:
        """nccl: GPU ``local_rank``, or GPU 0 where the process sees only one; others: the CPU.

        Raises:
            UsageError: there are more processes on the node than GPUs.
        """
        if self.name != "nccl":
            return torch.device("cpu")
        num_gpus = torch.cuda.device_count()
        if num_gpus == 1:
            return torch.device("cuda", 0)
        if placement.local_rank >= num_gpus:
            raise UsageError(
                f"{placement.local_world_size} processes on this node were asked for with backend 'nccl', which needs "
                f"a GPU each, but {num_gpus} are visible; start at most {num_gpus}, or use backend 'gloo'"
            )
        return torch.device("cuda", placement.local_rank)

    @property
    def transport_device(self) -> torch.device:
        """The GPU for nccl, the CPU for the others."""
        return self._device

    def all_reduce(self, tensor: torch.Tensor, op: str, group: Group) -> None:
        """``torch.distributed.all_reduce``."""
        dist.all_reduce(tensor, op=_OPS[op], group=group)

    def all_gather(self, tensor: torch.Tensor, group: Group) -> list[torch.Tensor]:
        """``torch.distributed.all_gather``."""
        parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, tensor, group=group)
        return parts

    def broadcast(self, tensor: torch.Tensor, src: int, group: Group) -> None:
        """``torch.distributed.broadcast``."""
        dist.broadcast(tensor, src=src, group=group)

    def barrier(self, group: Group) -> None:
        """``torch.distributed.barrier``, on this process's own GPU for nccl."""
        device_ids = [self._device.index] if self._device.type == "cuda" else None
        dist.barrier(group=group, device_ids=device_ids)

    def new_group(self, ranks: Sequence[int], timeout: timedelta | None) -> Group:
        """``torch.distributed.new_group``: every rank of the job must call, members or not."""
        options: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
        return dist.new_group(list(ranks), **options)

    def group_ranks(self, group: Group) -> list[int]:
        """The members, ascending."""
        return sorted(dist.get_process_group_ranks(group if group is not None else dist.group.WORLD))
