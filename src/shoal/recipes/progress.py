"""One line that says where a training is: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from tqdm import tqdm

from shoal.runs import format_duration

__all__ = ["Progress", "format_duration"]

_PLAIN_EVERY_S = 10.0
_FORGETTING = 0.3
"""How much the newest measurement counts in the running averages of loss, accuracy and speed."""


class Progress:
    """Loss, accuracy, learning rate, images per second and time left of a run, in one line.

    Args:
        num_steps: steps of the whole run.
        num_epochs: epochs of the whole run.
        batch_size: images of a step, over all processes.
        stream: where the line goes.
        clock: seconds from any moment on, rising; exchanged in tests.
    """

    def __init__(
        self,
        *,
        num_steps: int,
        num_epochs: int,
        batch_size: int,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._num_steps, self._num_epochs = num_steps, num_epochs
        self._step = 0
        self._text = ""
        self._steps_per_epoch = num_steps // num_epochs
        self._batch_size = batch_size
        self._stream = stream or sys.stderr
        self._clock = clock
        self._seconds_per_step: float | None = None
        self._loss: float | None = None
        self._accuracy: float | None = None
        self._other_s = 0.0  # evaluations so far, to expect the same of those to come
        self._num_other = 0
        self._num_other_left = 0
        self._since = clock()
        self._printed_at = self._since
        self._bar: tqdm[Any] | None = None

    def start(self, step: int) -> None:
        """The steps after ``step`` begin now. Call it before the first one, and after a break."""
        self._step, self._since = step, self._clock()
        if self._bar is None and self._stream.isatty():
            self._bar = self._open_bar()

    def update(self, step: int, *, loss: float, accuracy: float, learning_rate: float) -> None:
        """Tell where the run is. Call it after some step, whenever the values are known.

        Args:
            step: steps that are done.
            loss, accuracy: of the last batch; the line shows a running average.
            learning_rate: of the last step.
        """
        now = self._clock()
        if step > self._step:
            self._seconds_per_step = _averaged(self._seconds_per_step, (now - self._since) / (step - self._step))
        self._step, self._since = step, now
        self._loss = _averaged(self._loss, loss)
        self._accuracy = _averaged(self._accuracy, accuracy)
        self._text = (
            f"loss {self._loss:.3f}  accuracy {self._accuracy:.3f}  lr {learning_rate:.4f}  "
            f"{self._speed():,.0f} images/s  {format_duration(self.seconds_left())} left"
        )
        if self._bar is not None:
            self._bar.set_description_str(f"Epoch {self._epoch()}/{self._num_epochs}", refresh=False)
            self._bar.set_postfix_str(self._text, refresh=False)
            self._bar.update(step - self._bar.n)
            self._bar.refresh()
        elif now - self._printed_at >= _PLAIN_EVERY_S or step == self._num_steps:
            self._printed_at = now
            self._print(f"Epoch {self._epoch()}/{self._num_epochs}, step {step}/{self._num_steps}: {self._text}")

    @contextlib.contextmanager
    def aside(self, what: str, *, num_left: int) -> Iterator[None]:
        """Work between steps, such as an evaluation; call :meth:`start` when steps go on.

        Args:
            what: shown meanwhile, on a terminal.
            num_left: how often it will come again; counts for the time left.
        """
        begun = self._clock()
        if self._bar is not None:
            self._bar.set_postfix_str(what)
        yield
        if self._bar is not None:
            self._bar.set_postfix_str(self._text)
        self._other_s += self._clock() - begun
        self._num_other += 1
        self._num_other_left = num_left

    def seconds_left(self) -> float:
        """The time that the remaining steps and evaluations will take, as far as can be told."""
        steps_s = (self._num_steps - self._step) * (self._seconds_per_step or 0.0)
        other_s = self._num_other_left * self._other_s / self._num_other if self._num_other else 0.0
        return steps_s + other_s

    def close(self) -> None:
        """Leave the line as it is and go to the next."""
        if self._bar is not None:
            self._bar.close()

    @contextlib.contextmanager
    def above_logs(self, *names: str) -> Iterator[None]:
        """Keep lines that these loggers write meanwhile from running into the bar."""

        def clear(_record: logging.LogRecord) -> bool:
            if self._bar is not None:
                self._bar.clear()
            return True

        handlers = [handler for name in names for handler in logging.getLogger(name).handlers]
        for handler in handlers:
            handler.addFilter(clear)
        try:
            yield
        finally:
            for handler in handlers:
                handler.removeFilter(clear)

    def _open_bar(self) -> tqdm[Any]:
        return tqdm(
            total=self._num_steps,
            initial=self._step,
            file=self._stream,
            dynamic_ncols=True,
            # "n/total" and tqdm's own times are left out: it cannot know of the evaluations to come.
            bar_format="{desc} |{bar:12}| {percentage:3.0f}%{postfix}",
            desc=f"Epoch {self._epoch()}/{self._num_epochs}",
        )

    def _epoch(self) -> int:
        return min(self._num_epochs, max(0, self._step - 1) // self._steps_per_epoch + 1)

    def _speed(self) -> float:
        return self._batch_size / self._seconds_per_step if self._seconds_per_step else 0.0

    def _print(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()


def _averaged(average: float | None, value: float) -> float:
    return value if average is None else average + _FORGETTING * (value - average)
