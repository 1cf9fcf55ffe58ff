"""A folder of parquet files as the Hugging Face hub lays out image data sets."""

from __future__ import annotations

import bisect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal._optional import require
from shoal.errors import DataError
from shoal.recipes.cifar10.sources.base import ImageData, ImageSplit, check_labels, decode
from shoal.recipes.cifar10.sources.batches import CIFAR10_CLASSES

__all__ = ["LAYOUT"]

_TRAIN = ("train",)
_VAL = ("validation", "valid", "val", "test")
_IMAGE_COLUMNS = ("img", "image")
_LABEL_COLUMN = "label"


class ParquetLayout:
    """Columns ``img`` or ``image`` (a struct of ``bytes`` and ``path``) and ``label`` (an integer).

    A split's files have its name at the start of theirs (``train.parquet``, ``train-00000-of-00002.parquet``), in the
    folder itself or one below it. The classes' names are the hub's, where the file carries them; otherwise CIFAR-10's.
    """

    looks_for = "train*.parquet and one of " + ", ".join(f"{name}*.parquet" for name in _VAL)

    def fits(self, folder: Path) -> bool:
        return bool(_files(folder, _TRAIN))

    def load(self, folder: Path) -> ImageData:
        train_files, val_files = _files(folder, _TRAIN), _files(folder, _VAL)
        if not val_files:
            raise DataError(
                f"{folder} has {train_files[0].name} but no images to validate on; "
                f"add one of {', '.join(f'{name}.parquet' for name in _VAL)}"
            )
        classes = _class_names(train_files[0])
        train, val = _split(train_files, len(classes)), _split(val_files, len(classes))
        return ImageData(name=str(folder), train=train, val=val, classes=classes)


LAYOUT = ParquetLayout()


def _files(folder: Path, splits: tuple[str, ...]) -> list[Path]:
    """The parquet files of the first of ``splits`` that has any, in the order of their names."""
    found = sorted([*folder.glob("*.parquet"), *folder.glob("*/*.parquet")])
    for split in splits:
        files = [path for path in found if path.stem == split or path.stem.startswith((f"{split}-", f"{split}_"))]
        if files:
            return files
    return []


def _class_names(path: Path) -> tuple[str, ...]:
    metadata = _open(path).schema_arrow.metadata or {}
    try:
        return tuple(map(str, json.loads(metadata[b"huggingface"])["info"]["features"][_LABEL_COLUMN]["names"]))
    except (KeyError, TypeError, ValueError):
        return CIFAR10_CLASSES


def _open(path: Path) -> Any:
    parquet = require("pyarrow.parquet", extra="recipes", purpose="reading parquet files")
    try:
        return parquet.ParquetFile(path)
    except (OSError, ValueError) as error:  # pyarrow's ArrowInvalid is a ValueError
        raise DataError(f"{path} cannot be read as parquet ({error}); get the file again") from error


def _split(paths: Sequence[Path], num_classes: int) -> ImageSplit:
    columns, labels = zip(*(_read(path, num_classes) for path in paths), strict=True)
    starts = [0, *np.cumsum([len(column) for column in columns])[:-1].tolist()]

    def read(index: int) -> Any:
        part = bisect.bisect_right(starts, index) - 1
        row = index - starts[part]
        return decode(columns[part][row].as_py() or b"", f"{paths[part]}, row {row}")

    return ImageSplit(np.concatenate(labels), read)


def _read(path: Path, num_classes: int) -> tuple[Any, Any]:
    """The encoded images (an Arrow array of bytes, in memory) and the labels ``(N,)`` of one file."""
    file = _open(path)
    names = file.schema_arrow.names
    image_column = next((name for name in _IMAGE_COLUMNS if name in names), None)
    if image_column is None or _LABEL_COLUMN not in names:
        raise DataError(
            f"{path} has the columns {', '.join(names)}; it needs {' or '.join(_IMAGE_COLUMNS)} "
            f"(a struct of bytes and path) and {_LABEL_COLUMN}"
        )
    try:
        table = file.read(columns=[image_column, _LABEL_COLUMN]).combine_chunks()
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as parquet ({error}); get the file again") from error
    struct = table.column(image_column).type
    if not any(field.name == "bytes" for field in getattr(struct, "fields", [])):
        raise DataError(f"{path}: the column {image_column} is {struct}; it must be a struct of bytes and path")
    labels = table.column(_LABEL_COLUMN)
    label_values = labels.to_pylist() if labels.null_count else labels.to_numpy()
    encoded = _flat(table.column(image_column), path)
    return encoded, check_labels(label_values, num_classes, lambda row: f"{path}, row {row}")


def _flat(column: Any, path: Path) -> Any:
    """The ``bytes`` of a column of structs as one array."""
    import pyarrow as pa

    chunks = [chunk.field("bytes") for chunk in column.chunks]
    if not chunks:
        raise DataError(f"{path} has no rows")
    return pa.concat_arrays(chunks)
