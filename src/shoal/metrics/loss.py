"""The mean of a loss over samples."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from shoal.errors import UsageError
from shoal.metrics._ratio import Ratio

__all__ = ["Loss"]


class Loss(Ratio):
    """The mean loss over all samples: each batch's mean, weighted by the batch's size.

    Added up in float64, or in float32 on devices without it (MPS).

    ``update`` takes ``(y_pred, y)`` or ``(y_pred, y, kwargs)``, where kwargs go to the loss function.

    Args:
        loss_fn: takes ``(y_pred, y)`` and returns the batch's mean loss, a tensor without dimension.
        output_transform: see ``Metric``.
        batch_size: the weight of a batch from its ``y``: what the loss function divides by; it may return a tensor. By
            default the number of samples, without those that cross entropy and negative log likelihood ignore
            (``ignore_index``), as torch's classes and functions. (Ignite's counts these, too.)
        device, skip_unrolling: see ``Metric``.

    Raises:
        UsageError: the loss function is one of torch's that returns no mean (``reduction``), or one that weighs classes
            and so divides by more than a number of samples, without ``batch_size``.
    """

    def __init__(
        self,
        loss_fn: Callable[..., torch.Tensor],
        output_transform: Callable[[Any], Any] | None = None,
        batch_size: Callable[[Any], int | torch.Tensor] | None = None,
        device: torch.device | str | None = None,
        skip_unrolling: bool = False,
    ) -> None:
        if (reduction := _option(loss_fn, "reduction", "mean")) != "mean":
            raise UsageError(
                f"Loss was given a {type(loss_fn).__name__} with reduction={reduction!r}; give one with "
                "reduction='mean'"
            )
        if batch_size is None and isinstance(_option(loss_fn, "weight", None), torch.Tensor):
            raise UsageError(
                f"Loss was given a {type(loss_fn).__name__} with class weights, whose mean divides by the weights of a "
                "batch's samples, so that batches could not be put together exactly; give one without weight, or "
                "batch_size=... that returns what it divides by"
            )
        self._loss_fn = loss_fn
        self._batch_size = batch_size or _counter_for(loss_fn)
        super().__init__(output_transform, device, skip_unrolling)

    @torch.no_grad()
    def update(self, output: Any) -> None:
        """Take one batch.

        Raises:
            UsageError: the output is no ``(y_pred, y)`` or ``(y_pred, y, kwargs)``, the loss has a dimension, or
                ``y`` is no tensor of samples and there is no ``batch_size``.
        """
        if not isinstance(output, tuple | list) or len(output) not in (2, 3):
            raise UsageError(
                f"Loss was given {_shape_of(output)} and takes (y_pred, y) or (y_pred, y, kwargs); "
                "arrange it by output_transform"
            )
        y_pred, y, *rest = output
        count = self._batch_size(y)
        if isinstance(count, int) and count == 0:
            return
        try:
            loss = self._loss_fn(y_pred, y, **(rest[0] if rest else {}))
        except Exception as error:
            error.add_note(f"Loss was given y_pred of {_shape_of(y_pred)} and y of {_shape_of(y)}.")
            raise
        if not isinstance(loss, torch.Tensor) or loss.dim() > 0:
            raise UsageError(
                f"the loss function of Loss returned {_shape_of(loss)} for predictions of {_shape_of(y_pred)} and "
                f"targets of {_shape_of(y)}; it has to return the mean, a tensor of shape ()"
            )
        if isinstance(count, torch.Tensor):
            # The mean over no sample is NaN, which would spoil the sum.
            loss = torch.where(count.to(loss.device) > 0, loss, torch.zeros_like(loss))
            count = count.detach().to(loss.device)
        self.add(sum=self._prepared(loss) * count, count=count)


def _counter_for(loss_fn: Callable[..., torch.Tensor]) -> Callable[[Any], int | torch.Tensor]:
    """What the loss function divides by."""
    plain = loss_fn.func if isinstance(loss_fn, functools.partial) else loss_fn
    ignores = isinstance(plain, nn.CrossEntropyLoss | nn.NLLLoss) or plain in (F.cross_entropy, F.nll_loss)
    ignored = _option(loss_fn, "ignore_index", -100)

    def count(y: Any) -> int | torch.Tensor:
        tensors = isinstance(y, tuple | list) and any(isinstance(part, torch.Tensor) and part.dim() for part in y)
        if tensors or isinstance(y, Mapping) or (isinstance(y, torch.Tensor) and not y.dim()):
            raise UsageError(
                f"Loss was given targets that are {_shape_of(y)}, whose number of samples it cannot know; give "
                "batch_size=... that returns it"
            )
        if not ignores or len(y) == 0 or not isinstance(y, torch.Tensor) or y.is_floating_point():
            return len(y)
        return torch.ne(y, ignored).sum()

    return count


def _option(loss_fn: Callable[..., torch.Tensor], name: str, default: Any) -> Any:
    """What a loss function was made with: of torch's classes, or by ``functools.partial``."""
    if isinstance(loss_fn, functools.partial):
        return loss_fn.keywords.get(name, _option(loss_fn.func, name, default))
    return getattr(loss_fn, name, default)


def _shape_of(value: Any) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
