"""Outputs that are lists of predictions and of targets: one update a pair."""

from __future__ import annotations

from typing import Any

import torch

from shoal.errors import UsageError

__all__ = ["unrolled"]


def unrolled(output: Any, metric: str) -> list[tuple[torch.Tensor, torch.Tensor]] | None:
    """The pairs of an output of two lists of tensors or numbers, each item as a batch of one; None for all else.

    Raises:
        UsageError: it consists of lists of tensors or numbers, but not of two of the same length.
    """
    if not isinstance(output, tuple | list) or not output or not all(_is_list(part) for part in output):
        return None
    lengths = [len(part) for part in output]
    if len(output) != 2 or lengths[0] != lengths[1]:
        raise UsageError(
            f"{metric} was given an output of {len(output)} lists of lengths {lengths}, and unrolls two of the same "
            "length, of predictions and of targets; use output_transform, or skip_unrolling=True to take it as it is"
        )
    return [(_batch_of(y_pred, None), _batch_of(y, y_pred)) for y_pred, y in zip(*output, strict=True)]


def _is_list(part: Any) -> bool:
    return isinstance(part, tuple | list) and all(isinstance(item, torch.Tensor | int | float) for item in part)


def _batch_of(item: Any, beside: Any) -> torch.Tensor:
    if isinstance(item, torch.Tensor):
        return item.unsqueeze(0)
    return torch.tensor([item], device=beside.device if isinstance(beside, torch.Tensor) else None)
