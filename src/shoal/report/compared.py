"""The page of several runs."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence

from shoal.report.curves import least, median
from shoal.report.details import differing_options
from shoal.report.html import note, number, section, table, text
from shoal.report.load import ReportedRun
from shoal.report.metrics import RUN_COLORS, compared_metrics
from shoal.report.mistakes import compared_classes
from shoal.report.single import charts, score_parts
from shoal.report.times import SPEED, compared_phases, compared_speed
from shoal.runs import format_duration

__all__ = ["compared_page"]

_Lettered = Sequence[tuple[str, ReportedRun]]


def compared_page(runs: Sequence[ReportedRun]) -> tuple[str, str]:
    """The title, plain, and the HTML of the body."""
    lettered = list(zip(string.ascii_uppercase, runs, strict=False))
    notes = [note(f"Run {letter}: {said}") for letter, run in lettered for said in run.notes]
    head = (
        f'<header><p class="kind">Comparison</p><h1>{len(runs)} training runs</h1>'
        f"{_key(lettered)}{''.join(notes)}</header>"
    )
    parts = [
        section("scores", "Scores", _scores(lettered)),
        section("options", "Options", differing_options(lettered)),
        section("curves", "Curves", charts(compared_metrics(lettered))),
        section("time", "Time", charts([compared_phases(lettered), compared_speed(lettered)])),
        section("classes", "Classes", compared_classes(lettered)),
    ]
    return f"{len(runs)} runs compared", head + "\n".join(parts)


def _key(runs: _Lettered) -> str:
    items = "".join(
        f'<li><b style="--c:var(--{RUN_COLORS[place % len(RUN_COLORS)]})">{letter}</b>'
        f'<span>{text(run.summary.title)} <span class="state {run.summary.state}">{run.summary.state}</span>'
        f"<br><small>{text(run.folder.name)}</small></span></li>"
        for place, (letter, run) in enumerate(runs)
    )
    return f'<ul class="key">{items}</ul>'


def _scores(runs: _Lettered) -> str:
    scores = dict.fromkeys(run.summary.score for _, run in runs)
    rows = []
    for score in scores:
        values = [run.summary.best if run.summary.score == score else None for _, run in runs]
        rows.append([text(" ".join(["Best", *filter(None, score_parts(score))])), *_marked(values, max)])
    rows += [
        ["After epoch", *(number(run.summary.best_epoch) for _, run in runs)],
        ["Lowest validation loss", *_marked([least(run.series("val/loss")[1]) for _, run in runs], min)],
        ["Epochs", *(_epochs(run) for _, run in runs)],
        ["Duration", *(format_duration(run.summary.duration_s) for _, run in runs)],
        ["Images per second", *(number(_whole(median(run.series(SPEED)[1]))) for _, run in runs)],
    ]
    return table(
        "Best scores, and what they took", ["", *(f"Run {letter}" for letter, _ in runs)], rows, kind="numbers compared"
    )


def _marked(values: Sequence[float | None], best_of: Callable[[list[float]], float]) -> list[str]:
    known = [value for value in values if value is not None]
    best = best_of(known) if known else None
    return [
        f"<strong>{value:.4f}</strong>"
        if value == best and value is not None
        else "–"
        if value is None
        else f"{value:.4f}"
        for value in values
    ]


def _epochs(run: ReportedRun) -> str:
    done = number(None if run.summary.epoch is None else round(run.summary.epoch, 1), 3)
    return f"{done} of {run.summary.num_epochs}" if run.summary.num_epochs else done


def _whole(value: float | None) -> float | None:
    return None if value is None else round(value)
