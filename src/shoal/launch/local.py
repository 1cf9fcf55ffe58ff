"""Start the workers of one node, wait for them, and bring back what they return or why they failed."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from torch.distributed.elastic.agent.server.api import WorkerSpec

from shoal import _forkserver
from shoal.errors import WorkerInterruptedError
from shoal.launch.agent import Agent, Interrupted
from shoal.launch.payload import Call, dump_call, load_result
from shoal.launch.rendezvous import rendezvous_for
from shoal.launch.report import collect, error_for
from shoal.launch.spec import LaunchSpec
from shoal.launch.worker import Streams, result_path, run

__all__ = ["launch"]

_MONITOR_INTERVAL_S = 0.02
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)


def launch(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    spec: LaunchSpec,
) -> list[Any]:
    """Run ``function(*args, **kwargs)`` in every worker of this node.

    Args:
        function: any callable, also a lambda, a closure, or one defined in the main script or a notebook cell.
        spec: how many workers, and where the job's other nodes are.

    Returns:
        The workers' return values, by rank (of this node's workers).

    Raises:
        WorkerFailedError: a worker failed; its cause shows the first failing rank's own traceback.
        UsageError: ``function`` or its arguments cannot be sent to a worker.
        KeyboardInterrupt: SIGINT was received. Other signals, too, are delivered again to this process once the
            workers have ended; where its handler returns, the call ends with ``WorkerInterruptedError``.
    """
    _forkserver.start(for_training=True)
    with tempfile.TemporaryDirectory(prefix="shoal-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        dump_call(Call(function, args, kwargs or {}, dict(os.environ), spec.num_threads), folder / "call.pickle")
        with _elastic_logs_quiet(), _signals_taken() as signals:
            agent, failed = _run(spec, folder, signals)
        if failed and not signals.received:
            raise error_for(collect(folder, agent.processes(), agent.ended_by_us), agent.world_size)
        ranks = [worker.global_rank for worker in agent.get_worker_group().workers]
        values = [] if signals.received else [load_result(result_path(folder, rank), rank) for rank in ranks]
    del agent
    if signals.received:
        gc.collect()  # the agent's semaphores go now: the signal may end this process on the spot
        _deliver_again(signals.received[0])
    return values


def _run(spec: LaunchSpec, folder: Path, signals: _Signals) -> tuple[Agent, bool]:
    """The workers' whole life; whether one of them failed."""
    agent = Agent(_worker_spec(spec, folder), folder)
    try:
        with signals.raising():
            return agent, agent.run().is_failed()
    except Interrupted as interruption:
        agent.mark_interrupted()
        agent.end_workers(interruption.number, spec.grace_s, is_urgent=lambda: len(signals.received) > 1)
        return agent, False
    except BaseException:
        agent.end_workers(signal.SIGTERM, spec.grace_s)
        raise
    finally:
        agent.close()


def _worker_spec(spec: LaunchSpec, folder: Path) -> WorkerSpec:
    is_fixed = spec.nnodes > 1
    return WorkerSpec(
        role="shoal",
        local_world_size=spec.nproc_per_node,
        entrypoint=run,
        args=(Streams(), str(folder), os.getpid()),
        rdzv_handler=rendezvous_for(spec, uuid.uuid4().hex),
        max_restarts=0,
        monitor_interval=_MONITOR_INTERVAL_S,
        master_addr=spec.master_addr if is_fixed else None,
        master_port=spec.master_port if is_fixed else None,
        local_addr=None if is_fixed else spec.master_addr,
    )


class _Signals:
    """The signals that were received. The first one ends the run; a second one, the workers' grace."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self._raises = False

    def take(self, number: int, _frame: FrameType | None) -> None:
        """The handler of all of them."""
        self.received.append(number)
        if self._raises:
            self._raises = False
            raise Interrupted(number)

    @contextlib.contextmanager
    def raising(self) -> Iterator[None]:
        """While the workers run: the first signal raises ``Interrupted``, also one that came a moment before."""
        self._raises = True
        try:
            if self.received:
                raise Interrupted(self.received[0])
            yield
        finally:
            self._raises = False


@contextlib.contextmanager
def _signals_taken() -> Iterator[_Signals]:
    """Take the signals that are passed on. Off the main thread, where Python delivers none, nothing changes."""
    signals = _Signals()
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    # A signal that is ignored stays so (a job under nohup outlives its terminal), as does one that C code handles.
    handlers = {number: signal.getsignal(number) for number in _PASSED_ON}
    saved = {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}
    # torch's agent sets handlers of its own while it starts the workers, for the signals that this variable names.
    saved_names = os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE")
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = ""
    for number in saved:
        signal.signal(number, signals.take)
    try:
        yield signals
    finally:
        for number, previous in saved.items():
            signal.signal(number, previous)
        if saved_names is None:
            del os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"]
        else:
            os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = saved_names


def _deliver_again(number: int) -> None:
    """Let the process do with the signal what it would have done without workers."""
    if number == signal.SIGINT and signal.getsignal(number) is signal.default_int_handler:
        raise KeyboardInterrupt
    os.kill(os.getpid(), number)
    raise WorkerInterruptedError(
        f"the launcher received {signal.Signals(number).name}, passed it on to its workers and ended", number
    )


_quiet = threading.Lock()
_num_quiet = 0


@contextlib.contextmanager
def _elastic_logs_quiet() -> Iterator[None]:
    """The report says what the agent's own log lines would say, in order and with the traceback."""
    global _num_quiet  # noqa: PLW0603 - launches of several threads share torch's loggers
    loggers = [
        logging.getLogger(name)
        for name in list(logging.root.manager.loggerDict)
        if name.startswith(("torch.distributed.elastic", "torchelastic"))
    ]
    with _quiet:
        _num_quiet += 1
        for each in loggers:
            each.disabled = True
    try:
        yield
    finally:
        with _quiet:
            _num_quiet -= 1
            for each in loggers if _num_quiet == 0 else ():
                each.disabled = False
