"""TensorBoard, attached to engines."""

from __future__ import annotations

import os
from typing import Any

from shoal._optional import require
from shoal.handlers._passing import PassingLogger
from shoal.handlers.global_step import global_step_from_engine
from shoal.handlers.model_logger import GradsHistHandler, GradsScalarHandler, WeightsHistHandler, WeightsScalarHandler
from shoal.handlers.tracker_logger import OptimizerParamsHandler, OutputHandler
from shoal.trackers import TRACKERS

__all__ = [
    "GradsHistHandler",
    "GradsScalarHandler",
    "OptimizerParamsHandler",
    "OutputHandler",
    "TensorboardLogger",
    "WeightsHistHandler",
    "WeightsScalarHandler",
    "global_step_from_engine",
]


class TensorboardLogger(PassingLogger):
    """Writes what engines know to TensorBoard event files; closed by ``close()`` or at the end of a ``with`` block.

    Methods of the writer are the logger's too, on rank 0: ``logger.add_graph(model, x)``.

    Args:
        log_dir: the folder of the event files, made at the first record.
        kwargs: for ``torch.utils.tensorboard.SummaryWriter``, and ``on_error``.

    Raises:
        MissingExtraError: TensorBoard is not installed.
    """

    def __init__(self, log_dir: str | os.PathLike[str] = "runs", **kwargs: Any) -> None:
        super().__init__(TRACKERS.load("tensorboard")(log_dir, **kwargs))

    @property
    def writer(self) -> Any:
        """The ``SummaryWriter``, for what else is to be written; on rank 0."""
        return self.tracker.writer  # type: ignore[attr-defined]  # this logger's tracker is a TensorBoardTracker

    def _of_service(self, name: str) -> Any:
        module = require("torch.utils.tensorboard", extra="tensorboard", purpose="TensorBoard logging")
        if not hasattr(module.SummaryWriter, name):
            raise self._refuse(name)
        return getattr(self.writer, name)
