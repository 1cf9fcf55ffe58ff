"""The numbers of a run, as ``metrics.jsonl`` holds them; read without torch, also while the run goes on."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.runs.folder import METRICS_FILE
from shoal.runs.trust import MOST

__all__ = ["Records", "read_records"]

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True)
class Records:
    """The records of a file of ``shoal.trackers.JsonlTracker``.

    Attributes:
        rows: one mapping a line that could be read, in the file's order: ``time``, ``axis``, ``step``, and values.
        num_cut: lines that could not: what a killed run was writing, or what a running one is writing now.
    """

    rows: list[dict[str, Any]]
    num_cut: int = 0


def read_records(folder: Path) -> Records:
    """The records of a run; none where it has written none yet."""
    path = folder / METRICS_FILE
    if not path.is_file():
        return Records([])
    return _parse(path.read_text(encoding="utf-8", errors="replace").splitlines())


def _parse(lines: Iterable[str]) -> Records:
    rows, num_cut = [], 0
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):  # also a number of more digits than Python reads
            num_cut += bool(line.strip())
            continue
        if not isinstance(record, dict):
            num_cut += 1
            continue
        if _is_step(record.get("step")):
            rows.append({key: _value(value) for key, value in record.items()})
    return Records(rows, num_cut)


def _is_step(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST


def _value(value: Any) -> Any:
    if isinstance(value, str):
        return _NOT_FINITE.get(value, value)
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        return math.inf if value > 0 else -math.inf
    return value
