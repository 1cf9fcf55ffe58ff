"""What ran, and on what: options and environment as tables."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.report.html import name_of, table, text
from shoal.report.load import ReportedRun

__all__ = ["config_table", "differing_options", "environment_tables"]

_TIME = re.compile(r"^(\S+)T(\S+?)([+-]\d+)$")
_ENVIRONMENT_LABELS = {
    "time": "Started",
    "command": "Command",
    "resumed_from": "Resumed from",
    "host": "Host",
    "platform": "Platform",
    "python": "Python",
    "shoal": "Shoal",
    "torch": "PyTorch",
    "torchvision": "torchvision",
    "cuda": "CUDA",
    "device": "Device",
    "threads": "Threads",
    "backend": "Backend",
    "world_size": "Processes",
    "nodes": "Nodes",
}


def config_table(run: ReportedRun) -> str:
    """The options of a run."""
    if not run.config:
        return ""
    rows = [[name_of(name), _value(value)] for name, value in run.config.items()]
    return table("Options", [], rows, kind="pairs")


def environment_tables(run: ReportedRun) -> str:
    """What the run's last session ran on; the earlier ones can be unfolded."""
    if not run.sessions:
        return ""
    *earlier, last = run.sessions
    latest = _session(last, "Environment" if not earlier else f"Environment of session {len(run.sessions)}, the last")
    if not earlier:
        return latest
    older = "".join(_session(session, f"Session {place}") for place, session in enumerate(earlier, start=1))
    return f"<div>{latest}<details><summary>Earlier sessions ({len(earlier)})</summary>{older}</details></div>"


def differing_options(runs: Sequence[tuple[str, ReportedRun]]) -> str:
    """The options in which the runs differ, a column a run."""
    rows = []
    for name in dict.fromkeys(name for _, run in runs for name in run.config):
        values = [run.config.get(name, _ABSENT) for _, run in runs]
        if len({repr(value) for value in values}) > 1:
            rows.append([name_of(name), *map(_value, values)])
    if not rows:
        return "<p>All options are the same.</p>"
    heads = ["Option", *(f"Run {letter}" for letter, _ in runs)]
    return table("Options in which the runs differ", heads, rows, kind="compared")


_ABSENT = "(not an option)"


def _session(session: Mapping[str, Any], caption: str) -> str:
    rows = [
        [
            text(_ENVIRONMENT_LABELS.get(name, name)),
            _value(_TIME.sub(r"\1 \2 \3", str(value)) if name == "time" else value),
        ]
        for name, value in session.items()
        if value is not None
    ]
    return table(caption, [], rows, kind="pairs")


def _value(value: Any) -> str:
    if value is None:
        return '<span class="none">not set</span>'
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):  # a command: breaks come between its arguments, not at the hyphens in them
        return " ".join(f'<span class="part">{text(shlex.quote(str(part)))}</span>' for part in value)
    return text(value)
