"""The learning-rate finder, under the path that programs written for Ignite use."""

from __future__ import annotations

from shoal.handlers import (
    FastaiLRFinder,
)

__all__ = [
    "FastaiLRFinder",
]
