"""``--data cifar10``: the official files, downloaded by torchvision where they are not there yet."""

from __future__ import annotations

import contextlib
import fcntl
import socket
from collections.abc import Iterator
from pathlib import Path

from shoal.errors import DataError
from shoal.recipes.cifar10.sources.base import ImageData
from shoal.recipes.cifar10.sources.batches import LAYOUT

__all__ = ["load"]

_SILENCE_S = 30.0
"""A server that sends nothing for so long is taken as unreachable; torchvision itself waits for ever."""


def load(data_path: Path) -> ImageData:
    """CIFAR-10 from ``data_path``, downloaded into it first where it isn't there.

    Several processes may call this at the same time; one downloads and the others wait for it.

    Raises:
        DataError: the files are not there and cannot be downloaded.
    """
    with _one_at_a_time(data_path):
        if not LAYOUT.fits(data_path):
            _download(data_path)
    return LAYOUT.load(data_path)


def _download(data_path: Path) -> None:
    from torchvision.datasets import CIFAR10

    silence_s = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_SILENCE_S)
    try:
        CIFAR10(str(data_path), download=True)
    except (OSError, RuntimeError) as error:
        raise DataError(
            f"--data cifar10 is not in {data_path} and cannot be downloaded ({error}); where there is no network, "
            "copy the folder cifar-10-batches-py there, or give its path with --data PATH, or use --data digits"
        ) from error
    finally:
        socket.setdefaulttimeout(silence_s)


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".download.lock").open("w")
    except OSError as error:
        # A folder that is shared read-only has nothing to download to, and may well hold the files.
        if LAYOUT.fits(folder):
            yield
            return
        raise DataError(f"--data-path {folder} cannot be written: {error.strerror}; name another folder") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
