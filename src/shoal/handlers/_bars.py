"""Bars of tqdm where they can be drawn, and log lines that don't break them."""

from __future__ import annotations

import importlib.util
import logging
import sys
from typing import Any

from tqdm import tqdm

from shoal._optional import require

__all__ = ["LinesAbove", "in_notebook", "is_terminal", "notebook_bar"]

_log = logging.getLogger(__name__)


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook; nothing is imported to find out."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class _Hint:
    """Said once a process."""

    was_given = False


def notebook_bar() -> Any:
    """The class of bars that are widgets; None, with a hint, where ipywidgets is not installed."""
    if importlib.util.find_spec("ipywidgets") is not None:
        return require("tqdm.notebook", extra="notebook", purpose="a progress bar in a notebook").tqdm
    if not _Hint.was_given:
        _Hint.was_given = True
        _log.warning(
            "Progress is shown as plain lines: bars in a notebook need the module 'ipywidgets'; install it with: "
            "pip install 'shoal[notebook]'"
        )
    return None


class LinesAbove:
    """While a bar is drawn in a terminal, log lines for that terminal are written above the bars, not into them.

    Handlers of ``logging`` that write to a terminal get an ``emit`` that clears the bars before and draws them again
    after; with the last bar, they get their own back. All bars of the process share that.
    """

    _bars = 0
    _covered: dict[logging.Handler, Any] = {}  # noqa: RUF012 - shared on purpose

    @classmethod
    def open(cls) -> None:
        """A bar is about to be drawn."""
        cls._bars += 1
        for handler in _terminal_handlers():
            if handler not in cls._covered:
                cls._covered[handler] = vars(handler).get("emit")
                handler.emit = _Above(handler.emit)  # type: ignore[method-assign]

    @classmethod
    def close(cls) -> None:
        """A bar is gone."""
        cls._bars -= 1
        if cls._bars > 0:
            return
        for handler, own in cls._covered.items():
            if own is None:
                del handler.emit
            else:
                handler.emit = own  # type: ignore[method-assign]
        cls._covered.clear()


class _Above:
    def __init__(self, emit: Any) -> None:
        self._emit = emit

    def __call__(self, record: logging.LogRecord) -> None:
        with tqdm.external_write_mode(file=sys.stderr):
            self._emit(record)


def _terminal_handlers() -> list[logging.Handler]:
    loggers = [logging.getLogger(), *logging.root.manager.loggerDict.values()]
    handlers = {handler for logger in loggers if isinstance(logger, logging.Logger) for handler in logger.handlers}
    streams = [handler for handler in (*handlers, logging.lastResort) if isinstance(handler, logging.StreamHandler)]
    return [handler for handler in streams if is_terminal(handler.stream)]


def is_terminal(stream: Any) -> bool:
    """Whether ``stream`` is a terminal; a closed one isn't, nor None (as sys.stderr may be)."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # no stream of a file, or a closed one
        return False
