"""trackio, attached to engines."""

from __future__ import annotations

from typing import Any

from shoal._optional import require
from shoal.handlers._passing import PassingLogger
from shoal.handlers.global_step import global_step_from_engine
from shoal.handlers.tracker_logger import OptimizerParamsHandler, OutputHandler
from shoal.trackers import TRACKERS

__all__ = [
    "OptimizerParamsHandler",
    "OutputHandler",
    "TrackioLogger",
    "global_step_from_engine",
]


class TrackioLogger(PassingLogger):
    """Writes what engines know to a run of trackio; closed by ``close()`` or at the end of a ``with`` block.

    What the run and the module ``trackio`` have is the logger's too, on rank 0: ``logger.alert("…")``.

    Args:
        project: the project.
        kwargs: for ``trackio.init``: name, group, config, resume, …; and ``on_error``.

    Raises:
        MissingExtraError: trackio is not installed.
    """

    def __init__(self, project: str, **kwargs: Any) -> None:
        super().__init__(TRACKERS.load("trackio")(project, **kwargs))

    @property
    def run(self) -> Any:
        """The run, started at the first use; on rank 0."""
        return self.tracker.run  # type: ignore[attr-defined]  # this logger's tracker is a TrackioTracker

    def _of_service(self, name: str) -> Any:
        trackio = require("trackio", extra="trackio", purpose="trackio logging")
        if hasattr(trackio.Run, name):
            return getattr(self.run, name)
        if not hasattr(trackio, name):
            raise self._refuse(name)
        _ = self.run
        return getattr(trackio, name)
