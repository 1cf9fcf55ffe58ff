"""A value of all predictions and targets at once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from shoal.errors import CollectiveError, NotComputableError, UsageError
from shoal.metrics.base import Metric, State

__all__ = ["EpochMetric", "EpochMetricWarning"]

_NAMES = ("y_pred", "y")


class EpochMetricWarning(UserWarning):
    """The function of an ``EpochMetric`` failed on the first batch."""


class EpochMetric(Metric):
    """A function of all predictions and targets at once, for what no sums over batches give.

    All outputs are kept, so memory grows with the number of samples: on ``device`` while they come, and on the CPU of
    every rank when the value is computed. They are put together in the order of ranks, whose numbers of samples may
    differ, also be 0. Every rank calls the function. (In Ignite rank 0 alone does, and ranks with unequal numbers of
    samples, as an exact evaluation has them, hang or fail.)

    ``update`` takes ``(y_pred, y)``: tensors of shape ``(N, ...)`` each, of one dtype and one shape but for N.
    ``(N, 1)`` becomes ``(N,)``.

    Args:
        compute_fn: takes all predictions and all targets, as tensors on the CPU, and returns the value.
        output_transform: see ``Metric``.
        check_compute_fn: call the function with the first batch too, and warn where it fails. That waits for the
            device, once. Some values don't exist for a single batch, so that it is no error.
        device: where outputs are kept. None (default): where they lie. (Ignite's default is the CPU.)
        skip_unrolling: see ``Metric``.

    Raises:
        UsageError: ``compute_fn`` is not callable.
    """

    def __init__(
        self,
        compute_fn: Callable[[torch.Tensor, torch.Tensor], Any],
        output_transform: Callable[[Any], Any] | None = None,
        check_compute_fn: bool = True,
        device: torch.device | str | None = None,
        skip_unrolling: bool = False,
    ) -> None:
        if not callable(compute_fn):
            raise UsageError(f"{type(self).__name__} was given compute_fn={compute_fn!r}, which is not callable")
        self.compute_fn = compute_fn
        self._checks = check_compute_fn
        super().__init__(output_transform, device, skip_unrolling)

    def reset(self) -> None:
        """Forget all samples."""
        self._kept: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])

    @torch.no_grad()
    def update(self, output: Any) -> None:
        """Keep one batch.

        Raises:
            UsageError: the output is no pair of tensors of one length, or their dtypes or further dimensions are others
                than before.
        """
        batch = self._checked(output)
        if batch[0].shape[0] == 0:
            return
        first = not self._kept[0]
        for kept, tensor in zip(self._kept, batch, strict=True):
            # A copy: the caller may fill its tensor anew.
            kept.append(tensor.detach().to(self.device or tensor.device, copy=True))
        if first and self._checks:
            self._try_function()

    def state(self) -> State:
        """``y_pred`` and ``y`` of all samples of this rank; without elements where it has none."""
        return dict(zip(_NAMES, map(_joined, self._kept), strict=True))

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Be as if the samples of ``state``, and no others, had been seen."""
        self.reset()
        if all(len(state[name]) for name in _NAMES):
            self._kept = ([state["y_pred"].clone()], [state["y"].clone()])

    def merge(self, states: Sequence[Mapping[str, torch.Tensor]]) -> State:
        """All samples, in the order of ranks; one that has none takes no part.

        Raises:
            CollectiveError: the ranks' tensors differ in dtype or in further dimensions.
        """
        filled = [(rank, state) for rank, state in enumerate(states) if len(state["y_pred"])]
        for name in _NAMES:
            kinds = {(state[name].dtype, state[name].shape[1:]) for _, state in filled}
            if len(kinds) > 1:
                found = ", ".join(
                    f"{state[name].dtype} of {tuple(state[name].shape)} on rank {r}" for r, state in filled
                )
                raise CollectiveError(
                    f"{type(self).__name__} has kept {name} as {found}; give the same dtype, and the same shape but "
                    "for the number of samples, on every rank"
                )
        if not filled:
            return dict(states[0])
        if len(filled) == 1:
            return dict(filled[0][1])
        return {name: torch.cat([state[name] for _, state in filled]) for name in _NAMES}

    def compute_from(self, state: Mapping[str, torch.Tensor]) -> Any:
        """``compute_fn`` of all samples.

        Raises:
            NotComputableError: there are none.
        """
        if not len(state["y_pred"]):
            raise NotComputableError(
                f"{type(self).__name__} was computed before any rank had seen a sample; update it first"
            )
        return self.compute_fn(state["y_pred"].clone(), state["y"].clone())  # which it may change in place

    def _checked(self, output: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The batch, with (N, 1) as (N,)."""
        name = type(self).__name__
        pair = isinstance(output, tuple | list) and len(output) == 2
        if not pair or not all(isinstance(part, torch.Tensor) for part in output):
            kinds = [type(p).__name__ for p in output] if isinstance(output, tuple | list) else type(output).__name__
            raise UsageError(f"{name} was given {kinds} and takes a pair of tensors (y_pred, y); use output_transform")
        y_pred, y = output
        if y_pred.dim() == 0 or y.dim() == 0 or len(y_pred) != len(y):
            raise UsageError(
                f"{name} was given y_pred of shape {tuple(y_pred.shape)} and y of shape {tuple(y.shape)}; give (N, ...)"
                " and (N, ...), of as many predictions as targets"
            )
        batch = (_without_one(y_pred), _without_one(y))
        if self._kept[0]:
            for kept, tensor, what in zip(self._kept, batch, _NAMES, strict=True):
                if (kept[0].dtype, kept[0].shape[1:]) != (tensor.dtype, tensor.shape[1:]) and len(tensor):
                    raise UsageError(
                        f"{name} has kept {what} of {kept[0].dtype} and shape {tuple(kept[0].shape)} and was given "
                        f"{tensor.dtype} of {tuple(tensor.shape)}; only the number of samples may differ"
                    )
        return batch

    def _try_function(self) -> None:
        y_pred, y = (kept[0].to("cpu", copy=True) for kept in self._kept)
        try:
            self.compute_fn(y_pred, y)
        except Exception as error:
            warnings.warn(
                f"the compute_fn of {type(self).__name__} failed on the first batch, of shapes {tuple(y_pred.shape)} "
                f"and {tuple(y.shape)}, with {type(error).__name__}: {error}. It may work on all batches together; "
                "check_compute_fn=False leaves this check out.",
                EpochMetricWarning,
                stacklevel=4,
            )


def _joined(kept: list[torch.Tensor]) -> torch.Tensor:
    """All of them in one tensor on the CPU, where some lie already if a checkpoint gave them."""
    if len({tensor.device for tensor in kept}) > 1:
        kept = [tensor.cpu() for tensor in kept]
    return torch.cat(kept).cpu() if kept else torch.zeros(0)


def _without_one(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.squeeze(1) if tensor.dim() == 2 and tensor.shape[1] == 1 else tensor
