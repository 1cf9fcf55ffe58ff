"""A folder of images in class folders: ``train/CLASS/*.png`` and ``test/CLASS/*.png`` (or ``val``)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor

from shoal._registry import nearest
from shoal.errors import DataError
from shoal.recipes.cifar10.sources.base import ImageData, ImageSplit, decode

__all__ = ["LAYOUT"]

_TRAIN = "train"
_VAL = ("val", "valid", "validation", "test")
_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".ppm", ".pgm", ".tif", ".tiff"})


class ClassFoldersLayout:
    """Each class is a folder under the split's folder; its images are the files below it, at any depth."""

    looks_for = f"{_TRAIN}/CLASS/IMAGE and one of {', '.join(f'{name}/' for name in _VAL)} likewise (class folders)"

    def fits(self, folder: Path) -> bool:
        return _has_classes(folder / _TRAIN) and any(_has_classes(folder / name) for name in _VAL)

    def load(self, folder: Path) -> ImageData:
        classes = _class_names(folder / _TRAIN)
        val = next(folder / name for name in _VAL if _has_classes(folder / name))
        return ImageData(
            name=str(folder), train=_split(folder / _TRAIN, classes), val=_split(val, classes), classes=classes
        )


LAYOUT = ClassFoldersLayout()


def _has_classes(folder: Path) -> bool:
    return folder.is_dir() and any(_class_names(folder))


def _class_names(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")))


def _split(folder: Path, classes: tuple[str, ...]) -> ImageSplit:
    paths: list[Path] = []
    labels: list[int] = []
    for name in _class_names(folder):
        if name not in classes:
            raise DataError(
                f"{folder / name}: the class {name!r} has no folder in {_TRAIN}/{nearest(name, list(classes))}; "
                "every class needs images to train on"
            )
        found = sorted(path for path in (folder / name).rglob("*") if path.suffix.lower() in _SUFFIXES)
        paths += found
        labels += [classes.index(name)] * len(found)
    if not paths:
        raise DataError(f"{folder}: its class folders hold no image ({', '.join(sorted(_SUFFIXES))})")

    def read(index: int) -> Tensor:
        return decode(_content(paths[index]), str(paths[index]))

    return ImageSplit(np.asarray(labels, dtype=np.int64), read)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
