"""How a comparison is measured: sides run in turn, round by round, and become rows that pair ours with a peer's.

Only the standard library is used, so that neither the runner nor a timed program pays for an import of ours.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

__all__ = ["Options", "Outcome", "Row", "Side", "Target", "interleave", "make_row", "options", "write_rows"]

Side = Callable[[], Mapping[str, float]]
"""Runs one side once; returns what was measured, by the name of the quantity."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one side gave over all rounds.

    Attributes:
        rounds: one mapping a round, from quantity to value; empty where the side failed.
        error: why the side failed, with its traceback or its output, or None.
    """

    rounds: tuple[Mapping[str, float], ...]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """What is asked of a row.

    Attributes:
        limit: the greatest value that meets it.
        of: ``"ratio"`` (ours over the peer's) or ``"ours"`` (in the row's unit).
    """

    limit: float
    of: Literal["ratio", "ours"] = "ratio"


@dataclass(kw_only=True)
class Row:
    """One line of the table; everything that the printed line is made of is kept for the JSON file.

    Attributes:
        case: what is measured.
        unit: unit of ``ours`` and ``theirs``.
        ours, theirs: medians over the rounds; None where that side failed.
        peer: the name of the other side.
        ratio: median over the rounds of ours / theirs in the same round; None where a side failed.
        ratio_range: the smallest and the greatest of them.
        target_of, target_limit: see `Target`; None where nothing is asked.
        met: whether the target is met; None where nothing is asked or the peer, which the target needs, failed.
        note: what a reader must know to read the line.
        ours_rounds, theirs_rounds: the values round by round.
        ours_error, theirs_error: why a side failed.
    """

    case: str
    unit: str
    ours: float | None
    peer: str
    theirs: float | None
    ratio: float | None
    ratio_range: tuple[float, float] | None
    target_of: str | None
    target_limit: float | None
    met: bool | None
    note: str = ""
    ours_rounds: list[float] = field(default_factory=list)
    theirs_rounds: list[float] = field(default_factory=list)
    ours_error: str | None = None
    theirs_error: str | None = None


def interleave(sides: Mapping[str, Side], *, rounds: int, warmup_rounds: int = 0) -> dict[str, Outcome]:
    """Run every side once a round, in an order that turns round every time, so that a drift of the machine hits all.

    A side that raises is left out of the later rounds and keeps its error.

    Args:
        sides: by name.
        rounds: rounds that are kept.
        warmup_rounds: rounds before them that are run and forgotten.
    """
    kept: dict[str, list[Mapping[str, float]]] = {name: [] for name in sides}
    errors: dict[str, str] = {}
    for round_number in range(-warmup_rounds, rounds):
        names = list(sides) if round_number % 2 == 0 else list(sides)[::-1]
        seen: list[str] = []
        for name in names:
            if name in errors:
                continue
            try:
                measured = sides[name]()
            # A peer may fail in any way; it is shown as failed, with all that it said, and the others go on.
            except Exception:
                errors[name] = traceback.format_exc()
                print(f"  {name}: failed, left out of the other rounds", file=sys.stderr, flush=True)
                continue
            if round_number >= 0:
                kept[name].append(measured)
            seen += [f"{name} {quantity} {value:.3g}" for quantity, value in measured.items()]
        label = f"round {round_number + 1}/{rounds}" if round_number >= 0 else "warm-up"
        print(f"  {label}: {', '.join(seen)}", file=sys.stderr, flush=True)
    return {name: Outcome((), errors[name]) if name in errors else Outcome(tuple(kept[name])) for name in sides}


def make_row(
    case: str,
    *,
    quantity: str,
    unit: str,
    ours: Outcome,
    peer: str,
    theirs: Outcome,
    target: Target | None = None,
    scale: float = 1.0,
    less: tuple[Outcome, Outcome] | None = None,
    note: str = "",
) -> Row:
    """Pair two outcomes, round by round.

    Args:
        case: what is measured.
        quantity: which value of the rounds.
        unit: unit of the values once scaled.
        ours: the outcome of Shoal's side.
        peer: name of the other side.
        theirs: its outcome.
        target: what is asked.
        scale: every value is multiplied by it.
        less: outcomes to subtract in every round, from ours and from theirs: what a side adds to a base.
        note: kept with the row.
    """
    our_base, their_base = less or (None, None)
    our_values = _values(ours, quantity, scale, our_base)
    their_values = _values(theirs, quantity, scale, their_base)
    # What a side adds to a base can come out a little below nothing.
    ratios = [max(mine, 0.0) / other for mine, other in zip(our_values, their_values, strict=False) if other > 0]
    our_median = statistics.median(our_values) if our_values else None
    ratio = statistics.median(ratios) if ratios else None
    judged = our_median if target is not None and target.of == "ours" else ratio
    met = None if target is None or judged is None else judged <= target.limit
    if target is not None and ours.error is not None:
        met = False
    return Row(
        case=case,
        unit=unit,
        ours=our_median,
        peer=peer,
        theirs=statistics.median(their_values) if their_values else None,
        ratio=ratio,
        ratio_range=(min(ratios), max(ratios)) if ratios else None,
        target_of=target.of if target else None,
        target_limit=target.limit if target else None,
        met=met,
        note=note,
        ours_rounds=our_values,
        theirs_rounds=their_values,
        ours_error=ours.error,
        theirs_error=theirs.error,
    )


def _values(outcome: Outcome, quantity: str, scale: float, base: Outcome | None) -> list[float]:
    values = [measured[quantity] * scale for measured in outcome.rounds]
    if base is None:
        return values
    bases = [measured[quantity] * scale for measured in base.rounds]
    return [value - below for value, below in zip(values, bases, strict=False)]


@dataclass(frozen=True, slots=True)
class Options:
    """What the runner tells a comparison.

    Attributes:
        quick: a look, not a measurement: one round, fewer iterations.
        out: the file to write the rows to, or None to print them as JSON.
    """

    quick: bool
    out: Path | None


def options(description: str | None) -> Options:
    """Read the command line of a comparison's script."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="one round, fewer iterations: a look, no measurement")
    parser.add_argument("--out", type=Path, help="write the rows to this file (default: print them)")
    given = parser.parse_args()
    return Options(quick=given.quick, out=given.out)


def write_rows(rows: Sequence[Row], given: Options) -> None:
    """Hand the rows over: to the file that the runner reads, or to the terminal."""
    text = json.dumps([dataclasses.asdict(row) for row in rows], indent=1)
    if given.out is None:
        print(text)
    else:
        given.out.write_text(text + "\n", encoding="utf-8")


def read_rows(path: Path) -> list[Row]:
    """Read what `write_rows` wrote."""
    records: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return [Row(**record) for record in records]
