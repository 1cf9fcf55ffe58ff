"""The folder that a run leaves: how it is named, what says where it came from, and how it is found again."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from shoal.errors import UsageError

__all__ = [
    "CONFIG_FILE",
    "ENVIRONMENT_FILE",
    "METRICS_FILE",
    "find_checkpoint",
    "lock_run",
    "new_run_folder",
    "trim_metrics",
    "write_config",
    "write_environment",
]

CONFIG_FILE = "config.yaml"
ENVIRONMENT_FILE = "environment.json"
METRICS_FILE = "metrics.jsonl"

_CHECKPOINT_PREFIX = "training"
_SHOWN = 5
_LOCK_FILE = ".lock"


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
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        owner = file.read().strip() or "another process"
        file.close()
        raise UsageError(
            f"the run {folder} is in use by {owner}; wait for it, or start a run of your own without --resume-from"
        ) from None
    except OSError:  # a file system without locks
        return file
    file.truncate(0)
    file.write(f"process {os.getpid()} on {platform.node()}\n")
    file.flush()
    return file


def find_checkpoint(resume_from: str, output: Path) -> Path:
    """The checkpoint that ``--resume-from`` means.

    Args:
        resume_from: a checkpoint file, a run folder (its newest), or ``latest`` (the newest of the newest run).
        output: the folder that ``latest`` looks in.

    Raises:
        UsageError: there is none; the text says what there is instead.
    """
    if resume_from == "latest":
        runs = _runs(output)
        if not runs:
            raise UsageError(
                f"--resume-from latest: no run in {output}; name the --output-path that it was started with"
            )
        return _newest(runs[0], f"--resume-from latest: the newest run {runs[0]}", runs[1:])
    path = Path(resume_from).expanduser()
    if path.is_dir():
        return _newest(path, f"--resume-from {resume_from}: the folder", _runs(path))
    if not path.is_file():
        runs = _runs(output)
        hint = f"; the newest run in {output} is {runs[0].name}" if runs else ""
        raise UsageError(f"--resume-from {resume_from}: no such file or folder{hint}")
    return path


def _newest(folder: Path, what: str, others: list[Path]) -> Path:
    from shoal.checkpoint import latest, list_checkpoints

    if not list(folder.glob(f"{_CHECKPOINT_PREFIX}_*.pt")):
        resumable = [run for run in others if list_checkpoints(run, _CHECKPOINT_PREFIX)]
        hint = "; these have one: " + ", ".join(map(str, resumable[:_SHOWN])) if resumable else ""
        raise UsageError(f"{what} has no checkpoint ({_CHECKPOINT_PREFIX}_*.pt){hint}")
    return latest(folder, _CHECKPOINT_PREFIX)


def _runs(output: Path) -> list[Path]:
    """The run folders in ``output``, the newest first."""
    return sorted((path.parent for path in output.glob(f"*/{CONFIG_FILE}")), key=_started, reverse=True)


def _started(run: Path) -> tuple[str, int, float]:
    """When a run was started, by its name; the file's time only orders folders that were renamed."""
    found = re.search(r"_(\d{8}-\d{6})(?:_(\d+))?$", run.name)
    return (found[1], int(found[2] or 1), 0.0) if found else ("", 0, (run / CONFIG_FILE).stat().st_mtime)


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
    sessions = json.loads(path.read_text(encoding="utf-8"))["sessions"] if path.exists() else []
    atomic_write_text(path, json.dumps({"sessions": [*sessions, session]}, indent=2) + "\n")


def trim_metrics(folder: Path, last_step: int) -> None:
    """Take out the records of steps after ``last_step``: the run that goes on from there makes them again."""
    from shoal.checkpoint import atomic_write_text

    path = folder / METRICS_FILE
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            step = json.loads(line).get("step", 0)
        except json.JSONDecodeError:  # the line that a killed run was writing
            continue
        if step <= last_step:
            kept.append(line + "\n")
    atomic_write_text(path, "".join(kept))
