"""``Parallel``: one function, on as many processes as there shall be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from shoal import runtime
from shoal.errors import EnvironmentConflictError, UsageError
from shoal.launch.local import launch
from shoal.launch.spec import LaunchSpec, resolve

__all__ = ["Parallel", "spawn"]

_LOGGER = "shoal.distributed.launcher.Parallel"
_GRACE_S = 30.0
_START_METHODS = ("forkserver", "spawn", "fork")


class Parallel:
    """Run a function on one process or many, wherever this program was started.

    ::

        with idist.Parallel(backend="gloo", nproc_per_node=2) as parallel:
            parallel.run(training, config)  # training(local_rank, config) in each of 2 workers

    - Under a launcher (torchrun, ``python -m torch.distributed.run``, ``shoal launch``, or inside a worker of another
      ``Parallel``) it joins the group of the launcher's processes and starts none.
    - Else, with ``nproc_per_node`` (or ``nnodes``), it starts the workers.
    - Else it runs the function in this process; with a backend, in a group of one.

    Args:
        backend: ``"gloo"``, ``"nccl"``, ``"mpi"`` or another one registered with torch. None (default): where there
            are several processes, nccl if each gets a GPU, else gloo; for one process, none.
        nproc_per_node: workers on this node: a number, ``"gpu"``, ``"cpu"`` or ``"auto"``.
        nnodes: nodes of the job; 1 by default. With more, every node runs the same program.
        node_rank: number of this node, from 0.
        master_addr: address of node 0; needed with several nodes.
        master_port: a port that is free on node 0; needed with several nodes. None: a free one is picked.
        timeout: how long a collective may take, as a timedelta or in seconds; reaches every process group. None
            keeps the backend's default.
        grace_s: seconds that workers have between a signal and their end; 30 by default.
        start_method: taken for compatibility and checked; workers always start from a forkserver that has torch
            preloaded, which works in a notebook and after its GPU was used. Another value than ``"forkserver"`` is
            answered by a line in the log.

    Raises:
        UsageError: an argument is wrong, or cannot work on this machine. No process has been started then.
        EnvironmentConflictError: a launcher placed this process otherwise than the arguments say.
    """

    def __init__(
        self,
        backend: str | None = None,
        nproc_per_node: int | str | None = None,
        nnodes: int | None = None,
        node_rank: int | None = None,
        master_addr: str | None = None,
        master_port: int | str | None = None,
        *,
        timeout: timedelta | float | None = None,
        grace_s: float = _GRACE_S,
        start_method: str = "forkserver",
    ) -> None:
        if start_method not in _START_METHODS:
            raise UsageError(f"start_method={start_method!r} was given; choose one of {', '.join(_START_METHODS)}")
        place = runtime.placement()
        self._timeout = runtime.as_timeout(timeout)
        self._start_method = start_method
        self._spec: LaunchSpec | None = None
        if place.placed:
            _check_against(place, nproc_per_node=nproc_per_node, nnodes=nnodes, node_rank=node_rank)
            if backend is not None:
                runtime.backend_for(backend)
        elif any(value is not None for value in (nproc_per_node, nnodes, node_rank, master_addr, master_port)):
            self._spec = resolve(
                nproc_per_node=1 if nproc_per_node is None else nproc_per_node,
                nnodes=nnodes,
                node_rank=node_rank,
                master_addr=master_addr,
                master_port=master_port,
                backend=backend,
                timeout=timeout,
                grace_s=grace_s,
            )
        elif backend is not None:
            runtime.backend_for(backend)
        self.backend = self._spec.backend if self._spec else backend
        self._joined = False
        self._is_entered = False
        self._without_effect = [
            name
            for name, is_given in (
                ("master_addr", master_addr is not None),
                ("master_port", master_port is not None),
                ("grace_s", grace_s != _GRACE_S),
            )
            if is_given and self._spec is None
        ]

    def __enter__(self) -> Self:
        self._is_entered = True
        if self._spec is not None:
            logger = runtime.get_logger(_LOGGER)
            logger.info("Initialized distributed launcher with backend: '%s'", self.backend)
            logger.info("- Parameters to spawn processes: \n%s", _as_lines(self._spec))
            if self._start_method != "forkserver":
                logger.info(
                    "start_method='%s' has no effect: workers start from a forkserver that has torch preloaded",
                    self._start_method,
                )
            return self
        if not runtime.is_initialized():
            world = runtime.initialize(self.backend, timeout=self._timeout)
            self._joined = True
            self.backend = world.backend
        elif self.backend not in (None, runtime.current().backend):
            raise UsageError(
                f"backend={self.backend!r} was asked for, but this process is in a group with backend "
                f"{runtime.current().backend!r} already; leave it by finalize(), or ask for the same one"
            )
        logger = runtime.get_logger(_LOGGER)
        for name in self._without_effect:
            logger.info("%s has no effect here: a launcher started the processes, or there is only this one", name)
        if self.backend is None:
            logger.info("Run in this process alone, without a backend, on device '%s'", runtime.current().device)
        else:
            logger.info("Initialized processing group with backend: '%s'", self.backend)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._is_entered = False
        logger = runtime.get_logger(_LOGGER)
        if error is None:
            logger.info("End of run")
        # After an error a group of several stays until this process ends: others may be in the middle of a collective.
        if self._joined and (error is None or runtime.current().world_size == 1):
            runtime.finalize()
            self._joined = False

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call ``function(local_rank, *args, **kwargs)`` in every process of the job.

        Returns:
            Where this object started the workers: the list of their return values, by rank (of this node's workers).
            Else the function's value in this process.

        Raises:
            WorkerFailedError: a worker failed; its cause shows the first failing rank's own traceback.
            UsageError: called outside of the ``with`` statement.
        """
        if not self._is_entered:
            raise UsageError(
                "Parallel.run() was called outside of a with statement; write: with Parallel(...) as p: p.run(f)"
            )
        logger = runtime.get_logger(_LOGGER)
        if self._spec is None:
            return function(runtime.current().local_rank, *args, **kwargs)
        logger.info("Spawn function '%s' in %d processes", function, self._spec.nproc_per_node)
        return launch(_Joined(function, self._spec.backend, self._spec.timeout), args, kwargs, spec=self._spec)


def spawn(
    backend: str,
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs_dict: Mapping[str, Any] | None = None,
    nproc_per_node: int | str = 1,
    **spawn_kwargs: Any,
) -> list[Any]:
    """Start ``nproc_per_node`` workers and call ``fn(local_rank, *args, **kwargs_dict)`` in each.

    Args:
        backend: as in ``Parallel``, like ``nproc_per_node``.
        spawn_kwargs: the other arguments of ``Parallel``.

    Returns:
        The return values by rank.

    Raises:
        UsageError: this process is itself a worker of a launcher.
        WorkerFailedError: a worker failed.
    """
    if runtime.placement().placed:
        raise UsageError(
            "spawn() was called in a process that a launcher started; call the function itself, or use Parallel, "
            "which joins the launcher's processes"
        )
    with Parallel(backend, nproc_per_node, **spawn_kwargs) as parallel:
        values: list[Any] = parallel.run(fn, *args, **(kwargs_dict or {}))
    return values


@dataclass(frozen=True, slots=True)
class _Joined:
    """The function, called once its process has joined the group."""

    function: Callable[..., Any]
    backend: str | None
    timeout: timedelta | None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        world = runtime.initialize(self.backend, timeout=self.timeout)
        return self.function(world.local_rank, *args, **kwargs)


def _as_lines(spec: LaunchSpec) -> str:
    fields: dict[str, object] = {
        "nproc_per_node": spec.nproc_per_node,
        "nnodes": spec.nnodes,
        "node_rank": spec.node_rank,
    }
    if spec.nnodes > 1 or spec.master_port is not None:
        fields |= {"master_addr": spec.master_addr, "master_port": spec.master_port}
    return "\n".join(f"\t{name}: {value}" for name, value in fields.items())


def _check_against(place: runtime.Placement, **asked: int | str | None) -> None:
    """What was asked for must be what the launcher did."""
    found = {"nproc_per_node": place.local_world_size, "nnodes": place.num_nodes, "node_rank": place.node_rank}
    for name, value in asked.items():
        if value is None or str(value) in ("auto", "gpu", "cpu") or str(value) == str(found[name]):
            continue
        raise EnvironmentConflictError(
            f"{name}={value} was asked for, but this process was started by a launcher ({place.source}: "
            f"RANK={place.rank}, WORLD_SIZE={place.world_size}) with {name}={found[name]}; leave {name} out under a "
            "launcher, or start the program without one"
        )
