"""A stopwatch that an engine's events start and stop."""

from __future__ import annotations

import time
from typing import Any, Self

from shoal.engine import Engine, Events
from shoal.engine.events import EventLike

__all__ = ["Timer"]


class Timer:
    """Measures seconds, by hand or at an engine's events, on a clock that never jumps.

    It runs from when it is made. To measure the mean time of a step::

        timer = Timer(average=True)
        timer.attach(
            trainer,
            start=Events.STARTED,
            resume=Events.ITERATION_STARTED,
            pause=Events.ITERATION_COMPLETED,
            step=Events.ITERATION_COMPLETED,
        )

    It never waits for a device: work that was handed to a GPU and isn't done yet is not in the time.

    Args:
        average: whether ``value`` is the time divided by the number of steps.

    Attributes:
        total: seconds up to the last pause.
        step_count: steps so far.
        running: whether time counts now.
    """

    def __init__(self, average: bool = False) -> None:
        self.average = average
        self.reset()

    def attach(
        self,
        engine: Engine,
        start: EventLike = Events.STARTED,
        pause: EventLike = Events.COMPLETED,
        resume: EventLike | None = None,
        step: EventLike | None = None,
    ) -> Self:
        """Have events work the stopwatch.

        Args:
            engine: whose events.
            start: sets it to zero and starts it. Where ``resume`` is given it waits for that. (In Ignite it runs from
                ``start`` on, so that the time before the first step counts as one of the step.)
            pause: stops it.
            resume: goes on.
            step: counts a step.

        Returns:
            This timer.
        """
        engine.add_event_handler(start, self.reset if resume is None else self._reset_and_wait)
        if resume is not None:
            engine.add_event_handler(resume, self.resume)
        engine.add_event_handler(pause, self.pause)
        if step is not None:
            engine.add_event_handler(step, self.step)
        return self

    def reset(self, *_: Any) -> Self:
        """Set to zero and start."""
        self.total = 0.0
        self.step_count = 0
        self.running = True
        self._since = time.perf_counter()
        return self

    def pause(self, *_: Any) -> None:
        """Stop; nothing happens where it is stopped already."""
        if self.running:
            self.total += time.perf_counter() - self._since
            self.running = False

    def resume(self, *_: Any) -> None:
        """Go on; nothing happens where it runs already."""
        if not self.running:
            self.running = True
            self._since = time.perf_counter()

    def step(self, *_: Any) -> None:
        """Count a step."""
        self.step_count += 1

    def value(self) -> float:
        """Seconds so far; with ``average`` those of a step, or all while there was none."""
        total = self.total + (time.perf_counter() - self._since if self.running else 0.0)
        return total / max(self.step_count, 1) if self.average else total

    def _reset_and_wait(self, *_: Any) -> None:
        self.reset()
        self.running = False
