"""Ctrl-C once: the step is finished and the run saved. Ctrl-C twice: at once."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

__all__ = ["GracefulStop"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class GracefulStop:
    """Takes the first SIGINT or SIGTERM as a wish; the second has its usual effect.

    A context manager. Off the main thread, where Python handles no signals, it takes none. A process that is forked
    meanwhile, as for loading data, leaves SIGINT, which a terminal sends to all of them, to this one.

    Args:
        notice: written to standard error when a signal arrives, or None.

    Attributes:
        requested: the signal that was received, or None. Ranks may receive theirs between different steps, so they
            have to agree on what to do about it (see :class:`shoal.recipes.cifar10.monitor.Monitor`).
    """

    def __init__(self, notice: str | None = None) -> None:
        self.requested: signal.Signals | None = None
        self._notice = notice
        self._process = os.getpid()
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._take) for number in _SIGNALS}
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._give_back()

    def _take(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            if number != signal.SIGINT:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        self.requested = signal.Signals(number)
        self._give_back()
        if self._notice is not None:
            # Not through print: the signal may have come in the middle of one, and buffered streams do not nest.
            os.write(2, f"\n{self._notice}\n".encode())

    def _give_back(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
