"""Stops a training whose numbers are none any more."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from shoal import runtime
from shoal.engine import Engine

__all__ = ["TerminateOnNan"]


class TerminateOnNan:
    """Terminates the engine when its output holds NaN or infinity. Attach to ``Events.ITERATION_COMPLETED``.

    One process stops at the iteration itself. With several, one rank alone must not leave: the others would wait for
    it in their next collective. So the ranks agree, by one all-reduce of a number, at every ``agree_every``-th
    iteration and at the last one of an epoch, and stop together there. Attach it on all ranks then; each must run the
    same number of iterations, as Shoal's loaders see to.

    Args:
        output_transform: takes ``engine.state.output`` and returns what to look at: a number, a tensor, or mappings
            and sequences of them. By default all of it.
        agree_every: iterations between two agreements of the ranks.

    Attributes:
        found: whether NaN or infinity was seen, on any rank as far as agreed.
    """

    def __init__(
        self, output_transform: Callable[[Any], Any] = lambda output: output, *, agree_every: int = 20
    ) -> None:
        self.output_transform = output_transform
        self.agree_every = agree_every
        self.found = False
        self._where = ""
        self._stopped_at: int | None = None

    def __call__(self, engine: Engine) -> None:
        """Look at the output of the iteration that is complete."""
        iteration = engine.state.iteration
        if self._stopped_at is not None and iteration != self._stopped_at:  # a run that goes on after it was stopped
            self.found, self._where, self._stopped_at = False, "", None
        if not self.found and not _is_finite(self.output_transform(engine.state.output)):
            self.found = True
            self._where = f"rank {runtime.current().rank}, iteration {iteration}"
        ends_epoch = engine.state.epoch_iteration == engine.state.epoch_length
        if iteration % self.agree_every == 0 or ends_epoch or self._is_alone():
            self.agree(engine)

    def agree(self, engine: Engine) -> bool:
        """Terminate ``engine`` if any rank has found something. All ranks call it at the same iteration.

        Returns:
            whether one has.
        """
        if not self._is_alone():
            self.found = runtime.all_reduce(int(self.found), "MAX") > 0
        if self.found and self._stopped_at is None:
            self._stopped_at = engine.state.iteration
            if self._where:
                engine.logger.warning("The output holds NaN or infinity (%s): the training stops", self._where)
            engine.terminate()
        return self.found

    def _is_alone(self) -> bool:
        return runtime.current().world_size == 1


def _is_finite(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return bool(torch.isfinite(value).all())
    if isinstance(value, (bool, int, float, complex)):
        return math.isfinite(abs(value))
    if isinstance(value, Mapping):
        return all(_is_finite(item) for item in value.values())
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return all(_is_finite(item) for item in value)
    return True
