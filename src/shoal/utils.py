"""Small helpers for a training script."""

from __future__ import annotations

from shoal.runtime import manual_seed
from shoal.runtime.logs import setup_logger
from shoal.training import convert_tensor

__all__ = ["convert_tensor", "manual_seed", "setup_logger"]
