"""Runs and their checkpoints, found by what a user types."""

from __future__ import annotations

import re
from pathlib import Path

from shoal.errors import UsageError
from shoal.runs.folder import CONFIG_FILE, ENVIRONMENT_FILE, METRICS_FILE

__all__ = ["CHECKPOINT_PREFIX", "find_checkpoint", "find_runs", "has_checkpoint", "is_run", "latest_run"]

CHECKPOINT_PREFIX = "training"
_SHOWN = 5


def is_run(folder: Path) -> bool:
    """Whether ``folder`` is that of a run; a ``config.yaml`` alone may be anybody's."""
    return (folder / CONFIG_FILE).is_file() and (
        (folder / ENVIRONMENT_FILE).is_file() or (folder / METRICS_FILE).is_file()
    )


def find_runs(folder: Path) -> list[Path]:
    """The run folders in ``folder`` and in the folders in it, or ``folder`` itself, the newest first.

    Raises:
        UsageError: there is no such folder.
    """
    if not folder.is_dir():
        found = "is a file" if folder.exists() else "does not exist"
        raise UsageError(f"asked for the runs in {folder}, which {found}; name the --output-path of your runs")
    configs = [folder / CONFIG_FILE, *folder.glob(f"*/{CONFIG_FILE}"), *folder.glob(f"*/*/{CONFIG_FILE}")]
    return sorted((path.parent for path in configs if is_run(path.parent)), key=_started, reverse=True)


def latest_run(folder: Path) -> Path:
    """The newest run in ``folder`` or in a folder in it.

    Raises:
        UsageError: there is none.
    """
    runs = find_runs(folder)
    if not runs:
        raise UsageError(f"asked for the latest run, and there is none in {folder} or in the folders in it; name one")
    return runs[0]


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


def has_checkpoint(run: Path) -> bool:
    """Whether the run left something to go on from."""
    return next(run.glob(f"{CHECKPOINT_PREFIX}_*.pt"), None) is not None


def _newest(folder: Path, what: str, others: list[Path]) -> Path:
    from shoal.checkpoint import latest, list_checkpoints

    if not has_checkpoint(folder):
        resumable = [run for run in others if list_checkpoints(run, CHECKPOINT_PREFIX)]
        hint = "; these have one: " + ", ".join(map(str, resumable[:_SHOWN])) if resumable else ""
        raise UsageError(f"{what} has no checkpoint ({CHECKPOINT_PREFIX}_*.pt){hint}")
    return latest(folder, CHECKPOINT_PREFIX)


def _runs(output: Path) -> list[Path]:
    """The run folders in ``output``, the newest first."""
    return sorted((path.parent for path in output.glob(f"*/{CONFIG_FILE}")), key=_started, reverse=True)


def _started(run: Path) -> tuple[str, int, float]:
    """When a run was started, by its name; the file's time only orders folders that were renamed."""
    found = re.search(r"_(\d{8}-\d{6})(?:_(\d+))?$", run.name)
    return (found[1], int(found[2] or 1), 0.0) if found else ("", 0, (run / CONFIG_FILE).stat().st_mtime)
