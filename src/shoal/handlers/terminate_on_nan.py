"""Stops a training whose numbers are none any more."""

from __future__ import annotations

import cmath
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from decimal import Decimal
from numbers import Complex, Rational
from typing import Any

import numpy as np
import torch

from shoal import runtime
from shoal.engine import Engine
from shoal.errors import UsageError

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

    Raises:
        UsageError: ``agree_every`` is no whole number of at least 1, or ``output_transform`` no function.
    """

    def __init__(
        self, output_transform: Callable[[Any], Any] = lambda output: output, *, agree_every: int = 20
    ) -> None:
        if not callable(output_transform):
            raise UsageError(f"TerminateOnNan was given output_transform={output_transform!r}; give a function")
        if isinstance(agree_every, bool) or not isinstance(agree_every, int) or agree_every < 1:
            raise UsageError(f"TerminateOnNan was given agree_every={agree_every!r}; give a whole number from 1")
        self.output_transform = output_transform
        self.agree_every = agree_every
        self.found = False
        self._where = ""
        self._has_stopped = False  # a run, of which the iteration that comes next is no part

    def __call__(self, engine: Engine) -> None:
        """Look at the output of the iteration that is complete."""
        iteration = engine.state.iteration
        if self._has_stopped and not engine.should_terminate:  # it goes on, or is done anew
            self.found, self._where, self._has_stopped = False, "", False
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
        if self.found and not self._has_stopped:
            self._has_stopped = True
            if self._where:
                engine.logger.warning("The output holds NaN or infinity (%s): the training stops", self._where)
            engine.terminate()
        return self.found

    def _is_alone(self) -> bool:
        return runtime.current().world_size == 1


def _is_finite(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return _is_finite_tensor(value)
    if isinstance(value, Rational | str | bytes):
        return True
    if isinstance(value, Decimal):
        return value.is_finite()
    if isinstance(value, Complex):  # numpy's too
        return cmath.isfinite(value)
    if isinstance(value, np.ndarray):
        return value.dtype.kind not in "fc" or bool(np.isfinite(value).all())
    if isinstance(value, Mapping):
        return all(_is_finite(item) for item in value.values())
    if isinstance(value, Sequence | AbstractSet):
        return all(_is_finite(item) for item in value)
    return True


def _is_finite_tensor(value: torch.Tensor) -> bool:
    if not (value.is_floating_point() or value.is_complex()):
        return True
    if value.layout is torch.sparse_coo:
        value = value.coalesce().values()
    elif value.layout is not torch.strided:
        value = value.values()
    if value.element_size() == 1:  # 8-bit floating point, which torch only converts
        value = value.float()
    return bool(torch.isfinite(value).all())
