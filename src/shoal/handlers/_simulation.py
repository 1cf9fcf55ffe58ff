"""A schedule without its optimizer: what it would set, and how that looks."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch

from shoal._optional import require
from shoal.errors import UsageError

__all__ = ["StandIn", "apart", "check_num_events", "draw"]

S = TypeVar("S")


class StandIn:
    """The hyperparameters of an optimizer, or only a parameter's name, without any parameters."""

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        self.param_groups = [{key: _own(value) for key, value in group.items() if key != "params"} for group in groups]
        self.defaults: dict[str, Any] = {}

    def step(self) -> None:
        """Nothing; torch's schedules look whether it was called before them."""

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    _opt_called = True


def apart(scheduler: S, *optimizers: Any) -> S:
    """A copy that sets the hyperparameters of stand-ins and leaves the optimizers alone, and no weight is copied."""
    return copy.deepcopy(scheduler, {id(optimizer): StandIn(optimizer.param_groups) for optimizer in optimizers})


def check_num_events(num_events: int) -> None:
    """Raise UsageError for anything but a whole number of at least 0."""
    if isinstance(num_events, bool) or not isinstance(num_events, int) or num_events < 0:
        raise UsageError(f"asked to simulate num_events={num_events!r}; give a whole number of at least 0")


def draw(values: list[list[Any]], label: str) -> Any:
    """Draw simulated values into pyplot's current axes.

    Args:
        values: ``[event_index, value, ...]`` each; further values are further lines.
        label: of the vertical axis.

    Returns:
        The axes.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    pyplot = require("matplotlib.pyplot", extra="plot", purpose="plot_values()")
    axes = pyplot.gca()
    indices = [row[0] for row in values]
    count = max((len(row) for row in values), default=1) - 1
    for column in range(count):
        name = label if count == 1 else f"{label} {column}"
        axes.plot(indices, [row[column + 1] for row in values], label=name)
    axes.set_xlabel("event")
    axes.set_ylabel(label)
    if count > 1:
        axes.legend()
    return axes


def _own(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value
