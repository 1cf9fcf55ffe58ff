"""Where the time went: by phase and epoch, and how many images a second."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from shoal.report.curves import median, moving_average
from shoal.report.html import Chart, Legend, number, percent, table, text
from shoal.report.load import ReportedRun
from shoal.report.metrics import RUN_COLORS, line
from shoal.runs import format_duration

__all__ = ["SPEED", "compared_phases", "compared_speed", "phase_chart", "phase_table", "speed_chart"]

SPEED = "speed/images_per_s"
_SECONDS = "seconds/"
_CENTURY_S = 100 * 366 * 86400
"""No phase takes longer; a file of somebody else's may say so."""
_PHASES = {
    "step": ("Steps", "c1"),
    "data": ("Waiting for data", "c5"),
    "evaluation": ("Evaluation", "c2"),
    "checkpoint": ("Checkpoints", "c3"),
}
_MANY_BARS = 12
_SMOOTHED_FROM = 40


def phase_table(run: ReportedRun) -> str:
    """The seconds and the share of each phase."""
    totals = _totals(run)
    whole = sum(totals.values())
    if not whole:
        return ""
    rows = [[text(_label(phase)), _spent(seconds), percent(seconds / whole)] for phase, seconds in totals.items()]
    rows.append(["All", _spent(whole), ""])
    return table("Time by phase, on the first process", ["Phase", "Time", "Share"], rows, kind="numbers")


def phase_chart(run: ReportedRun) -> Chart | None:
    """The seconds of each phase by epoch, one on the other; None where none were recorded."""
    per_epoch = run.steps_per_epoch
    if per_epoch is None or not _totals(run):
        return None
    seconds: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for row in run.records.rows:
        epoch = max(1, math.ceil(row["step"] / per_epoch))
        for name, value in row.items():
            if _is_seconds(name, value):
                seconds[name.removeprefix(_SECONDS)][epoch] += value
    epochs = sorted({epoch for by_epoch in seconds.values() for epoch in by_epoch})
    phases = _ordered(seconds)
    traces = [
        {
            "type": "bar",
            "name": _label(phase),
            "x": epochs,
            "y": [round(seconds[phase].get(epoch, 0.0), 3) for epoch in epochs],
            "marker": {"color": f"${_color(phase)}"},
        }
        for phase in phases
    ]
    ticks = {"dtick": 1, "tick0": 1} if epochs[-1] <= _MANY_BARS else {}
    return Chart(
        title="Seconds by epoch",
        description="Seconds by epoch and phase, as bars. " + _totals_in_words(run),
        traces=traces,
        layout={
            "barmode": "stack",
            "bargap": 0.35,
            "xaxis": {"title": {"text": "Epoch"}, "range": [0.4, max(epochs[-1], 4) + 0.6], **ticks},
            "yaxis": {"title": {"text": "Seconds"}, "rangemode": "tozero"},
        },
        legend=tuple(Legend(_label(phase), _color(phase), (place,)) for place, phase in enumerate(phases)),
    )


def speed_chart(run: ReportedRun) -> Chart | None:
    """Images a second; None where they were not recorded."""
    return compared_speed([("", run)])


def compared_speed(runs: Sequence[tuple[str, ReportedRun]]) -> Chart | None:
    """Images a second of each run; None where none were recorded."""
    traces: list[dict[str, Any]] = []
    legend, said = [], []
    for place, (letter, run) in enumerate(runs):
        places, values = run.series(SPEED)
        if not places:
            continue
        if len(values) >= _SMOOTHED_FROM:
            values = moving_average(values)
        color = RUN_COLORS[place % len(RUN_COLORS)] if letter else "ink"
        name = f"Run {letter}" if letter else "Images per second"
        legend.append(Legend(name, color, (len(traces),)))
        traces.append(line(places, values, name, color, marked=False))
        said.append(f"{name}: median {number(median(values), 3)}.")
    if not traces:
        return None
    axis = "Epoch" if all(run.steps_per_epoch is not None for _, run in runs) else "Step"
    return Chart(
        title="Images per second, in training",
        description="Images per second in training, all processes together. " + " ".join(said),
        traces=traces,
        layout={"xaxis": {"title": {"text": axis}, "rangemode": "tozero"}, "yaxis": {"rangemode": "tozero"}},
        legend=tuple(legend) if len(runs) > 1 else (),
    )


def compared_phases(runs: Sequence[tuple[str, ReportedRun]]) -> Chart | None:
    """The seconds of each phase, a bar a run; None where none were recorded."""
    totals = {letter: found for letter, run in runs if (found := _totals(run))}
    if not totals:
        return None
    phases = _ordered(phase for found in totals.values() for phase in found)
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": _label(phase),
            "y": [f"Run {letter}" for letter in totals],
            "x": [round(found.get(phase, 0.0), 2) for found in totals.values()],
            "marker": {"color": f"${_color(phase)}"},
        }
        for phase in phases
    ]
    return Chart(
        title="Seconds by phase",
        description="Seconds by phase, a bar a run. "
        + " ".join(f"Run {letter}: {_totals_in_words(run)}" for letter, run in runs if letter in totals),
        traces=traces,
        layout={
            "barmode": "stack",
            "bargap": 0.4,
            "xaxis": {"title": {"text": "Seconds"}, "rangemode": "tozero"},
            "yaxis": {"autorange": "reversed", "type": "category"},
            "hovermode": "closest",
        },
        legend=tuple(Legend(_label(phase), _color(phase), (place,)) for place, phase in enumerate(phases)),
        height=120 + 46 * len(totals),
    )


def _totals(run: ReportedRun) -> dict[str, float]:
    totals: dict[str, float] = defaultdict(float)
    for row in run.records.rows:
        for name, value in row.items():
            if _is_seconds(name, value):
                totals[name.removeprefix(_SECONDS)] += value
    return {phase: totals[phase] for phase in _ordered(totals)}


def _is_seconds(name: str, value: object) -> bool:
    return name.startswith(_SECONDS) and isinstance(value, int | float) and 0 <= value < _CENTURY_S


def _totals_in_words(run: ReportedRun) -> str:
    return " ".join(f"{_label(phase)}: {_spent(seconds)}." for phase, seconds in _totals(run).items())


def _ordered(phases: Iterable[str]) -> list[str]:
    known = set(phases)
    return [phase for phase in _PHASES if phase in known] + sorted(known - set(_PHASES))


def _label(phase: str) -> str:
    return _PHASES[phase][0] if phase in _PHASES else phase


def _color(phase: str) -> str:
    return _PHASES[phase][1] if phase in _PHASES else "c4"


def _spent(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else format_duration(seconds)
