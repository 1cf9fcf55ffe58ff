"""Where the time of a run goes, by handler."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from shoal.checkpoint import atomic_write_text
from shoal.engine import Engine
from shoal.engine._handlers import Call
from shoal.engine.events import EventKey
from shoal.handlers._profiling import METRICS, Samples, Stats, as_csv, name_of, table
from shoal.handlers.basic_time_profiler import BasicTimeProfiler

__all__ = ["HandlersTimeProfiler"]

_NUM_ROWS = 1_000
_HEADER = ("Handler", "Event Name", "Total(s)", "Min(s)/IDX", "Max(s)/IDX", "Mean(s)", "Std(s)")


class HandlersTimeProfiler:
    """Measures how long each call of each handler takes, beside the drawing of batches and the process function.

    It sees events of one's own too, handlers that are attached later, and the updates of metrics, which are called
    ``metrics``. Of a filtered handler it sees the calls that were chosen. Several handlers of one name at one event are
    told apart by ``#2``, ``#3``, … in their order. A handler that fires an event itself has the time of that in its
    own.

    What it keeps is bounded as in :class:`BasicTimeProfiler`, with 1,000 rows a handler, and it waits for a device only
    if asked.

    Args:
        synchronize: whether to wait for this process's device at each measurement.
    """

    def __init__(self, *, synchronize: bool = False) -> None:
        self._whole = BasicTimeProfiler(synchronize=synchronize)
        self._coming: list[str] = []
        self.reset()

    def reset(self) -> None:
        """Forget all times."""
        self._whole.reset()
        self._stats: dict[tuple[EventKey, str], tuple[Stats, Samples]] = {}

    def attach(self, engine: Engine) -> None:
        """Measure an engine, from its next run on.

        Raises:
            UsageError: it is no engine.
        """
        self._whole.attach(engine)  # which checks it
        engine.handlers.unobserve(self._whole)
        engine.handlers.unobserve(self)
        engine.handlers.observe(self)

    def opening(self, event: EventKey) -> Call:
        """See :class:`shoal.engine._handlers.Observer`."""
        self._coming = []
        return self._whole.opening(event)

    def closing(self, event: EventKey) -> Call:
        """See :class:`shoal.engine._handlers.Observer`."""
        return self._whole.closing(event)

    def wrap(self, event: EventKey, handler: Callable[..., Any], call: Call) -> Call:
        """See :class:`shoal.engine._handlers.Observer`."""
        name = name_of(handler)
        self._coming.append(name)
        number = 1 if name == METRICS else self._coming.count(name)
        key = (event, name if number == 1 else f"{name} #{number}")
        self._of(key)

        def timed(engine: Engine) -> None:
            began = self._whole.now()
            try:
                call(engine)
            finally:
                stats, samples = self._of(key)
                seconds = self._whole.now() - began
                stats.add(seconds)
                samples.add(engine.state.iteration, stats.count, (seconds,))

        return timed

    def get_results(self) -> list[list[Any]]:
        """A row a handler: its name, the event's, the seconds in all, the least with its index (which counts calls from
        0), the most with its, their mean and standard deviation; then the rows ``Total``, of all handlers, in which no
        moment counts twice, ``Processing`` and ``Dataflow``. Where there was no call, the total is ``"not triggered"``.
        """
        rows = [[name, _event_name(event), *_numbers(stats)] for (event, name), (stats, _) in self._stats.items()]
        rows.append(["Total", "", self._whole.get_results()["event_handlers_stats"]["total_time"], "", "", "", ""])
        rows.append(["Processing", "", *_numbers(self._whole.processing)])
        rows.append(["Dataflow", "", *_numbers(self._whole.dataflow)])
        return rows

    def write_results(self, output_path: str | os.PathLike[str]) -> None:
        """Write the seconds of each call as comma-separated values.

        The columns are ``handler``, ``event``, ``iteration`` and ``call``, both of the last one in the row, ``calls``
        in it, and ``seconds``, their sum. (Ignite has a column a handler, in which the calls of handlers at different
        events stand side by side.)

        Raises:
            OSError: the file cannot be written.
        """
        rows = [
            (name, _event_name(event), *row) for (event, name), (_, samples) in self._stats.items() for row in samples
        ]
        header = ("handler", "event", "iteration", "call", "calls", "seconds")
        atomic_write_text(output_path, as_csv(header, rows))

    @staticmethod
    def print_results(results: Sequence[Sequence[Any]]) -> str:
        """Print what :meth:`get_results` gave as a table, and return it."""
        shown = table(_HEADER, [*results[:-3], (), *results[-3:]])
        print(shown)  # noqa: T201 - what it is for
        return shown

    def _of(self, key: tuple[EventKey, str]) -> tuple[Stats, Samples]:
        if key not in self._stats:
            self._stats[key] = (Stats(), Samples(1, _NUM_ROWS))
        return self._stats[key]


def _event_name(event: EventKey) -> str:
    return event if isinstance(event, str) else event.name


def _numbers(stats: Stats) -> list[Any]:
    found = stats.as_dict()
    if stats.count == 0:
        return ["not triggered", "", "", "", ""]
    return [found[column] for column in ("total", "min/index", "max/index", "mean", "std")]
