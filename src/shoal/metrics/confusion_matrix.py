"""How often each class is taken for each other one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch

from shoal.errors import UsageError
from shoal.metrics._inputs import count_by_class, misfit, no_class, pair_of, predicted_classes
from shoal.metrics._sums import Sums

__all__ = ["ConfusionMatrix"]

_AVERAGES = (None, "samples", "recall", "precision")


class ConfusionMatrix(Sums):
    """How often class i (row) was taken for class j (column), counted in whole numbers.

    ``update`` takes ``y_pred`` of shape ``(N, C, ...)``, scores, and ``y`` of shape ``(N, ...)``, classes; each of the
    further places is counted. Targets outside ``0 … C - 1`` (the 255 or -100 of what is not labelled) are left out.
    Scores with a NaN among them count as a wrong prediction, as in every metric of classes here.

    For predictions of 0 and 1, give two columns: ``lambda out: (one_hot(out[0], 2), out[1])``.

    Args:
        num_classes: C, at least 2.
        average: None (default): the counts, int64. ``"samples"``: divided by the number of samples N, which for images
            is the number of images. ``"recall"``: each row divided by its sum, so that the diagonal holds the classes'
            recall. ``"precision"``: each column divided by its sum. Rows and columns without a count stay zero; these
            three are float64.
        output_transform: see ``Metric``.
        device: see ``Metric``.
        skip_unrolling: see ``Metric``.

    Raises:
        UsageError: fewer than two classes, or there is no such average.

    The value is a tensor of shape ``(C, C)``. ``IoU``, ``mIoU``, ``DiceCoefficient``, ``JaccardIndex``,
    ``cmAccuracy``, ``cmPrecision`` and ``cmRecall`` are made from it, without being counted again. Its arguments and
    meaning are those of Ignite's; there the averages are float32, and so are the counts from then on.
    """

    sums = ("matrix", "num_samples")

    def __init__(
        self,
        num_classes: int,
        average: Literal["samples", "recall", "precision"] | None = None,
        output_transform: Callable[[Any], Any] | None = None,
        device: torch.device | str | None = None,
        skip_unrolling: bool = False,
    ) -> None:
        if isinstance(num_classes, bool) or not isinstance(num_classes, int) or num_classes < 2:
            raise UsageError(f"ConfusionMatrix was given num_classes={num_classes!r}; give a whole number of 2 or more")
        if average not in _AVERAGES:
            raise UsageError(
                f"ConfusionMatrix was given average={average!r}; choose one of None, 'samples', 'recall', 'precision'"
            )
        self.num_classes = num_classes
        self.average = average
        super().__init__(output_transform, device, skip_unrolling=skip_unrolling)

    @torch.no_grad()
    def update(self, output: Any) -> None:
        """Take one batch.

        Raises:
            UsageError: the output is no pair of tensors whose shapes fit each other and ``num_classes``.
        """
        y_pred, y = pair_of("ConfusionMatrix", output)
        size = self.num_classes
        fits = y_pred.dim() == y.dim() + 1 and y.dim() > 0 and y_pred.shape[:1] + y_pred.shape[2:] == y.shape
        if not fits or y_pred.shape[1] != size:
            raise misfit(y_pred, y, f"this ConfusionMatrix takes (N, {size}, ...) and (N, ...)")
        if y.numel() == 0:
            return
        target = y.long()
        place = target * size + predicted_classes(y_pred, target)
        counts = count_by_class(torch.where(no_class(y, size), size * size, place), size * size + 1)
        self.add(matrix=counts[:-1].reshape(size, size), num_samples=len(y))

    def compute_from(self, state: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The matrix, averaged as ``average`` says.

        Raises:
            NotComputableError: no rank has seen a sample.
        """
        num_samples = self.count_of(state, "num_samples")
        if self.average is None:
            return state["matrix"].clone()
        if self.average == "samples":
            return state["matrix"].double() / num_samples
        return self.normalize(state["matrix"], self.average)

    @staticmethod
    def normalize(matrix: torch.Tensor, average: Literal["recall", "precision"]) -> torch.Tensor:
        """``matrix`` with each row (``"recall"``) or column (``"precision"``) divided by its sum, in float64.

        Raises:
            UsageError: there is no such average.
        """
        if average not in ("recall", "precision"):
            raise UsageError(f"normalize was given average={average!r}; choose 'recall' or 'precision'")
        counts = matrix.double()
        sums = counts.sum(dim=1 if average == "recall" else 0, keepdim=True)
        return counts / sums.clamp(min=1)
