"""Trackers: where the numbers of a training go. One file each; add one with a row in :data:`TRACKERS`."""

from __future__ import annotations

from shoal._registry import Entry, Registry
from shoal.trackers._plain import plain_config, scalars
from shoal.trackers.base import Tracker
from shoal.trackers.jsonl import JsonlTracker, read_jsonl
from shoal.trackers.media import Figure, Histogram, Image, Text

__all__ = [
    "TRACKERS",
    "Figure",
    "Histogram",
    "Image",
    "JsonlTracker",
    "Text",
    "Tracker",
    "plain_config",
    "read_jsonl",
    "scalars",
]

TRACKERS = Registry(
    "tracker",
    {
        "jsonl": Entry("shoal.trackers.jsonl:JsonlTracker"),
        "tensorboard": Entry("shoal.trackers.tensorboard:TensorBoardTracker", extra="tensorboard"),
        "clearml": Entry("shoal.trackers.clearml:ClearMLTracker", extra="clearml"),
        "mlflow": Entry("shoal.trackers.mlflow:MLflowTracker", extra="mlflow"),
        "wandb": Entry("shoal.trackers.wandb:WandbTracker", extra="wandb"),
        "trackio": Entry("shoal.trackers.trackio:TrackioTracker", extra="trackio"),
    },
)
