"""What the metrics of classes and of numbers have in common: pairs of tensors, their kinds, and counting by class."""

from __future__ import annotations

import numbers
from typing import Any, Literal

import torch

from shoal.errors import UsageError

__all__ = [
    "Kind",
    "aligned",
    "check_positive",
    "count_by_class",
    "kind_of",
    "misfit",
    "no_class",
    "not_binary",
    "pair_of",
    "predicted_classes",
    "widened",
]

Kind = Literal["binary", "multiclass", "multilabel"]


def pair_of(owner: str, output: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """``(y_pred, y)`` without their graphs; raises UsageError, which names ``owner``, for anything else."""
    if isinstance(output, tuple | list) and len(output) == 2:
        y_pred, y = output
        if isinstance(y_pred, torch.Tensor) and isinstance(y, torch.Tensor):
            if y_pred.is_complex() or y.is_complex():
                raise UsageError(
                    f"{owner} was given {y_pred.dtype} and {y.dtype}, and complex numbers are neither scores nor "
                    "classes; use output_transform, such as torch.view_as_real of both"
                )
            return y_pred.detach(), y.detach()
    kinds = [type(part).__name__ for part in output] if isinstance(output, tuple | list) else type(output).__name__
    raise UsageError(f"{owner} was given {kinds} and takes a pair of tensors (y_pred, y); use output_transform")


def check_positive(owner: str, name: str, value: Any) -> None:
    """Raises UsageError, which names ``owner``, where ``value`` is no number above 0."""
    if not isinstance(value, numbers.Real) or not float(value) > 0:
        raise UsageError(f"{owner} was given {name}={value!r}; give a number above 0")


def misfit(y_pred: torch.Tensor, y: torch.Tensor, takes: str) -> UsageError:
    """The error for shapes that do not fit; it gives both."""
    return UsageError(
        f"y_pred of shape {tuple(y_pred.shape)} and y of shape {tuple(y.shape)} do not fit: {takes}; "
        "arrange them by output_transform"
    )


def kind_of(
    owner: str, y_pred: torch.Tensor, y: torch.Tensor, is_multilabel: bool, known: tuple[Kind, int] | None
) -> tuple[Kind, int]:
    """The kind of a batch by its shapes, and its number of classes or labels (2 for a binary one).

    Raises:
        UsageError: the shapes do not fit, the text gives both; or it is not the ``known`` one of the batches before.
    """
    kind, num_classes = _kind_by_shape(owner, y_pred, y, is_multilabel)
    if known is not None and known != (kind, num_classes):
        raise UsageError(
            f"{owner} has seen {known[0]} batches of {known[1]} classes and was given a {kind} one of {num_classes}, "
            f"of shapes {tuple(y_pred.shape)} and {tuple(y.shape)}; reset() it in between"
        )
    return kind, num_classes


def _kind_by_shape(owner: str, y_pred: torch.Tensor, y: torch.Tensor, is_multilabel: bool) -> tuple[Kind, int]:
    if is_multilabel:
        if y_pred.shape != y.shape or y.dim() < 2 or y.shape[1] < 2:
            raise misfit(y_pred, y, f"multilabel {owner} takes (N, C, ...) with C > 1 twice")
        return "multilabel", y.shape[1]
    if y_pred.dim() == y.dim() + 1 and y.dim() > 0 and y_pred.shape[:1] + y_pred.shape[2:] == y.shape:
        return ("multiclass", y_pred.shape[1]) if y_pred.shape[1] != 1 else ("binary", 2)
    if y.dim() > 0 and _without_one(y_pred.shape) == _without_one(y.shape):
        return "binary", 2
    raise misfit(y_pred, y, f"{owner} takes (N, C, ...) and (N, ...) for classes, or (N, ...) twice for 0 and 1")


def aligned(owner: str, y_pred: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both of one shape, where they differ by a dimension of 1 at most: numbers against numbers.

    Raises:
        UsageError: the shapes do not fit (``(N,)`` and ``(N, 1)`` do; ``(N,)`` and ``(N, N)`` would be broadcast).
    """
    if y_pred.dim() == 0 or y.dim() == 0 or _without_one(y_pred.shape) != _without_one(y.shape):
        raise misfit(y_pred, y, f"{owner} takes (N, ...) twice")
    return y_pred, y.reshape(y_pred.shape)


def predicted_classes(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The class of the highest score along dimension 1, the first of equals; never right where a score is NaN.

    ``argmax`` takes NaN for the highest score. Where that class is the target, the next one is given instead, so that
    every metric of classes counts such a sample as wrong.
    """
    if scores.dtype == torch.bool:
        scores = scores.to(torch.uint8)
    classes = scores.argmax(dim=1)
    if not scores.is_floating_point():
        return classes
    lucky = scores.isnan().any(dim=1) & (classes == y)
    return torch.where(lucky, (classes + 1) % scores.shape[1], classes)


def no_class(labels: torch.Tensor, num_classes: int) -> torch.Tensor:
    """Where labels are none of ``0 … num_classes - 1``: bool, of the shape of ``labels``."""
    if labels.is_floating_point():
        return ~((labels >= 0) & (labels < num_classes) & (labels == labels.round()))
    wide = labels.long()  # a number that uint8 cannot hold would wrap around in a comparison
    return (wide < 0) | (wide >= num_classes)


def not_binary(tensor: torch.Tensor) -> torch.Tensor | int:
    """How many values are neither 0 nor 1, counted on the device."""
    return 0 if tensor.dtype == torch.bool else ((tensor != 0) & (tensor != 1)).sum()


def count_by_class(classes: torch.Tensor, num_classes: int) -> torch.Tensor:
    """How often each of ``0 … num_classes - 1`` occurs: ``(num_classes,)``, int64, without waiting for the device."""
    flat = classes.reshape(-1)
    if flat.device.type == "cpu":
        return torch.bincount(flat, minlength=num_classes)
    # bincount asks the device for the largest value first
    counts = torch.zeros(num_classes, dtype=torch.int64, device=flat.device)
    return counts.scatter_add_(0, flat, torch.ones_like(flat))


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """In float64, or in float32 on devices without it (MPS)."""
    return tensor.to(torch.float32 if tensor.device.type == "mps" else torch.float64)


def _without_one(shape: torch.Size) -> torch.Size:
    """The shape without a channel dimension of size 1."""
    return shape[:1] + shape[2:] if len(shape) > 1 and shape[1] == 1 else shape
