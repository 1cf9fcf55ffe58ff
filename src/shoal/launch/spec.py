"""What is to be started: checked at the door, before any process is."""

from __future__ import annotations

import math
import os
import socket
from dataclasses import dataclass
from datetime import timedelta

import torch

from shoal import runtime
from shoal.errors import UsageError

__all__ = ["LaunchSpec", "nproc_for", "resolve"]

_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """One job, as this node sees it.

    Attributes:
        nproc_per_node: workers to start on this node.
        nnodes: nodes of the job.
        node_rank: number of this node, from 0.
        master_addr: host of node 0.
        master_port: port of the store on it, or None for a free one (only with one node).
        backend: the backend that the workers join by, or None for what the machine has.
        timeout: how long a collective may take; None keeps the backend's default.
        grace_s: seconds between a signal to the workers and the end of those that are still there.
        num_threads: threads for the operators of torch in each worker.
    """

    nproc_per_node: int
    nnodes: int = 1
    node_rank: int = 0
    master_addr: str = _LOOPBACK
    master_port: int | None = None
    backend: str | None = None
    timeout: timedelta | None = None
    grace_s: float = 30.0
    num_threads: int = 1


def resolve(
    *,
    nproc_per_node: int | str | None,
    nnodes: int | None = None,
    node_rank: int | None = None,
    master_addr: str | None = None,
    master_port: int | str | None = None,
    backend: str | None = None,
    timeout: timedelta | float | None = None,
    grace_s: float = 30.0,
) -> LaunchSpec:
    """Check what the user gave and fill in the rest.

    Raises:
        UsageError: something cannot work: the text says what was given, what was found and what to do.
    """
    if backend is not None:
        runtime.backend_for(backend)
    nproc = nproc_for(nproc_per_node, backend)
    num_nodes = _whole("nnodes", 1 if nnodes is None else nnodes, least=1)
    if num_nodes > 1 and node_rank is None:
        raise UsageError(f"nnodes={num_nodes} was given without node_rank; give every node its own number from 0")
    rank = _whole("node_rank", 0 if node_rank is None else node_rank, least=0)
    if rank >= num_nodes:
        raise UsageError(
            f"node_rank={rank} was given with nnodes={num_nodes}: nodes count from 0, so node_rank is at most "
            f"{num_nodes - 1}; give every node its own number below nnodes"
        )
    port = None if master_port is None else _whole("master_port", master_port, least=1)
    if num_nodes > 1 and (master_addr is None or port is None):
        missing = " and ".join(
            name for name, value in (("master_addr", master_addr), ("master_port", port)) if value is None
        )
        raise UsageError(
            f"nnodes={num_nodes} was given without {missing}; give every node the address of node 0 and a port "
            "that is free there"
        )
    if port is not None and rank == 0:
        _check_free(port)
    if isinstance(grace_s, bool) or not isinstance(grace_s, int | float) or not 0 < grace_s < math.inf:
        raise UsageError(f"grace_s={grace_s!r} was given; give a number of seconds greater than 0")
    if master_addr is not None:
        _check_resolves(master_addr)
    return LaunchSpec(
        nproc_per_node=nproc,
        nnodes=num_nodes,
        node_rank=rank,
        master_addr=master_addr or _LOOPBACK,
        master_port=port,
        backend=backend or runtime.default_backend(nproc),
        timeout=runtime.as_timeout(timeout),
        grace_s=grace_s,
        num_threads=_threads_per_worker(nproc),
    )


def nproc_for(asked: int | str | None, backend: str | None) -> int:
    """The number of workers on this node.

    Args:
        asked: a number; ``"gpu"``, one a GPU; ``"cpu"``, one a CPU core; ``"auto"`` or None, one a GPU where there
            are GPUs, else one.
        backend: the backend that was asked for; nccl bounds the number by the GPUs.

    Raises:
        UsageError: it is no such number, or there are fewer GPUs.
    """
    num_gpus = torch.cuda.device_count()
    if asked in (None, "auto"):
        nproc = max(1, num_gpus)
    elif asked == "gpu":
        if num_gpus == 0:
            raise UsageError("nproc_per_node='gpu' was asked for, but no GPU is visible here; give a number or 'cpu'")
        nproc = num_gpus
    elif asked == "cpu":
        nproc = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    else:
        nproc = _whole("nproc_per_node", asked, least=1)
    if backend == "nccl" and nproc > num_gpus:
        raise UsageError(
            f"nproc_per_node={nproc} was asked for with backend 'nccl', which needs a GPU a process, but {num_gpus} "
            f"{'is' if num_gpus == 1 else 'are'} visible here; give at most {num_gpus}, or backend 'gloo'"
        )
    return nproc


def _whole(name: str, value: object, *, least: int) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        number = int(value)  # type: ignore[call-overload]  # what cannot be converted is the error below
        if number != value and str(number) != str(value).strip():
            raise ValueError
    except (TypeError, ValueError):
        raise UsageError(f"{name}={value!r} was given; give a whole number from {least}") from None
    if number < least:
        raise UsageError(f"{name}={number} was given; give a whole number from {least}")
    return int(number)


def _check_resolves(host: str) -> None:
    try:
        socket.getaddrinfo(host, None)
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"master_addr={host!r} was given, but this node finds no address for that name ({error}); give the name or "
            "the address of node 0 as this node knows it"
        ) from error


def _check_free(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OverflowError:
            raise UsageError(f"master_port={port} was asked for; ports end at 65535, so choose a lower one") from None
        except OSError as error:
            raise UsageError(
                f"master_port={port} was asked for, but it cannot be used on this machine ({error.strerror}); choose "
                "another port, or give none to have a free one picked"
            ) from error


def _threads_per_worker(nproc: int) -> int:
    """OMP_NUM_THREADS where it is set, else an equal part of the cores that this process may use."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // nproc)
