"""How far a run is: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TextIO

from tqdm import tqdm

from shoal import runtime
from shoal.engine import Engine, Events
from shoal.engine.events import EventKey, EventLike, FilteredEvent
from shoal.errors import UsageError
from shoal.handlers._counts import axis_of

__all__ = ["ProgressBar"]

_LINES = 10
"""Plain lines for one way from nothing to the whole, where the output is no terminal."""


class ProgressBar:
    """Shows iterations of an epoch, or epochs of a run, with metrics; on rank 0.

    Args:
        persist: whether a bar stays when it is complete.
        bar_format: tqdm's format; None (default) is tqdm's own.
        file: where it is shown; None (default) is standard error.
        tqdm_kwargs: for ``tqdm``.
    """

    def __init__(
        self, persist: bool = False, bar_format: str | None = None, file: TextIO | None = None, **tqdm_kwargs: Any
    ) -> None:
        self.persist = persist
        self.bar_format = bar_format
        self.file = file
        self.tqdm_kwargs = tqdm_kwargs
        self._bar: tqdm[Any] | None = None
        self._line = 0

    def attach(
        self,
        engine: Engine,
        metric_names: Sequence[str] | Literal["all"] | None = None,
        output_transform: Callable[[Any], Any] | None = None,
        event_name: EventLike = Events.ITERATION_COMPLETED,
        closing_event_name: EventLike = Events.EPOCH_COMPLETED,
    ) -> None:
        """Show the progress of ``engine``.

        Args:
            engine: the engine.
            metric_names: names in ``engine.state.metrics`` to show, or ``"all"``.
            output_transform: takes ``engine.state.output`` and returns values by name, or one value, to show.
            event_name: when to update. An event of iterations shows the way through the epoch, one of epochs that
                through the run.
            closing_event_name: when the bar is complete.
        """
        base = event_name.event if isinstance(event_name, FilteredEvent) else event_name
        if not isinstance(base, (str, Events)):
            raise UsageError(f"a progress bar was to be updated at {event_name!r}; give one event")
        engine.add_event_handler(event_name, self._update, base, metric_names, output_transform)
        engine.add_event_handler(closing_event_name, self._close)
        engine.add_event_handler(Events.EXCEPTION_RAISED, self._break_off)

    @staticmethod
    def log_message(message: str) -> None:
        """Write a line above the bars."""
        tqdm.write(message, file=sys.stderr)

    def _update(
        self,
        engine: Engine,
        event: EventKey,
        metric_names: Sequence[str] | Literal["all"] | None,
        output_transform: Callable[[Any], Any] | None,
    ) -> None:
        if not runtime.current().is_main:
            return
        state = engine.state
        if axis_of(event) == "epoch":
            done, total, title = state.epoch, state.max_epochs, "Epoch"
        else:
            done, total = state.epoch_iteration, state.epoch_length
            title = f"Epoch [{state.epoch}/{state.max_epochs}]" if (state.max_epochs or 0) > 1 else "Iteration"
        values = _shown(engine, metric_names, output_transform)
        if self._out().isatty():
            self._draw(done, total, title, values)
        else:
            self._print(done, total, title, values)

    def _draw(self, done: int, total: int | None, title: str, values: Mapping[str, str]) -> None:
        if self._bar is None:
            options: dict[str, Any] = {"leave": self.persist, "file": self._out(), "dynamic_ncols": True}
            if self.bar_format:
                options["bar_format"] = self.bar_format
            self._bar = tqdm(total=total, desc=title, **(options | self.tqdm_kwargs))
        if values:
            self._bar.set_postfix(values, refresh=False)
        self._bar.update(done - self._bar.n)

    def _print(self, done: int, total: int | None, title: str, values: Mapping[str, str]) -> None:
        line = done * _LINES // total if total else done // 100
        if line == self._line and done != total:
            return
        self._line = line
        shown = "".join(f", {name}={value}" for name, value in values.items())
        print(f"{title}: {done}/{total or '?'}{shown}", file=self._out(), flush=True)

    def _close(self) -> None:
        self._line = 0
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _break_off(self) -> None:
        self._close()

    def _out(self) -> TextIO:
        return self.file or sys.stderr


def _shown(
    engine: Engine,
    metric_names: Sequence[str] | Literal["all"] | None,
    output_transform: Callable[[Any], Any] | None,
) -> dict[str, str]:
    metrics = engine.state.metrics
    names = list(metrics) if metric_names == "all" else [name for name in metric_names or () if name in metrics]
    values: dict[str, Any] = {name: metrics[name] for name in names}
    if output_transform is not None:
        output = output_transform(engine.state.output)
        values.update(output if isinstance(output, Mapping) else {"output": output})
    return {name: _short(value) for name, value in values.items()}


def _short(value: Any) -> str:
    try:
        return f"{float(value):.4g}"
    except (TypeError, ValueError):
        return str(value)
