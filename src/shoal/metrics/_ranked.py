"""The base of metrics of scores that rank samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shoal.metrics._inputs import misfit, pair_of
from shoal.metrics.epoch_metric import EpochMetric

__all__ = ["RankedScores"]


class RankedScores(EpochMetric):
    """A function of all scores and their targets of 0 and 1.

    Attributes:
        compute_ranked: takes scores and targets, both of shape ``(N,)`` or ``(N, C)``.
        takes_labels: whether samples may have C labels.
    """

    compute_ranked: Callable[[torch.Tensor, torch.Tensor], Any]
    takes_labels: bool = True

    def __init__(
        self,
        output_transform: Callable[[Any], Any] | None = None,
        check_compute_fn: bool = False,
        device: torch.device | str | None = None,
        skip_unrolling: bool = False,
    ) -> None:
        super().__init__(type(self).compute_ranked, output_transform, check_compute_fn, device, skip_unrolling)

    def update(self, output: Any) -> None:
        """Keep one batch.

        Raises:
            UsageError: the output is no pair of tensors whose shapes fit, or of another kind than before.
        """
        owner = type(self).__name__
        scores, target = pair_of(owner, output)
        shapes = [part.shape[:1] if part.dim() == 2 and part.shape[1] == 1 else part.shape for part in (scores, target)]
        if shapes[0] != shapes[1] or len(shapes[0]) not in ((1, 2) if self.takes_labels else (1,)):
            takes = "(N,) or (N, C) twice" if self.takes_labels else "(N,) twice"
            raise misfit(
                scores,
                target,
                f"{owner} takes {takes}, of scores and of 0 and 1; of classes that exclude each other, pick the "
                "scores of one, or make the targets one-hot",
            )
        super().update((scores, target))
