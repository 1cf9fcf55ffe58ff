"""The mean distance between vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shoal.metrics._inputs import check_positive, misfit, pair_of, widened
from shoal.metrics._ratio import Ratio

__all__ = ["MeanPairwiseDistance"]


class MeanPairwiseDistance(Ratio):
    """The mean over samples of the p-norm of ``y_pred_i - y_i + eps``, as ``torch.nn.functional.pairwise_distance``.

    ``update`` takes ``(y_pred, y)`` of one shape ``(N, D)``. Computed and added up in float64.

    Args:
        p: the norm, above 0; 2 (default) is the Euclidean.
        eps: added to each difference; 1e-6 by default.
        output_transform: see ``Metric``.
        device: see ``Metric``.
        skip_unrolling: see ``Metric``.

    Raises:
        UsageError: ``p`` is not above 0.
    """

    def __init__(
        self,
        p: float = 2,
        eps: float = 1e-6,
        output_transform: Callable[[Any], Any] | None = None,
        device: torch.device | str | None = None,
        skip_unrolling: bool = False,
    ) -> None:
        check_positive("MeanPairwiseDistance", "p", p)
        self._p, self._eps = p, eps
        super().__init__(output_transform, device, skip_unrolling)

    @torch.no_grad()
    def update(self, output: Any) -> None:
        """Take one batch.

        Raises:
            UsageError: the output is no pair of tensors of one shape ``(N, D)``.
        """
        y_pred, y = pair_of("MeanPairwiseDistance", output)
        if y_pred.shape != y.shape or y.dim() != 2:
            raise misfit(y_pred, y, "MeanPairwiseDistance takes (N, D) twice")
        if len(y):
            distances = torch.nn.functional.pairwise_distance(widened(y_pred), widened(y), self._p, self._eps)
            self.add(sum=distances.sum(), count=len(y))
