"""Checkpoints in a folder, of objects that are named when the handler is attached."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from shoal.engine import Engine
from shoal.engine.events import EventKey
from shoal.errors import UsageError
from shoal.handlers.checkpoint import Checkpoint
from shoal.handlers.disk_saver import DiskSaver

__all__ = ["ModelCheckpoint"]


class ModelCheckpoint(Checkpoint):
    """A :class:`Checkpoint` in a folder that is told what to save at each call::

        handler = ModelCheckpoint("models", "run1", n_saved=2)
        trainer.add_event_handler(Events.EPOCH_COMPLETED, handler, {"model": model})

    All else is as there. An engine among the objects is kept alive by the engine that the handler is attached to, as
    these arguments are: to save the trainer itself, use ``Checkpoint``, which holds it weakly.

    Args:
        dirname: the folder.
        filename_prefix: put before the name.
        score_function: as in ``Checkpoint``.
        score_name: as in ``Checkpoint``.
        n_saved: how many stay; None keeps all.
        atomic: False writes straight to the file's own name, for file systems that cannot rename.
        require_empty: whether a folder that holds ``.pt`` files already is refused; give False to go on with a run.
        create_dir: whether to make the folder, at the first save, where it is missing.
        global_step_transform: as in ``Checkpoint``.
        filename_pattern: as in ``Checkpoint``.
        include_self: as in ``Checkpoint``.
        greater_or_equal: as in ``Checkpoint``.
        save_on_rank: the rank that saves.
        kwargs: options of ``torch.save`` are refused, since they would have no effect.

    Raises:
        UsageError: the folder cannot be used or is not empty, or an argument cannot work.
    """

    def __init__(
        self,
        dirname: str | os.PathLike[str],
        filename_prefix: str = "",
        score_function: Callable[[Engine], float] | None = None,
        score_name: str | None = None,
        n_saved: int | None = 1,
        atomic: bool = True,
        require_empty: bool = True,
        create_dir: bool = True,
        global_step_transform: Callable[[Engine, EventKey], int] | None = None,
        filename_pattern: str | None = None,
        include_self: bool = False,
        greater_or_equal: bool = False,
        save_on_rank: int = 0,
        **kwargs: Any,
    ) -> None:
        saver = DiskSaver(
            dirname,
            atomic=atomic,
            create_dir=create_dir,
            require_empty=require_empty,
            save_on_rank=save_on_rank,
            **kwargs,
        )
        super().__init__(
            {},
            saver,
            filename_prefix=filename_prefix,
            score_function=score_function,
            score_name=score_name,
            n_saved=n_saved,
            global_step_transform=global_step_transform,
            filename_pattern=filename_pattern,
            include_self=include_self,
            greater_or_equal=greater_or_equal,
            save_on_rank=save_on_rank,
        )

    def __call__(self, engine: Engine, *to_save: Any) -> None:
        """Save the objects, if the score is good enough to stay.

        Args:
            engine: where the step and the score come from.
            to_save: objects by name; before it, at EXCEPTION_RAISED, the exception, which is not looked at.

        Raises:
            CheckpointError: it could not be saved; what was saved before is still there.
            UsageError: ``to_save`` is missing or of another kind; or as in ``Checkpoint``.
        """
        objects = to_save[-1] if to_save else None
        if not isinstance(objects, Mapping) or not objects:
            raise UsageError(
                "ModelCheckpoint was called without what to save; attach it with the objects by name, as in "
                "add_event_handler(event, handler, {'model': model}), or use Checkpoint"
            )
        self._held = self._hold_all(objects)
        super().__call__(engine)

    def _hold_all(self, to_save: Mapping[str, Any]) -> dict[str, Any]:
        return super()._hold_all(to_save) if to_save else {}  # none are known when the handler is made
