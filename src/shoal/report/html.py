"""The few forms of HTML that the pages are made of. Every text that comes from a run goes through :func:`text`."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "Chart",
    "Legend",
    "apart",
    "chart",
    "name_of",
    "note",
    "number",
    "percent",
    "section",
    "table",
    "text",
    "tiles",
]


def text(value: object) -> str:
    """``value`` as text of a page, which no browser takes for markup."""
    return html.escape(str(value), quote=True)


def apart(value: object) -> str:
    """``value`` as text of a page beside which numbers keep their places, also where it is written from the right."""
    return f"<bdi>{text(value)}</bdi>"


def name_of(value: object) -> str:
    """The name of an option as text of a page, which may be broken after an underscore."""
    return text(value).replace("_", "_<wbr>")


def number(value: float | None, digits: int = 4) -> str:
    """``0.7312``, ``12,345`` or ``1.2e-05``; a dash for what is missing."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.{digits}g}"


def percent(part: float | None) -> str:
    """``98 %``, with a space that does not break; ``0.4 %`` below 1; a dash for what is missing."""
    if part is None:
        return "–"
    shown = 100 * part
    return f"{shown:.1f}\N{NO-BREAK SPACE}%" if 0 < shown < 1 or 99 < shown < 100 else f"{shown:.0f}\N{NO-BREAK SPACE}%"


def section(identifier: str, title: str, *parts: str, lead: str = "") -> str:
    """A part of the page, with a heading; nothing where it would be empty."""
    inside = "\n".join(part for part in parts if part)
    if not inside:
        return ""
    heading = f'<h2 id="{identifier}-h">{text(title)}</h2>'
    said = f'<p class="lead">{text(lead)}</p>' if lead else ""
    return f'<section id="{identifier}" aria-labelledby="{identifier}-h">{heading}{said}\n{inside}\n</section>'


def note(sentence: str) -> str:
    """A sentence that must not be missed."""
    return f'<p class="note" role="note">{text(sentence)}</p>'


def tiles(values: Iterable[tuple[str, str, str]]) -> str:
    """Large numbers with what they are: ``(label, value, small print)`` each, as plain text."""
    items = ""
    for label, value, small in values:
        print_ = f"<span>{text(small)}</span>" if small else ""
        items += f"<div><dt>{text(label)}</dt><dd><b>{text(value)}</b>{print_}</dd></div>"
    return f'<dl class="tiles">{items}</dl>'


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], *, kind: str = "") -> str:
    """A table whose first cell of each row is its heading. The caption is plain text, cells are HTML."""
    heads = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
        for first, *cells in rows
    )
    name = f"Table: {caption}"
    # A region that can be scrolled must be reachable by keyboard.
    return (
        f'<div class="scroll" role="region" aria-label="{text(name)}" tabindex="0">'
        f'<table class="{kind}"><caption>{text(caption)}</caption>'
        f"{f'<thead><tr>{heads}</tr></thead>' if head else ''}<tbody>{body}</tbody></table></div>"
    )


@dataclass(frozen=True)
class Legend:
    """A name in a chart's legend, which is a button that hides its traces.

    Attributes:
        name: plain text.
        color: the name of a colour of the page.
        traces: numbers of the traces that it stands for.
        dash: whether its line is dotted.
    """

    name: str
    color: str
    traces: tuple[int, ...]
    dash: bool = False


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart for plotly.js. A colour ``"$name"`` in it is the page's of that name, in the theme of the moment.

    Attributes:
        title: plain text.
        description: what the chart shows, for who cannot see it; plain text.
        traces: plotly's traces.
        layout: plotly's layout, over the page's own.
        legend: the names.
        wide: whether it takes the whole width of the page.
        height: in CSS pixels.
    """

    title: str
    description: str
    traces: list[dict[str, Any]]
    layout: dict[str, Any] = field(default_factory=dict)
    legend: tuple[Legend, ...] = ()
    wide: bool = False
    height: int = 280


def chart(one: Chart) -> str:
    """The chart's place in the page, with its numbers."""
    buttons = "".join(
        f'<li><button type="button" aria-pressed="true" data-traces="{",".join(map(str, entry.traces))}">'
        f'<i style="--c:var(--{entry.color})"{" class=dash" if entry.dash else ""}></i>{text(entry.name)}</button></li>'
        for entry in one.legend
    )
    legend = f'<ul class="legend">{buttons}</ul>' if buttons else ""
    # A "</script>" inside the numbers would end them.
    spec = json.dumps({"data": one.traces, "layout": one.layout}, allow_nan=False, separators=(",", ":"))
    spec = spec.replace("<", "\\u003c")
    return (
        f'<figure class="chart{" wide" if one.wide else ""}"><figcaption>{text(one.title)}</figcaption>{legend}'
        f'<div class="plot" role="img" aria-label="{text(one.description)}" style="height:{one.height}px"></div>'
        f'<script type="application/json">{spec}</script></figure>'
    )
