"""The page of one run."""

from __future__ import annotations

from shoal.report.curves import least, median
from shoal.report.details import config_table, environment_tables
from shoal.report.html import Chart, chart, note, number, section, text, tiles
from shoal.report.load import ReportedRun
from shoal.report.metrics import metric_charts
from shoal.report.mistakes import class_table, confusion, pair_table, wrong_images
from shoal.report.times import SPEED, phase_chart, phase_table, speed_chart
from shoal.runs import format_duration

__all__ = ["charts", "score_parts", "single_page"]


def single_page(run: ReportedRun) -> tuple[str, str]:
    """The title, plain, and the HTML of the body."""
    head = (
        f'<header><p class="kind">Training run <span class="state {run.summary.state}">{run.summary.state}</span></p>'
        f"<h1>{text(run.summary.title)}</h1>"
        f'<p class="folder">{text(run.folder)}</p>'
        f"{''.join(map(note, run.notes))}{_tiles(run)}</header>"
    )
    found = run.predictions
    parts = [
        section("curves", "Curves", charts(metric_charts(run))),
        section("time", "Time", charts([phase_chart(run), speed_chart(run)]), phase_table(run)),
    ]
    if found is not None:
        best = ", the best so far" if found.epoch == run.summary.best_epoch else ""
        of = f"On the {sum(map(sum, found.confusion)):,} validation images, after epoch {found.epoch}{best}."
        parts.append(
            section("classes", "Classes", _columns(confusion(found), class_table(found), pair_table(found)), lead=of)
        )
        lead = "The validation images with the highest loss: what they were taken for, and what they are."
        parts.append(section("wrong", "Most wrong predictions", wrong_images(found), lead=lead))
    parts.append(section("setup", "Set-up", f'<div class="two">{config_table(run)}{environment_tables(run)}</div>'))
    if run.summary.resume:
        parts.append(section("resume", "Go on", f"<pre><code>{text(run.summary.resume)}</code></pre>"))
    return run.summary.title, head + "\n".join(parts)


def charts(those: list[Chart] | list[Chart | None]) -> str:
    """Charts beside each other, as many as the width allows."""
    inside = "".join(chart(one) for one in those if one is not None)
    return f'<div class="charts">{inside}</div>' if inside else ""


def score_parts(score: str) -> tuple[str, str]:
    """``validation`` and ``accuracy`` of ``val/accuracy``; nothing and the name where there is one part."""
    of, _, metric = score.rpartition("/")
    return {"val": "validation", "train": "training"}.get(of, of), metric.replace("_", " ")


def _columns(matrix: str, classes: str, pairs: str) -> str:
    return f'{matrix}<div class="two">{classes}{pairs}</div>'


def _tiles(run: ReportedRun) -> str:
    summary = run.summary
    shown = []
    if summary.best is not None:
        of, name = score_parts(summary.score)
        small = ", ".join(filter(None, [of, f"epoch {summary.best_epoch}"]))
        shown.append((f"Best {name}", f"{summary.best:.4f}", small))
    _, losses = run.series("val/loss")
    if losses:
        shown.append(("Validation loss", number(losses[-1]), f"lowest {number(least(losses))}"))
    if summary.epoch is not None:
        shown.append(
            ("Epochs", number(round(summary.epoch, 1), 3), f"of {summary.num_epochs}" if summary.num_epochs else "")
        )
    if summary.duration_s is not None:
        sessions = len(run.sessions)
        shown.append(
            ("Duration", format_duration(summary.duration_s), f"in {sessions} sessions" if sessions > 1 else "")
        )
    speed = median(run.series(SPEED)[1])
    if speed is not None:
        shown.append(("Images per second", number(round(speed)), "in training, median"))
    if run.sessions:
        last = run.sessions[-1]
        processes = last.get("world_size", 1)
        small = "1 process" if processes == 1 else f"{processes} processes, {last.get('backend')}"
        shown.append(("Device", str(last.get("device", "–")), small))
    return tiles(shown)
