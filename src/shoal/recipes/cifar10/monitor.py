"""What all processes have to agree on while they train, a few times a second: how it goes, and whether to stop."""

from __future__ import annotations

import math
import signal
import time
from typing import Any

import torch
from torch.optim import Optimizer

import shoal.distributed as idist
from shoal.engine import Engine, Events
from shoal.errors import UsageError
from shoal.recipes.cifar10.run import Run
from shoal.recipes.stopping import GracefulStop

__all__ = ["Monitor"]

_PULSE_S = 0.25
"""Seconds between two looks, about: so late is a Ctrl-C answered, where a step is not longer anyhow."""


class Monitor:
    """Looks at the running training: progress, records, Ctrl-C, a loss that is no number any more.

    A look is one all-reduce of six numbers, and waits for the device. It comes about four times a second, at the steps
    that are recorded or saved, and at the end of an epoch; between two looks nothing is computed or sent. Which step is
    the next is derived from reduced numbers alone, so that all processes look at the same one.

    Args:
        optimizer: its learning rate is reported.
        stop: the wish to stop that this process has received.
        run: takes the records and shows the progress.
        log_every: a record is made after every so many steps.
        save_every: a checkpoint is made after every so many steps; not of a loss that is no number.

    Attributes:
        stopped_by: the signal on which the training was stopped, or None.
    """

    def __init__(self, optimizer: Optimizer, stop: GracefulStop, run: Run, *, log_every: int, save_every: int) -> None:
        self.stopped_by: signal.Signals | None = None
        self._optimizer = optimizer
        self._stop = stop
        self._run = run
        self._log_every, self._save_every = log_every, save_every
        self._alone = idist.get_world_size() == 1
        self._next_look = 0
        self._last_look = 0
        self._since = 0.0

    def attach(self, trainer: Engine) -> None:
        """Look at ``trainer``, whose output has ``batch loss`` (a scalar), ``y_pred`` ``(N, C)`` and ``y`` ``(N,)``.

        Attach it before what saves checkpoints.
        """
        trainer.add_event_handler(Events.EPOCH_STARTED, self._start)
        trainer.add_event_handler(Events.ITERATION_COMPLETED, self._after_step)

    def _start(self, trainer: Engine) -> None:
        self._last_look, self._since = trainer.state.iteration, time.monotonic()
        self._run.show_start(trainer.state.iteration)

    def _after_step(self, trainer: Engine) -> None:
        step = trainer.state.iteration
        if (
            step >= self._next_look
            or step % self._log_every == 0
            or step % self._save_every == 0
            or step % (trainer.state.epoch_length or 1) == 0
            or (self._alone and self._stop.requested)
        ):
            self._look(trainer, step)

    def _look(self, trainer: Engine, step: int) -> None:
        loss, accuracy, seconds_per_step, stopped_by = self._agree(trainer.state.output, step)
        if not math.isfinite(loss):
            raise UsageError(
                f"the loss became {loss} in step {step} (epoch {trainer.state.epoch}); "
                "lower --learning-rate, or raise --num-warmup-epochs"
            )
        self._next_look = step + max(1, int(_PULSE_S / max(seconds_per_step, 1e-6)))
        rate = float(self._optimizer.param_groups[0]["lr"])
        self._run.show(step, loss=loss, accuracy=accuracy, learning_rate=rate)
        if step % self._log_every == 0:
            self._run.record_step(step, {"loss": loss, "accuracy": accuracy, "learning_rate": rate})
        if stopped_by is not None:
            self.stopped_by = stopped_by
            trainer.interrupt()

    def _agree(self, output: dict[str, Any], step: int) -> tuple[float, float, float, signal.Signals | None]:
        """Loss and accuracy of the global batch, seconds a step, and the signal that any process has received."""
        now = time.monotonic()
        seconds_per_step = (now - self._since) / max(1, step - self._last_look)
        self._since, self._last_look = now, step
        y_pred, y = output["y_pred"], output["y"]
        num_images = 0 if y_pred is None else len(y)
        numbers = torch.zeros(6, device=idist.device())
        if num_images:
            numbers[0] = output["batch loss"] * num_images
            numbers[1] = (y_pred.argmax(dim=1) == y).sum()
        requested = self._stop.requested
        numbers[2:] = torch.tensor(
            [num_images, seconds_per_step, requested == signal.SIGINT, requested == signal.SIGTERM]
        )
        loss, correct, total, seconds, interrupts, terminations = idist.all_reduce(numbers).tolist()
        stopped_by = signal.SIGINT if interrupts else signal.SIGTERM if terminations else None
        return loss / total, correct / total, seconds / idist.get_world_size(), stopped_by
