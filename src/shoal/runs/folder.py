"""The folder that a run leaves: how it is named, who has it, and what says where it came from."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import sys
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from shoal.errors import UsageError
from shoal.runs.trust import UNREADABLE

__all__ = [
    "CONFIG_FILE",
    "ENVIRONMENT_FILE",
    "METRICS_FILE",
    "PREDICTIONS_FILE",
    "REPORT_FILE",
    "STATE_FILE",
    "is_locked",
    "lock_run",
    "new_run_folder",
    "read_sessions",
    "write_config",
    "write_environment",
]

CONFIG_FILE = "config.yaml"
ENVIRONMENT_FILE = "environment.json"
METRICS_FILE = "metrics.jsonl"
PREDICTIONS_FILE = "predictions.json"
REPORT_FILE = "report.html"
STATE_FILE = "state.json"

_LOCK_FILE = ".lock"
_LOCK_TRIES, _LOCK_PAUSE_S = 10, 0.05
_held: weakref.WeakSet[IO[str]] = weakref.WeakSet()


def new_run_folder(output: Path, name: str) -> Path:
    """Make ``output/name_<time>`` for a run that starts now; ``_2``, ``_3``, … is added where it is taken.

    Raises:
        UsageError: ``output`` cannot be written.
    """
    stem = f"{name}_{time.strftime('%Y%m%d-%H%M%S')}"
    number = 1
    while True:
        folder = output / (stem if number == 1 else f"{stem}_{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
        except OSError as error:
            raise UsageError(f"--output-path {output} cannot be written: {error.strerror}; name another") from error
        else:
            return folder


def lock_run(folder: Path) -> IO[str]:
    """Keep the folder for this process until the file that is returned is closed, or the process ends, however it does.

    Raises:
        UsageError: another process has it.
    """
    file = (folder / _LOCK_FILE).open("a+", encoding="utf-8")
    for tries_left in reversed(range(_LOCK_TRIES)):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if tries_left:  # somebody may only be looking, for an instant: see is_locked
                time.sleep(_LOCK_PAUSE_S)
                continue
            file.seek(0)
            owner = file.read().strip() or "another process"
            file.close()
            raise UsageError(
                f"the run {folder} is in use by {owner}; wait for it, or start a run of your own without --resume-from"
            ) from None
        except OSError:  # a file system without locks
            return file
        break
    file.truncate(0)
    file.write(f"process {os.getpid()} on {platform.node()}\n")
    file.flush()
    _held.add(file)
    return file


def _let_go() -> None:
    """In a process that was forked: one that loads data may outlive this one by seconds, and must not hold its run."""
    for file in _held:
        file.close()
    _held.clear()


os.register_at_fork(after_in_child=_let_go)


def is_locked(folder: Path) -> bool:
    """Whether a process has the folder: its run is going on. False where that cannot be told."""
    try:
        with (folder / _LOCK_FILE).open("r", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no such file, or a file system without locks
        return False
    return False


def write_config(folder: Path, values: Mapping[str, Any]) -> None:
    """Write the resolved options, as ``--config`` reads them."""
    import yaml

    from shoal.checkpoint import atomic_write_text

    atomic_write_text(folder / CONFIG_FILE, yaml.safe_dump(dict(values), sort_keys=False))


def write_environment(folder: Path, *, resumed_from: str | None = None) -> None:
    """Add to the list of sessions what this one runs on: a run that was resumed has several.

    Args:
        folder: the run's folder.
        resumed_from: the checkpoint that this session goes on from.
    """
    import torch
    import torchvision

    from shoal import _version, runtime
    from shoal.checkpoint import atomic_write_text

    world = runtime.current()
    on_cuda = world.device.type == "cuda"
    session = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": sys.argv,
        "resumed_from": resumed_from,
        "host": platform.node(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "shoal": _version.__version__,
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "cuda": torch.version.cuda if on_cuda else None,
        "device": torch.cuda.get_device_name(world.device) if on_cuda else str(world.device),
        "threads": torch.get_num_threads(),
        "backend": world.backend,
        "world_size": world.world_size,
        "nodes": world.num_nodes,
    }
    path = folder / ENVIRONMENT_FILE
    atomic_write_text(path, json.dumps({"sessions": [*read_sessions(folder), session]}, indent=2) + "\n")


def read_sessions(folder: Path) -> list[dict[str, Any]]:
    """What each session of the run ran on, as ``environment.json`` holds it; none where it cannot be read."""
    try:
        sessions = json.loads((folder / ENVIRONMENT_FILE).read_text(encoding="utf-8"))["sessions"]
        return [session for session in sessions if isinstance(session, dict)]
    except UNREADABLE:
        return []
