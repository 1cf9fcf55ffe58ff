"""TensorBoard event files."""

from __future__ import annotations

import json
import os
from typing import Any

from shoal._optional import check_installed, require
from shoal.trackers.base import OnError, RankZeroTracker
from shoal.trackers.media import Figure, Histogram, Image, Text

__all__ = ["TensorBoardTracker"]


class TensorBoardTracker(RankZeroTracker):
    """Writes event files that ``tensorboard --logdir`` shows. Each name is a chart; the step is its horizontal axis.

    NaN and infinity are stored as they are. A resumed run adds to the same folder. TensorBoard has no place for files
    and for figures of plotly.

    Args:
        log_dir: the folder of the event files.
        on_error: as in :class:`shoal.trackers.base.RankZeroTracker`.
        options: for ``torch.utils.tensorboard.SummaryWriter``.

    Raises:
        MissingExtraError: TensorBoard is not installed.
    """

    def __init__(self, log_dir: str | os.PathLike[str], *, on_error: OnError = "raise", **options: Any) -> None:
        super().__init__(on_error=on_error)
        check_installed("tensorboard", extra="tensorboard", purpose="TensorBoard logging")
        self.log_dir = os.fspath(log_dir)
        self._options = options
        self._writer: Any = None

    @property
    def writer(self) -> Any:
        """The ``SummaryWriter``, opened at its first use.

        Raises:
            UsageError: this is not rank 0.
        """
        if self._writer is None:
            self._on_rank_zero("writer")
            module = require("torch.utils.tensorboard", extra="tensorboard", purpose="TensorBoard logging")
            self._writer = module.SummaryWriter(log_dir=self.log_dir, **self._options)
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

    def _write_text(self, name: str, text: Text, step: int, axis: str) -> None:  # noqa: ARG002
        self.writer.add_text(name, text.text, step)

    def _write_image(self, name: str, image: Image, step: int, axis: str) -> None:  # noqa: ARG002
        if image.caption is not None:
            self._has_no("captions of images", name)
        self.writer.add_image(name, image.pixels, step, dataformats="HWC")

    def _write_figure(self, name: str, figure: Figure, step: int, axis: str) -> None:  # noqa: ARG002
        if figure.is_plotly:
            self._has_no("figures of plotly", name)
        else:
            self.writer.add_figure(name, figure.figure, step, close=False)

    def _write_histogram(self, name: str, histogram: Histogram, step: int, axis: str) -> None:  # noqa: ARG002
        edges, counts = histogram.edges, histogram.counts
        self.writer.add_histogram_raw(
            name,
            min=edges[0],
            max=edges[-1],
            num=sum(counts),
            sum=histogram.total,
            sum_squares=histogram.total_squares,
            bucket_limits=list(edges[1:]),
            bucket_counts=list(counts),
            global_step=step,
        )

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
