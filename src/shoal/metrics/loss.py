"""The mean of a loss over samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shoal.errors import UsageError
from shoal.metrics._ratio import Ratio

__all__ = ["Loss"]


class Loss(Ratio):
    """The mean loss over all samples: each batch's mean, weighted by the batch's size, added up in float64.

    ``update`` takes ``(y_pred, y)`` or ``(y_pred, y, kwargs)``, where kwargs go to the loss function.

    Args:
        loss_fn: takes ``(y_pred, y)`` and returns the batch's mean loss, a tensor without dimension.
        output_transform: see ``Metric``.
        batch_size: the weight of a batch from its ``y``; ``len`` by default. For a loss that leaves samples out
            (``ignore_index``) give a function that counts the others; it may return a tensor.
        device: see ``Metric``.
    """

    def __init__(
        self,
        loss_fn: Callable[..., torch.Tensor],
        output_transform: Callable[[Any], Any] | None = None,
        batch_size: Callable[[Any], int | torch.Tensor] = len,
        device: torch.device | str | None = None,
    ) -> None:
        self._loss_fn = loss_fn
        self._batch_size = batch_size
        super().__init__(output_transform, device)

    @torch.no_grad()
    def update(self, output: Any) -> None:
        """Take one batch.

        Raises:
            UsageError: the output is no ``(y_pred, y)`` or ``(y_pred, y, kwargs)``, or the loss has a dimension.
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
        loss = self._loss_fn(y_pred, y, **(rest[0] if rest else {}))
        if not isinstance(loss, torch.Tensor) or loss.dim() > 0:
            raise UsageError(
                f"the loss function of Loss returned {_shape_of(loss)} for predictions of {_shape_of(y_pred)} and "
                f"targets of {_shape_of(y)}; it has to return the mean, a tensor of shape ()"
            )
        if isinstance(count, torch.Tensor):
            # The mean over no sample is NaN, which would spoil the sum.
            loss = torch.where(count.to(loss.device) > 0, loss, torch.zeros_like(loss))
            count = count.detach().to(loss.device)
        self.add(loss.to(self.sum_dtype) * count, count)


def _shape_of(value: Any) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
