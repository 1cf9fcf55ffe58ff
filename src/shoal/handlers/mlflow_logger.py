"""MLflow, attached to engines."""

from __future__ import annotations

from typing import Any

from shoal._optional import require
from shoal.handlers._passing import PassingLogger
from shoal.handlers.global_step import global_step_from_engine
from shoal.handlers.tracker_logger import OptimizerParamsHandler, OutputHandler
from shoal.trackers import TRACKERS

__all__ = [
    "MLflowLogger",
    "OptimizerParamsHandler",
    "OutputHandler",
    "global_step_from_engine",
]


class MLflowLogger(PassingLogger):
    """Writes what engines know to an MLflow run; closed by ``close()`` or at the end of a ``with`` block.

    Functions of the module ``mlflow`` are the logger's too, on rank 0, and write to its run:
    ``logger.log_params({…})``.

    Args:
        tracking_uri: the server or database; None (default) is what MLflow is set to.
        kwargs: ``experiment``, ``run_id``, ``on_error``, and what ``mlflow.start_run`` takes: run_name, tags, …; see
            :class:`shoal.trackers.mlflow.MLflowTracker`.

    Raises:
        MissingExtraError: MLflow is not installed.
    """

    def __init__(self, tracking_uri: str | None = None, **kwargs: Any) -> None:
        super().__init__(TRACKERS.load("mlflow")(tracking_uri, **kwargs))

    @property
    def active_run(self) -> Any:
        """The run, started at the first use; on rank 0."""
        return self.tracker.run  # type: ignore[attr-defined]  # this logger's tracker is an MLflowTracker

    def _of_service(self, name: str) -> Any:
        mlflow = require("mlflow", extra="mlflow", purpose="MLflow logging")
        if not hasattr(mlflow, name):
            raise self._refuse(name)
        _ = self.active_run
        return getattr(mlflow, name)
