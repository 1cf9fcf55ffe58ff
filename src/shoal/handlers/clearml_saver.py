"""Checkpoints that ClearML is told of."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal import runtime
from shoal._optional import require
from shoal.handlers.disk_saver import DiskSaver
from shoal.trackers.clearml import current_task, has_task

__all__ = ["ClearMLSaver"]


class ClearMLSaver(DiskSaver):
    """Saves into a folder and registers each file as an output model of the ClearML Task, which uploads it.

    The Task is needed on the rank that saves only. Where a checkpoint was deleted, its place in the Task is taken by
    the next one, so that a Task has as many models as there were ever checkpoints kept at once, plus one.

    Args:
        logger: has a ``task``, or its tracker has; None (default) takes the Task of ``Task.init()``, or of the
            :class:`ClearMLLogger` that was made before.
        output_uri: where ClearML uploads models to; by default where the Task says.
        dirname: the local folder; by default a temporary one, made at the first save.
        kwargs: as :class:`DiskSaver`; the folder may hold files.

    Raises:
        MissingExtraError: ClearML is not installed.
        UsageError: rank 0 has no Task.
    """

    def __init__(
        self,
        logger: Any = None,
        output_uri: str | None = None,
        dirname: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ) -> None:
        self._clearml = require("clearml", extra="clearml", purpose="ClearMLSaver")
        self._is_temporary = dirname is None
        super().__init__(dirname or tempfile.gettempdir(), require_empty=kwargs.pop("require_empty", False), **kwargs)
        self._models: dict[str, Any] = {}
        self._free: list[Any] = []
        self._logger = logger
        self._output_uri = output_uri
        self._task: Any = None
        if logger is None and runtime.current().rank == self.save_on_rank and not has_task():
            current_task()  # raises

    def __call__(self, checkpoint: Any, filename: str, metadata: Mapping[str, Any] | None = None) -> None:
        """Write the file, then register it."""
        if not self.writes_here:
            return
        if self._is_temporary:
            self.dirname = Path(tempfile.mkdtemp(prefix="shoal_checkpoints_"))
            self._is_temporary = False
        super().__call__(checkpoint, filename, metadata)
        task = self._found_task()
        metadata = metadata or {}
        model = self._models.get(filename) or (self._free.pop() if self._free else None)
        if model is None:
            number = len(self._models) + 1
            name = f"{task.name} {metadata.get('basename', 'checkpoint')} {number}"
            model = _output_model(self._clearml)(task=task, name=name, framework="PyTorch")
        self._models[filename] = model
        model.update_weights(
            weights_filename=str(self.dirname / filename),
            target_filename=filename,
            auto_delete_file=False,
            iteration=metadata.get("step"),
        )

    def get_local_copy(self, filename: str) -> str | None:
        """Path of a checkpoint on this machine: the saved file, or else one that ClearML downloads; None if unknown.

        Args:
            filename: the name that it was saved under.
        """
        file = self.dirname / filename
        if file.is_file():
            return str(file)
        model = self._models.get(filename)
        return None if model is None else self._clearml.InputModel(model.id).get_local_copy()

    def remove(self, filename: str) -> None:
        """Delete the local file and give its place in the Task to the next one."""
        super().remove(filename)
        if filename in self._models:
            self._free.append(self._models.pop(filename))

    def _found_task(self) -> Any:
        if self._task is None:
            self._task = _task_of(self._logger) if self._logger is not None else current_task()
            if self._output_uri is not None:
                self._task.output_uri = self._output_uri
        return self._task


def _task_of(logger: Any) -> Any:
    return getattr(logger, "task", None) or getattr(getattr(logger, "tracker", None), "task", None) or current_task()


def _output_model(clearml: Any) -> Any:
    """ClearML's OutputModel, which offline cannot tell whether it is published (seen in 2.1.12): there it never is."""

    class OutputModel(clearml.OutputModel):
        @property
        def published(self) -> bool:
            return False if clearml.Task.is_offline() else bool(super().published)

    return OutputModel
