"""Where the time of a run goes: data, steps, and the handlers of each event."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from shoal.checkpoint import atomic_write_text
from shoal.engine import Engine, Events
from shoal.engine._handlers import Call
from shoal.engine.events import EventKey
from shoal.errors import UsageError
from shoal.handlers._profiling import METRICS, Samples, Stats, as_csv, clock, name_of, table
from shoal.handlers.checkpoint import Checkpoint

__all__ = ["BasicTimeProfiler"]

_EVENTS = (
    Events.STARTED,
    Events.COMPLETED,
    Events.EPOCH_STARTED,
    Events.EPOCH_COMPLETED,
    Events.ITERATION_STARTED,
    Events.ITERATION_COMPLETED,
    Events.GET_BATCH_STARTED,
    Events.GET_BATCH_COMPLETED,
)
_COLUMN: dict[EventKey, int] = {event: 2 + at for at, event in enumerate(_EVENTS)}
_NUM_ROWS = 10_000
_ENDS = (Events.COMPLETED, Events.INTERRUPT, Events.EXCEPTION_RAISED)


class BasicTimeProfiler:
    """Measures how long drawing the batches, the process function, and the handlers of each event take.

    It costs some ten microseconds an iteration and a fixed amount of memory, however long the run is: what it keeps
    beside the statistics are 10,000 rows, each of one iteration and, in a longer run, of two, four, … in a row. (Ignite
    keeps every iteration's times, and needs pandas to write them.) Handlers that are attached later, and metrics, are
    seen too.

    It never waits for a device unless asked: where work is handed to a GPU, the time that the process function takes is
    that of handing it over, and what is seen is the process that waits for it, often a handler that reads a value.

    Args:
        synchronize: whether to wait for this process's device at each measurement, so that its work counts where it
            was ordered. The run gets slower by that.
    """

    def __init__(self, *, synchronize: bool = False) -> None:
        self._synchronize = synchronize
        self._names = _Names()
        self._checkpoints: tuple[Checkpoint, ...] = ()
        self._evaluators = _Runs(self)
        self.now = clock(False)
        self.reset()

    def reset(self) -> None:
        """Forget all times; in a run, what goes on counts from now."""
        self.dataflow, self.processing, self._run, self.evaluation = Stats(), Stats(), Stats(), Stats()
        self._events: dict[EventKey, Stats] = {event: Stats() for event in _EVENTS}
        self._others = Stats()
        self._handlers = 0.0
        self._open: list[float] = []  # when the events were fired whose handlers run now
        self.since = self._mark = self._last = self.now()
        self._inside = 0.0
        self._run_began: float | None = None
        self._samples = Samples(2 + len(_EVENTS), _NUM_ROWS)
        self._row: list[float] = [0.0] * (2 + len(_EVENTS))
        self._place: tuple[int, int] | None = None
        self._saved_before = sum(checkpoint.seconds for checkpoint in self._checkpoints)

    def attach(
        self, engine: Engine, *, evaluators: Sequence[Engine] = (), checkpoints: Sequence[Checkpoint] = ()
    ) -> None:
        """Measure an engine, from its next run on.

        Args:
            engine: usually the trainer.
            evaluators: engines whose runs, begun by handlers of ``engine``, :meth:`phases` shows by themselves.
            checkpoints: handlers whose saving it shows by itself, also those that are attached to evaluators.

        Raises:
            UsageError: one of them is something else.
        """
        for label, items, kind in (("engine", (engine,), Engine), ("evaluators", evaluators, Engine),
                                   ("checkpoints", checkpoints, Checkpoint)):  # fmt: skip
            for item in items:
                if not isinstance(item, kind):
                    raise UsageError(f"{label} has a {type(item).__qualname__}; give {kind.__qualname__} objects")
        engine.handlers.unobserve(self)
        engine.handlers.observe(self)
        for evaluator in evaluators:
            evaluator.handlers.unobserve(self._evaluators)
            evaluator.handlers.observe(self._evaluators)
        self._checkpoints = tuple(checkpoints)
        self._saved_before = sum(checkpoint.seconds for checkpoint in checkpoints)

    # What the engine calls ------------------------------------------------------------------------------------------

    def opening(self, event: EventKey) -> Call:
        """See :class:`shoal.engine._handlers.Observer`."""
        self._names.close(event)
        return partial(self._opens, event)

    def closing(self, event: EventKey) -> Call:
        """See :class:`shoal.engine._handlers.Observer`."""
        return partial(self._closes, event)

    def wrap(self, _event: EventKey, handler: Callable[..., Any], call: Call) -> Call:
        """See :class:`shoal.engine._handlers.Observer`."""
        self._names.add(handler)
        return call

    def _opens(self, event: EventKey, engine: Engine) -> None:
        if event is Events.STARTED:
            self.now = clock(self._synchronize)
        now = self.now()
        if event in (Events.STARTED, Events.EXCEPTION_RAISED) and self._open:  # a handler that raised has closed none
            self._handlers += now - self._open[0]
            self._open.clear()
        if event is Events.STARTED and self._run_began is not None:  # the run before was ended without COMPLETED
            self._run.add(self._last - self._run_began)
            self._run_began = None
        if self._run_began is None and event not in _ENDS:  # also a run that goes on after interrupt()
            self._run_began = now
        if event is Events.GET_BATCH_STARTED:
            self._flush()
        elif event is Events.GET_BATCH_COMPLETED:
            self.dataflow.add(now - self._mark - self._inside)
            self._row[1] += now - self._mark - self._inside
        elif event is Events.ITERATION_COMPLETED:
            self.processing.add(now - self._mark - self._inside)
            self._row[0] += now - self._mark - self._inside
            self._place = (engine.state.epoch, engine.state.iteration)
        self._open.append(now)

    def _closes(self, event: EventKey, _: Engine) -> None:
        now = self._last = self.now()
        if self._open:  # unless reset() was called by a handler of this event
            self._count(event, now - self._open.pop())
        if event in (Events.GET_BATCH_STARTED, Events.ITERATION_STARTED):
            self._mark, self._inside = now, 0.0
        if event in _ENDS and self._run_began is not None:
            self._run.add(now - self._run_began)
            self._run_began = None

    def _count(self, event: EventKey, seconds: float) -> None:
        self._events.get(event, self._others).add(seconds)
        if not self._open:  # not within another event's handlers
            self._handlers += seconds
            self._inside += seconds
            if event in _COLUMN:
                self._row[_COLUMN[event]] += seconds

    @property
    def in_handlers(self) -> bool:
        """Whether handlers of the engine run now."""
        return bool(self._open)

    def _flush(self) -> None:
        """Put the row of the iteration that is complete behind the others."""
        if self._place is not None:
            self._samples.add(*self._place, self._row)
            self._row = [0.0] * len(self._row)
            self._place = None

    # Results --------------------------------------------------------------------------------------------------------

    def get_results(self) -> dict[str, dict[str, Any]]:
        """Seconds so far.

        Returns:
            ``processing_stats``, ``dataflow_stats`` and, by the names of events, ``event_handlers_stats``: each with
            ``count`` and ``total`` and, where there was any, ``min/index``, ``max/index``, ``mean``, ``std``. The index
            counts occurrences from 0. (In Ignite ``total`` may be a text.) ``event_handlers_stats`` has the sum over
            all events as ``total_time``; ``event_handlers_names`` has the handlers as ``<event>_names``.
        """
        events: dict[str, Any] = {event.name: self._events[event].as_dict() for event in _EVENTS}
        return {
            "processing_stats": self.processing.as_dict(),
            "dataflow_stats": self.dataflow.as_dict(),
            "event_handlers_stats": {**events, "total_time": self._handlers},
            "event_handlers_names": {f"{event.name}_names": self._names.of(event) for event in _EVENTS},
        }

    def phases(self) -> dict[str, float]:
        """Seconds so far by phase: ``data``, ``step``, ``evaluation``, ``checkpoint``, other ``handlers``, and the
        ``rest`` (the engine itself, and metrics that merge at the end of an epoch). They add up to the run's time.
        """
        running = 0.0 if self._run_began is None else self.now() - self._run_began
        saving = sum(checkpoint.seconds for checkpoint in self._checkpoints) - self._saved_before
        handlers = self._handlers + (self.now() - self._open[0] if self._open else 0.0)
        parts = {
            "data": self.dataflow.total,
            "step": self.processing.total,
            "evaluation": self.evaluation.total,
            "checkpoint": saving,
            "handlers": max(handlers - self.evaluation.total - saving, 0.0),
        }
        return {**parts, "rest": max(self._run.total + running - sum(parts.values()), 0.0)}

    def write_results(self, output_path: str | os.PathLike[str]) -> None:
        """Write the seconds of each iteration, in order, as comma-separated values.

        The columns are ``epoch`` and ``iteration``, both of the last one in the row, ``iterations`` in it, and the sums
        ``processing_stats``, ``dataflow_stats`` and ``Event_<name>``. (Ignite repeats in each row what an event of an
        epoch or a run took; here it stands once, in the row of the iteration before it, or the first.)

        Raises:
            OSError: the file cannot be written.
        """
        self._flush()
        header = ["epoch", "iteration", "iterations", "processing_stats", "dataflow_stats"]
        atomic_write_text(output_path, as_csv([*header, *(f"Event_{event.name}" for event in _EVENTS)], self._samples))

    @staticmethod
    def print_results(results: Mapping[str, Mapping[str, Any]]) -> str:
        """Print what :meth:`get_results` gave as a table, and return it."""
        events = results["event_handlers_stats"]
        rows = [
            _row_of("process function", "", results["processing_stats"]),
            _row_of("dataflow", "", results["dataflow_stats"]),
            ["all handlers", "", events["total_time"], "", "", "", ""],
            (),
        ]
        for event in _EVENTS:
            names = results["event_handlers_names"][f"{event.name}_names"]
            rows.append(_row_of(event.name, ", ".join(names) or "-", events[event.name]))
        shown = table(["seconds in", "handlers", "total", "min/index", "max/index", "mean", "std"], rows)
        print(shown)  # noqa: T201 - what it is for
        return shown


class _Names:
    """The handlers of each event by name, as the engine's table tells them; the handlers themselves are not kept."""

    def __init__(self) -> None:
        self._by_event: dict[EventKey, list[str]] = {}
        self._coming: list[str] = []

    def add(self, handler: Callable[..., Any]) -> None:
        name = name_of(handler)
        if name != METRICS or name not in self._coming:
            self._coming.append(name)

    def close(self, event: EventKey) -> None:
        self._by_event[event], self._coming = self._coming, []

    def of(self, event: EventKey) -> list[str]:
        return list(self._by_event.get(event, ()))


class _Runs:
    """Measures whole runs of evaluators, up to the first handler of the event that ends them."""

    def __init__(self, profiler: BasicTimeProfiler) -> None:
        self._profiler = weakref.ref(profiler)  # which has this
        self._began: dict[int, float] = {}  # by the evaluator's id

    def opening(self, event: EventKey) -> Call | None:
        return partial(self._at, event) if event is Events.STARTED or event in _ENDS else None

    def closing(self, _event: EventKey) -> Call | None:
        return None

    def wrap(self, _event: EventKey, _handler: Callable[..., Any], call: Call) -> Call:
        return call

    def _at(self, event: EventKey, evaluator: Engine) -> None:
        profiler = self._profiler()
        if profiler is None:
            return
        began = self._began.pop(id(evaluator), None)
        if event is Events.STARTED and profiler.in_handlers:  # else the engine has not begun it
            self._began[id(evaluator)] = profiler.now()
        elif event is not Events.STARTED and began is not None:
            profiler.evaluation.add(profiler.now() - max(began, profiler.since))


def _row_of(title: str, names: str, stats: Mapping[str, Any]) -> list[Any]:
    columns = ("min/index", "max/index", "mean", "std")
    if stats["count"] == 0:
        return [title, names, "not yet triggered", "", "", "", ""]
    return [title, names, stats["total"], *(stats[column] for column in columns)]
