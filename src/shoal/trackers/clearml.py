"""ClearML: metrics and configuration of a Task."""

from __future__ import annotations

from typing import Any

from shoal._optional import require
from shoal.errors import UsageError
from shoal.trackers.base import RankZeroTracker

__all__ = ["ClearMLTracker", "current_task"]


def current_task() -> Any:
    """The Task that ``Task.init()`` has made in this process.

    Raises:
        MissingExtraError: ClearML is not installed.
        UsageError: there is no Task.
    """
    task = require("clearml", extra="clearml", purpose="ClearML").Task.current_task()
    if task is None:
        raise UsageError(
            "ClearML was asked for, but this process has no Task; call clearml.Task.init(project_name, task_name) on "
            "rank 0 before"
        )
    return task


class ClearMLTracker(RankZeroTracker):
    """Reports to a ClearML Task. ``train/loss`` becomes the series ``loss`` of the plot ``train``.

    Args:
        task: the Task; None (default) takes the one of ``Task.init()`` at the first record, on rank 0.
    """

    def __init__(self, task: Any = None) -> None:
        self._task = task

    @property
    def task(self) -> Any:
        """The Task that is reported to."""
        if self._task is None:
            self._task = current_task()
        return self._task

    def _write_metrics(self, values: dict[str, float], step: int, axis: str) -> None:  # noqa: ARG002 - plots are apart
        logger = self.task.get_logger()
        for name, value in values.items():
            title, _, series = name.rpartition("/")
            logger.report_scalar(title=title or series, series=series, value=value, iteration=step)

    def _write_config(self, config: dict[str, Any]) -> None:
        self.task.connect_configuration(config, name="config")

    def _close(self) -> None:
        if self._task is not None:
            self._task.flush()  # the end of the Task waits for what ClearML still sends in the background
