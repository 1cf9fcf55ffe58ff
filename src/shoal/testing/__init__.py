"""Helpers for tests of code that runs on several processes, Shoal's own and its users'."""

from __future__ import annotations

from shoal.testing.metrics import check_metric
from shoal.testing.trackers import check_tracker
from shoal.testing.workers import run_workers

__all__ = ["check_metric", "check_tracker", "run_workers"]
