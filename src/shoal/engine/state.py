"""What a run knows about itself, shared with its handlers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["State"]


class State:
    """Where a run is and what it holds; handlers may put attributes of their own on it.

    Attributes:
        iteration: iterations begun since the run started from nothing, over all epochs; 1 in the first.
        epoch: epochs begun; 1 in the first.
        epoch_length: iterations in an epoch; None until it is known.
        max_epochs: epochs after which the run has reached its goal; None before the first run.
        max_iters: iterations after which it has, where that is how the goal was given.
        batch: the current batch.
        output: what the process function returned last.
        metrics: values of attached metrics by name, and whatever handlers put there.
        dataloader: the data of the run.
        seed: free for use.
        times: seconds that the last epoch (``"EPOCH_COMPLETED"``) and the last run (``"COMPLETED"``) took.
    """

    def __init__(self, **attributes: Any) -> None:
        self.iteration = 0
        self.epoch = 0
        self.epoch_length: int | None = None
        self.max_epochs: int | None = None
        self.max_iters: int | None = None
        self.batch: Any = None
        self.output: Any = None
        self.metrics: dict[str, Any] = {}
        self.dataloader: Any = None
        self.seed: int | None = None
        self.times: dict[str, float] = {"EPOCH_COMPLETED": 0.0, "COMPLETED": 0.0}
        # Counts of iterations at which the epoch, and the current pass over the data, would have had none.
        self.epoch_base = 0
        self.data_base = 0
        for name, value in attributes.items():
            setattr(self, name, value)

    if TYPE_CHECKING:  # handlers put attributes of their own on it

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    @property
    def epoch_iteration(self) -> int:
        """Iterations begun in this epoch; 1 in its first. Right also after an epoch that was cut short."""
        return self.iteration - self.epoch_base

    @property
    def batch_index(self) -> int:
        """The current batch's place in the current pass over the data, counted from 0.

        The same as ``epoch_iteration - 1`` but where ``epoch_length`` was given and isn't the length of the data.
        """
        return self.iteration - self.data_base - 1

    def __repr__(self) -> str:
        shown = ("iteration", "epoch", "epoch_length", "max_epochs", "max_iters", "metrics", "times")
        own = sorted(set(vars(self)) - set(vars(State())))
        return "State(" + ", ".join(f"{name}={getattr(self, name)!r}" for name in (*shown, *own)) + ")"
