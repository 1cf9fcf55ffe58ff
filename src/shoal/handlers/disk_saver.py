"""Checkpoints in a folder, as a save handler."""

from __future__ import annotations

import os
from typing import Any

from shoal import runtime
from shoal.checkpoint import FolderStore
from shoal.errors import UsageError

__all__ = ["DiskSaver"]


class DiskSaver(FolderStore):
    """Saves into a folder, each file whole or not at all.

    Args:
        dirname: the folder.
        atomic: see :class:`shoal.checkpoint.FolderStore`.
        create_dir: whether to make the folder, at the first save, where it is missing.
        require_empty: whether a folder that holds ``.pt`` files already is refused.
        save_on_rank: the rank that writes.

    Raises:
        UsageError: the folder cannot be used, or is not empty.
    """

    def __init__(
        self,
        dirname: str | os.PathLike[str],
        atomic: bool = True,
        create_dir: bool = True,
        require_empty: bool = True,
        save_on_rank: int = 0,
        **kwargs: Any,
    ) -> None:
        if kwargs:
            raise UsageError(
                f"DiskSaver was given {', '.join(kwargs)}, options of torch.save, which would have no effect: files "
                "are always written in torch's current format; leave them out"
            )
        super().__init__(dirname, save_on_rank=save_on_rank, create_dir=create_dir, atomic=atomic)
        if require_empty and runtime.current().rank == save_on_rank:
            found = sorted(path.name for path in self.dirname.glob("*.pt"))
            if found:
                raise UsageError(
                    f"asked to save in '{self.dirname}', which holds {len(found)} .pt files ({found[0]}, …); name an "
                    "empty folder, or allow it with require_empty=False"
                )
