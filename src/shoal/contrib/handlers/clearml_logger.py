"""ClearML handlers, under the path that programs written for Ignite use."""

from __future__ import annotations

from shoal.handlers.clearml_saver import ClearMLSaver

__all__ = ["ClearMLSaver"]
