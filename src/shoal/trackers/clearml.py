"""ClearML: what a Task records."""

from __future__ import annotations

import atexit
import faulthandler
import math
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from shoal._optional import check_installed, require
from shoal.errors import UsageError
from shoal.trackers.base import OnError, RankZeroTracker
from shoal.trackers.media import Figure, Histogram, Image, Text

__all__ = ["ClearMLTracker", "current_task", "has_task", "init_task"]

_waiting: weakref.WeakSet[ClearMLTracker] = weakref.WeakSet()
"""Trackers that will make a Task at their first record; what needs the Task earlier has them make it."""
_is_watched: list[bool] = []
_OF_FAULTS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)


def current_task() -> Any:
    """The Task of this process: that of ``Task.init()``, or that which a :class:`ClearMLTracker` is to make.

    Raises:
        MissingExtraError: ClearML is not installed.
        UsageError: there is neither.
    """
    task = _clearml().Task.current_task()
    for tracker in list(_waiting):
        task = task or tracker.task
    _let_it_end()
    _let_signals_work()
    if task is None:
        raise UsageError(
            "ClearML was asked for, but this process has no Task; call clearml.Task.init(project_name, task_name) on "
            "rank 0 before, or give project_name and task_name"
        )
    return task


def init_task(*args: Any, **options: Any) -> Any:
    """``clearml.Task.init``, with a process that ends.

    On Linux ClearML forks a process that sends its records. Now and then (seen with 2.1.12, every third run) that one
    misses the word to stop, and the end of the training waits for it for ever. Threads send them here instead, as they
    do with ``report_use_subprocess: false`` in the section ``sdk.development`` of clearml.conf. And signals have their
    usual effect; ClearML's handler (seen with 2.1.12) swallows SIGTERM, and a segmentation fault under it never ends.

    Args:
        args: as ``Task.init`` takes them: project_name, task_name, …
        options: likewise.

    Raises:
        MissingExtraError: ClearML is not installed.
    """
    task_class = _clearml().Task
    if hasattr(task_class, "_report_subprocess_enabled"):  # ClearML reads the file alone, so there is no other way
        task_class._report_subprocess_enabled = False
    task = task_class.init(*args, **options)
    _let_signals_work()
    return task


def has_task() -> bool:
    """Whether :func:`current_task` would find one."""
    return _clearml().Task.current_task() is not None or len(_waiting) > 0


def _let_it_end() -> None:
    """For a Task that was made by ``Task.init``: see :func:`init_task`. Called before what ClearML has registered."""
    if _is_watched:
        return
    _is_watched.append(True)
    atexit.register(lambda: threading.Thread(target=_flush_for_ever, daemon=True).start())


def _let_signals_work() -> None:
    """Undo what ClearML's handler takes from signals; it calls the one before it only where that is a function.

    Where the program itself handles SIGTERM it knows how it ends, and ClearML's exit handler runs then.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGTERM, *_OF_FAULTS):
        before = getattr(getattr(signal.getsignal(number), "__self__", None), "_org_handlers", {})
        if number == signal.SIGTERM and before.get(number) == signal.SIG_DFL:
            before[number] = _end_by  # after ClearML has noted that the Task was stopped
        elif before.get(number) is not None:
            signal.signal(number, before[number])
        elif number in before:  # faulthandler's, which is none of Python's
            signal.signal(number, signal.SIG_DFL)
            if faulthandler.is_enabled():
                faulthandler.disable()
                faulthandler.enable()


def _end_by(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _flush_for_ever() -> None:
    """Wake the sending process until it has seen that it is to stop, or this one ends."""
    monitor = getattr(sys.modules.get("clearml.utilities.process.mp"), "BackgroundMonitor", None)
    while True:
        for services in list(getattr(monitor, "_instances", {}).values()):
            for service in list(services):
                if hasattr(service, "_flush"):
                    service._flush.set()
        time.sleep(0.5)


class ClearMLTracker(RankZeroTracker):
    """Reports to a ClearML Task. ``train/loss`` becomes the series ``loss`` of the plot ``train``.

    A text goes to the Task's console, an image to its debug samples, a figure and a histogram to its plots. ClearML
    has no NaN and no infinity in a plot (it would show 0): they are left out of it and written to the console.

    The Task is the given one, or else the one of ``Task.init()`` in this process, or else one that is made of
    ``options`` at the first record, on rank 0; ``close`` ends only this last one. After an error it stays open, and
    ClearML notes how the process ends. With the environment variable ``CLEARML_OFFLINE_MODE=1``, which ClearML reads
    when it is imported, nothing is sent: the records are in a zip file that ClearML names at the end.

    Args:
        task: the Task.
        on_error: as in :class:`shoal.trackers.base.RankZeroTracker`.
        options: for ``clearml.Task.init``: project_name, task_name, tags, …

    Raises:
        MissingExtraError: ClearML is not installed.
    """

    def __init__(self, task: Any = None, *, on_error: OnError = "raise", **options: Any) -> None:
        super().__init__(on_error=on_error)
        check_installed("clearml", extra="clearml", purpose="ClearML logging")
        self._task = task
        self._options = options
        self._is_own = False
        self._resumed_id: str | None = None
        if task is None and options:
            _waiting.add(self)

    @property
    def task(self) -> Any:
        """The Task that is reported to, made at the first use.

        Raises:
            UsageError: there is none and none was asked for, or one is to be made and this is not rank 0.
        """
        if self._task is None:
            _waiting.discard(self)
            self._task = self._find() or self._make()
            offset = self._task.get_initial_iteration()
            if offset:
                self._say_once("offset", "ClearML adds %d to every step; give Task.init(continue_last_task=0)", offset)
        self._is_closed = False
        return self._task

    def _find(self) -> Any:
        task = _clearml().Task.current_task()
        if task is None and not self._options and self._resumed_id is None:
            return current_task()  # another tracker's, or an error
        if task is not None and self._options:
            names = ", ".join(self._options)
            self._say_once("options", "ClearML has the Task '%s' already; %s had no effect", task.name, names)
        return task

    def _make(self) -> Any:
        self._on_rank_zero("Task")
        self._is_own = True
        # Steps are counted from the start of the training, so ClearML must not add those before the resumption.
        resumption = {"reuse_last_task_id": self._resumed_id, "continue_last_task": 0} if self._resumed_id else {}
        return init_task(**{**self._options, **resumption})

    def _write_metrics(self, values: dict[str, float], step: int, axis: str) -> None:
        logger = self.task.get_logger()
        for name, value in values.items():
            title, series = _split(name)
            if math.isfinite(value):
                logger.report_scalar(title=title, series=series, value=value, iteration=step)
            else:
                logger.report_text(f"{name} is {value} at {axis} {step}", print_console=False)

    def _write_config(self, config: dict[str, Any]) -> None:
        self.task.connect_configuration(config, name="config")

    def _write_text(self, name: str, text: Text, step: int, axis: str) -> None:
        self.task.get_logger().report_text(f"{name} at {axis} {step}:\n{text.text}", print_console=False)

    def _write_image(self, name: str, image: Image, step: int, axis: str) -> None:  # noqa: ARG002 - plots are apart
        if image.caption is not None:
            self._has_no("captions of images", name)
        title, series = _split(name)
        pixels = image.pixels[:, :, 0] if image.pixels.shape[2] == 1 else image.pixels
        self.task.get_logger().report_image(title=title, series=series, iteration=step, image=pixels)

    def _write_figure(self, name: str, figure: Figure, step: int, axis: str) -> None:  # noqa: ARG002
        title, series = _split(name)
        logger = self.task.get_logger()
        if figure.is_plotly:
            logger.report_plotly(title=title, series=series, iteration=step, figure=figure.figure)
        else:
            logger.report_matplotlib_figure(
                title=title, series=series, iteration=step, figure=figure.figure, report_interactive=False
            )

    def _write_histogram(self, name: str, histogram: Histogram, step: int, axis: str) -> None:  # noqa: ARG002
        title, series = _split(name)
        self.task.get_logger().report_histogram(
            title=title,
            series=series,
            iteration=step,
            values=list(histogram.counts),
            xlabels=_labels(histogram.edges[:-1]),
        )

    def _write_artifact(self, path: Path, name: str) -> None:
        self.task.upload_artifact(name, artifact_object=str(path), wait_on_upload=True)  # the file may go afterwards

    def _close(self) -> None:
        _waiting.discard(self)
        if self._task is None:
            return
        if self._is_own and not self._failed:
            self._resumed_id, task = str(self._task.id), self._task
            self._task = None
            task.close()
        else:
            self._task.flush()  # the end of the process waits for what is still sent in the background

    def _run_id(self) -> str | None:
        return self._resumed_id if self._task is None else str(self._task.id)

    def _resume(self, run_id: str) -> None:
        self._resumed_id = run_id
        if self._task is None:
            _waiting.add(self)


def _labels(numbers: Sequence[float]) -> list[str]:
    """Numbers as short texts, no two alike: ClearML draws bars of the same label as one."""
    for num_digits in range(4, 17):
        labels = [f"{number:.{num_digits}g}" for number in numbers]
        if len(set(labels)) == len(labels):
            return labels
    return [repr(number) for number in numbers]


def _split(name: str) -> tuple[str, str]:
    title, _, series = name.rpartition("/")
    return title or series, series


def _clearml() -> Any:
    return require("clearml", extra="clearml", purpose="ClearML logging")
