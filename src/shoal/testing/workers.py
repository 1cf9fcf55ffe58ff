"""Run a function on real worker processes from a test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal import runtime
from shoal.launch import launch, resolve

__all__ = ["run_workers"]


def run_workers(function: Callable[..., Any], nprocs: int, *args: Any, timeout_s: float = 120.0) -> list[Any]:
    """Call ``function(*args)`` in ``nprocs`` gloo workers that have joined one group.

    Args:
        function: any callable, also one that is defined inside a test.
        nprocs: how many workers, 1 or more.
        args: its arguments.
        timeout_s: seconds after which a collective that some rank never joins fails.

    Returns:
        The return values by rank.

    Raises:
        WorkerFailedError: a worker failed; its cause shows the first failing rank's own traceback.
    """
    return launch(
        _InGroup(function, timeout_s), args, spec=resolve(nproc_per_node=nprocs, backend="gloo", timeout=timeout_s)
    )


class _InGroup:
    def __init__(self, function: Callable[..., Any], timeout_s: float) -> None:
        self.function = function
        self.timeout_s = timeout_s

    def __call__(self, *args: Any) -> Any:
        runtime.initialize("gloo", timeout=self.timeout_s)
        return self.function(*args)
