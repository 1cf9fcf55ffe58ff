"""The share of samples that are predicted right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from shoal.errors import UsageError
from shoal.metrics._inputs import Kind, kind_of, no_class, not_binary, pair_of, predicted_classes
from shoal.metrics._ratio import Ratio

__all__ = ["Accuracy"]


class Accuracy(Ratio):
    """The share of samples that are predicted right, counted in whole numbers.

    ``update`` takes ``(y_pred, y)``, with ``...`` for any further dimensions (each of their places is a sample):

    ============  =========================================  ====================  =================================
    kind          ``y_pred``                                 ``y``                 right is
    ============  =========================================  ====================  =================================
    multiclass    ``(N, C, ...)`` scores                     ``(N, ...)`` classes  the highest score's class
    binary        ``(N, ...)`` or ``(N, 1, ...)`` of 0 or 1  ``(N, ...)``          equal
    multilabel    ``(N, C, ...)`` of 0 or 1                  ``(N, C, ...)``       equal in each of the C labels
    ============  =========================================  ====================  =================================

    Binary and multilabel predictions have to be thresholded (by ``output_transform``). Predictions and labels that are
    out of place (other than 0 and 1; no class among the C) are counted on the device and reported when the value is
    computed, so that no update has to wait. (Ignite counts such a label as a wrong prediction.)

    Scores with a NaN among them predict nothing right.

    Args:
        output_transform: see ``Metric``.
        is_multilabel: whether the labels of a sample do not exclude each other.
        device, skip_unrolling: see ``Metric``.
    """

    sums = ("sum", "count", "not_binary", "no_class")

    def __init__(
        self,
        output_transform: Callable[[Any], Any] | None = None,
        is_multilabel: bool = False,
        device: torch.device | str | None = None,
        skip_unrolling: bool = False,
    ) -> None:
        self._is_multilabel = is_multilabel
        super().__init__(output_transform, device, skip_unrolling)

    def reset(self) -> None:
        """Forget all samples, and of which kind they were."""
        super().reset()
        self._kind: tuple[Kind, int] | None = None

    @torch.no_grad()
    def update(self, output: Any) -> None:
        """Take one batch.

        Raises:
            UsageError: the output is no pair of tensors whose shapes fit, or is of another kind than before.
        """
        y_pred, y = pair_of("Accuracy", output)
        kind, num_classes = self._kind = kind_of("Accuracy", y_pred, y, self._is_multilabel, self._kind)
        if y.numel() == 0:
            return
        if kind == "multiclass":
            right = predicted_classes(y_pred, y) == y
        else:
            self.add(not_binary=not_binary(y_pred))
            right = y_pred.reshape(y.shape) == y if kind == "binary" else (y_pred == y).all(dim=1)
        if y.dtype != torch.bool:
            self.add(no_class=no_class(y, num_classes if kind == "multiclass" else 2).sum())
        self.add(sum=right.sum(), count=right.numel())

    def compute_from(self, state: Mapping[str, torch.Tensor]) -> float:
        """``sum / count``.

        Raises:
            NotComputableError: it holds no sample.
            UsageError: predictions that have to be 0 or 1 were not, or labels were no class.
        """
        if spoilt := int(state["not_binary"].sum()):
            raise UsageError(
                f"Accuracy was given {spoilt} binary or multilabel predictions that are neither 0 nor 1; threshold "
                "them by output_transform, or give scores of shape (N, C, ...) for classes of shape (N, ...)"
            )
        if spoilt := int(state["no_class"].sum()):
            raise UsageError(
                f"Accuracy was given {spoilt} labels that are no class: those beside scores of shape (N, C, ...) must "
                "be 0 to C - 1, those of binary and multilabel predictions 0 or 1; leave others out by output_transform"
            )
        return super().compute_from(state)
