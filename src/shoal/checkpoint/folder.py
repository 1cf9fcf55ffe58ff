"""What there is to resume from in a folder."""

from __future__ import annotations

import glob
import logging
import os
from pathlib import Path

from shoal.checkpoint import files
from shoal.checkpoint.naming import step_in_name
from shoal.errors import CheckpointError

__all__ = ["latest", "list_checkpoints"]

_log = logging.getLogger(__name__)

_NUM_LISTINGS = 10


def list_checkpoints(folder: str | os.PathLike[str], prefix: str = "training") -> list[Path]:
    """The checkpoints of one series in ``folder``, or else in the run folders directly below it, the newest first.

    Within a folder the order is that of the steps in the names, since clocks jump; between folders it is that of
    the time when each was last written to.

    Args:
        folder: a run folder, or a folder of run folders.
        prefix: the series' filename prefix.
    """
    root = Path(folder)
    pattern = f"{glob.escape(prefix)}_*.pt"
    found = list(root.glob(pattern)) or list(root.glob(f"*/{pattern}"))
    by_folder: dict[Path, list[Path]] = {}
    for path in found:
        by_folder.setdefault(path.parent, []).append(path)
    newest_folder_first = sorted(
        by_folder.values(), key=lambda paths: max(map(files.time_written, paths)), reverse=True
    )
    return [path for paths in newest_folder_first for path in sorted(paths, key=_order, reverse=True)]


def latest(folder: str | os.PathLike[str], prefix: str = "training") -> Path:
    """The newest checkpoint of a series that is whole; broken ones are named in a warning and passed over.

    A run may be saving meanwhile: where it has deleted a file before that was looked at, there is a newer one.

    Args:
        folder: as in :func:`list_checkpoints`.
        prefix: the series' filename prefix.

    Raises:
        CheckpointError: there is none.
    """
    broken: list[str] = []
    for _ in range(_NUM_LISTINGS):
        broken.clear()
        for path in list_checkpoints(folder, prefix):
            try:
                files.verify(path)
            except CheckpointError as error:
                if not path.exists():
                    break
                _log.warning("Passing over a broken checkpoint: %s", error)
                broken.append(path.name)
            else:
                return path
        else:
            break
    found = f"only broken ones ({', '.join(broken)})" if broken else "none"
    raise CheckpointError(
        f"asked for the latest checkpoint '{prefix}_*.pt' in '{folder}' or a folder in it, found {found}; "
        "name a file, or start anew"
    )


def _order(path: Path) -> tuple[int, int]:
    step = step_in_name(path.name)
    return (-1 if step is None else step, files.time_written(path))
