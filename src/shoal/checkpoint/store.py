"""Where checkpoints go: a folder here; anything else that can be called and can remove."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from shoal import runtime
from shoal.checkpoint import files
from shoal.errors import CheckpointError, UsageError

__all__ = ["FolderStore", "Store"]


@runtime_checkable
class Store(Protocol):
    """Somewhere that checkpoints are kept under a name."""

    def __call__(self, checkpoint: Any, filename: str, metadata: Mapping[str, Any] | None = None) -> None:
        """Keep ``checkpoint`` under ``filename``; when this returns it is safe.

        Args:
            checkpoint: plain state.
            filename: a name without folders.
            metadata: basename, score_name and priority (the score, or the step) of the checkpoint.
        """
        ...

    def remove(self, filename: str) -> None:
        """Delete what is kept under ``filename``; nothing happens if there is no such thing."""
        ...


class FolderStore:
    """A folder of files, each whole or not there at all. It is made at the first save, by the rank that saves.

    Args:
        dirname: the folder.
        save_on_rank: the rank that writes and deletes; on all others every call does nothing.
        create_dir: whether to make the folder where it is missing.
        atomic: False writes straight to the file's own name, for file systems that cannot rename; a run that is
            killed then leaves a broken file. No checkpoint that is kept is written over: a fixed name alternates
            with one that has ``-2`` before the ending.

    Raises:
        UsageError: there is a file where the folder should be, or no folder and ``create_dir=False``.
    """

    def __init__(
        self,
        dirname: str | os.PathLike[str],
        *,
        save_on_rank: int = 0,
        create_dir: bool = True,
        atomic: bool = True,
    ) -> None:
        self.dirname = Path(dirname)
        self.save_on_rank = save_on_rank
        self.atomic = atomic
        self._is_prepared = False
        if self.dirname.exists() and not self.dirname.is_dir():
            raise UsageError(f"asked to save checkpoints in '{self.dirname}', which is a file; name a folder")
        if not create_dir and not self.dirname.is_dir():
            raise UsageError(
                f"asked to save checkpoints in '{self.dirname}', which does not exist, with create_dir=False; "
                "make it, or leave create_dir out"
            )

    def __call__(self, checkpoint: Any, filename: str, metadata: Mapping[str, Any] | None = None) -> None:  # noqa: ARG002
        """Write ``checkpoint`` to the file; see :func:`shoal.checkpoint.save`.

        Raises:
            CheckpointError: it could not be written.
            UsageError: there is no such rank as ``save_on_rank``.
        """
        world_size = runtime.current().world_size
        if self.save_on_rank >= world_size:
            raise UsageError(
                f"asked to save in '{self.dirname}' on rank {self.save_on_rank}, found {world_size} ranks, from 0: "
                "nothing would ever be saved; give a rank that there is"
            )
        if not self.writes_here:
            return
        self._prepare()
        if self.atomic:
            files.save(checkpoint, self.dirname / filename)
        else:
            files.save_in_place(checkpoint, self.dirname / filename)

    def remove(self, filename: str) -> None:
        """Delete the file, if it is there."""
        if self.writes_here:
            (self.dirname / filename).unlink(missing_ok=True)

    @property
    def writes_here(self) -> bool:
        """Whether this process is the one that writes."""
        return runtime.current().rank == self.save_on_rank

    def _prepare(self) -> None:
        """Once: make the folder, and clear away what a killed run has left half-written in it."""
        if self._is_prepared:
            return
        try:
            self.dirname.mkdir(parents=True, exist_ok=True)
            files.remove_leftovers(self.dirname)
        except OSError as error:
            raise CheckpointError(
                f"asked to save checkpoints in '{self.dirname}', found: {error.strerror or error}; "
                "name a folder that can be written"
            ) from error
        self._is_prepared = True
