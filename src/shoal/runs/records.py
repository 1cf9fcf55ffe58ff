"""The numbers of a run, as ``metrics.jsonl`` holds them; read without torch, also while the run goes on."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.runs.folder import METRICS_FILE

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
        except json.JSONDecodeError:
            num_cut += bool(line.strip())
            continue
        if not isinstance(record, dict):
            num_cut += 1
            continue
        if isinstance(record.get("step"), int):
            rows.append({key: _NOT_FINITE.get(v, v) if isinstance(v, str) else v for key, v in record.items()})
    return Records(rows, num_cut)
