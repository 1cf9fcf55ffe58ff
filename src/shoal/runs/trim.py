"""What a run wrote after the step that it goes on from, taken back."""

from __future__ import annotations

import json
from pathlib import Path

from shoal.runs.folder import METRICS_FILE, PREDICTIONS_FILE
from shoal.runs.predictions import read_predictions
from shoal.runs.trust import UNREADABLE

__all__ = ["trim_metrics", "trim_run"]


def trim_run(folder: Path, last_step: int) -> None:
    """Take back what a run said of steps after ``last_step``: the session that goes on from there makes them again."""
    trim_metrics(folder, last_step)
    _trim_predictions(folder, last_step)


def trim_metrics(folder: Path, last_step: int) -> None:
    """Take out the records of steps after ``last_step``: the run that goes on from there makes them again."""
    from shoal.checkpoint import atomic_write_text

    path = folder / METRICS_FILE
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            step = json.loads(line).get("step", 0)
            is_of_later = step > last_step
        except UNREADABLE:  # the line that a killed run was writing, or one of somebody else
            continue
        if not is_of_later:
            kept.append(line + "\n")
    atomic_write_text(path, "".join(kept))


def _trim_predictions(folder: Path, last_step: int) -> None:
    """Take out the file where it is of a step after ``last_step``, or broken."""
    found = read_predictions(folder)
    if found is None or found.step > last_step:
        (folder / PREDICTIONS_FILE).unlink(missing_ok=True)
