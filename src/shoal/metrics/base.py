"""What every metric is: a partial result that takes batches and merges over ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from shoal import runtime
from shoal.errors import NotComputableError, UsageError

__all__ = ["Metric", "State"]

State = dict[str, torch.Tensor]


class _Host(Protocol):
    """What a metric needs of an engine."""

    def attach_metric(self, metric: Metric, name: str, usage: str | None = None) -> None: ...

    def detach_metric(self, metric: Metric) -> None: ...

    def is_metric_attached(self, metric: Metric) -> bool: ...


class Metric(ABC):
    """A value over samples that come batch by batch, each rank seeing some of them.

    A subclass writes ``reset``, ``update``, ``state`` and ``compute_from``, and ``merge`` where summing isn't right.
    The value is then exact at every world size: ranks may have seen unequal numbers of samples, or none.

    Args:
        output_transform: makes of an engine's output what ``update`` takes; where it returns None the batch is left
            out. By default the output is taken as it is.
        device: where the partial result lies. None (default): where the outputs lie, so that nothing waits for the
            device before the value is asked for.

    Attributes:
        required_output_keys: what ``update`` is given, in this order, of an output that is a mapping.
        merges: whether the value is one over all ranks; False keeps it this rank's own, without any collective.
        default_usage: how an engine uses the metric unless told otherwise: ``"epoch_wise"``.
    """

    required_output_keys: tuple[str, ...] = ("y_pred", "y")
    merges: bool = True
    default_usage: str = "epoch_wise"

    def __init__(
        self, output_transform: Callable[[Any], Any] | None = None, device: torch.device | str | None = None
    ) -> None:
        if output_transform is not None and not callable(output_transform):
            raise UsageError(
                f"{type(self).__name__} was given output_transform={output_transform!r}, which is not callable; "
                "give a function of the engine's output"
            )
        self.output_transform = output_transform
        self.in_use_by: object | None = None  # set by an engine while it runs
        self.device = None if device is None else torch.device(device)
        self.reset()

    @abstractmethod
    def reset(self) -> None:
        """Forget all samples."""

    @abstractmethod
    def update(self, output: Any) -> None:
        """Take one batch, as ``output_transform`` returns it; one without samples changes nothing."""

    @abstractmethod
    def state(self) -> State:
        """This rank's partial result: CPU tensors of the same keys, shapes and dtypes on every rank.

        Here, and not in ``update``, it is waited for the device.
        """

    @abstractmethod
    def compute_from(self, state: Mapping[str, torch.Tensor]) -> Any:
        """The value of a partial result; changes nothing.

        Raises:
            NotComputableError: it holds no sample.
        """

    def merge(self, states: Sequence[Mapping[str, torch.Tensor]]) -> State:
        """One partial result from those of all ranks, given in the order of ranks; by default the sum by key."""
        merged = {key: tensor.clone() for key, tensor in states[0].items()}
        for state in states[1:]:
            for key, tensor in state.items():
                merged[key] = merged[key] + tensor
        return merged

    def compute(self) -> Any:
        """The value over the samples of all ranks. Every rank must call; one collective. Changes nothing.

        Raises:
            NotComputableError: no rank has seen a sample.
        """
        return self.compute_from(self.merge([states[0] for states in runtime.gather_states([self.state()])]))

    def peek(self) -> Any:
        """The value over this rank's samples alone, without a collective; None before the first sample."""
        try:
            return self.compute_from(self.state())
        except NotComputableError:
            return None

    def take(self, engine_output: Any) -> None:
        """Take the output of an engine's iteration; None means that this rank had no sample in it.

        Raises:
            UsageError: the output is a mapping that lacks one of ``required_output_keys``.
        """
        if engine_output is None:
            return
        output = engine_output if self.output_transform is None else self.output_transform(engine_output)
        if output is None:
            return
        if isinstance(output, Mapping):
            output = self._from_mapping(output)
        self.update(output)

    def attach(self, engine: _Host, name: str, usage: str | None = None) -> None:
        """Let ``engine`` feed this metric and put its value into ``state.metrics[name]``.

        A metric may be attached to several engines that run one after the other: each starts it anew.

        Args:
            engine: the engine.
            name: key of the value.
            usage: ``"epoch_wise"`` (a value an epoch, over its samples), ``"batch_wise"`` (one an iteration, over its
                samples), ``"running_epoch_wise"`` and ``"running_batch_wise"`` (over all samples of the run so far),
                ``"single_epoch_running_batch_wise"`` (one an iteration, over the samples of the epoch so far). A value
                an iteration costs a collective an iteration where ``merges`` is True. None: ``default_usage``.

        Raises:
            UsageError: the name is taken in this engine, or there is no such usage.
        """
        engine.attach_metric(self, name, usage)

    def detach(self, engine: _Host) -> None:
        """Undo ``attach``; raises UsageError where this metric is not attached."""
        engine.detach_metric(self)

    def is_attached(self, engine: _Host) -> bool:
        """Whether this metric is attached to ``engine``."""
        return engine.is_metric_attached(self)

    def _from_mapping(self, output: Mapping[str, Any]) -> tuple[Any, ...]:
        missing = [key for key in self.required_output_keys if key not in output]
        if missing:
            raise UsageError(
                f"{type(self).__name__} was given an output with keys {list(output)} and needs "
                f"{list(self.required_output_keys)}; return these, or pick others by output_transform"
            )
        return tuple(output[key] for key in self.required_output_keys)
