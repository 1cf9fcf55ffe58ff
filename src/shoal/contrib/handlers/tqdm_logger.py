"""The progress bar, under the path that programs written for Ignite use."""

from __future__ import annotations

from shoal.handlers.progress_bar import ProgressBar

__all__ = ["ProgressBar"]
