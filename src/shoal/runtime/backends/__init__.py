"""How processes talk: one file a backend, one row each.

``gloo``, ``nccl`` and ``mpi`` are torch's; a backend that somebody registered with ``torch.distributed`` is served by
the same class under its own name. None, in the API, is the single process.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.distributed as dist

from shoal._registry import Entry, Registry, nearest
from shoal.errors import UsageError
from shoal.runtime.backends.base import Backend, Capabilities, Group

__all__ = ["BACKENDS", "Backend", "Capabilities", "Group", "available_backends", "backend_for", "default_backend"]

_TORCH = Entry("shoal.runtime.backends.torch_dist:TorchDist")

BACKENDS = Registry("backend", {"gloo": _TORCH, "nccl": _TORCH, "mpi": _TORCH})


def backend_for(name: str | None) -> Backend:
    """The backend of that name, not yet started; None is the single process.

    Raises:
        UsageError: no such backend is known, or it cannot run here; the text says why and what can.
    """
    if name is None:
        from shoal.runtime.backends.single import Single

        return Single()
    known = name in BACKENDS or name in dist.Backend.backend_list
    if not known:
        raise UsageError(
            f"unknown backend {name!r}{nearest(name, BACKENDS)}; usable here: {', '.join(available_backends())}, "
            "or None for one process without communication"
        )
    target = name if name in BACKENDS else "gloo"
    backend = cast("Backend", BACKENDS.load(target)(name))
    if reason := backend.missing():
        raise UsageError(
            f"backend {name!r} was asked for, but {reason}; usable here: {', '.join(available_backends())}"
        )
    return backend


def available_backends() -> tuple[str, ...]:
    """Names of the backends of the table that can run on this machine, in the table's order."""
    return tuple(name for name in BACKENDS if not cast("Backend", BACKENDS.load(name)(name)).missing())


def default_backend(nproc_per_node: int = 1) -> str:
    """The backend for several processes where the user named none: nccl where each gets a GPU, else gloo.

    Args:
        nproc_per_node: processes on this node.
    """
    enough = torch.cuda.device_count() >= nproc_per_node
    return "nccl" if enough and "nccl" in available_backends() else "gloo"
