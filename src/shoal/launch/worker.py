"""What runs in a worker. The preloaded forkserver imports this module, so that a worker starts with torch at hand."""

from __future__ import annotations

import atexit
import faulthandler
import gc
import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing import reduction
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.distributed.elastic.multiprocessing

from shoal import runtime
from shoal.launch.payload import Call, dump_result, load_call
from shoal.launch.report import record_failure
from shoal.launch.watch import die_with

__all__ = ["INTERRUPTED", "Streams", "result_path", "run"]

INTERRUPTED = "interrupted"
"""Name of the file whose presence says that the launcher has passed a signal on."""

_SET_BY_AGENT = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    *("GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"),
    *("TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE"),
    *("TORCH_NCCL_ASYNC_ERROR_HANDLING", "CUDA_VISIBLE_DEVICES"),
)

EXIT_PATIENCE_S = 30.0
"""After so long in its exit handlers a worker says that it is held there, and by what."""


class Streams:
    """The launcher's standard output and error, as they are when a worker starts.

    A forkserver would otherwise hand on those of the moment when it was started itself.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled while a worker is being started, this duplicates the two descriptors into it."""
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        return _take_streams, (reduction.DupFd(1), reduction.DupFd(2))


def _take_streams(out: Any, err: Any) -> Streams:
    for number, source in ((1, out), (2, err)):
        descriptor = source.detach()
        os.dup2(descriptor, number)
        os.close(descriptor)
    return Streams()


def result_path(folder: Path, rank: int) -> Path:
    """Where the worker of that rank leaves its return value."""
    return folder / f"result-{rank}.pickle"


def run(_streams: Streams, folder: str, launcher_pid: int) -> None:
    """Carry out the call in ``folder``; called by the elastic agent's child process, with the ranks in the environment.

    Raises:
        SystemExit: the call failed (its failure is then on record) or the launch was interrupted.
    """
    _lead_own_group()
    die_with(launcher_pid, folder)
    home = Path(folder)
    own = {name: os.environ[name] for name in _SET_BY_AGENT if name in os.environ}
    rank = int(own["RANK"])
    os.environ["SHOAL_LAUNCH_FOLDER"] = folder
    try:
        call = load_call(home / "call.pickle")
        _settle(call, own, folder)
        value = call.function(*call.args, **call.kwargs)
        _leave_group()
        dump_result(value, result_path(home, rank))
    except KeyboardInterrupt as error:
        if not (home / INTERRUPTED).exists():  # nobody pressed a key: the function raised it
            record_failure(error)
        raise SystemExit(128 + signal.SIGINT) from None
    except SystemExit as error:
        if error.code in (None, 0):
            _leave_group()
            dump_result(None, result_path(home, rank))
        else:
            record_failure(error)
            raise
    except BaseException as error:
        record_failure(error)
        raise SystemExit(1) from None
    finally:
        _end_as_an_interpreter(rank)
    if (home / INTERRUPTED).exists():
        raise SystemExit(128 + signal.SIGTERM)


def _lead_own_group() -> None:
    """A terminal's Ctrl-C reaches the launcher alone, which passes it on once; and a group can be ended as a whole."""
    if os.getpid() != os.getsid(0):
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)


def _settle(call: Call, own: dict[str, str], folder: str) -> None:
    """Make this child of the forkserver look as if the launcher had forked it."""
    os.environ.clear()
    os.environ.update(call.environment)
    os.environ.update(own)
    os.environ["SHOAL_LAUNCH_FOLDER"] = folder
    os.environ["OMP_NUM_THREADS"] = str(call.num_threads)
    torch.set_num_threads(call.num_threads)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)
    # Loading workers started from here hold functions that came by value and cannot be imported: they must fork. Where
    # that is Python's default, it is left to be the default, which a script may still change.
    forks = multiprocessing.get_all_start_methods()[0] == "fork"
    multiprocessing.set_start_method(None if forks else "fork", force=True)


def _end_as_an_interpreter(rank: int) -> None:
    """Do what any other process does at its end: exit handlers run, forgotten files are written."""
    watcher = threading.Timer(EXIT_PATIENCE_S, _say_what_holds, args=(rank,))
    watcher.daemon = True
    watcher.start()
    atexit._run_exitfuncs()
    gc.collect()
    watcher.cancel()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def _leave_group() -> None:
    """A worker that ends well leaves no process group behind for torch to warn of."""
    runtime.finalize()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _say_what_holds(rank: int) -> None:
    """The call has ended, but the process can't: a library's exit handler waits for something."""
    text = (
        f"shoal: rank {rank} (pid {os.getpid()}) has ended its work, but its exit handlers have not returned for "
        f"{EXIT_PATIENCE_S:g} s. The main thread below shows which; the job waits for it:\n"
    )
    os.write(2, text.encode())
    faulthandler.dump_traceback(file=2, all_threads=True)
