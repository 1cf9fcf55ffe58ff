"""Gradients kept within bounds before the optimizer steps, and their norm."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real

import torch
from torch.nn.utils import clip_grad_value_, clip_grads_with_norm_, get_total_norm

from shoal.errors import UsageError

__all__ = ["GradientLimits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientLimits:
    """What is done to the whole gradient of an optimizer step: measured always, clipped where a bound is given.

    Attributes:
        max_norm: the gradients of all parameters together are scaled down to this Euclidean norm where theirs is
            greater; None: they aren't.
        max_value: each gradient's elements are clamped to [-max_value, max_value]; None: they aren't.

    Raises:
        UsageError: a bound is no number above 0, or both are given.
    """

    max_norm: float | None = None
    max_value: float | None = None

    def __post_init__(self) -> None:
        for name, bound in (("max_grad_norm", self.max_norm), ("max_grad_value", self.max_value)):
            if bound is not None and not (isinstance(bound, Real) and not isinstance(bound, bool) and bound > 0):
                raise UsageError(f"{name}={bound!r} was given; give a number above 0, or None to leave gradients alone")
        if self.max_norm is not None and self.max_value is not None:
            raise UsageError(
                f"max_grad_norm={self.max_norm!r} and max_grad_value={self.max_value!r} were given, which exclude each "
                "other; give one"
            )

    def apply(self, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        """Clip the gradients of the optimizer's parameters in place, without waiting for the device.

        Returns:
            Their Euclidean norm before that, a tensor without dimensions; 0 where no parameter has a gradient.
        """
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        norm = get_total_norm(p.grad for p in parameters)
        if self.max_norm is not None:
            clip_grads_with_norm_(parameters, self.max_norm, norm)
        if self.max_value is not None:
            clip_grad_value_(parameters, self.max_value)
        return norm
