"""The share of the targets' variance that predictions explain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from shoal.errors import NotComputableError
from shoal.metrics._inputs import aligned, misfit, pair_of, widened
from shoal.metrics.base import Metric, State

__all__ = ["R2Score"]


class R2Score(Metric):
    """The coefficient of determination: 1 - sum of (y_pred - y)² / sum of (y - mean of y)².

    ``update`` takes ``(y_pred, y)`` of shape ``(N,)``; ``(N, 1)`` fits, too. The second sum is kept as deviations from
    the mean so far (Chan, Golub and LeVeque, 1983), in float64, so that targets far from zero lose nothing.

    Args:
        output_transform: see ``Metric``.
        device: see ``Metric``.
        skip_unrolling: see ``Metric``.

    The value is ``sklearn.metrics.r2_score``'s: where all targets are equal, 1.0 for perfect predictions and 0.0 for
    others (in Ignite: NaN or minus infinity); NaN for a single sample.
    """

    def reset(self) -> None:
        """Forget all samples."""
        self._moments: torch.Tensor | None = None

    @torch.no_grad()
    def update(self, output: Any) -> None:
        """Take one batch.

        Raises:
            UsageError: the output is no pair of tensors whose shapes fit.
        """
        y_pred, y = aligned("R2Score", *pair_of("R2Score", output))
        if y.numel() != len(y):
            raise misfit(y_pred, y, "R2Score takes (N,) twice")
        if not len(y):
            return
        target = widened(y).reshape(-1)
        error = (widened(y_pred).reshape(-1) - target).square().sum()
        mean = target[0] + (target - target[0]).mean()  # exact where all are equal
        batch = torch.stack([torch.full_like(mean, len(y)), mean, (target - mean).square().sum(), error])
        if self.device is not None:
            batch = batch.to(self.device)
        self._moments = batch if self._moments is None else _joined(self._moments.to(batch), batch)

    def state(self) -> State:
        """``moments``, float64: the number of targets, their mean, their squared deviations and the squared errors."""
        moments = torch.zeros(4) if self._moments is None else self._moments
        return {"moments": moments.cpu().double()}

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Be as if the samples of ``state``, and no others, had been seen."""
        moments = state["moments"]
        self._moments = moments.clone() if bool(moments[0]) else None

    def merge(self, states: Sequence[Mapping[str, torch.Tensor]]) -> State:
        """The moments of all ranks' samples together."""
        filled = [state["moments"] for state in states if bool(state["moments"][0])]
        total = filled[0] if filled else states[0]["moments"]
        for moments in filled[1:]:
            total = _joined(total, moments)
        return {"moments": total}

    def compute_from(self, state: Mapping[str, torch.Tensor]) -> float:
        """The score.

        Raises:
            NotComputableError: no rank has seen a sample.
        """
        count, _, deviations, error = state["moments"].tolist()
        if not count:
            raise NotComputableError("R2Score was computed before any rank had seen a sample; update it first")
        if count < 2:
            return float("nan")
        if not deviations:
            return 0.0 if error else 1.0
        return float(1.0 - error / deviations)


def _joined(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The moments of two sets of samples together."""
    count = one[0] + other[0]
    gap = other[1] - one[1]
    mean = one[1] + gap * (other[0] / count)
    deviations = one[2] + other[2] + gap.square() * (one[0] * other[0] / count)
    return torch.stack([count, mean, deviations, one[3] + other[3]])
