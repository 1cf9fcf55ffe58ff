"""The share of samples that are predicted right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch

from shoal.errors import UsageError
from shoal.metrics._ratio import Ratio
from shoal.metrics.base import State

__all__ = ["Accuracy"]

Kind = Literal["binary", "multiclass", "multilabel"]


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

    Binary and multilabel predictions have to be thresholded (by ``output_transform``); values other than 0 and 1 are
    counted on the device and reported when the value is computed, so that no update has to wait.

    Scores with a NaN among them predict nothing right.

    Args:
        output_transform: see ``Metric``.
        is_multilabel: whether the labels of a sample do not exclude each other.
        device: see ``Metric``.
    """

    sum_dtype = torch.int64

    def __init__(
        self,
        output_transform: Callable[[Any], Any] | None = None,
        is_multilabel: bool = False,
        device: torch.device | str | None = None,
    ) -> None:
        self._is_multilabel = is_multilabel
        super().__init__(output_transform, device)

    def reset(self) -> None:
        """Forget all samples, and of which kind they were."""
        super().reset()
        self._kind: tuple[Kind, int] | None = None
        self._not_binary: torch.Tensor | None = None

    @torch.no_grad()
    def update(self, output: Any) -> None:
        """Take one batch.

        Raises:
            UsageError: the output is no pair of tensors whose shapes fit, or is of another kind than before.
        """
        y_pred, y = _pair(output)
        kind, num_classes = self._kind_of(y_pred, y)
        if self._kind not in (None, (kind, num_classes)):
            known, known_classes = self._kind or (kind, num_classes)
            raise UsageError(
                f"Accuracy has seen {known} batches of {known_classes} classes and was given a {kind} one of "
                f"{num_classes}, of shapes {tuple(y_pred.shape)} and {tuple(y.shape)}; reset() it in between"
            )
        self._kind = (kind, num_classes)
        if y.numel() == 0:
            return
        if kind == "multiclass":
            right = y_pred.argmax(dim=1) == y
            if y_pred.is_floating_point():  # argmax takes NaN for the highest score
                right &= ~y_pred.isnan().any(dim=1)
        else:
            self._check_binary(y_pred)
            right = y_pred.reshape(y.shape) == y if kind == "binary" else (y_pred == y).all(dim=1)
        self.add(right.sum(), right.numel())

    def state(self) -> State:
        """``sum``, ``count`` and ``not_binary`` (how many predictions had to be 0 or 1 and weren't), all int64."""
        spoilt = torch.zeros((), dtype=torch.int64) if self._not_binary is None else self._not_binary.cpu()
        return {**super().state(), "not_binary": spoilt}

    def compute_from(self, state: Mapping[str, torch.Tensor]) -> float:
        """``sum / count``.

        Raises:
            NotComputableError: it holds no sample.
            UsageError: predictions that have to be 0 or 1 were not.
        """
        if spoilt := int(state["not_binary"]):
            raise UsageError(
                f"Accuracy was given {spoilt} binary or multilabel predictions that are neither 0 nor 1; threshold "
                "them by output_transform, or give scores of shape (N, C, ...) for classes of shape (N, ...)"
            )
        return super().compute_from(state)

    def _kind_of(self, y_pred: torch.Tensor, y: torch.Tensor) -> tuple[Kind, int]:
        """The kind of a batch by its shapes, and its number of classes or labels (2 for a binary one)."""
        if self._is_multilabel:
            if y_pred.shape != y.shape or y.dim() < 2 or y.shape[1] < 2:
                raise _misfit(y_pred, y, "multilabel Accuracy takes (N, C, ...) with C > 1 twice")
            return "multilabel", y.shape[1]
        if y_pred.dim() == y.dim() + 1 and y.dim() > 0 and y_pred.shape[:1] + y_pred.shape[2:] == y.shape:
            return ("multiclass", y_pred.shape[1]) if y_pred.shape[1] != 1 else ("binary", 2)
        if y.dim() > 0 and _without_one(y_pred.shape) == _without_one(y.shape):
            return "binary", 2
        raise _misfit(y_pred, y, "Accuracy takes (N, C, ...) and (N, ...) for classes, or (N, ...) twice for 0 and 1")

    def _check_binary(self, y_pred: torch.Tensor) -> None:
        if y_pred.dtype == torch.bool:
            return
        spoilt = ((y_pred != 0) & (y_pred != 1)).sum()
        spoilt = spoilt.to(self.device or spoilt.device)
        self._not_binary = spoilt if self._not_binary is None else self._not_binary + spoilt.to(self._not_binary.device)


def _pair(output: Any) -> tuple[torch.Tensor, torch.Tensor]:
    if isinstance(output, tuple | list) and len(output) == 2:
        y_pred, y = output
        if isinstance(y_pred, torch.Tensor) and isinstance(y, torch.Tensor):
            return y_pred, y
    kinds = [type(part).__name__ for part in output] if isinstance(output, tuple | list) else type(output).__name__
    raise UsageError(f"Accuracy was given {kinds} and takes a pair of tensors (y_pred, y); use output_transform")


def _without_one(shape: torch.Size) -> torch.Size:
    """The shape without a channel dimension of size 1."""
    return shape[:1] + shape[2:] if len(shape) > 1 and shape[1] == 1 else shape


def _misfit(y_pred: torch.Tensor, y: torch.Tensor, takes: str) -> UsageError:
    return UsageError(
        f"y_pred of shape {tuple(y_pred.shape)} and y of shape {tuple(y.shape)} do not fit: {takes}; "
        "arrange them by output_transform"
    )
