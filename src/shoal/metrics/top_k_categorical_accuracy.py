"""The share of samples whose class is among the k that score highest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from shoal.errors import UsageError
from shoal.metrics._inputs import misfit, no_class, pair_of
from shoal.metrics._ratio import Ratio

__all__ = ["TopKCategoricalAccuracy"]


class TopKCategoricalAccuracy(Ratio):
    """The share of samples whose class is among the ``k`` that score highest, counted in whole numbers.

    ``update`` takes ``y_pred`` of shape ``(N, C, ...)``, scores, and ``y`` of shape ``(N, ...)``, classes; each of the
    further places is a sample. Of equal scores the class with the lower number counts as the higher, as in ``argmax``,
    so that ``k=1`` is ``Accuracy`` and a model that scores all alike gains nothing. (In Ignite, as in ``torch.topk``,
    it is any of them.) Scores with a NaN among them are never right; targets that are none of the classes are counted
    on the device and reported when the value is computed.

    Args:
        k: how many classes, 5 by default.
        output_transform: see ``Metric``.
        device: see ``Metric``.
        skip_unrolling: see ``Metric``.

    Raises:
        UsageError: ``k`` is no whole number above 0.
    """

    sums = ("sum", "count", "no_class")

    def __init__(
        self,
        k: int = 5,
        output_transform: Callable[[Any], Any] | None = None,
        device: torch.device | str | None = None,
        skip_unrolling: bool = False,
    ) -> None:
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise UsageError(f"TopKCategoricalAccuracy was given k={k!r}; give a whole number of 1 or more")
        self._k = k
        super().__init__(output_transform, device, skip_unrolling)

    @torch.no_grad()
    def update(self, output: Any) -> None:
        """Take one batch.

        Raises:
            UsageError: the output is no pair of tensors whose shapes fit, or there are fewer than ``k`` classes.
        """
        scores, y = pair_of("TopKCategoricalAccuracy", output)
        if scores.dim() != y.dim() + 1 or y.dim() == 0 or scores.shape[:1] + scores.shape[2:] != y.shape:
            raise misfit(scores, y, "TopKCategoricalAccuracy takes (N, C, ...) and (N, ...)")
        num_classes = scores.shape[1]
        if num_classes < self._k:
            raise UsageError(
                f"TopKCategoricalAccuracy was given scores of shape {tuple(scores.shape)}, which has {num_classes} "
                f"classes, and k={self._k}; every class would be right, so give a k of {num_classes} at most"
            )
        if y.numel() == 0:
            return
        unknown = no_class(y, num_classes)
        target = torch.where(unknown, 0, y).long().unsqueeze(1)
        own = scores.gather(1, target)
        earlier = torch.arange(num_classes, device=scores.device).view(1, -1, *[1] * (y.dim() - 1)) < target
        ahead = ((scores > own) | ((scores == own) & earlier)).sum(dim=1)
        right = ahead < self._k
        if scores.is_floating_point():
            right &= ~scores.isnan().any(dim=1)
        self.add(sum=right.sum(), count=right.numel(), no_class=unknown.sum())

    def compute_from(self, state: Mapping[str, torch.Tensor]) -> float:
        """``sum / count``.

        Raises:
            NotComputableError: it holds no sample.
            UsageError: labels were no class.
        """
        if spoilt := int(state["no_class"].sum()):
            raise UsageError(
                f"TopKCategoricalAccuracy was given {spoilt} labels that are no class: beside scores of shape "
                "(N, C, ...) they must be 0 to C - 1; leave others out by output_transform"
            )
        return super().compute_from(state)
