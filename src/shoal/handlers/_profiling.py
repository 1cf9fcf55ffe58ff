"""What the two profilers share: statistics in bounded memory, and a table of them."""

from __future__ import annotations

import csv
import io
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from shoal import runtime

__all__ = ["METRICS", "Samples", "Stats", "as_csv", "clock", "name_of", "table"]


METRICS = "metrics"


class Stats:
    """Count, sum, smallest, largest, mean and standard deviation of durations in seconds, without keeping them."""

    __slots__ = ("count", "maximum", "maximum_index", "mean", "minimum", "minimum_index", "spread", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = self.mean = self.spread = 0.0
        self.minimum, self.maximum = math.inf, -math.inf
        self.minimum_index = self.maximum_index = 0

    def add(self, seconds: float) -> None:
        """Take one duration in (Welford's update of mean and spread)."""
        if seconds < self.minimum:
            self.minimum, self.minimum_index = seconds, self.count
        if seconds > self.maximum:
            self.maximum, self.maximum_index = seconds, self.count
        self.count += 1
        self.total += seconds
        delta = seconds - self.mean
        self.mean += delta / self.count
        self.spread += delta * (seconds - self.mean)

    def as_dict(self) -> dict[str, Any]:
        """``count`` and ``total``; and, where there was any, ``min/index``, ``max/index``, ``mean`` and ``std``."""
        if self.count == 0:
            return {"count": 0, "total": 0.0}
        return {
            "count": self.count,
            "total": self.total,
            "min/index": (self.minimum, self.minimum_index),
            "max/index": (self.maximum, self.maximum_index),
            "mean": self.mean,
            "std": math.sqrt(self.spread / (self.count - 1)) if self.count > 1 else 0.0,
        }


class Samples:
    """Rows of sums, in order, at most ``limit`` of them: where more come, neighbours are added up, again and again.

    Args:
        num_columns: numbers in a row.
        limit: the most rows; an even number.
    """

    def __init__(self, num_columns: int, limit: int) -> None:
        self.limit = limit
        self.per_row = 1
        self._rows: list[list[float]] = []
        self._labels: list[tuple[int, int, int]] = []  # of the last one in a row, and how many there are in it
        self._num_columns = num_columns

    def add(self, epoch: int, iteration: int, values: Sequence[float]) -> None:
        """Put one more behind the others."""
        if self._labels and self._labels[-1][2] < self.per_row:
            self._rows[-1] = [old + new for old, new in zip(self._rows[-1], values, strict=True)]
            self._labels[-1] = (epoch, iteration, self._labels[-1][2] + 1)
            return
        if len(self._rows) == self.limit:
            pairs = zip(self._rows[::2], self._rows[1::2], strict=True)
            self._rows = [[one + two for one, two in zip(*pair, strict=True)] for pair in pairs]
            labels = zip(self._labels[::2], self._labels[1::2], strict=True)
            self._labels = [(*second[:2], first[2] + second[2]) for first, second in labels]
            self.per_row *= 2
        self._rows.append(list(values))
        self._labels.append((epoch, iteration, 1))

    def __iter__(self) -> Iterator[tuple[float, ...]]:
        """``(epoch, iteration, how many, *sums)`` of each row."""
        return ((*label, *row) for label, row in zip(self._labels, self._rows, strict=True))


def clock(synchronize: bool) -> Callable[[], float]:
    """Seconds, on a clock that never jumps; after waiting for this process's device, if that is asked for."""
    device = runtime.current().device
    if not synchronize or device.type == "cpu":
        return time.perf_counter
    return partial(_after_device, device)


def _after_device(device: torch.device) -> float:
    torch.accelerator.synchronize(device)
    return time.perf_counter()


def name_of(handler: Callable[..., Any]) -> str:
    """A handler's name for a table; what feeds an engine's metrics is called ``metrics``."""
    if getattr(handler, "__module__", "") == "shoal.engine._metrics":
        return METRICS
    return str(getattr(handler, "__qualname__", None) or type(handler).__qualname__)


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Columns side by side: texts to the left, numbers to the right with five decimals; an empty row is a line."""
    texts = [[_text(value) for value in row] for row in rows]
    widths = [max(len(row[at]) for row in [list(header), *texts] if row) for at in range(len(header))]
    line = "  ".join("-" * width for width in widths)
    shown = [_line(header, widths), line]
    shown += [_line(row, widths) if row else line for row in texts]
    return "\n".join(shown)


def as_csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """The same as text of comma-separated values."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue()


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    first = [text.ljust(width) for text, width in zip(row[:2], widths[:2], strict=True)]
    return "  ".join([*first, *(text.rjust(width) for text, width in zip(row[2:], widths[2:], strict=True))]).rstrip()


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return f"{value[0]:.5f}/{value[1]}"
    return f"{value:.5f}" if isinstance(value, float) else str(value)
