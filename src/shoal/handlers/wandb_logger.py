"""Weights & Biases, attached to engines."""

from __future__ import annotations

from typing import Any

from shoal._optional import require
from shoal.handlers._passing import PassingLogger
from shoal.handlers.global_step import global_step_from_engine
from shoal.handlers.tracker_logger import OptimizerParamsHandler, OutputHandler
from shoal.trackers import TRACKERS

__all__ = [
    "OptimizerParamsHandler",
    "OutputHandler",
    "WandBLogger",
    "global_step_from_engine",
]


class WandBLogger(PassingLogger):
    """Writes what engines know to a run of Weights & Biases; closed by ``close()`` or at the end of a ``with`` block.

    What the run and the module ``wandb`` have is the logger's too, on rank 0: ``logger.watch(model)``,
    ``logger.config``, ``logger.Image``. Unlike Ignite's, an epoch's record may follow a larger iteration's, and
    ``sync=`` is gone, as it is from wandb.

    Args:
        kwargs: for ``wandb.init``: project, name, id, resume, mode, …; or ``run``, one that there is; and ``on_error``.

    Raises:
        MissingExtraError: wandb is not installed.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(TRACKERS.load("wandb")(**kwargs))

    @property
    def run(self) -> Any:
        """The run, started at the first use; on rank 0."""
        return self.tracker.run  # type: ignore[attr-defined]  # this logger's tracker is a WandbTracker

    def _of_service(self, name: str) -> Any:
        wandb = require("wandb", extra="wandb", purpose="Weights & Biases logging")
        if hasattr(wandb.Run, name):
            return getattr(self.run, name)
        if not hasattr(wandb, name):
            raise self._refuse(name)
        _ = self.run
        return getattr(wandb, name)
