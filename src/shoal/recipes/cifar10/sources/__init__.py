"""Where the images come from: one file a source, behind two tables.

A *named source* needs no folder of the user's (``--data digits``). A *layout* is a way in which a folder may hold
images (``--data PATH``); the first that recognises the folder reads it. A new one is one file and one row here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from shoal._registry import Entry, Registry, nearest
from shoal.errors import DataError, UsageError
from shoal.recipes.cifar10.sources.base import ImageData, ImageSplit, fingerprint, subset

__all__ = ["LAYOUTS", "NAMED_SOURCES", "ImageData", "ImageSplit", "Layout", "fingerprint", "open_data"]


class Layout(Protocol):
    """How a folder may hold images.

    Attributes:
        looks_for: what must be in the folder, for the error when no layout fits.
    """

    looks_for: str

    def fits(self, folder: Path) -> bool:
        """Whether ``folder`` is laid out like this, judged by names alone."""
        ...

    def load(self, folder: Path) -> ImageData:
        """Open the images; DataError when they cannot be used."""
        ...


NAMED_SOURCES = Registry(
    "data source",
    {
        "digits": Entry("shoal.recipes.cifar10.sources.digits:load", extra="recipes"),
        "cifar10": Entry("shoal.recipes.cifar10.sources.download:load", extra="recipes"),
    },
)

LAYOUTS = Registry(
    "data layout",
    {
        "batches": Entry("shoal.recipes.cifar10.sources.batches:LAYOUT", extra="recipes"),
        "parquet": Entry("shoal.recipes.cifar10.sources.parquet:LAYOUT", extra="recipes"),
        "class_folders": Entry("shoal.recipes.cifar10.sources.class_folders:LAYOUT", extra="recipes"),
    },
)


def open_data(data: str, *, data_path: str, num_images: int | None = None) -> ImageData:
    """Open what ``--data`` names. Downloads only for ``cifar10``, and only what is not there.

    Args:
        data: a named source or the path of a folder.
        data_path: the folder that a download goes to.
        num_images: keep so many training images and the same part of the validation images; all when None.

    Raises:
        UsageError: no such source or folder, or more images asked for than there are.
        DataError: the folder has none of the layouts, or its content cannot be used.
    """
    if not data.strip():
        raise UsageError("--data is empty; give a named source or a folder ('.' for this one)")
    images = _open(data, Path(data_path).expanduser())
    for split, dataset in (("training", images.train), ("validation", images.val)):
        if len(dataset) == 0:
            raise DataError(f"--data {data}: there is not one {split} image in it ({images.name}); give data with some")
    if len(images.classes) < 2:
        raise DataError(
            f"--data {data}: its images are all of one class ({images.name}), which leaves nothing to tell apart; "
            "give images of two classes or more"
        )
    return images if num_images is None else subset(images, num_images)


def _open(data: str, data_path: Path) -> ImageData:
    if data in NAMED_SOURCES:
        load: Callable[[Path], ImageData] = NAMED_SOURCES.load(data)
        return load(data_path)
    folder = Path(data).expanduser()
    if not folder.is_dir():
        found = "is a file" if folder.exists() else "does not exist"
        raise UsageError(
            f"--data {data!r} is no named source{nearest(data, NAMED_SOURCES)}, and as a folder it {found}; "
            f"give one of {', '.join(sorted(NAMED_SOURCES))}, or the path of a folder"
        )
    layouts: list[Layout] = [LAYOUTS.load(name) for name in LAYOUTS]
    for layout in layouts:
        if layout.fits(folder):
            return layout.load(folder)
    looked_for = "".join(f"\n  - {layout.looks_for}" for layout in layouts)
    raise DataError(
        f"--data {data}: no images found; a folder must hold one of these:{looked_for}\nIt holds: {_listing(folder)}"
    )


def _listing(folder: Path, limit: int = 8) -> str:
    names = sorted(entry.name + ("/" if entry.is_dir() else "") for entry in folder.iterdir())
    more = f", and {len(names) - limit} more" if len(names) > limit else ""
    return (", ".join(names[:limit]) or "nothing") + more
