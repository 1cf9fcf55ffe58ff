"""How a classifier did on the validation images, as ``predictions.json`` holds it: one file, images inside."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.runs.folder import PREDICTIONS_FILE
from shoal.runs.trust import UNREADABLE, count_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["ClassifiedImages", "WrongImage", "png_base64", "read_predictions", "write_predictions"]


@dataclass(frozen=True, kw_only=True)
class WrongImage:
    """An image that was taken for another class.

    Attributes:
        index: its place in the validation images.
        label, predicted: its class, and the one that it was taken for; indices into the classes' names.
        probability: the model's for ``predicted``.
        label_probability: the model's for ``label``.
        png: the image as a PNG file, in base64.
    """

    index: int
    label: int
    predicted: int
    probability: float | None
    label_probability: float | None
    png: str


@dataclass(frozen=True, kw_only=True)
class ClassifiedImages:
    """An evaluation over all validation images.

    Attributes:
        step: the optimisation step after which it was made.
        epoch: the epoch that it ended.
        score: the part of the images that was classified rightly.
        classes: the classes' names.
        confusion: ``confusion[label][predicted]`` images.
        most_wrong: the images with the highest loss among those that were taken for another class, the worst first.
    """

    step: int
    epoch: int
    score: float
    classes: tuple[str, ...]
    confusion: tuple[tuple[int, ...], ...]
    most_wrong: tuple[WrongImage, ...]


def write_predictions(folder: Path, predictions: ClassifiedImages) -> None:
    """Write ``predictions.json``, which appears whole."""
    from shoal.checkpoint import atomic_write_text

    text = json.dumps(_finite(asdict(predictions)), allow_nan=False)
    atomic_write_text(folder / PREDICTIONS_FILE, text + "\n")


def read_predictions(folder: Path) -> ClassifiedImages | None:
    """The content of ``predictions.json``; None where there is none, or it cannot be read."""
    try:
        content: dict[str, Any] = json.loads((folder / PREDICTIONS_FILE).read_text(encoding="utf-8"))
        classes = tuple(map(str, content["classes"]))
        confusion = tuple(tuple(map(count_of, row)) for row in content["confusion"])
        wrong = tuple(_wrong_image(image) for image in content["most_wrong"])
        _check(classes, confusion, wrong)
        return ClassifiedImages(
            step=count_of(content["step"]),
            epoch=count_of(content["epoch"]),
            score=float(content["score"]),
            classes=classes,
            confusion=confusion,
            most_wrong=wrong,
        )
    except UNREADABLE:
        return None


def png_base64(image: npt.NDArray[np.uint8]) -> str:
    """An image ``(height, width, 3)`` uint8 as a PNG file in base64."""
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(image).save(content, format="PNG")
    return base64.b64encode(content.getvalue()).decode("ascii")


def _wrong_image(content: dict[str, Any]) -> WrongImage:
    probabilities = (content[name] for name in ("probability", "label_probability"))
    probability, label_probability = (None if value is None else float(value) for value in probabilities)
    return WrongImage(
        index=count_of(content["index"]),
        label=count_of(content["label"]),
        predicted=count_of(content["predicted"]),
        probability=probability,
        label_probability=label_probability,
        png=str(content["png"]),
    )


def _check(classes: Sequence[str], confusion: Sequence[Sequence[int]], wrong: Sequence[WrongImage]) -> None:
    count = len(classes)
    if not count or len(confusion) != count or any(len(row) != count for row in confusion):
        raise ValueError("the matrix does not fit the classes")
    for image in wrong:
        if not (0 <= image.label < count and 0 <= image.predicted < count):
            raise ValueError("there is no such class")
        base64.b64decode(image.png, validate=True)


def _finite(value: Any) -> Any:
    """``value`` with None for numbers that JSON cannot write."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
