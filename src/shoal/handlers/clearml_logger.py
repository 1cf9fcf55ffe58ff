"""ClearML, attached to engines."""

from __future__ import annotations

from typing import Any

from shoal._optional import require
from shoal.errors import UsageError
from shoal.handlers._passing import PassingLogger
from shoal.handlers.clearml_saver import ClearMLSaver
from shoal.handlers.global_step import global_step_from_engine
from shoal.handlers.model_logger import GradsHistHandler, GradsScalarHandler, WeightsHistHandler, WeightsScalarHandler
from shoal.handlers.tracker_logger import OptimizerParamsHandler, OutputHandler
from shoal.trackers import TRACKERS

__all__ = [
    "ClearMLLogger",
    "ClearMLSaver",
    "GradsHistHandler",
    "GradsScalarHandler",
    "OptimizerParamsHandler",
    "OutputHandler",
    "WeightsHistHandler",
    "WeightsScalarHandler",
    "global_step_from_engine",
]

_NOT_HERE = ("report_freq", "histogram_update_freq_multiplier", "histogram_granularity")


class ClearMLLogger(PassingLogger):
    """Writes what engines know to a ClearML Task; closed by ``close()`` or at the end of a ``with`` block.

    Methods of ClearML's logger are this one's too, on rank 0: ``logger.report_text("…")``. Unlike Ignite's, the Task is
    made at the first record or use of :attr:`task`, not before, so that a process makes none before it knows its rank.

    Args:
        kwargs: for ``clearml.Task.init``: project_name, task_name, tags, …; or ``task``, a Task that there is; and
            ``on_error``. Without any, the Task of ``Task.init()`` is reported to.

    Raises:
        MissingExtraError: ClearML is not installed.
        UsageError: an option of Ignite that has no effect here.
    """

    def __init__(self, **kwargs: Any) -> None:
        unknown = [name for name in _NOT_HERE if name in kwargs]
        if unknown:
            raise UsageError(
                f"ClearMLLogger was given {', '.join(unknown)}, which have no effect here; choose how often by the "
                "event, as Events.EPOCH_COMPLETED(every=5), and num_bins of the histogram handlers"
            )
        super().__init__(TRACKERS.load("clearml")(**kwargs))

    @property
    def task(self) -> Any:
        """The ClearML Task; on rank 0."""
        return self.tracker.task  # type: ignore[attr-defined]  # this logger's tracker is a ClearMLTracker

    @property
    def clearml_logger(self) -> Any:
        """The Task's own logger; on rank 0."""
        return self.task.get_logger()

    def get_task(self) -> Any:
        """The ClearML Task; on rank 0."""
        return self.task

    def _of_service(self, name: str) -> Any:
        if not hasattr(require("clearml", extra="clearml", purpose="ClearML logging").Logger, name):
            raise self._refuse(name)
        return getattr(self.clearml_logger, name)
