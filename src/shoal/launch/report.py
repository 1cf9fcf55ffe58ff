"""What failed, on which rank, and what died of it.

A worker writes its failure to a file in the launch's folder before it ends, so that its traceback is there even when
other ranks die of its death a moment later. The launcher puts the records in order: the first cause first, then
failures that are mere consequences (a peer that closed its connection, a signal that the launcher sent).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from shoal.errors import WorkerFailedError

__all__ = ["RankFailure", "RankTraceback", "collect", "error_for", "record_failure", "render"]

_FOLDER_VARIABLE = "SHOAL_LAUNCH_FOLDER"
_PACKAGE = Path(__file__).parents[1]
_MACHINERY = (str(_PACKAGE / "launch"), str(_PACKAGE / "cli"), str(_PACKAGE / "testing"), "<frozen runpy>")

# How a rank's death looks to the ranks that were talking to it, by gloo, nccl and the store.
_CONSEQUENCES = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "socket closed",
    "recvvalue failed",
    "remote process exited",
    "nccl communicator was aborted",
    "failed to recv, got 0 bytes",
)


# The exceptions that carry these texts; a BrokenPipeError of the user's own is no consequence.
_CARRIERS = ("RuntimeError", "DistError", "DistNetworkError", "DistBackendError", "DistStoreError")
_SERVER_GONE = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFailure:
    """How one worker ended.

    Attributes:
        rank, local_rank: its numbers in the job and on its node.
        host: its node.
        pid: its process.
        time_s: when it ended, in seconds since the epoch.
        kind: name of the exception's type, or ``"exit"`` or ``"signal"`` for a process that left no record.
        message: the exception's text, or how the process ended.
        traceback: the worker's own traceback, empty where there is none.
        exit_code: of the process; negative for the number of a signal; None while it isn't known.
        is_consequence: whether it looks like the death of another rank seen from here.
    """

    rank: int
    local_rank: int
    host: str
    pid: int
    time_s: float
    kind: str
    message: str
    traceback: str = ""
    exit_code: int | None = None
    is_consequence: bool = False


class RankTraceback(Exception):  # noqa: N818 - carries another process's traceback, it is not an error itself
    """A worker's own traceback, shown as the cause of ``WorkerFailedError``."""


def record_failure(error: BaseException) -> None:
    """Write down that this worker fails with ``error``; only the first call of a process counts.

    A no-op in a process that Shoal did not start.
    """
    folder = os.environ.get(_FOLDER_VARIABLE)
    if not folder:
        return
    rank = int(os.environ["RANK"])
    target = Path(folder) / f"failure-{rank}.json"
    if target.exists():
        return
    message = _text_of(error)
    failure = RankFailure(
        rank=rank,
        local_rank=int(os.environ["LOCAL_RANK"]),
        host=socket.gethostname(),
        pid=os.getpid(),
        time_s=time.time(),
        kind=type(error).__name__,
        message=message,
        traceback=_traceback_of(error),
        is_consequence=type(error).__name__ in _CARRIERS and any(text in message.lower() for text in _CONSEQUENCES),
    )
    partial = target.with_suffix(f".{os.getpid()}.tmp")
    try:
        partial.write_text(json.dumps(asdict(failure)), encoding="utf-8")
        partial.replace(target)
    except OSError:  # a full disk must not hide the error itself
        print(failure.traceback, file=sys.stderr)  # noqa: T201


def collect(
    folder: Path, processes: Mapping[int, tuple[int, int, int | None, float]], ended_by_us: frozenset[int]
) -> tuple[RankFailure, ...]:
    """All failures of a launch, the first cause first.

    Args:
        folder: the launch's folder.
        processes: by local rank: rank, process id, exit code (None: alive), and when it was seen to have ended.
        ended_by_us: local ranks that the launcher itself ended after the first failure.
    """
    failures = []
    for local_rank, (rank, pid, exit_code, seen_at) in processes.items():
        record = folder / f"failure-{rank}.json"
        if record.exists():
            fields = json.loads(record.read_text(encoding="utf-8")) | {"exit_code": exit_code}
            failures.append(RankFailure(**fields))
        elif exit_code is not None and local_rank not in ended_by_us and not _has_result(folder, rank):
            failures.append(
                RankFailure(
                    rank=rank,
                    local_rank=local_rank,
                    host=socket.gethostname(),
                    pid=pid,
                    time_s=seen_at,
                    kind="signal" if exit_code < 0 else "exit",
                    message=_how_it_ended(exit_code),
                    exit_code=exit_code,
                )
            )
    return tuple(sorted(failures, key=lambda failure: (failure.is_consequence, failure.time_s)))


def render(failures: tuple[RankFailure, ...], world_size: int) -> str:
    """The report for a person: the first cause with its traceback, then the others, a line each."""
    if not failures:
        return "the workers were ended without any of them reporting a failure"
    first, *others = failures
    lines = [_heading(first, world_size), (first.traceback or f"{first.message}\n").rstrip()]
    if others:
        lines += ["", "Other ranks that ended because of it, or after it:"]
        lines += [
            f"  rank {other.rank} ({other.host}, pid {other.pid}): {_short(other)}"
            + ("  [the other end closed]" if other.is_consequence else "")
            for other in others
        ]
    return "\n".join(lines)


def error_for(failures: tuple[RankFailure, ...], world_size: int) -> WorkerFailedError:
    """The error to raise in the launcher; its cause carries the whole report, which Python shows first."""
    if failures:
        first = failures[0]
        where = " (its own traceback stands above)" if first.traceback else ""
        summary = f"rank {first.rank} of {world_size} failed first: {_short(first)}{where}"
    else:
        summary = render(failures, world_size)
    error = WorkerFailedError(summary, failures)
    error.__cause__ = RankTraceback(render(failures, world_size))
    return error


def _heading(failure: RankFailure, world_size: int) -> str:
    return f"rank {failure.rank} of {world_size} failed first ({failure.host}, pid {failure.pid}):"


def _short(failure: RankFailure) -> str:
    text = failure.message.strip().splitlines()[0] if failure.message.strip() else ""
    if failure.kind in ("exit", "signal"):
        return text
    return f"{failure.kind}: {text}" if text else failure.kind


def _how_it_ended(exit_code: int) -> str:
    if exit_code == _SERVER_GONE:
        return (
            "the process ended with exit code 255 (so it also looks when the server that workers start from is killed)"
        )
    if exit_code >= 0:
        return f"the process ended with exit code {exit_code} before its function had returned"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    hint = {
        "SIGKILL": "; often the kernel's out-of-memory killer (see dmesg), or a job's memory limit",
        "SIGSEGV": "; a crash in native code (set PYTHONFAULTHANDLER=1 to see where)",
        "SIGABRT": "; native code gave up, its message is in the output above",
        "SIGBUS": "; often a full /dev/shm",
    }.get(name, "")
    return f"the process was killed by {name}{hint}"


def _has_result(folder: Path, rank: int) -> bool:
    return (folder / f"result-{rank}.pickle").exists()


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a text that cannot be made must not hide the failure
        return "(the text of this exception cannot be made)"


def _traceback_of(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(type(error), error, _users_part(error.__traceback__)))
    except Exception:  # the same
        return "".join(traceback.format_tb(error.__traceback__)) + f"{type(error).__name__}\n"


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without the leading frames of the launcher's own code."""
    part = trace
    while part is not None and part.tb_frame.f_code.co_filename.startswith(_MACHINERY):
        part = part.tb_next
    return part if part is not None else trace
