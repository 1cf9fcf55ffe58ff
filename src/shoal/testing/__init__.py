"""Helpers for tests of code that runs on several processes, Shoal's own and its users'."""

from __future__ import annotations

from shoal.testing.workers import run_workers

__all__ = ["run_workers"]
