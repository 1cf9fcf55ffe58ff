"""An exponential moving average of what each iteration gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from shoal.errors import NotComputableError, UsageError
from shoal.metrics.base import Metric, State

__all__ = ["RunningAverage"]


class RunningAverage(Metric):
    """``alpha * average + (1 - alpha) * value`` after each iteration; the first value starts it.

    The average is this rank's own: an iteration costs no collective, and a tensor stays on its device, without
    waiting for it. So ``state.metrics`` holds a tensor where the outputs are tensors. ``compute()`` gives the mean over
    the ranks that have one, which is the average of the ranks' mean value, the operation being linear.

    Args:
        src: a metric whose value for each batch alone is averaged. None: the output is averaged itself.
        alpha: weight of the past, above 0 and at most 1; 0.98 by default.
        output_transform: makes a number or a tensor of the engine's output; with ``src``, leave it to that.
        epoch_bound: True starts anew in each epoch; False, or None (default), goes on over the whole run.
        device: see ``Metric``.

    Raises:
        UsageError: ``alpha`` is out of range, ``src`` is no metric, or ``output_transform`` is given beside ``src``.
    """

    merges = False

    def __init__(
        self,
        src: Metric | None = None,
        alpha: float = 0.98,
        output_transform: Callable[[Any], Any] | None = None,
        epoch_bound: bool | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if not 0.0 < alpha <= 1.0:
            raise UsageError(f"RunningAverage was given alpha={alpha!r}; give a number above 0 and at most 1")
        if src is not None and not isinstance(src, Metric):
            raise UsageError(f"RunningAverage was given src={src!r}; give a metric, or None and an output_transform")
        if src is not None and output_transform is not None:
            raise UsageError("RunningAverage was given src and output_transform; give output_transform to src instead")
        self._src = src
        self._alpha = alpha
        self.default_usage = "single_epoch_running_batch_wise" if epoch_bound else "running_batch_wise"
        super().__init__(output_transform, device)

    def reset(self) -> None:
        """Forget all values."""
        self._value: Any = None

    def take(self, engine_output: Any, skip_unrolling: bool = False) -> None:
        """Average the output, or what ``src`` makes of it; None leaves the average as it is."""
        src = self._src
        if src is not None:
            if engine_output is None:
                return
            src.reset()
            src.take(engine_output, skip_unrolling)
            self.update(src.peek())
            return
        transform = self.output_transform
        self.update(engine_output if transform is None or engine_output is None else transform(engine_output))

    def update(self, output: Any) -> None:
        """Average a number or a tensor; None leaves the average as it is.

        Raises:
            UsageError: it is something else, or a tensor of another shape than before.
        """
        old = self._value
        if type(output) is float:
            self._value = output if old is None else self._alpha * old + (1.0 - self._alpha) * output
        elif isinstance(output, torch.Tensor):
            self._value = self._average_tensor(old, output)
        elif isinstance(output, int | float):
            self.update(float(output))
        elif output is not None:
            raise UsageError(
                f"RunningAverage was given a {type(output).__name__} and averages numbers and tensors; "
                "pick one by output_transform"
            )

    def peek(self) -> Any:
        """The average: a float, or a tensor where tensors were averaged; None before the first value."""
        return self._value

    def state(self) -> State:
        """``value`` (float64, zeros where there is none) and ``count`` (int64), 1 where there is one."""
        if self._value is None:
            value = torch.zeros((), dtype=torch.float64)
        else:
            value = torch.as_tensor(self._value, dtype=torch.float64, device="cpu")
        return {"value": value, "count": torch.tensor(int(self._value is not None))}

    def compute_from(self, state: Mapping[str, torch.Tensor]) -> Any:
        """The mean over ranks; a float for numbers and tensors without dimension.

        Raises:
            NotComputableError: no rank has a value.
        """
        count = int(state["count"])
        if count == 0:
            raise NotComputableError("RunningAverage was computed before any value; update it first")
        value = state["value"] / count
        return value.item() if value.dim() == 0 else value

    def _average_tensor(self, old: Any, output: torch.Tensor) -> torch.Tensor:
        value = output.detach()
        if isinstance(old, torch.Tensor):
            if old.dtype is value.dtype and old.shape == value.shape and old.device == value.device:
                return torch.lerp(value, old, self._alpha)
            if old.shape != value.shape:
                raise UsageError(
                    f"RunningAverage has averaged values of shape {tuple(old.shape)} and was given one of shape "
                    f"{tuple(value.shape)}; pick one of a fixed shape by output_transform"
                )
        if not value.is_floating_point() or value.element_size() < 4:
            value = value.float()  # half precision would lose what (1 - alpha) adds
        if self.device is not None:
            value = value.to(self.device)
        if old is None:
            return value.clone()  # the caller may reuse its tensor
        return torch.lerp(value, torch.as_tensor(old, dtype=value.dtype, device=value.device), self._alpha)
