"""What every source gives: two splits of images that are decoded one at a time, when they are asked for."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.errors import DataError, UsageError

__all__ = [
    "IMAGE_SIZE",
    "ImageData",
    "ImageSplit",
    "array_split",
    "check_labels",
    "decode",
    "fingerprint",
    "subset",
]

IMAGE_SIZE = 32
"""Height and width of an image as the model sees it, in pixels."""


@dataclass(frozen=True)
class ImageSplit:
    """Labelled images of one kind: those to train on, or those to validate on.

    Attributes:
        labels: ``(N,)`` int64, from 0 to the number of classes less one.
        read: the image at a position of ``labels``: ``(3, 32, 32)`` uint8, RGB. Raises DataError, with the file and
            the row, for an image that cannot be decoded.
    """

    labels: npt.NDArray[np.int64]
    read: Callable[[int], Tensor]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class ImageData:
    """A data set.

    Attributes:
        name: what it is, in a word or a path; shown to the user.
        train: the images to train on.
        val: the images to validate on; no image is in both.
        classes: the classes' names; a label is an index into them.
        mirrored: whether an image that is flipped from left to right still shows its class (a ship does, a 3 doesn't).
    """

    name: str
    train: ImageSplit
    val: ImageSplit
    classes: tuple[str, ...]
    mirrored: bool = True


def fingerprint(images: ImageData) -> str:
    """The same for data of the same classes and labels in the same order, wherever they lie."""
    digest = hashlib.sha256("\n".join(images.classes).encode(errors="surrogateescape"))
    for split in (images.train, images.val):
        digest.update(np.ascontiguousarray(split.labels, dtype=np.int64).tobytes() + b";")
    return digest.hexdigest()


def array_split(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64]) -> ImageSplit:
    """A split over images that are already decoded: ``(N, 3, 32, 32)`` uint8."""
    tensor = torch.from_numpy(images)
    return ImageSplit(labels, tensor.__getitem__)


def decode(content: bytes, where: str) -> Tensor:
    """Decode one image of any format and size: ``(3, 32, 32)`` uint8, RGB.

    Args:
        content: the file's bytes (JPEG, PNG, or anything else that Pillow reads).
        where: the file and row, for the error.

    Raises:
        DataError: the bytes are no image, or only the beginning of one.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as opened:
            image = opened.convert("RGB")
    except Exception as error:  # Pillow's decoders raise whatever they like on broken input
        reason = f"{len(content):,} bytes: {_reason(error)}"
        raise DataError(f"{where}: the image cannot be decoded ({reason}); replace it or take it out") from error
    if image.size != (IMAGE_SIZE, IMAGE_SIZE):
        image = image.resize((IMAGE_SIZE, IMAGE_SIZE), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def _reason(error: Exception) -> str:
    # Pillow names the buffer by its address, which tells the user nothing.
    return "of no known format" if type(error).__name__ == "UnidentifiedImageError" else str(error)


def check_labels(
    labels: Sequence[Any] | npt.NDArray[Any], num_classes: int, where: Callable[[int], str]
) -> npt.NDArray[np.int64]:
    """``labels`` as int64, each from 0 to ``num_classes - 1``.

    Args:
        labels: one label an image, as the file holds them.
        num_classes: how many classes there are.
        where: the file and row of a position, for the error.

    Raises:
        DataError: the first label that is no integer or out of range.
    """
    try:
        array = np.asarray(labels)
        if array.dtype.kind not in "iu":
            raise TypeError
    except (TypeError, ValueError):
        array = np.asarray(
            [label if _is_integer(label) and 0 <= label < num_classes else -1 for label in labels], dtype=np.int64
        )
    wrong = np.flatnonzero((array < 0) | (array >= num_classes))
    if wrong.size:
        position = int(wrong[0])
        more = f" ({wrong.size} labels are wrong in all)" if wrong.size > 1 else ""
        found = labels[position]
        raise DataError(
            f"{where(position)}: the label is {found.item() if isinstance(found, np.generic) else found!r}; "
            f"it must be an integer from 0 to {num_classes - 1}{more}"
        )
    return array.astype(np.int64)


def _is_integer(label: object) -> bool:
    return isinstance(label, int | np.integer) and not isinstance(label, bool)


def subset(images: ImageData, num_images: int) -> ImageData:
    """The first ``num_images`` training images, taken in turn from all classes, and the same part of the others.

    Raises:
        UsageError: there are fewer training images than that.
    """
    if num_images > len(images.train):
        raise UsageError(
            f"--subset {num_images} asks for more than the {len(images.train):,} training images of {images.name}; "
            "lower it or leave it out"
        )
    num_val = max(1, round(num_images * len(images.val) / len(images.train)))
    return replace(images, train=_first(images.train, num_images), val=_first(images.val, num_val))


def _first(split: ImageSplit, num_images: int) -> ImageSplit:
    by_class = np.argsort(split.labels, kind="stable")
    sorted_labels = split.labels[by_class]
    rank_in_class = np.arange(len(split)) - np.searchsorted(sorted_labels, sorted_labels)
    in_turn = by_class[np.lexsort((sorted_labels, rank_in_class))]
    chosen = np.sort(in_turn[:num_images])
    return ImageSplit(split.labels[chosen], lambda index: split.read(int(chosen[index])))
