"""Where the time of a training goes: waiting for data, steps, evaluations, checkpoints."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from shoal.engine import Engine, Events

__all__ = ["Phases"]

DATA, STEP = "data", "step"


class Phases:
    """Adds up this process's seconds by phase, by the clock of the host alone: nothing waits for the device.

    ``data`` is the time until a batch is there; what has no name of its own is ``step``, which so holds the waiting for
    the device and for other processes too. Times are whole as far as whoever takes them has waited for the device.

    Args:
        batch_size: images of a step, over all processes.
        names: further phases, for :meth:`aside`.
        clock: seconds from any moment on, rising; exchanged in tests.
    """

    def __init__(self, batch_size: int, names: tuple[str, ...], clock: Callable[[], float] = time.perf_counter) -> None:
        self._batch_size = batch_size
        self._clock = clock
        self._seconds = dict.fromkeys((DATA, STEP, *names), 0.0)
        self._stack = [STEP]
        self._since: float | None = None
        self._step = 0

    def attach(self, trainer: Engine) -> None:
        """Take the times of ``trainer`` from its start on."""
        trainer.add_event_handler(Events.STARTED, self._start)
        trainer.add_event_handler(Events.GET_BATCH_STARTED, self.begin, DATA)
        trainer.add_event_handler(Events.GET_BATCH_COMPLETED, self.end)

    @contextlib.contextmanager
    def aside(self, name: str) -> Iterator[None]:
        """Work of the phase ``name``; one inside another counts for the inner one alone."""
        self.begin(name)
        try:
            yield
        finally:
            self.end()

    def timed(self, name: str, handler: Callable[[Engine], Any]) -> Callable[[Engine], None]:
        """``handler`` as one that counts for the phase ``name``."""

        def run(engine: Engine) -> None:
            with self.aside(name):
                handler(engine)

        return run

    def begin(self, name: str) -> None:
        """The phase ``name`` begins, inside the one that is going on."""
        self._lap()
        self._stack.append(name)

    def end(self) -> None:
        """The phase that began last ends."""
        self._lap()
        self._stack.pop()

    def take(self, step: int) -> dict[str, float]:
        """The records of what was spent since the last call.

        Args:
            step: optimisation steps that are done.

        Returns:
            ``seconds/<phase>`` for the phases that took any time, and ``speed/images_per_s`` where there were steps,
            over the time of steps and of waiting for data.
        """
        self._lap()
        spent = {name: seconds for name, seconds in self._seconds.items() if seconds > 0}
        values = {f"seconds/{name}": seconds for name, seconds in spent.items()}
        training_s = spent.get(DATA, 0.0) + spent.get(STEP, 0.0)
        if step > self._step and training_s > 0:
            values["speed/images_per_s"] = (step - self._step) * self._batch_size / training_s
        self._seconds = dict.fromkeys(self._seconds, 0.0)
        self._step = step
        return values

    def _start(self, trainer: Engine) -> None:
        self._step = trainer.state.iteration
        self._since = self._clock()
        self._stack = [STEP]

    def _lap(self) -> None:
        now = self._clock()
        if self._since is not None:
            self._seconds[self._stack[-1]] += now - self._since
        self._since = now
