"""Numbers made fit to be drawn: fewer points where there are many, moving averages, few digits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

__all__ = ["least", "median", "moving_average", "rounded", "thinned"]

_MAX_POINTS = 1200
_LEAST_FLOAT_BITS = 1074


def thinned(
    places: Sequence[float], values: Sequence[float], max_points: int = _MAX_POINTS
) -> tuple[list[float], list[float]]:
    """About ``max_points`` points, with the least and the greatest value of each stretch and its gap: none hides."""
    if len(places) <= max_points:
        return list(places), list(values)
    stretch = math.ceil(2 * len(places) / max_points)
    kept: set[int] = {0, len(places) - 1}
    for start in range(0, len(places), stretch):
        inside = range(start, min(start + stretch, len(places)))
        finite = [place for place in inside if math.isfinite(values[place])]
        if finite:
            kept |= {min(finite, key=values.__getitem__), max(finite, key=values.__getitem__)}
        if len(finite) < len(inside):  # a gap
            kept.add(next(place for place in inside if not math.isfinite(values[place])))
    chosen = sorted(kept)
    return [places[i] for i in chosen], [values[i] for i in chosen]


def moving_average(values: Sequence[float]) -> list[float]:
    """The mean around each place, over a 25th of the values, and over fewer towards the ends and beside NaN."""
    window = max(5, len(values) // 25)
    # Sums in floats would forget all small values after one of 1e20, as a loss may be for a step.
    sums = [0, *accumulate(_in_least_floats(value) if math.isfinite(value) else 0 for value in values)]
    counts = [0, *accumulate(math.isfinite(value) for value in values)]
    averaged = []
    for index in range(len(values)):
        reach = min(window // 2, index, len(values) - 1 - index)
        low, high = index - reach, index + reach + 1
        count = counts[high] - counts[low]
        averaged.append((sums[high] - sums[low]) / (count << _LEAST_FLOAT_BITS) if count else math.nan)
    return averaged


def _in_least_floats(value: float) -> int:
    """``value`` as a multiple of the least float above 0, which every float is."""
    numerator, denominator = value.as_integer_ratio()
    return (numerator << _LEAST_FLOAT_BITS) // denominator


def least(values: Sequence[float]) -> float | None:
    """The least value, NaN left out; None of none."""
    return min((value for value in values if not math.isnan(value)), default=None)


def median(values: Sequence[float]) -> float | None:
    """The middle value; None of none."""
    ordered = sorted(value for value in values if math.isfinite(value))
    if not ordered:
        return None
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def rounded(values: Sequence[float], digits: int = 5) -> list[float | None]:
    """``values`` to so many significant digits; None, a gap in a curve, for what is no number."""
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in values]
