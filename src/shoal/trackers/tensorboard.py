"""TensorBoard event files."""

from __future__ import annotations

import json
import os
from typing import Any

from shoal._optional import require
from shoal.trackers.base import RankZeroTracker

__all__ = ["TensorBoardTracker"]


class TensorBoardTracker(RankZeroTracker):
    """Writes event files that ``tensorboard --logdir`` shows. Each name is a chart; the step is its horizontal axis.

    Args:
        log_dir: the folder of the event files.
        options: for ``torch.utils.tensorboard.SummaryWriter``.

    Raises:
        MissingExtraError: TensorBoard is not installed.
    """

    def __init__(self, log_dir: str | os.PathLike[str], **options: Any) -> None:
        self.log_dir = os.fspath(log_dir)
        self._options = options
        self._writer: Any = None
        self._writer_class = require(
            "torch.utils.tensorboard", extra="tensorboard", purpose="TensorBoard logging"
        ).SummaryWriter

    @property
    def writer(self) -> Any:
        """The ``SummaryWriter``, opened at its first use."""
        if self._writer is None:
            self._writer = self._writer_class(log_dir=self.log_dir, **self._options)
            self._is_closed = False
        return self._writer

    def _write_metrics(self, values: dict[str, float], step: int, axis: str) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        if axis == "epoch":  # rare and worth waiting for; the others are flushed by the writer's own clock
            self.writer.flush()

    def _write_config(self, config: dict[str, Any]) -> None:
        text = json.dumps(config, indent=2, ensure_ascii=False)
        self.writer.add_text("config", "\n".join(f"    {line}" for line in text.splitlines()), 0)
        self.writer.flush()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
