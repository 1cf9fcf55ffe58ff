"""Profilers, under the path that programs written for Ignite use."""

from __future__ import annotations

from shoal.handlers import (
    BasicTimeProfiler,
    HandlersTimeProfiler,
)

__all__ = [
    "BasicTimeProfiler",
    "HandlersTimeProfiler",
]
