"""torch's elastic agent, watched more closely: every worker's end is seen, and none outlives the job."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import torch.multiprocessing
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

from shoal.launch.worker import INTERRUPTED, result_path

__all__ = ["Agent", "Interrupted"]

_POLL_S = 0.02
_FAILURE_GRACE_S = 3.0
_EXIT_GRACE_S = 2.0
_hiding = threading.Lock()  # launches of several threads


class Interrupted(BaseException):
    """The launcher received a signal; raised in its main thread by the handlers of ``signals_passed_on``."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Agent(LocalElasticAgent):
    """A local elastic agent that keeps the account of its workers.

    Beyond torch's agent it starts workers without importing the main script again, notices a failure that is on
    record while its process still winds down, ends the others within seconds, and ends whole process groups, so that
    no loading worker stays.

    Args:
        spec: what to start.
        folder: the launch's folder, where workers leave failures and results.
    """

    def __init__(self, spec: WorkerSpec, folder: Path) -> None:
        super().__init__(spec, DefaultLogsSpecs(log_dir=str(folder / "elastic")), start_method="forkserver")
        self._folder = folder
        self._ended_at: dict[int, float] = {}
        self.ended_by_us: frozenset[int] = frozenset()

    def processes(self) -> dict[int, tuple[int, int, int | None, float]]:
        """By local rank: rank, process id, exit code (None: alive), and when it was seen to have ended."""
        self._look()
        return {
            local_rank: (
                self._rank(local_rank),
                process.pid or 0,
                process.exitcode,
                self._ended_at.get(local_rank, time.time()),
            )
            for local_rank, process in enumerate(self._children())
        }

    def end_workers(self, number: int, grace_s: float, is_urgent: Callable[[], bool] = lambda: False) -> None:
        """Send a signal to every worker, wait for them, then kill their process groups.

        Args:
            number: the signal.
            grace_s: how long to wait at the most. A worker that has left its result counts as done.
            is_urgent: asked again and again while waiting; ends it.
        """
        children = self._children()
        for process in children:
            if process.is_alive() and process.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)
        end = time.monotonic() + grace_s
        while (time.monotonic() < end and not is_urgent()) and any(
            process.is_alive() and not result_path(self._folder, self._rank(local_rank)).exists()
            for local_rank, process in enumerate(children)
        ):
            time.sleep(_POLL_S)
        # One with a result may still be writing at its exit; it is in nobody's way.
        end = min(end, time.monotonic() + _EXIT_GRACE_S)
        while time.monotonic() < end and not is_urgent() and any(process.is_alive() for process in children):
            time.sleep(_POLL_S)
        self.kill_groups()

    def kill_groups(self) -> None:
        """Kill what is left of every worker's process group, its loading workers included."""
        for process in self._children():
            if process.pid is None:
                continue
            for end in (os.killpg, os.kill) if process.is_alive() else (os.killpg,):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    end(process.pid, signal.SIGKILL)
            process.join(_EXIT_GRACE_S)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        with _main_script_hidden():
            return cast("dict[int, Any]", super()._start_workers(worker_group))

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self._look()
        if self._ended_badly() or any(self._folder.glob("failure-*.json")):
            self._wait_for_records()
            self.ended_by_us = frozenset(
                local_rank for local_rank, process in enumerate(self._children()) if process.is_alive()
            )
            self.end_workers(signal.SIGTERM, _FAILURE_GRACE_S)
            return RunResult(state=WorkerState.FAILED)
        return cast("RunResult", super()._monitor_workers(worker_group))

    def _shutdown(self, *_: Any, **__: Any) -> None:
        """Nothing: torch's agent would end the workers here by SIGTERM, whatever signal is to reach them."""

    def close(self) -> None:
        """Kill what is left of the workers and let go of what torch's agent holds."""
        self.kill_groups()
        super()._shutdown()

    def _wait_for_records(self) -> None:
        """Give the other ranks a moment to say what they saw, while the first cause is already on record."""
        end = time.monotonic() + _FAILURE_GRACE_S / 10
        while time.monotonic() < end and any(process.is_alive() for process in self._children()):
            time.sleep(_POLL_S)

    def _ended_badly(self) -> bool:
        """Whether a worker has ended without leaving its result, whatever its exit code."""
        return any(
            process.exitcode is not None
            and (process.exitcode != 0 or not result_path(self._folder, self._rank(local_rank)).exists())
            for local_rank, process in enumerate(self._children())
        )

    def _look(self) -> None:
        for local_rank, process in enumerate(self._children()):
            if process.exitcode is not None:
                self._ended_at.setdefault(local_rank, time.time())

    def _children(self) -> list[torch.multiprocessing.Process]:
        context = getattr(self._pcontext, "_pc", None)
        return [] if context is None else list(context.processes)

    @property
    def world_size(self) -> int:
        """Workers of the job, on all nodes."""
        return int(self._worker_group.workers[0].world_size)

    def _rank(self, local_rank: int) -> int:
        return int(self._worker_group.workers[local_rank].global_rank)

    def mark_interrupted(self) -> None:
        """Let workers that end from now on know that a signal was passed on."""
        (self._folder / INTERRUPTED).touch()


@contextlib.contextmanager
def _main_script_hidden() -> Iterator[None]:
    """Keep multiprocessing from importing the main script again in every worker.

    The function arrives as bytes, with what it needs of the script; running the script once more would only repeat
    its side effects, or start workers without end where it has no ``if __name__ == "__main__":``.
    """
    main = vars(sys.modules["__main__"])
    with _hiding:
        saved: dict[str, Any] = {name: main.pop(name) for name in ("__spec__", "__file__") if name in main}
        main["__spec__"] = None
        try:
            yield
        finally:
            del main["__spec__"]
            main.update(saved)
