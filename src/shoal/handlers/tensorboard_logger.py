"""TensorBoard, attached to engines."""

from __future__ import annotations

import os
from typing import Any

from shoal.handlers.tracker_logger import TrackerLogger
from shoal.trackers import TRACKERS

__all__ = ["TensorboardLogger"]


class TensorboardLogger(TrackerLogger):
    """Writes what engines know to TensorBoard event files; closed by ``close()`` or at the end of a ``with`` block.

    Args:
        log_dir: the folder of the event files, made at the first record.
        kwargs: for ``torch.utils.tensorboard.SummaryWriter``.

    Raises:
        MissingExtraError: TensorBoard is not installed.
    """

    def __init__(self, log_dir: str | os.PathLike[str] = "runs", **kwargs: Any) -> None:
        super().__init__(TRACKERS.load("tensorboard")(log_dir, **kwargs))

    @property
    def writer(self) -> Any:
        """The ``SummaryWriter``, for what else is to be written; on rank 0."""
        return self.tracker.writer  # type: ignore[attr-defined]  # this logger's tracker is a TensorBoardTracker
