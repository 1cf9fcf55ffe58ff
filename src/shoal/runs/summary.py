"""A run in a line: how it stands, how good it is, how long it took, how it goes on. Read without torch."""

from __future__ import annotations

import math
import re
import shlex
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from shoal.runs.find import has_checkpoint
from shoal.runs.folder import CONFIG_FILE, METRICS_FILE, is_locked, read_sessions
from shoal.runs.records import Records, read_records
from shoal.runs.state import RunState, read_state
from shoal.runs.trust import UNREADABLE, count_of

__all__ = ["RunSummary", "format_duration", "summarize"]

_OLD_SCORE = "val/accuracy"
_OLD_COMMAND = "shoal train cifar10"
_OLD_CURVES_FILE = "curves.png"


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """How a run stands.

    Attributes:
        folder: its folder.
        state: ``running``, ``finished``, ``stopped`` (by a signal; everything is saved), ``failed`` (with an error) or
            ``killed`` (it ended without a word).
        reason: the error, or what stopped it; else empty.
        title: what was trained on what; the folder's name where that isn't known.
        score: the name of its score, as in ``val/accuracy``.
        best: the best score; None before the first evaluation.
        best_epoch: the epoch after which it was reached.
        epoch: epochs that are done, also in part (2.5), as far as is recorded.
        num_epochs: epochs of the whole run; None where that isn't known.
        duration_s: seconds that its sessions took, until the last record of each.
        started: when it was started, in seconds since 1970; None where that isn't known.
        resume: the command that goes on with it; None where there is no checkpoint, or it is still running.
    """

    folder: Path
    state: str
    reason: str = ""
    title: str
    score: str
    best: float | None = None
    best_epoch: int | None = None
    epoch: float | None = None
    num_epochs: int | None = None
    duration_s: float | None = None
    started: float | None = None
    resume: str | None = None


def summarize(folder: Path, records: Records | None = None) -> RunSummary:
    """How the run in ``folder`` stands, also of one that was written by an older version.

    Args:
        folder: the run's folder.
        records: its records, where they have been read already.
    """
    running = is_locked(folder)
    rows = _rows(folder) if records is None else records.rows
    known = read_state(folder)
    score = known.plan.score if known else _OLD_SCORE
    scores = [(value, -_epoch_of(row, score)) for row in rows if (value := _number(row.get(score))) is not None]
    best, negative_epoch = max(scores, default=(None, 0))  # of equal ones the first
    num_epochs = known.plan.num_epochs if known else _number_in_config(folder, "num_epochs")
    epoch = _epochs_done(rows, known)
    state = _word(folder, running, known, finished=num_epochs is not None and epoch == num_epochs)
    sessions = read_sessions(folder)
    command = known.plan.command if known else _OLD_COMMAND
    resumable = not running and has_checkpoint(folder)
    longer = f" --num-epochs {2 * num_epochs}" if state == "finished" and num_epochs else ""
    return RunSummary(
        folder=folder,
        state=state,
        reason=known.reason if known and state == known.state else "",
        title=known.plan.title if known else folder.name,
        score=score,
        best=best,
        best_epoch=-negative_epoch if best is not None else None,
        epoch=epoch,
        num_epochs=num_epochs,
        duration_s=_duration(sessions, rows, running=running),
        started=_moment(sessions[0]) if sessions else None,
        resume=f"{command} --resume-from {shlex.quote(str(folder))}{longer}" if resumable else None,
    )


def format_duration(seconds: float | None) -> str:
    """``0:07``, ``12:30`` or ``1:02:03``; a dash for what isn't known."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    minutes, second = divmod(max(0, round(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def _rows(folder: Path) -> list[dict[str, Any]]:
    return read_records(folder).rows if (folder / METRICS_FILE).is_file() else []


def _epoch_of(row: dict[str, Any], score: str) -> int:
    epoch = _number(row.get(f"{score.rpartition('/')[0]}/epoch"))
    return int(epoch) if epoch is not None else 0


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _epochs_done(rows: list[dict[str, Any]], known: RunState | None) -> float | None:
    last = max((row["step"] for row in rows if row.get("axis", "iteration") == "iteration"), default=0)
    if known is not None:
        return max(last, known.step) / known.plan.steps_per_epoch
    for row in reversed(rows):  # an old run: each evaluation tells the epoch
        for of in ("val", "train"):
            if epoch := _epoch_of(row, f"{of}/epoch"):
                return last * epoch / row["step"] if row["step"] else None
    return None


def _word(folder: Path, running: bool, known: RunState | None, *, finished: bool) -> str:
    if running:
        return "running"
    if known is not None:
        return "killed" if known.state == "running" else known.state
    if finished:
        return "finished"
    # Older versions drew the curves whenever a run could still do anything.
    return "stopped" if (folder / _OLD_CURVES_FILE).exists() else "killed"


def _number_in_config(folder: Path, name: str) -> int | None:
    """A number of ``config.yaml``, which has one option a line; for old runs, where no reader of YAML may be there."""
    try:
        found = re.search(rf"^{name}: (\d+)$", (folder / CONFIG_FILE).read_text(encoding="utf-8"), re.MULTILINE)
        return count_of(int(found[1])) if found else None
    except UNREADABLE:
        return None


def _moment(session: dict[str, Any]) -> float | None:
    try:
        return datetime.strptime(str(session["time"]), "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except UNREADABLE:
        return None


def _duration(sessions: list[dict[str, Any]], rows: list[dict[str, Any]], *, running: bool) -> float | None:
    starts = [moment for session in sessions if (moment := _moment(session)) is not None]
    if not starts:
        return None
    times = [moment for row in rows if (moment := _number(row.get("time"))) is not None]
    total = 0.0
    for start, end in zip(starts, [*starts[1:], math.inf], strict=True):
        if running and end == math.inf:
            total += max(0.0, time.time() - start)
        else:
            total += max((moment - start for moment in times if start <= moment < end), default=0.0)
    return total
