"""The base of metrics whose partial result is named sums."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from shoal.errors import NotComputableError, UsageError
from shoal.metrics.base import Metric, State

__all__ = ["Sums"]


class Sums(Metric):
    """A metric whose partial result is tensors and numbers that add up, over batches as over ranks.

    A subclass names them in ``sums`` and writes ``update``, which calls ``add``, and ``compute_from``::

        class MeanAbsoluteError(Sums):
            sums = ("error", "count")

            def update(self, output):
                y_pred, y = output
                self.add(error=(y_pred - y).abs().sum(), count=len(y))

            def compute_from(self, state):
                count = self.count_of(state)  # raises where there is no sample
                return float(state["error"]) / count

    Counts (whole numbers and booleans) are added up in int64; all else in float64, or in float32 on devices without it
    (MPS), where sums are therefore good to six or seven digits.

    Attributes:
        sums: the names, which are the keys of ``state()``. One that nothing was added to is a tensor without elements.
    """

    sums: tuple[str, ...] = ()

    def reset(self) -> None:
        """Forget all samples."""
        self._sums: dict[str, torch.Tensor | float] = {}

    def add(self, **parts: torch.Tensor | float) -> None:
        """Add to sums by name, where the tensors lie; never waits for the device.

        Raises:
            UsageError: the name is not in ``sums``, or the shape is not that of what was added before.
        """
        for name, part in parts.items():
            if name not in self.sums:
                raise UsageError(
                    f"{type(self).__name__} was to add to {name!r} and has the sums {list(self.sums)}; name it there"
                )
            if isinstance(part, torch.Tensor):
                part = self._prepared(part)  # noqa: PLW2901
            known = self._sums.get(name)
            if known is not None:
                part = self._added(name, known, part)  # noqa: PLW2901
            elif isinstance(part, torch.Tensor):
                part = part.clone()  # noqa: PLW2901 - the caller may fill its tensor anew
            self._sums[name] = part

    def state(self) -> State:
        """The sums by name, int64 or float64; without elements where nothing was added."""
        return {name: _on_cpu(self._sums.get(name)) for name in self.sums}

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Be as if the samples of ``state``, and no others, had been seen."""
        self.reset()
        self._sums = {name: state[name].clone() for name in self.sums if state[name].numel()}

    def count_of(self, state: Mapping[str, torch.Tensor], name: str = "count") -> int:
        """The whole number ``state[name]``, which counts samples.

        Raises:
            NotComputableError: it is 0, or nothing was added to it.
        """
        count = int(state[name].sum())
        if count == 0:
            raise NotComputableError(
                f"{type(self).__name__} was computed before any rank had seen a sample; update it first"
            )
        return count

    def _prepared(
        self, part: torch.Tensor, device: torch.device | None = None, *, as_real: bool = False
    ) -> torch.Tensor:
        """The tensor where it is added up, in the dtype in which it is; a count too in that of sums, if ``as_real``."""
        if part.is_complex():
            raise UsageError(
                f"{type(self).__name__} was given {part.dtype} and adds up real numbers; take a part of it"
            )
        device = device or self.device or part.device
        moved = part.detach()
        if device.type != "mps":  # it may come from there, where it could not become float64
            moved = moved.to(device)
        real = torch.float32 if device.type == "mps" else torch.float64
        return moved.to(real if as_real or part.is_floating_point() else torch.int64).to(device)

    def _added(self, name: str, known: torch.Tensor | float, part: torch.Tensor | float) -> torch.Tensor | float:
        if isinstance(known, torch.Tensor) and isinstance(part, torch.Tensor):
            if known.shape != part.shape:
                raise UsageError(
                    f"{type(self).__name__} has added up {name!r} of shape {tuple(known.shape)} and was given one of "
                    f"shape {tuple(part.shape)}; give batches of the same number of classes or outputs"
                )
            if known.device != part.device:  # it was loaded, or the outputs lie elsewhere now
                known = self._prepared(known, part.device)
        return known + part


def _on_cpu(total: torch.Tensor | float | None) -> torch.Tensor:
    if total is None:
        return torch.zeros(0, dtype=torch.int64)
    if isinstance(total, float):
        return torch.tensor(total, dtype=torch.float64)
    tensor = torch.as_tensor(total).cpu()
    return tensor.to(torch.float64) if tensor.is_floating_point() else tensor.to(torch.int64)
