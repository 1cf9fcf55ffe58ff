"""``shoal runs [FOLDER]``: how the runs in a folder stand, and how to go on with them. Imports no torch."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

from shoal.errors import ShoalError
from shoal.runs import RunSummary, find_runs, format_duration, summarize

__all__ = ["main"]

_HEAD = ("STATE", "BEST", "EPOCHS", "TIME", "RUN")
_COMMANDS_SHOWN = 5


def main(argv: list[str]) -> int:
    """List the runs, the newest first.

    Args:
        argv: the arguments after ``runs``.

    Returns:
        The exit code: 2 where there is no such folder.
    """
    parser = argparse.ArgumentParser(prog="shoal runs", description="List the runs in a folder, the newest first.")
    parser.add_argument(
        "folder", nargs="?", type=Path, default=Path(), metavar="FOLDER", help="default: here, and the folders in here"
    )
    parser.add_argument("--json", action="store_true", help="write one JSON array instead of a table")
    options = parser.parse_args(argv)
    try:
        runs = [summary for run in find_runs(options.folder.expanduser()) if (summary := _summary(run))]
    except (ShoalError, OSError) as error:
        print(f"shoal runs: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps([asdict(run) for run in runs], indent=2, default=str))
    elif runs:
        print("\n".join([*_table(runs, options.folder), *_commands(runs)]))
    else:
        print(f"There is no run in {options.folder.expanduser().absolute()} or in the folders in it.")
    return 0


def _summary(run: Path) -> RunSummary | None:
    """How it stands; None, and a word, where its files cannot be read: another user's, or taken away meanwhile."""
    try:
        return summarize(run)
    except OSError as error:
        print(f"shoal runs: the run {run} is left out: {error}", file=sys.stderr)
        return None


def _table(runs: list[RunSummary], folder: Path) -> list[str]:
    rows = [_row(run, folder.expanduser()) for run in runs]
    widths = [max(len(row[column]) for row in [_HEAD, *rows]) for column in range(len(_HEAD) - 1)]
    lines = []
    for (state, *cells), name in ((row[:-1], row[-1]) for row in [_HEAD, *rows]):
        others = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        lines.append(("  ".join([state.ljust(widths[0]), *others]), name))
    if max(len(start) + 2 + len(name) for start, name in lines) <= shutil.get_terminal_size().columns:
        return [f"{start}  {name}" for start, name in lines]
    # Names that don't fit get a line of their own, so that they can be copied.
    return [f"{start}\n  {name}" if place else start for place, (start, name) in enumerate(lines)]


def _row(run: RunSummary, folder: Path) -> tuple[str, ...]:
    name = str(run.folder.relative_to(folder) if run.folder.is_relative_to(folder) else run.folder)
    name = run.folder.absolute().name if name == "." else name
    best = "–" if run.best is None else f"{run.best:.4f}"
    done = "–" if run.epoch is None else f"{run.epoch:.1f}".removesuffix(".0")
    return run.state, best, f"{done}/{run.num_epochs or '?'}", format_duration(run.duration_s), _printable(name)


def _printable(name: str) -> str:
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in name)


def _commands(runs: list[RunSummary]) -> list[str]:
    """How to go on: with those that were not finished, each; with a finished one, the newest."""
    unfinished = [run for run in runs if run.resume and run.state != "finished"]
    finished = [run for run in runs if run.resume and run.state == "finished"][:1]
    lines = [f"Go on:         {run.resume}" for run in unfinished[:_COMMANDS_SHOWN]]
    lines += [f"Train longer:  {run.resume}" for run in finished]
    return ["", *lines] if lines else []
