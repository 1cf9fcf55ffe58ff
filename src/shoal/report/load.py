"""What a page shows of a run, read from its folder: also while the run goes on, and of runs of older versions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal._optional import require
from shoal.errors import UsageError
from shoal.runs import (
    CONFIG_FILE,
    METRICS_FILE,
    ClassifiedImages,
    Records,
    RunSummary,
    find_runs,
    is_run,
    read_predictions,
    read_records,
    read_sessions,
    read_state,
    summarize,
)
from shoal.runs.trust import UNREADABLE

__all__ = ["ReportedRun", "load_run"]

_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class ReportedRun:
    """One run of a page.

    Attributes:
        folder: its folder, absolute.
        summary: how it stands.
        records: its numbers.
        steps_per_epoch: turns steps into epochs; None where that cannot be told, and steps are shown.
        config: its options.
        sessions: what each of its sessions ran on.
        predictions: its best evaluation, where it was written down.
        notes: what the reader should know of the files, a sentence each.
    """

    folder: Path
    summary: RunSummary
    records: Records
    steps_per_epoch: float | None
    config: Mapping[str, Any]
    sessions: list[dict[str, Any]]
    predictions: ClassifiedImages | None
    notes: list[str] = field(default_factory=list)

    @property
    def axis_title(self) -> str:
        """What the horizontal axis counts."""
        return "Step" if self.steps_per_epoch is None else "Epoch"

    def series(self, name: str) -> tuple[list[float], list[float]]:
        """Places on the horizontal axis, rising, and values; the last of several values at one place."""
        scale = 1.0 if self.steps_per_epoch is None else self.steps_per_epoch
        by_place = {}
        for row in self.records.rows:
            if name in row and isinstance(row[name], int | float):
                per = 1.0 if row.get("axis") == "epoch" and self.steps_per_epoch is not None else scale
                by_place[row["step"] / per] = float(row[name])
        places = sorted(by_place)
        return places, [by_place[place] for place in places]


def load_run(folder: Path) -> ReportedRun:
    """Read the run in ``folder``.

    Raises:
        UsageError: there is no run, or it has no metrics yet.
        MissingExtraError: the library that reads its options is not installed.
    """
    folder = folder.absolute()  # the page may be looked at from elsewhere
    _check_is_run(folder)
    records = read_records(folder)
    if not records.rows:
        raise UsageError(
            f"the run {folder} has no metrics yet ({METRICS_FILE} has no whole line); "
            "wait until it has recorded its first steps"
        )
    summary = summarize(folder, records)
    config, notes = _config(folder)
    notes = [*_notes_on(summary, records), *notes]
    return ReportedRun(
        folder=folder,
        summary=summary,
        records=records,
        steps_per_epoch=_steps_per_epoch(folder, records),
        config=config,
        sessions=read_sessions(folder),
        predictions=read_predictions(folder),
        notes=notes,
    )


def _check_is_run(folder: Path) -> None:
    if not folder.exists():
        near = find_runs(folder.parent)[:_SHOWN] if folder.parent.is_dir() else []
        hint = f"; the newest runs there are {', '.join(map(str, near))}" if near else ""
        raise UsageError(f"there is no run {folder}{hint}; give the folder of a run, or 'latest'")
    if not folder.is_dir():
        raise UsageError(f"{folder} is a file; give the folder of a run, or 'latest'")
    if not is_run(folder):
        inside = find_runs(folder)[:_SHOWN]
        hint = f"it holds runs, give one or several of them, as {inside[0]}" if inside else "give the folder of a run"
        raise UsageError(
            f"{folder} is not the folder of a run ({CONFIG_FILE} and {METRICS_FILE} are not in it); {hint}"
        )


def _notes_on(summary: RunSummary, records: Records) -> list[str]:
    notes = []
    if summary.state == "running":
        notes.append("The run was still going on when this page was written.")
    if summary.state == "stopped" and summary.reason:
        notes.append(f"The run was stopped ({summary.reason}).")
    if summary.state == "failed" and summary.reason:
        notes.append(f"The run ended with an error: {summary.reason}")
    if summary.state == "killed":
        notes.append("The run ended without a word: it was killed, or another of its processes failed.")
    if records.num_cut and summary.state != "running":  # there it is the line that is being written
        lines = "1 line" if records.num_cut == 1 else f"{records.num_cut} lines"
        notes.append(
            f"{lines} of {METRICS_FILE} could not be read and {'is' if records.num_cut == 1 else 'are'} left out."
        )
    return notes


def _config(folder: Path) -> tuple[Mapping[str, Any], list[str]]:
    yaml = require("yaml", extra="report", purpose="`shoal report`")
    try:
        content = yaml.safe_load((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except (*UNREADABLE, yaml.YAMLError) as error:  # a ValueError, too: YAML reads 2024-13-01 as a date
        return {}, [f"{CONFIG_FILE} could not be read: {' '.join(str(error).split())}"]
    return ({str(key): value for key, value in content.items()} if isinstance(content, Mapping) else {}), []


def _steps_per_epoch(folder: Path, records: Records) -> float | None:
    state = read_state(folder)
    if state is not None:
        return state.plan.steps_per_epoch
    for row in reversed(records.rows):  # an evaluation at the end of an epoch
        for of in ("val", "train"):
            epoch = row.get(f"{of}/epoch")
            if isinstance(epoch, int | float) and epoch > 0 and row["step"] % epoch == 0:
                return float(row["step"] / epoch)
    return None
