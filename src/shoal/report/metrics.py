"""Charts of the metrics of one run or of several."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from shoal.report.curves import moving_average, rounded, thinned
from shoal.report.html import Chart, Legend, number, text
from shoal.report.load import ReportedRun

__all__ = ["RUN_COLORS", "compared_metrics", "line", "metric_charts"]

_OWN_KEYS = {"time", "axis", "step", "config"}
_ELSEWHERE = ("seconds/", "speed/")
_BATCH = "batch"
_OF = {
    "batch": ("Training batches", "train"),
    "train": ("Training set", "train"),
    "training": ("Training", "train"),
    "val": ("Validation set", "val"),
    "validation": ("Validation set", "val"),
    "test": ("Test set", "c3"),
}
"""What a metric is of, by the first part of its name, and the colour of it."""

RUN_COLORS = ("c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8")
_MANY_POINTS = 40
_MOST_TICKS = 9
_OUTLIER = 25
"""A loss of more than so many times the median is one."""


def metric_charts(run: ReportedRun) -> list[Chart]:
    """A chart for each metric that the run has recorded, loss and accuracy first."""
    return [_of_one(run, metric, names) for metric, names in _grouped(run).items()]


def compared_metrics(runs: Sequence[tuple[str, ReportedRun]]) -> list[Chart]:
    """A chart for each metric, with the curves of all runs.

    Args:
        runs: each with its letter.
    """
    metrics = list(dict.fromkeys(metric for _, run in runs for metric in _grouped(run)))
    return [_of_several(runs, metric) for metric in _ordered(metrics)]


def line(
    places: Sequence[float],
    values: Sequence[float],
    name: str,
    color: str,
    *,
    dotted: bool = False,
    marked: bool = True,
) -> dict[str, Any]:
    """A curve; with a marker at each value where they are few."""
    places, values = thinned(places, values)
    markers = (marked or len(places) == 1) and len(places) <= _MANY_POINTS  # no line goes through one point
    style: dict[str, Any] = {"color": f"${color}", "width": 2}
    if dotted:
        style["dash"] = "dot"
    trace = {
        "type": "scatter",
        "mode": "lines+markers" if markers else "lines",
        "x": rounded(places, 6),
        "y": rounded(values),
        "name": text(name),  # plotly reads a little HTML in it
        "line": style,
    }
    if markers:
        trace["marker"] = {"color": f"${color}", "size": 7, "symbol": "square" if dotted else "circle"}
    return trace


def _of_one(run: ReportedRun, metric: str, names: Sequence[str]) -> Chart:
    traces: list[dict[str, Any]] = []
    legend, said, all_values = [], [], []
    for spare, name in enumerate(names):
        of, color = _OF.get(name.partition("/")[0], (name, RUN_COLORS[spare % len(RUN_COLORS)]))
        places, values = run.series(name)
        all_values += values
        if name.startswith(f"{_BATCH}/") and len(names) > 1:
            added = _batches(places, values, of, color)
            legend.append(Legend(of, "faint", tuple(range(len(traces), len(traces) + len(added)))))
        else:
            alone = len(names) == 1
            added = [line(places, values, of, "ink" if alone else color, marked=not alone)]
            legend.append(Legend(of, color, (len(traces),)))
            said.append(_in_words(of, run.axis_title, places, values))
        traces += added
    axis = _value_axis(metric, all_values)
    return Chart(
        title=f"{_title(metric)} (logarithmic)" if "type" in axis else _title(metric),
        description=f"{_title(metric)} over {run.axis_title.lower()}s. {' '.join(said)}",
        traces=traces,
        layout={
            "xaxis": {"title": {"text": run.axis_title}, "rangemode": "tozero"},
            "yaxis": _value_axis(metric, all_values),
        },
        legend=tuple(legend) if len(legend) > 1 else (),
    )


def _batches(places: list[float], values: list[float], of: str, color: str) -> list[dict[str, Any]]:
    """The single batches faintly, and over them their moving average where there are many."""
    many = len(places) >= _MANY_POINTS
    single = line(places, values, of, color, marked=False) | {"opacity": 0.3 if many else 0.55, "hoverinfo": "skip"}
    single["line"]["width"] = 1.2
    if not many:
        return [single | {"hoverinfo": "all"}]
    averaged = line(places, moving_average(values), f"{of}, averaged", color, marked=False) | {"opacity": 0.7}
    return [single, averaged]


def _of_several(runs: Sequence[tuple[str, ReportedRun]], metric: str) -> Chart:
    traces: list[dict[str, Any]] = []
    legend, said, all_values = [], [], []
    axis = "Epoch" if all(run.steps_per_epoch is not None for _, run in runs) else "Step"
    for place, (letter, run) in enumerate(runs):
        color = RUN_COLORS[place % len(RUN_COLORS)]
        first = len(traces)
        names = _grouped(run).get(metric, [])
        evaluated = [name for name in names if not name.startswith(f"{_BATCH}/")]
        for name in evaluated or names:
            of = _OF.get(name.partition("/")[0], (name, ""))[0]
            places, values = run.series(name)
            if not evaluated and len(values) >= _MANY_POINTS and _title(metric) != _title("learning_rate"):
                values = moving_average(values)
            all_values += values
            dotted = name.startswith("train") and len(evaluated) > 1
            traces.append(line(places, values, f"{letter}, {of.lower()}", color, dotted=dotted))
            said.append(_in_words(f"Run {letter}, {of.lower()}", run.axis_title, places, values))
        if len(traces) > first:
            legend.append(Legend(f"Run {letter}", color, tuple(range(first, len(traces)))))
    value_axis = _value_axis(metric, all_values)
    told = ["logarithmic"] * ("type" in value_axis)
    told += ["dotted: training"] * any(trace["line"].get("dash") for trace in traces)
    return Chart(
        title=_title(metric) + (f" ({', '.join(told)})" if told else ""),
        description=f"{_title(metric)} of the runs. {' '.join(said)}",
        traces=traces,
        layout={"xaxis": {"title": {"text": axis}, "rangemode": "tozero"}, "yaxis": value_axis},
        legend=tuple(legend),
    )


def _grouped(run: ReportedRun) -> dict[str, list[str]]:
    """The names of the run's values by metric: ``loss: [batch/loss, train/loss, val/loss]``."""
    groups: dict[str, list[str]] = {}
    names = dict.fromkeys(name for row in run.records.rows for name in row)
    for name in names:
        of, _, metric = name.partition("/")
        if name in _OWN_KEYS or name.startswith(_ELSEWHERE) or metric == "epoch":
            continue
        if any(isinstance(row.get(name), int | float) for row in run.records.rows):
            groups.setdefault(metric if of in _OF and metric else name, []).append(name)
    return {metric: sorted(groups[metric], key=_drawn_first) for metric in _ordered(list(groups))}


def _drawn_first(name: str) -> int:
    order = list(_OF)
    of = name.partition("/")[0]
    return order.index(of) if of in order else len(order)


def _ordered(metrics: list[str]) -> list[str]:
    first = [metric for metric in ("loss", "accuracy") if metric in metrics]
    last = [metric for metric in metrics if metric == "learning_rate"]
    return [*first, *(metric for metric in metrics if metric not in (*first, *last)), *last]


def _title(metric: str) -> str:
    words = metric.replace("_", " ")
    return words[:1].upper() + words[1:]


def _value_axis(metric: str, values: Sequence[float]) -> dict[str, Any]:
    finite = sorted(value for value in values if math.isfinite(value))
    if "accuracy" in metric.lower() and finite and finite[0] >= 0 and finite[-1] <= 1:
        return {"range": [0, 1.03]}
    positive = [value for value in finite if value > 0]
    if "loss" in metric.lower() and positive and positive[-1] > _OUTLIER * positive[len(positive) // 2]:
        return {"type": "log"} | _log_ticks(positive[0], positive[-1])
    return {"rangemode": "tozero"} if finite and finite[0] >= 0 else {}


def _log_ticks(least: float, greatest: float) -> dict[str, Any]:
    """Ticks with whole numbers on them; by default plotly writes ``2`` where 20 is meant."""
    decades = range(math.floor(math.log10(least)), math.ceil(math.log10(greatest)) + 1)
    steps = (1, 2, 5) if len(decades) <= 3 else (1,)
    spread = math.ceil(len(decades) / _MOST_TICKS)
    values = [step * 10.0**decade for decade in decades[::spread] for step in steps]
    return {"tickvals": values, "ticktext": [f"{value:,g}" for value in values]}


def _in_words(of: str, axis: str, places: Sequence[float], values: Sequence[float]) -> str:
    finite = [(value, place) for place, value in zip(places, values, strict=True) if math.isfinite(value)]
    if not finite:
        return f"{of}: no number."
    least, greatest = min(finite), max(finite)
    return (
        f"{of}: from {number(finite[0][0])} to {number(finite[-1][0])}; "
        f"least {number(least[0])} at {axis.lower()} {number(least[1])}, "
        f"greatest {number(greatest[0])} at {axis.lower()} {number(greatest[1])}."
    )
