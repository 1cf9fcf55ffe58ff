"""How many samples, tokens or anything else are processed a second."""

from __future__ import annotations

import numbers
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch

from shoal import runtime
from shoal.errors import NotComputableError, UsageError
from shoal.metrics._host import Host
from shoal.metrics._inputs import widened
from shoal.metrics.base import Metric, State
from shoal.metrics.usage import MetricUsage, Moment, UsageLike

__all__ = ["Frequency"]


class _Fed(MetricUsage):
    """Fed from the epoch's start; its value is asked for elsewhere."""

    usage_name = "fed"
    reset: ClassVar[Moment] = "epoch"
    publish: ClassVar[Moment] = "never"


class Frequency(Metric):
    """How many samples, tokens or anything else all ranks together process a second, since the epoch's start.

    The clock runs from ``reset``, which an engine calls where an epoch starts, to the last ``update``. The value is the
    sum over ranks, divided by the mean of their times, as a float. (Ignite's is cut to a whole number.)

    Shown after each iteration, as it is by default, it costs no collective and takes the other ranks to be as quick as
    this one: they are, in training in step. Once an epoch (``usage="epoch_wise"``), at an event of one's choice, and by
    ``compute()``, it is exact. (Ignite's reduces in every iteration.)

    Args:
        output_transform: makes of an engine's output the number of samples, an int, a float or a tensor without
            dimensions: ``lambda output: output["num_tokens"]``.
        device, skip_unrolling: see ``Metric``.
    """

    required_output_keys = None
    merges = False
    default_usage = "single_epoch_running_batch_wise"

    def __init__(
        self,
        output_transform: Callable[[Any], Any] | None = None,
        device: torch.device | str | None = None,
        skip_unrolling: bool = False,
    ) -> None:
        self._handles: WeakKeyDictionary[Host, list[Any]] = WeakKeyDictionary()
        super().__init__(output_transform, device, skip_unrolling)

    def reset(self) -> None:
        """Forget all samples, and start the clock."""
        self._count: Any = 0
        self._num_updates = 0
        self._begun = time.perf_counter()
        self._seconds = 0.0

    def update(self, output: Any) -> None:
        """Count so many samples.

        Raises:
            UsageError: it is no number, nor a tensor without dimensions.
        """
        if not isinstance(output, numbers.Real) and not (isinstance(output, torch.Tensor) and output.dim() == 0):
            found = f"a tensor of shape {tuple(output.shape)}" if isinstance(output, torch.Tensor) else repr(output)
            raise UsageError(f"Frequency was given {found} and takes a number of samples; pick it by output_transform")
        if isinstance(output, torch.Tensor):
            output = widened(output.detach())  # a sum of uint8 would wrap around, one of float32 stand still
            output = output if self.device is None else output.to(self.device)
        self._count = self._count + output
        self._num_updates += 1
        self._seconds = time.perf_counter() - self._begun

    def state(self) -> State:
        """``count`` and ``seconds`` (float64), and ``ranks`` (int64), 1 where this one has seen a sample."""
        return {
            "count": torch.as_tensor(self._count, dtype=torch.float64, device="cpu"),
            "seconds": torch.tensor(self._seconds, dtype=torch.float64),
            "ranks": torch.tensor(int(self._num_updates > 0)),
        }

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on with the samples and seconds of ``state``; the time since then doesn't count."""
        self.reset()
        self._count = state["count"].item()
        self._num_updates = int(state["ranks"])
        self._seconds = state["seconds"].item()
        self._begun -= self._seconds

    def compute_from(self, state: Mapping[str, torch.Tensor]) -> float:
        """Samples a second of all ranks.

        Raises:
            NotComputableError: there is no sample.
        """
        num_ranks, seconds = int(state["ranks"]), float(state["seconds"])
        if not num_ranks or seconds <= 0.0:
            raise NotComputableError("Frequency was computed before any rank had seen a sample; update it first")
        return float(state["count"]) / (seconds / num_ranks)

    def peek(self) -> Any:
        """This rank's value times the number of ranks, without waiting for the device; None before the first sample."""
        if not self._num_updates or self._seconds <= 0.0:
            return None
        return self._count / self._seconds * runtime.current().world_size

    def attach(self, engine: Host, name: str, usage: UsageLike | None = None, event_name: Any = None) -> None:
        """Let ``engine`` feed this metric and put its value into ``state.metrics[name]``.

        Args:
            engine: the engine.
            name: key of the value.
            usage: see ``Metric.attach``; None: a value an iteration, over the epoch so far. An event is taken for
                ``event_name``.
            event_name: an event at which to compute the value, in a collective of its own, such as
                ``Events.ITERATION_COMPLETED(every=50)``, instead.

        Raises:
            UsageError: as ``Metric.attach``.
        """
        if usage is not None and not _is_usage(usage):
            usage, event_name = None, usage
        if event_name is None:
            super().attach(engine, name, usage)
            return
        handle = engine.add_event_handler(event_name, self._compute_for, name)
        try:
            super().attach(engine, name, _Fed())
        except BaseException:
            handle.remove()
            raise
        self._handles.setdefault(engine, []).append(handle)

    def detach(self, engine: Host, usage: UsageLike | None = None) -> None:
        """Undo ``attach``: of one usage, or of all, at events too; raises UsageError where it is not so attached."""
        super().detach(engine, usage)
        if usage is None:
            for handle in self._handles.pop(engine, ()):
                handle.remove()

    def _compute_for(self, engine: Any, name: str) -> None:
        engine.state.metrics[name] = self.compute()


def _is_usage(given: Any) -> bool:
    return isinstance(given, str | MetricUsage) or (isinstance(given, type) and issubclass(given, MetricUsage))
