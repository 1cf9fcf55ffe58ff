"""Trackers: where the numbers of a training go. One file each; add one with a row in :data:`TRACKERS`."""

from __future__ import annotations

from shoal._registry import Entry, Registry
from shoal.trackers.base import Tracker, plain_config, scalars
from shoal.trackers.jsonl import JsonlTracker, read_jsonl

__all__ = ["TRACKERS", "JsonlTracker", "Tracker", "plain_config", "read_jsonl", "scalars"]

TRACKERS = Registry(
    "tracker",
    {
        "jsonl": Entry("shoal.trackers.jsonl:JsonlTracker"),
        "tensorboard": Entry("shoal.trackers.tensorboard:TensorBoardTracker", extra="tensorboard"),
        "clearml": Entry("shoal.trackers.clearml:ClearMLTracker", extra="clearml"),
    },
)
