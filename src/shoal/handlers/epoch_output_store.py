"""Keeps the outputs of an epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shoal.engine import Engine, Events
from shoal.errors import UsageError
from shoal.training import map_tensors

__all__ = ["EpochOutputStore"]

_OF_THE_RUN = frozenset(
    {"iteration", "epoch", "epoch_length", "max_epochs", "max_iters", "dataloader", "times", "epoch_base", "data_base"}
)


class EpochOutputStore:
    """Collects what an engine's iterations give, for plots or for looking at predictions; each epoch starts anew.

    All outputs of an epoch are in memory at once, on the device on which they are: 10,000 predictions of 1,000 classes
    are 40 MB. Let ``output_transform`` take what is needed, and move it to the CPU where the device's memory is short.
    Tensors are cut from their graphs. Each rank has the outputs of its own batches.

    An epoch that is taken up in its middle keeps the outputs that are there; those from before a restart of the
    program are not.

    Args:
        output_transform: takes ``engine.state.output`` and returns what is kept of it; all, by default.

    Attributes:
        data: the outputs of this epoch, one an iteration. Each epoch has a new list.

    Raises:
        UsageError: ``output_transform`` is no function.
    """

    def __init__(self, output_transform: Callable[[Any], Any] = lambda output: output) -> None:
        if not callable(output_transform):
            raise UsageError(f"asked for output_transform={output_transform!r}; give a function of the output")
        self.output_transform = output_transform
        self.data: list[Any] = []
        self.name: str | None = None

    def attach(self, engine: Engine, name: str | None = None) -> None:
        """Collect the outputs of ``engine``.

        Args:
            engine: usually an evaluator.
            name: the attribute of ``engine.state`` that has the list, from the epoch's start and, where the name is
                that of another thing such as ``"output"``, again from its end; None: it is in ``data`` alone.

        Raises:
            UsageError: the name is no text, or that of something by which the engine runs.
        """
        if name is not None and (not isinstance(name, str) or name in _OF_THE_RUN):
            raise UsageError(
                f"asked to keep outputs as engine.state.{name}; give a name that the engine doesn't run by"
            )
        self.name = name
        engine.add_event_handler(Events.EPOCH_STARTED, self._begin)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self.update)
        if name is not None:
            engine.add_event_handler(Events.EPOCH_COMPLETED, self.store)

    def reset(self) -> None:
        """Begin a new list."""
        self.data = []

    def update(self, engine: Engine) -> None:
        """Add the output of the iteration that is complete."""
        self.data.append(map_tensors(torch.Tensor.detach, self.output_transform(engine.state.output)))

    def store(self, engine: Engine) -> None:
        """Put the list into the engine's state, under the name that was given to ``attach``."""
        if self.name is not None:
            setattr(engine.state, self.name, self.data)

    def _begin(self, engine: Engine) -> None:
        if engine.state.epoch_iteration == 0:
            self.reset()
        self.store(engine)
