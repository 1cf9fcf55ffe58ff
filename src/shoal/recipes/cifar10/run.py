"""One run as its folder shows it, and as it shows itself while it goes on."""

from __future__ import annotations

import contextlib
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
from shoal.recipes.cifar10.summary import Outcome, draw, outcome_of, words
from shoal.recipes.progress import Progress
from shoal.recipes.run_folder import (
    CONFIG_FILE,
    METRICS_FILE,
    lock_run,
    new_run_folder,
    trim_metrics,
    write_config,
    write_environment,
)
from shoal.trackers import JsonlTracker, read_jsonl

__all__ = ["Run"]


class Run:
    """The folder of a run, and its progress line. Every process has one of these; only rank 0 writes and shows.

    A context manager around the training: what it has open is closed at the end.

    Args:
        folder: the folder, which exists.
        config: the options.
        title: what is trained on what.
        steps_per_epoch: optimisation steps of an epoch.
        is_resumed: whether the folder is that of a run that goes on.
    """

    def __init__(
        self, folder: Path, config: Cifar10Config, *, title: str, steps_per_epoch: int, is_resumed: bool = False
    ) -> None:
        self.folder = folder
        self.title = title
        self.steps_per_epoch = steps_per_epoch
        self.num_epochs = config.num_epochs
        self.is_resumed = is_resumed
        self._log_every = config.log_every_iters
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
            title=f"{config.model} on {data_name}, {_processes()}",
            steps_per_epoch=steps_per_epoch,
            is_resumed=resumed is not None,
        )
        run._lock = lock
        return run

    def __enter__(self) -> Self:
        if self._lock is not None:
            self._open.callback(self._lock.close)
        self._open.callback(self._tracker.close)
        if self._progress is not None:
            self._open.callback(self._progress.close)
            self._open.enter_context(self._progress.above_logs("shoal", "CIFAR10-Training"))
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._open.close()

    def log_to_tensorboard(self, trainer: Engine, optimizer: Optimizer, evaluators: Mapping[str, Engine]) -> None:
        """Write event files into the folder until the run is closed. Call it on rank 0."""
        logger = common.setup_tb_logging(self.folder, trainer, optimizer, evaluators, log_every_iters=self._log_every)
        self._open.callback(logger.close)

    def record_step(self, step: int, values: dict[str, float]) -> None:
        """Write down the loss, the accuracy and the learning rate of one global batch."""
        self._tracker.log_metrics(values, step=step, prefix="batch")

    def record_evaluation(self, of: str, step: int, epoch: int, metrics: dict[str, Any]) -> None:
        """Write down an evaluation of all ``train`` or all ``val`` images."""
        values = {name.lower(): value for name, value in metrics.items()}
        self._tracker.log_metrics({**values, "epoch": epoch}, step=step, prefix=of)

    def go_on_from(self, step: int) -> None:
        """Take back what is written down of later steps: they come again."""
        if idist.get_rank() == 0:
            trim_metrics(self.folder, step)

    def show_start(self, step: int) -> None:
        """The steps after ``step`` begin now."""
        if self._progress is not None:
            self._progress.start(step)

    def show(self, step: int, *, loss: float, accuracy: float, learning_rate: float) -> None:
        """Show where the run is; see :meth:`Progress.update`."""
        if self._progress is not None:
            self._progress.update(step, loss=loss, accuracy=accuracy, learning_rate=learning_rate)

    @contextlib.contextmanager
    def aside(self, what: str, *, num_left: int) -> Iterator[None]:
        """Work between steps; see :meth:`Progress.aside`."""
        with self._progress.aside(what, num_left=num_left) if self._progress else contextlib.nullcontext():
            yield

    def finish(self, *, step: int, stopped_by: int | None) -> Outcome:
        """Draw the curves and say how it went and where everything is. All ranks call it, after the ``with`` block."""
        if idist.get_rank() != 0:
            return Outcome(str(self.folder), stopped_by=stopped_by)
        path = self.folder / METRICS_FILE
        records = list(read_jsonl(path)) if path.exists() else []
        outcome = outcome_of(records, self.folder, stopped_by)
        draw(records, self.folder, title=self.title, steps_per_epoch=self.steps_per_epoch)
        progress = (step, self.steps_per_epoch * self.num_epochs)
        seconds = time.monotonic() - self._began
        print("\n".join(words(outcome, self.title, progress, self.num_epochs, seconds)), flush=True)
        return outcome


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
