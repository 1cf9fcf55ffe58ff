"""How far a run is: a bar in a terminal or a notebook, plain lines elsewhere."""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TextIO

import torch
from tqdm import tqdm

from shoal import runtime
from shoal.engine import Engine, Events
from shoal.engine.events import EventKey, EventLike, FilteredEvent
from shoal.errors import UsageError
from shoal.handlers._bars import LinesAbove, in_notebook, is_terminal, notebook_bar
from shoal.handlers._counts import axis_of

__all__ = ["ProgressBar"]

_LINES = 10
"""Plain lines for one way from nothing to the whole, where no bar can be drawn."""

_IN_ORDER = (
    Events.STARTED,
    Events.EPOCH_STARTED,
    Events.GET_BATCH_STARTED,
    Events.GET_BATCH_COMPLETED,
    Events.ITERATION_STARTED,
    Events.ITERATION_COMPLETED,
    Events.EPOCH_COMPLETED,
    Events.COMPLETED,
)


class ProgressBar:
    """Shows iterations of an epoch, or epochs of a run, with metrics; on rank 0::

        ProgressBar().attach(trainer, metric_names=["loss"])
        # Epoch [2/50]:  50%|█████     | 64/128 [00:17<00:17,  3.72it/s, loss=0.123]

    In a terminal it is tqdm's bar, and lines that ``logging`` writes there appear above it; in a notebook it is a
    widget (without ipywidgets there are plain lines, and a hint); elsewhere there are ten plain lines for the whole.
    Where these cannot be written any more, as after the terminal was closed, the run goes on without.

    Values are looked at, which may wait for the device, only where they are drawn: at most every ``mininterval``
    seconds, or once a line. Each engine that it is attached to has a bar of its own.

    Args:
        persist: whether a bar stays when it is complete.
        bar_format: tqdm's format; None (default) is tqdm's own.
        file: where it is shown; None (default) is standard error, or the notebook.
        tqdm_kwargs: for ``tqdm``: ``desc`` (instead of "Epoch", "Iteration"), ``ncols``, ``mininterval``, ``disable``,
            …
    """

    def __init__(
        self, persist: bool = False, bar_format: str | None = None, file: TextIO | None = None, **tqdm_kwargs: Any
    ) -> None:
        self.persist = persist
        self.bar_format = bar_format
        self.file = file
        self.tqdm_kwargs = tqdm_kwargs
        self._bar: Any = None
        self._line = 0
        self._covers = False
        self._is_lost = False

    def attach(
        self,
        engine: Engine,
        metric_names: Sequence[str] | Literal["all"] | None = None,
        output_transform: Callable[[Any], Any] | None = None,
        event_name: EventLike = Events.ITERATION_COMPLETED,
        closing_event_name: EventLike = Events.EPOCH_COMPLETED,
        state_attributes: Sequence[str] | None = None,
    ) -> None:
        """Show the progress of ``engine``.

        Args:
            engine: the engine.
            metric_names: names in ``engine.state.metrics`` to show, or ``"all"``.
            output_transform: takes ``engine.state.output`` and returns values by name, or one value, to show.
            event_name: when to update. An event of iterations shows the way through the epoch, one of epochs that
                through the run.
            closing_event_name: when the bar is complete. It is also closed where the run, or the epoch, is left.
            state_attributes: names of attributes of ``engine.state`` to show.

        Raises:
            UsageError: an argument cannot work; the text says which.
        """
        base, closing = (
            event.event if isinstance(event, FilteredEvent) else event for event in (event_name, closing_event_name)
        )
        if not isinstance(base, (str, Events)):
            raise UsageError(f"a progress bar was to be updated at {event_name!r}; give one event")
        if base in _IN_ORDER and closing in _IN_ORDER and _IN_ORDER.index(base) >= _IN_ORDER.index(closing):
            raise UsageError(
                f"a progress bar was to be updated at {base} and closed at {closing}, which comes no later; give a "
                "later closing_event_name, e.g. Events.COMPLETED for a bar of epochs"
            )
        for argument, names in (("metric_names", metric_names), ("state_attributes", state_attributes)):
            if isinstance(names, str) and (argument, names) != ("metric_names", "all"):
                raise UsageError(f"asked for {argument}={names!r}; give a list of names")
        shown = _Shown(metric_names, output_transform, list(state_attributes or ()))
        begins = Events.STARTED if axis_of(base) == "epoch" else Events.EPOCH_STARTED
        one = copy.copy(self)  # engines run inside one another
        engine.add_event_handler(begins, one._begin, base)
        engine.add_event_handler(event_name, one._update, base, shown)
        engine.add_event_handler(closing_event_name, one._complete, base, shown)
        if closing is not Events.COMPLETED:  # max_iters ends a run in the middle of an epoch
            engine.add_event_handler(Events.COMPLETED, one._complete, base, shown)
        leaving = Events.TERMINATE | Events.INTERRUPT | Events.EXCEPTION_RAISED
        if axis_of(base) == "iteration" and closing is Events.EPOCH_COMPLETED:
            leaving = leaving | Events.TERMINATE_SINGLE_EPOCH
        engine.add_event_handler(leaving, one._close)

    @staticmethod
    def log_message(message: str) -> None:
        """Write a line above the bars, as ``print`` could not."""
        tqdm.write(message, file=sys.stderr)

    def _begin(self, engine: Engine, event: EventKey) -> None:
        """Draw the bar before the first update, so that its clock counts the whole way."""
        state = engine.state
        done, total, title = self._place(engine, event)
        if axis_of(event) == "epoch" and 0 < state.epoch_iteration < (state.epoch_length or 0):
            done -= 1  # the run goes on in the middle of that epoch
        if self._bar is not None:  # that of the epoch before, where it is closed later
            self._bar.set_description(title, refresh=False)
            self._bar.reset(total)
        self._open(done, total, title)

    def _update(self, engine: Engine, event: EventKey, shown: _Shown) -> None:
        if not self._is_shown():
            return
        done, total, title = self._place(engine, event)
        self._open(done, total, title)
        if self._bar is None:
            self._print(done, total, title, engine, shown)
            return
        if self._bar.disable:  # by tqdm's environment variable
            return
        is_due = done == total or self._bar.mininterval <= time.time() - self._bar.last_print_t
        if is_due and (values := shown.values(engine)):
            self._bar.set_postfix(values, refresh=False)
        self._bar.update(done - self._bar.n)

    def _place(self, engine: Engine, event: EventKey) -> tuple[int, int | None, str]:
        """What is done, of how much, and how that is called."""
        state, name = engine.state, self.tqdm_kwargs.get("desc")
        if axis_of(event) == "epoch":
            return state.epoch, state.max_epochs, name or "Epoch"
        several = (state.max_epochs or 0) > 1
        title = f"{name or 'Epoch'} [{state.epoch}/{state.max_epochs}]" if several else name or "Iteration"
        return state.epoch_iteration, state.epoch_length, title

    def _kind(self) -> Any:
        """The class of bars that can be drawn here, or None."""
        if self.file is None and in_notebook():
            return notebook_bar()
        return tqdm if is_terminal(self._out()) else None

    def _is_shown(self) -> bool:
        return runtime.current().is_main and not self.tqdm_kwargs.get("disable")

    def _open(self, done: int, total: int | None, title: str) -> None:
        """Draw a bar, where there is none and one can be drawn."""
        kind = self._kind() if self._bar is None and self._is_shown() else None
        if kind is None:
            return
        options: dict[str, Any] = {"leave": self.persist, "total": total, "initial": done}
        options["dynamic_ncols"] = "ncols" not in self.tqdm_kwargs
        if self.bar_format is not None:
            options["bar_format"] = self.bar_format
        if kind is tqdm:
            options["file"] = self._out()
            self._covers = True
            LinesAbove.open()
        self._bar = kind(**(options | self.tqdm_kwargs | {"desc": title}))

    def _print(self, done: int, total: int | None, title: str, engine: Engine, shown: _Shown) -> None:
        line = done * _LINES // total if total else done // 100
        if self._is_lost or (line == self._line and done != total):
            return
        self._line = line
        values = "".join(f", {name}={value}" for name, value in shown.values(engine).items())
        try:
            print(f"{title}: {done}/{total or '?'}{values}", file=self._out(), flush=True)
        except (OSError, ValueError) as error:  # the terminal or the pipe is gone, or the file is closed
            self._is_lost = True
            engine.logger.warning("Progress is not shown any more: %s", error)

    def _complete(self, engine: Engine, event: EventKey, shown: _Shown) -> None:
        """Show what came after the last update, if anything, and close."""
        if self._bar is not None and self._place(engine, event)[0] > self._bar.n:
            self._update(engine, event, shown)
        self._close()

    def _close(self) -> None:
        self._line = 0
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        if self._covers:
            self._covers = False
            LinesAbove.close()

    def _out(self) -> TextIO:
        return self.file or sys.stderr


@dataclass
class _Shown:
    """What is shown beside the progress."""

    metric_names: Sequence[str] | Literal["all"] | None
    output_transform: Callable[[Any], Any] | None
    state_attributes: list[str]
    _missing: set[str] = field(default_factory=set)

    def values(self, engine: Engine) -> dict[str, str]:
        """Short texts by name."""
        metrics = engine.state.metrics
        names = list(metrics) if self.metric_names == "all" else list(self.metric_names or ())
        values: dict[str, Any] = {name: metrics[name] for name in names if name in metrics}
        self._tell(engine, "metric", [name for name in names if name not in metrics])
        present = [name for name in self.state_attributes if hasattr(engine.state, name)]
        values.update({name: getattr(engine.state, name) for name in present})
        self._tell(engine, "attribute of the state", [name for name in self.state_attributes if name not in present])
        if self.output_transform is not None:
            output = self.output_transform(engine.state.output)
            values.update(output if isinstance(output, Mapping) else {"output": output})
        return {name: text for key, value in values.items() for name, text in _short(key, value)}

    def _tell(self, engine: Engine, what: str, names: list[str]) -> None:
        for name in names:
            if name not in self._missing:
                self._missing.add(name)
                engine.logger.warning("'%s' was to be shown with the progress and is no %s yet; left out", name, what)


def _short(name: str, value: Any) -> list[tuple[str, str]]:
    """A value as short text; one of several numbers as that many, ``name_0``, ``name_1``, …"""
    if isinstance(value, torch.Tensor) and value.ndim == 1 and 1 < len(value) <= 16:
        return [(f"{name}_{index}", f"{number:.4g}") for index, number in enumerate(value.tolist())]
    try:
        return [(name, f"{float(value):.4g}")]
    except (TypeError, ValueError, RuntimeError):
        return [(name, " ".join(str(value).split()))]  # on one line
