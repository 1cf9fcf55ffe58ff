"""How many steps an optimizer takes, seen from the outside."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from shoal.errors import UsageError
from shoal.training import left_out_by_scaler

__all__ = ["OptimizerSteps"]


class OptimizerSteps:
    """Counts the steps that an optimizer takes from now on, whoever calls it.

    A step that a gradient scaler leaves out isn't one (trap 32): the scaler doesn't call the optimizer, or, where the
    optimizer is fused, tells it to do nothing. Only in that last case a question waits for the device.

    Args:
        optimizer: a torch optimizer.

    Raises:
        UsageError: it isn't one.
    """

    def __init__(self, optimizer: Any) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise UsageError(
                f"asked to count the steps of a {type(optimizer).__qualname__}; give a torch optimizer, or let the "
                "schedule go by its event (per_optimizer_step=False)"
            )
        self._called = 0
        self._left_out: torch.Tensor | None = None
        # Weakly: the optimizer outlives the schedules that are tried with it, in a notebook say.
        handle = optimizer.register_step_post_hook(_Hook(weakref.ref(self)))
        weakref.finalize(self, handle.remove).atexit = False

    def count(self) -> int:
        """Steps since the last :meth:`reset`."""
        left_out = 0 if self._left_out is None else int(self._left_out.item())
        return self._called - left_out

    def reset(self) -> None:
        """Count from 0."""
        self._called, self._left_out = 0, None

    def took_step(self, optimizer: torch.optim.Optimizer) -> None:
        """``optimizer.step()`` has returned."""
        self._called += 1
        flag = left_out_by_scaler(optimizer)
        if flag is not None:
            self._left_out = flag if self._left_out is None else self._left_out + flag


class _Hook:
    def __init__(self, steps: weakref.ref[OptimizerSteps]) -> None:
        self._steps = steps

    def __call__(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        steps = self._steps()
        if steps is not None:
            steps.took_step(optimizer)
