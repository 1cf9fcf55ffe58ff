"""The table of ratios and the JSON record of a run."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import Row

__all__ = ["failures", "machine", "table", "write_record"]

_HEADINGS = ("case", "shoal", "peer", "peer's", "ratio", "range", "target", "met?")


def table(title: str, rows: Sequence[Row]) -> str:
    """The rows as lines of one width, with the title above and the notes below."""
    lines = [_HEADINGS, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADINGS))]
    rule = "  ".join("-" * width for width in widths)
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    notes = list(dict.fromkeys(row.note for row in rows if row.note))
    return "\n".join([title, text[0], rule, *text[1:], *(f"  note: {note}" for note in notes)])


def failures(comparisons: Mapping[str, Sequence[Row]]) -> list[str]:
    """One paragraph for every side that failed, with the end of its error, each error once."""
    seen: dict[str, str] = {}
    for name, rows in comparisons.items():
        for row in rows:
            for side, error in (("shoal", row.ours_error), (row.peer, row.theirs_error)):
                if error and error not in seen:
                    tail = "\n".join("    " + line for line in error.strip().splitlines()[-6:])
                    seen[error] = f"{name}: {side} failed in '{row.case}':\n{tail}"
    return list(seen.values())


def write_record(path: Path, *, facts: Mapping[str, Any], comparisons: Mapping[str, Sequence[Row]]) -> None:
    """Write everything that was measured, round by round, with the machine that it was measured on."""
    record = {
        **facts,
        "comparisons": {name: [dataclasses.asdict(row) for row in rows] for name, rows in comparisons.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def machine() -> dict[str, Any]:
    """The machine, and how busy it was before the first measurement."""
    return {
        "started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "processor": _processor(),
        "num_cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "platform": platform.platform(),
        "load_average": list(os.getloadavg()),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _cells(row: Row) -> tuple[str, ...]:
    target = ""
    if row.target_limit is not None:
        unit = f" {row.unit}" if row.target_of == "ours" else " x"
        target = f"<= {row.target_limit:g}{unit}"
    met = "" if row.target_limit is None else {True: "yes", False: "NO", None: "?"}[row.met]
    return (
        row.case,
        _value(row.ours, row.unit, row.ours_error),
        row.peer,
        _value(row.theirs, row.unit, row.theirs_error),
        "" if row.ratio is None else f"{row.ratio:.3g}",
        "" if row.ratio_range is None else f"{row.ratio_range[0]:.3g} to {row.ratio_range[1]:.3g}",
        target,
        met,
    )


def _value(value: float | None, unit: str, error: str | None) -> str:
    if error is not None:
        return "FAILED"
    if value is None:
        return ""
    return f"{value:.0f} {unit}" if abs(value) >= 1000 else f"{value:.3g} {unit}"
