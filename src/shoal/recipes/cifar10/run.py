"""One run as its folder shows it, and as it shows itself while it goes on."""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from torch.optim import Optimizer

import shoal.distributed as idist
from shoal import common
from shoal.engine import Engine
from shoal.recipes.cifar10.config import Cifar10Config
from shoal.recipes.cifar10.sources import ImageData
from shoal.recipes.cifar10.summary import Outcome, draw, outcome_of, words
from shoal.recipes.mistakes import Mistakes
from shoal.recipes.phases import Phases
from shoal.recipes.progress import Progress
from shoal.report import write_report
from shoal.runs import (
    CONFIG_FILE,
    METRICS_FILE,
    REPORT_FILE,
    Plan,
    RunState,
    Word,
    lock_run,
    new_run_folder,
    read_predictions,
    read_records,
    read_state,
    trim_run,
    write_config,
    write_environment,
    write_predictions,
    write_state,
)
from shoal.trackers import JsonlTracker

__all__ = ["Run"]

_log = logging.getLogger("CIFAR10-Training")
_REASON_CHARS = 300
_AT_ONCE = "at once, without saving the steps after the last checkpoint"


class Run:
    """The folder of a run, and its progress line. Every process has one of these; only rank 0 shows and
    writes, but for an error: that of the rank which fails first is the one to tell.

    A context manager around the training: what it has open is closed at the end.

    Args:
        folder: the folder, which exists.
        config: the options.
        title: what is trained on what.
        steps_per_epoch: optimisation steps of an epoch.
        is_resumed: whether the folder is that of a run that goes on.

    Attributes:
        phases: where this process's time goes.
    """

    def __init__(
        self, folder: Path, config: Cifar10Config, *, title: str, steps_per_epoch: int, is_resumed: bool = False
    ) -> None:
        self.folder = folder
        self.title = title
        self.steps_per_epoch = steps_per_epoch
        self.num_epochs = config.num_epochs
        self.is_resumed = is_resumed
        self.phases = Phases(config.batch_size, ("evaluation", "checkpoint"))
        self._log_every = config.log_every_iters
        self._plan = Plan(
            title=title,
            command="shoal train cifar10",
            num_epochs=config.num_epochs,
            steps_per_epoch=steps_per_epoch,
        )
        self._step = 0
        self._began = time.monotonic()
        self._tracker = JsonlTracker(folder / METRICS_FILE)
        self._open = contextlib.ExitStack()
        self._lock: IO[str] | None = None
        self._progress: Progress | None = None
        if idist.get_rank() == 0:
            self._progress = Progress(
                num_steps=steps_per_epoch * config.num_epochs,
                num_epochs=config.num_epochs,
                batch_size=config.batch_size,
            )

    @classmethod
    def open(cls, config: Cifar10Config, *, data_name: str, steps_per_epoch: int) -> Run:
        """Make the folder, or go on in that of the checkpoint. All ranks call it."""
        resumed = _resumed_folder(config)
        folder, lock = "", None
        if idist.get_rank() == 0:
            folder = str(resumed or new_run_folder(Path(config.output_path), _folder_name(config)))
            lock = lock_run(Path(folder))
            write_config(Path(folder), {**config.resolved(), "backend": idist.backend()})
            write_environment(Path(folder), resumed_from=config.resume_from)
        run = cls(
            Path(idist.broadcast(folder)),
            config,
            title=f"{config.model} on {Path(data_name).name or data_name}, {_processes()}",
            steps_per_epoch=steps_per_epoch,
            is_resumed=resumed is not None,
        )
        run._lock = lock
        return run

    def __enter__(self) -> Self:
        self._say("running")
        self._open.callback(self._tracker.close)
        if self._progress is not None:
            self._open.callback(self._progress.close)
            self._open.enter_context(self._progress.above_logs("shoal", "CIFAR10-Training"))
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        try:
            self._open.close()
        except Exception as unwritten:
            error = error or unwritten
            raise
        finally:
            if error is not None:  # else finish() has the last word
                self._say_how_it_ended(error)
                self._release()

    def log_to_tensorboard(self, trainer: Engine, optimizer: Optimizer, evaluators: Mapping[str, Engine]) -> None:
        """Write event files into the folder until the run is closed. Call it on rank 0."""
        logger = common.setup_tb_logging(self.folder, trainer, optimizer, evaluators, log_every_iters=self._log_every)
        self._open.callback(logger.close)

    def record_step(self, step: int, values: dict[str, float]) -> None:
        """Write down the loss, the accuracy and the learning rate of one global batch, and the time until then."""
        named = {f"batch/{name}": value for name, value in values.items()}
        self._tracker.log_metrics(named | self.phases.take(step), step=step)

    def record_phases(self, trainer: Engine) -> None:
        """Write down where the time went since the last record."""
        self._step = trainer.state.iteration
        self._tracker.log_metrics(self.phases.take(self._step), step=self._step)

    def record_evaluation(self, of: str, step: int, epoch: int, metrics: dict[str, Any]) -> None:
        """Write down an evaluation of all ``train`` or all ``val`` images."""
        values = {name.lower(): value for name, value in metrics.items()}
        self._tracker.log_metrics({**values, "epoch": epoch}, step=step, prefix=of)

    def record_mistakes(self, step: int, epoch: int, mistakes: Mistakes, images: ImageData) -> None:
        """Write down the confusion matrix and the most wrong validation images, where it is the best so far.

        Args:
            step, epoch: that the evaluation came after.
            mistakes: what it found.
            images: the data.
        """
        if idist.get_rank() != 0 or mistakes.confusion is None:
            return
        found = mistakes.classified_images(step, epoch, images.classes, images.val.read)
        before = read_predictions(self.folder)
        if before is None or found.score > before.score:
            write_predictions(self.folder, found)

    def go_on_from(self, step: int) -> None:
        """Take back what is written down of later steps: they come again."""
        if idist.get_rank() == 0:
            trim_run(self.folder, step)

    def show_start(self, step: int) -> None:
        """The steps after ``step`` begin now."""
        if self._progress is not None:
            self._progress.start(step)

    def show(self, step: int, *, loss: float, accuracy: float, learning_rate: float) -> None:
        """Show where the run is; see :meth:`Progress.update`."""
        self._step = step
        if self._progress is not None:
            self._progress.update(step, loss=loss, accuracy=accuracy, learning_rate=learning_rate)

    @contextlib.contextmanager
    def aside(self, what: str, *, num_left: int) -> Iterator[None]:
        """An evaluation between steps; see :meth:`Progress.aside`."""
        shown = self._progress.aside(what, num_left=num_left) if self._progress else contextlib.nullcontext()
        with shown, self.phases.aside("evaluation"):
            yield

    def finish(self, *, step: int, stopped_by: int | None) -> Outcome:
        """Draw the curves, write the report and say how it went and where everything is.

        All ranks call it, after the ``with`` block.
        """
        if idist.get_rank() != 0:
            return Outcome(str(self.folder), stopped_by=stopped_by)
        self._step = step
        if stopped_by is None:
            self._say("finished")
        else:
            self._say("stopped", signal.Signals(stopped_by).name)
        self._release()
        records = read_records(self.folder).rows
        outcome = outcome_of(records, self.folder, stopped_by)
        draw(records, self.folder, title=self.title, steps_per_epoch=self.steps_per_epoch)
        self._write_report()
        progress = (step, self.steps_per_epoch * self.num_epochs)
        seconds = time.monotonic() - self._began
        print("\n".join(words(outcome, self.title, progress, self.num_epochs, seconds)), flush=True)
        return outcome

    def _say(self, word: Word, reason: str = "") -> None:
        if idist.get_rank() == 0:
            self._write_state(word, reason)

    def _say_how_it_ended(self, error: BaseException) -> None:
        """Write it down, unless another rank has: what ends the others is a consequence of the first error."""
        rank = idist.get_rank()
        word: Word = "stopped"
        reason = _AT_ONCE
        if not isinstance(error, KeyboardInterrupt):
            of = f"rank {rank}: " if idist.get_world_size() > 1 else ""
            word, reason = "failed", of + " ".join(f"{type(error).__name__}: {error}".split())
        known = read_state(self.folder)  # none, on a node that does not see the folder of rank 0
        if (known is None and rank != 0) or (known is not None and known.state != "running"):
            return
        try:
            self._write_state(word, reason[:_REASON_CHARS])
        except OSError as unsaid:  # a full disk, say: the first error is the one to tell
            _log.warning("How the run %s ended could not be written down: %s", self.folder, unsaid)

    def _write_state(self, word: Word, reason: str) -> None:
        write_state(self.folder, RunState(state=word, plan=self._plan, step=self._step, reason=reason))

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _write_report(self) -> None:
        try:
            write_report([self.folder], self.folder / REPORT_FILE)
        except Exception as error:  # everything that matters is saved, and must not look lost
            _log.warning("The report could not be written (%s); try again: shoal report %s", error, self.folder)


def _folder_name(config: Cifar10Config) -> str:
    return f"{config.model}_backend-{idist.backend()}-{idist.get_world_size()}"


def _processes() -> str:
    count = idist.get_world_size()
    return f"{count} processes ({idist.backend()})" if count > 1 else "1 process"


def _resumed_folder(config: Cifar10Config) -> Path | None:
    """The folder of the run that is resumed; None for a new run, or a checkpoint that lies in no run's folder."""
    if config.resume_from is None:
        return None
    folder = Path(config.resume_from).parent
    return folder if (folder / CONFIG_FILE).is_file() else None
