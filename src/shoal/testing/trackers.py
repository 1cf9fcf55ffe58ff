"""What every tracker must take, for tests of one's own."""

from __future__ import annotations

import importlib.util
import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shoal.trackers import Figure, Histogram, Image, Text, Tracker

__all__ = ["check_tracker"]

_LOSSES = {100: 0.5, 200: 0.25, 300: 0.125}
_SCORES = {1: 0.5, 2: 0.75}


def check_tracker(
    make: Callable[[], Tracker], *, read: Callable[[str], Sequence[tuple[int, float]]] | None = None
) -> None:
    """Give a tracker all that a training may give it, and look for it where it went.

    Configurations of odd types, numbers and what is none, NaN, an epoch's step after a larger iteration's, texts,
    images, figures (where matplotlib is installed), histograms, a file, a second ``close``. Call it on rank 0, or
    before any process group exists.

    Args:
        make: returns a new tracker; those of one call write to the same place.
        read: takes a name and returns what is recorded under it, as (step, value) pairs in any order; it is called
            after ``close``. None leaves that out.

    Raises:
        AssertionError: the tracker lacks a method, or what ``read`` returns is not what was recorded.
    """
    unused = make()
    assert isinstance(unused, Tracker), f"{type(unused).__name__} lacks a method of shoal.trackers.Tracker"
    unused.close()

    tracker = make()
    tracker.log_config(_config())
    for step, loss in _LOSSES.items():
        tracker.log_metrics({"loss": torch.tensor(loss), "note": "no number"}, step=step, prefix="check/train")
    for epoch, score in _SCORES.items():
        tracker.log_metrics({"score": score}, step=epoch, prefix="check/val", axis="epoch")
    tracker.log_metrics({"each": np.array([0.5, 1.0]), "by key": {"a": 1}}, step=3, prefix="check", axis="epoch")
    tracker.log_metrics({"nan": math.nan, "inf": math.inf, "-inf": -math.inf}, step=4, prefix="check/odd")
    tracker.log_metrics({"step": 1, "time": 2, "epoch": 3, "iteration": 4}, step=5)  # names that services want
    odd: dict[Any, Any] = {"a*b#c%d//e": 1.0, "../up": 2.0, "x" * 300: 3.0, "half \ud83d": 4.0, 7: 5.0, None: 10**400}
    tracker.log_metrics(odd, step=6, prefix="check")
    tracker.log_metrics({"": 1.0}, step=6)
    _log_media(tracker)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "check file.txt"
        file.write_text("stored")
        tracker.log_artifact(file)
        tracker.log_artifact(file, name="check/renamed.txt")
        tracker.log_artifact(file, name="../up.txt")
        tracker.log_artifact(file, name="ß" * 300)
    tracker.close()
    tracker.close()

    if read is not None:
        for name, recorded in (("check/train/loss", _LOSSES), ("check/val/score", _SCORES), ("check/each/1", {3: 1.0})):
            found = sorted((int(step), float(value)) for step, value in read(name))
            expected = sorted(recorded.items())
            assert found == expected, f"recorded as '{name}': {expected}, read back: {found}"


def _log_media(tracker: Tracker) -> None:
    media: dict[str, Any] = {
        "text": Text("a <b> & ü"),
        "image": Image(torch.rand(3, 8, 6), caption="three channels"),
        "grey": Image(torch.zeros(8, 6, dtype=torch.uint8)),
        "histogram": Histogram.of(torch.tensor([0.0, 1.0, 1.0, math.nan])),
        "constant": Histogram.of(torch.zeros(3)),
        "nothing": Histogram.of(torch.zeros(0)),
        "x" * 300: Text("x" * 300),
        "ß" * 300: Image(torch.zeros(2, 2)),
        "NUL \0": Image(torch.zeros(2, 2)),
        "half \ud83d": Text("half \ud83d"),
        "日本語 " * 60: Histogram.of(torch.zeros(3)),
    }
    if importlib.util.find_spec("matplotlib") is not None:
        from matplotlib.figure import Figure as Drawing

        drawing = Drawing(figsize=(2, 1))
        drawing.subplots().plot([0, 1])
        media["figure"] = Figure(drawing)
    tracker.log_media(media, step=7, prefix="check")
    tracker.log_media({"text": "the next"}, step=1, prefix="check", axis="epoch")


def _config() -> dict[str, Any]:
    return {
        "lr": 0.1,
        "none": None,
        "path": Path("a") / "b",
        "list": [1, [2, {"three": None}]],
        "nested": {"a": {"b": True}, 3: {"set"}},
        "nan": math.nan,
        "half \ud83d": "half \ud83d",
        "dtype": torch.bfloat16,
        "long": "x" * 7000,
        "odd * name #": 1,
        "tensor": torch.ones(2),
    }
