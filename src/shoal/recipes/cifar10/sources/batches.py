"""A folder of the official ``cifar-10-batches-py``: pickled batches of decoded images."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.errors import DataError
from shoal.recipes.cifar10.sources.base import IMAGE_SIZE, ImageData, ImageSplit, array_split, check_labels

__all__ = ["CIFAR10_CLASSES", "LAYOUT"]

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

_FOLDER = "cifar-10-batches-py"
_TRAIN = [f"data_batch_{number}" for number in range(1, 6)]
_TEST = ["test_batch"]
_PIXELS = 3 * IMAGE_SIZE * IMAGE_SIZE


class _BatchUnpickler(pickle.Unpickler):
    """Reads what the official files hold and refuses everything else: a pickle can run any code."""

    # How Python 2 and 3 write an array; the official files are from Python 2.
    _NUMPY = frozenset({"_reconstruct", "_frombuffer", "ndarray", "dtype"})

    def find_class(self, module: str, name: str) -> Any:
        if (module.partition(".")[0] == "numpy" and name in self._NUMPY) or (module, name) == ("_codecs", "encode"):
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which an image file does not need")


class BatchesLayout:
    """The files that https://www.cs.toronto.edu/~kriz/cifar.html describes as "CIFAR-10 python version"."""

    looks_for = f"{', '.join(_TRAIN)} and {_TEST[0]} (the official {_FOLDER}, or a folder that holds it)"

    def fits(self, folder: Path) -> bool:
        return _batches_folder(folder) is not None

    def load(self, folder: Path) -> ImageData:
        batches = _batches_folder(folder)
        if batches is None:
            raise DataError(f"{folder}: no {_TEST[0]} found")
        train, test = _split(batches, _TRAIN), _split(batches, _TEST)
        return ImageData(name=str(folder), train=train, val=test, classes=CIFAR10_CLASSES)


LAYOUT = BatchesLayout()


def _batches_folder(folder: Path) -> Path | None:
    for candidate in (folder, folder / _FOLDER):
        if (candidate / _TEST[0]).is_file():
            return candidate
    return None


def _split(folder: Path, names: list[str]) -> ImageSplit:
    parts = [_read(folder / name) for name in names]
    images = np.concatenate([images for images, _ in parts])
    return array_split(images, np.concatenate([labels for _, labels in parts]))


def _read(path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The images ``(N, 3, 32, 32)`` uint8 and labels ``(N,)`` of one file."""
    try:
        with path.open("rb") as file:
            content = _BatchUnpickler(file, encoding="latin1").load()
        pixels, labels = content["data"], content["labels"]
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing; the official set has {', '.join(_TRAIN + _TEST)}") from error
    except Exception as error:  # a damaged pickle raises anything
        raise DataError(f"{path} cannot be read as a CIFAR-10 batch ({error!r}); get the file again") from error
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (_PIXELS,):
        raise DataError(
            f"{path}: 'data' is {getattr(pixels, 'dtype', type(pixels).__name__)} of shape "
            f"{getattr(pixels, 'shape', '?')}; a row must be {_PIXELS} bytes"
        )
    if not isinstance(labels, list | tuple | np.ndarray):
        raise DataError(f"{path}: 'labels' is a {type(labels).__name__}; it must be a list of integers")
    if len(labels) != len(pixels):
        raise DataError(f"{path}: {len(pixels)} images, but {len(labels)} labels; get the file again")
    images = pixels.reshape(-1, 3, IMAGE_SIZE, IMAGE_SIZE)
    return images, check_labels(labels, len(CIFAR10_CLASSES), lambda row: f"{path}, row {row}")
