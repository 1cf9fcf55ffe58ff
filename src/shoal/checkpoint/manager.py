"""A series of checkpoints: what they are called, which stay, and that the old goes only after the new is safe."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal import runtime
from shoal.checkpoint.naming import Naming
from shoal.checkpoint.retention import Retention
from shoal.checkpoint.store import FolderStore, Store
from shoal.errors import UsageError

__all__ = ["CheckpointManager"]

_log = logging.getLogger(__name__)


class CheckpointManager:
    """Saves one series of checkpoints: the newest ``n_saved``, or the best ``n_saved``.

    Call it on every rank, or only on the one that saves: nothing here communicates. The bookkeeping goes on
    everywhere, the state is collected and written on ``save_on_rank`` alone.

    Args:
        store: a folder, or any :class:`~shoal.checkpoint.Store`; a plain function that saves is enough where nothing
            is ever removed (``n_saved=None``) or removing is not wanted. What has no parameter ``metadata``, and can
            be called without, is.
        naming: how files are called.
        n_saved: how many stay; None keeps all.
        greater_or_equal: whether an equal score replaces the worst that is kept.
        save_on_rank: the rank that saves.

    Raises:
        UsageError: an argument cannot work, or ``store`` is a folder that another rank writes.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | Store | Callable[..., None],
        *,
        naming: Naming | None = None,
        n_saved: int | None = 1,
        greater_or_equal: bool = False,
        save_on_rank: int = 0,
    ) -> None:
        self.store: Any = (
            FolderStore(store, save_on_rank=save_on_rank) if isinstance(store, (str, os.PathLike)) else store
        )
        if isinstance(self.store, FolderStore) and self.store.save_on_rank != save_on_rank:
            raise UsageError(
                f"asked to save on rank {save_on_rank} in '{self.store.dirname}', which rank "
                f"{self.store.save_on_rank} writes: nothing would ever be saved; give both the same save_on_rank"
            )
        self._takes_metadata = _takes_metadata(self.store)
        self.naming = naming or Naming()
        self.retention = Retention(n_saved, greater_or_equal=greater_or_equal)
        self.save_on_rank = save_on_rank
        self.last_filename: str | None = None

    def save(
        self,
        collect: Callable[[dict[str, Any]], Any],
        *,
        step: int | None = None,
        score: float | None = None,
        filename_step: int | None = None,
        same_step: int | None = None,
        name: str | None = None,
        prepare: Callable[[], None] | None = None,
    ) -> str | None:
        """Save a checkpoint if it is good enough to stay, then delete those that have to go for it.

        Args:
            collect: returns the state to save; called on the saving rank alone, with the bookkeeping as it will be
                once this checkpoint is safe.
            step: where the training is; given to the store.
            score: higher is better; None saves always, and the oldest goes.
            filename_step: the step that the file's name shows; None leaves it out.
            same_step: two checkpoints of one such step, one name and one score are the same, and the newer takes the
                older's place; None: this one is like no other.
            name: what is saved, instead of the name in ``naming``.
            prepare: called before ``collect``, on every rank that saves or would, where the score is good enough.

        Returns:
            the file's name, or None where the score was not good enough.

        Raises:
            CheckpointError: it could not be saved. Nothing was deleted.
            UsageError: there is no such rank as ``save_on_rank``.
        """
        self._check_rank()
        naming = self.naming if name is None else replace(self.naming, name=name)
        in_place = not getattr(self.store, "atomic", True)
        wanted = naming.filename(step=filename_step, score=score)
        plan = self.retention.plan(wanted, score, same_step, in_place=in_place)
        if plan is None:
            return None
        filename = plan.filename
        if prepare is not None:
            prepare()
        if self.saves_here:
            metadata = {
                "basename": "_".join(part for part in (naming.prefix, naming.name) if part),
                "score_name": naming.score_name,
                "priority": step if score is None else score,
                "step": step,
            }
            self._store(collect({**self.retention.state_dict(plan), "last": filename}), filename, metadata)
        self.retention.commit(plan)
        self.last_filename = filename
        if self.saves_here:
            for old in plan.dropped:
                self._remove(old)
        return filename

    @property
    def saves_here(self) -> bool:
        """Whether this process is the one that saves."""
        return runtime.current().rank == self.save_on_rank

    @property
    def last_checkpoint(self) -> str | Path | None:
        """The last one saved: its path where it lies in a folder, else its name; None before the first."""
        return self._place_of(self.last_filename)

    @property
    def best_checkpoint(self) -> str | Path | None:
        """The one with the highest score, the newest without scores; else as ``last_checkpoint``."""
        return self._place_of(self.retention.saved[-1].filename if self.retention.saved else None)

    def state_dict(self) -> dict[str, Any]:
        """Which checkpoints are kept."""
        return {**self.retention.state_dict(), "last": self.last_filename}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the checkpoints that an earlier run has kept."""
        self.retention.load_state_dict(state)
        newest = self.retention.saved[-1].filename if self.retention.saved else None
        self.last_filename = state.get("last", newest)
        dirname = getattr(self.store, "dirname", None)
        if dirname is None or not self.saves_here:
            return
        gone = [item.filename for item in self.retention.saved if not (Path(dirname) / item.filename).exists()]
        if gone:
            _log.warning("Of the checkpoints that count as kept in '%s', %s are not there", dirname, ", ".join(gone))

    def _place_of(self, filename: str | None) -> str | Path | None:
        dirname = getattr(self.store, "dirname", None)
        return filename if filename is None or dirname is None else Path(dirname) / filename

    def _check_rank(self) -> None:
        world_size = runtime.current().world_size
        if self.save_on_rank >= world_size:
            raise UsageError(
                f"asked to save on rank {self.save_on_rank}, found {world_size} ranks, the last of them "
                f"{world_size - 1}: nothing would ever be saved; give a rank that there is"
            )

    def _store(self, checkpoint: Any, filename: str, metadata: dict[str, Any]) -> None:
        if self._takes_metadata:
            self.store(checkpoint, filename, metadata)
        else:
            self.store(checkpoint, filename)

    def _remove(self, filename: str) -> None:
        if not hasattr(self.store, "remove"):
            return
        try:
            self.store.remove(filename)
        except Exception as error:  # the new checkpoint is safe: a file too many must not end the training
            _log.warning("Could not delete the old checkpoint '%s': %s; delete it by hand", filename, error)


def _takes_metadata(store: Callable[..., Any]) -> bool:
    try:
        signature = inspect.signature(store)
    except (TypeError, ValueError):  # of what is not written in Python
        return isinstance(store, Store)
    if "metadata" in signature.parameters:
        return True
    for num_arguments in (2, 3):
        try:
            signature.bind(*range(num_arguments))
        except TypeError:
            continue
        return num_arguments == 3
    raise UsageError(
        f"asked to save by {store!r}, which takes {signature}; give what can be called with (checkpoint, filename) or "
        "(checkpoint, filename, metadata)"
    )
