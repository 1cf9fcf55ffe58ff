"""What every metric is: a partial result that takes batches and merges over ranks."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from shoal import runtime
from shoal.errors import CollectiveError, NotComputableError, UsageError
from shoal.metrics._host import Host
from shoal.metrics._operators import Operators
from shoal.metrics._unrolling import unrolled
from shoal.metrics.usage import UsageLike

__all__ = ["Inlet", "Metric", "State", "merged_parts"]

State = dict[str, torch.Tensor]

_logger = logging.getLogger("shoal.metrics")


@dataclass(frozen=True, slots=True)
class Inlet:
    """How an output reaches one of the metrics that make up another.

    Attributes:
        part: the metric that takes it, which is made up of no others.
        transforms: what the output goes through before the part's own ``output_transform``, the outermost first.
        skip_unrolling: as if the part had been made with it.
        transforms_updates: whether an ``update`` of the whole goes through the transforms, too.
    """

    part: Metric
    transforms: tuple[Callable[[Any], Any], ...] = ()
    skip_unrolling: bool = False
    transforms_updates: bool = False

    def take(self, engine_output: Any) -> None:
        """Hand the output of an engine's iteration on; None, also where a transform returns it, is left out."""
        output = engine_output
        for transform in self.transforms:
            if output is None:
                return
            output = transform(output)
        self.part.take(output, self.skip_unrolling)

    def update(self, output: Any) -> None:
        """Hand a batch on that was given to ``update`` of the whole."""
        if self.transforms_updates:
            self.take(output)
        else:
            self.part.update(output)


class Metric(Operators, ABC):
    """A value over samples that come batch by batch, each rank seeing some of them.

    A subclass writes ``reset``, ``update``, ``state`` and ``compute_from``, ``load_state`` so that its samples survive
    a checkpoint, and ``merge`` where summing isn't right. The value is then exact at every world size: ranks may have
    seen unequal numbers of samples, or none. ``shoal.testing.check_metric`` checks that.

    Arithmetic gives further metrics: ``1 - accuracy``, ``(precision * recall).mean()``, ``recall[0]``. They share the
    samples of those that they are made of (see ``MetricsLambda``).

    Args:
        output_transform: makes of an engine's output what ``update`` takes; where it returns None the batch is left
            out. By default the output is taken as it is.
        device: where the partial result lies. None (default): where the outputs lie, so that nothing waits for the
            device before the value is asked for. (Ignite's default is the CPU, which waits in every update.)
        skip_unrolling: an output of two lists (or tuples) of tensors or numbers, of predictions and of targets, is
            unrolled into one update a pair, each as a batch of one. True hands it to ``update`` as it is.

    Attributes:
        required_output_keys: what ``update`` is given, in this order, of an output that is a mapping. None: it takes no
            mapping.
        merges: whether a value that is shown after each iteration is one over all ranks; False: it is this rank's own,
            and costs no collective.
        default_usage: how an engine uses the metric unless told otherwise: ``"epoch_wise"``.
    """

    required_output_keys: tuple[str, ...] | None = ("y_pred", "y")
    merges: bool = True
    default_usage: str = "epoch_wise"

    def __init__(
        self,
        output_transform: Callable[[Any], Any] | None = None,
        device: torch.device | str | None = None,
        skip_unrolling: bool = False,
    ) -> None:
        if output_transform is not None and not callable(output_transform):
            raise UsageError(
                f"{type(self).__name__} was given output_transform={output_transform!r}, which is not callable; "
                "give a function of the engine's output"
            )
        self.output_transform = output_transform
        self.skip_unrolling = skip_unrolling
        self.in_use_by: object | None = None  # set by an engine while it runs
        self.fed_in: object | None = None  # which engine's runs its samples are of
        self.was_loaded = False  # samples of a checkpoint, which an engine that is loaded too must not forget
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
        """This rank's partial result: CPU tensors of the same keys on every rank.

        Shapes are the same, too, but that a tensor without elements stands for zeros of the others' shape (see
        ``merge``). Here, and not in ``update``, it is waited for the device.
        """

    @abstractmethod
    def compute_from(self, state: Mapping[str, torch.Tensor]) -> Any:
        """The value of a partial result; changes nothing.

        Raises:
            NotComputableError: it holds no sample.
        """

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Be as if the samples of ``state``, and no others, had been seen: the inverse of ``state``.

        Raises:
            UsageError: this metric has no such method.
        """
        del state
        raise UsageError(f"{type(self).__name__} cannot take a state up; write its load_state(state)")

    def merge(self, states: Sequence[Mapping[str, torch.Tensor]]) -> State:
        """One partial result from those of all ranks, given in the order of ranks; by default the sum by key.

        A tensor without elements counts as zeros of the others' shape: a rank that has seen no sample may not know the
        number of classes.

        Raises:
            CollectiveError: shapes differ otherwise.
        """
        return {key: self._sum_of(key, [state[key] for state in states]) for key in states[0]}

    def compute(self) -> Any:
        """The value over the samples of all ranks. Every rank must call; one collective. Changes nothing.

        Raises:
            NotComputableError: no rank has seen a sample.
            CollectiveError: the ranks have different metrics, or samples that do not fit together.
        """
        parts = self.parts()
        by_rank = runtime.gather_states([part.state() for part in parts])
        return self.compute_from_parts(merged_parts(parts, by_rank))

    def peek(self) -> Any:
        """The value over this rank's samples alone, without a collective; None before the first sample."""
        try:
            return self.compute_from(self.state())
        except NotComputableError:
            return None

    def take(self, engine_output: Any, skip_unrolling: bool = False) -> None:
        """Take the output of an engine's iteration; None means that this rank had no sample in it.

        Args:
            engine_output: what the process function returned.
            skip_unrolling: as if the metric had been made with it.

        Raises:
            UsageError: the output is a mapping that lacks one of ``required_output_keys``, or cannot be unrolled.
        """
        if engine_output is None:
            return
        output = engine_output if self.output_transform is None else self.output_transform(engine_output)
        if output is None:
            return
        if isinstance(output, Mapping):
            output = self._from_mapping(output)
        pairs = None if self.skip_unrolling or skip_unrolling else unrolled(output, type(self).__name__)
        if pairs is None:
            self.update(output)
        else:
            for pair in pairs:
                self.update(pair)

    def peek_weight(self) -> Any:
        """How many samples ``peek()`` is a mean of, a number or a tensor that lies on the device; None: not known.

        A tensor of 0 says, without waiting for the device, that there is no value yet.
        """
        return None

    # Metrics that are made of others ------------------------------------------------------------------------------

    def inlets(self) -> tuple[Inlet, ...]:
        """How an output reaches each of the metrics that hold this one's samples; by default, it holds them itself."""
        return (Inlet(self),)

    def parts(self) -> tuple[Metric, ...]:
        """The metrics that hold this one's samples and whose states are gathered; by default itself alone."""
        return (self,)

    def sources(self) -> tuple[Metric, ...]:
        """Metrics that this one feeds and starts anew as it needs them, so that nothing else can use them meanwhile."""
        return ()

    def compute_from_parts(self, merged: Sequence[Mapping[str, torch.Tensor]]) -> Any:
        """The value of the merged partial results of ``parts()``, in their order; changes nothing."""
        return self.compute_from(merged[0])

    def shown(self, value: Any) -> None:
        """Called by an engine after it has put ``value`` into ``state.metrics``."""

    # State --------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The samples that this rank has seen, in tensors and primitives; never a collective.

        Raises nothing on a rank that has seen none. (Ignite's gathers the states of all ranks, so that it hangs where
        one rank alone saves.)
        """
        here = runtime.current()
        states = [{key: tensor.clone() for key, tensor in part.state().items()} for part in self.parts()]
        return {"rank": here.rank, "world_size": here.world_size, "parts": states}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take up the samples of ``state_dict``, in place of those seen so far.

        Samples of another rank are not taken up, since several ranks would then count them; that is said, as is a
        change of the number of ranks. Values that are each rank's own (``merges`` is False) are taken from any.

        Raises:
            UsageError: it is not of such a metric.
        """
        parts = self.parts()
        states = _checked_states(type(self).__name__, parts, state_dict)
        here = runtime.current()
        saved = (state_dict.get("rank"), state_dict.get("world_size"))
        of_others = saved != (here.rank, here.world_size) and any(part.merges for part in parts)
        if of_others:
            _logger.warning(
                "%s: rank %d of %d was given the samples of rank %s of %s; %s", type(self).__name__, here.rank,
                here.world_size, *saved, "those of other ranks are missing until it starts anew."
                if saved[0] == here.rank else "they are left out, and it goes on without any.",
            )  # fmt: skip
        for part, state in zip(parts, states, strict=True):
            if of_others and part.merges and saved[0] != here.rank:
                part.reset()
                continue
            part.load_state(state)
            part.was_loaded = True

    # Engines ------------------------------------------------------------------------------------------------------

    def attach(self, engine: Host, name: str, usage: UsageLike | None = None) -> None:
        """Let ``engine`` feed this metric and put its value into ``state.metrics[name]``.

        The items of a value that is a mapping are put into ``state.metrics`` under their own keys, too. A metric may be
        attached to several engines that run one after the other: each starts it anew.

        Args:
            engine: the engine.
            name: key of the value.
            usage: ``"epoch_wise"`` (a value an epoch, over its samples), ``"batch_wise"`` (one an iteration, over its
                samples), ``"running_epoch_wise"`` and ``"running_batch_wise"`` (over all samples of the run so far),
                ``"single_epoch_running_batch_wise"`` (one an iteration, over the samples of the epoch so far), or the
                class of that name, ``EpochWise`` and so on. A value an iteration costs a collective an iteration where
                ``merges`` is True. None: ``default_usage``.

        Raises:
            UsageError: the name is taken in this engine, there is no such usage, or this metric is fed by the engine
                already in another way.
        """
        engine.attach_metric(self, name, usage)

    def detach(self, engine: Host, usage: UsageLike | None = None) -> None:
        """Undo ``attach``, of all usages or of one; raises UsageError where this metric is not so attached."""
        engine.detach_metric(self, usage)

    def is_attached(self, engine: Host, usage: UsageLike | None = None) -> bool:
        """Whether this metric is attached to ``engine``, with any usage or with the one given."""
        return engine.is_metric_attached(self, usage)

    def _from_mapping(self, output: Mapping[str, Any]) -> tuple[Any, ...]:
        if self.required_output_keys is None:
            raise UsageError(
                f"{type(self).__name__} was given an output with keys {list(output)} and takes no mapping; pick what "
                "it takes by output_transform"
            )
        missing = [key for key in self.required_output_keys if key not in output]
        if missing:
            raise UsageError(
                f"{type(self).__name__} was given an output with keys {list(output)} and needs "
                f"{list(self.required_output_keys)}; return these, or pick others by output_transform"
            )
        return tuple(output[key] for key in self.required_output_keys)

    def _sum_of(self, key: str, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        filled = [tensor for tensor in tensors if tensor.numel()]
        if any(tensor.shape != filled[0].shape for tensor in filled):
            shapes = ", ".join(f"{tuple(tensor.shape)} on rank {rank}" for rank, tensor in enumerate(tensors))
            raise CollectiveError(
                f"{type(self).__name__} has partial results {key!r} of shapes {shapes}, which cannot be added; give "
                "every rank samples of the same number of classes or outputs"
            )
        total = (filled or tensors)[0].clone()
        for tensor in filled[1:]:
            total = total + tensor
        return total


def merged_parts(parts: Sequence[Metric], by_rank: Sequence[Sequence[Mapping[str, torch.Tensor]]]) -> list[State]:
    """What each of ``parts`` makes of its states on all ranks, which lie in ``by_rank`` in the order of ``parts``.

    Raises:
        CollectiveError: they are states of other metrics than those of rank 0, or do not fit together.
    """
    keys = [[sorted(state) for state in states] for states in by_rank]
    for rank, own in enumerate(keys):
        if own != keys[0]:
            raise CollectiveError(
                f"a metric has partial results {keys[0]} on rank 0 and {own} on rank {rank}; attach the same metrics, "
                "made of the same, on every rank"
            )
    return [part.merge([states[place] for states in by_rank]) for place, part in enumerate(parts)]


def _checked_states(owner: str, parts: Sequence[Metric], state_dict: Any) -> Sequence[State]:
    """The states of ``parts`` in what ``state_dict`` returned, all looked at before one is loaded."""
    states = state_dict.get("parts") if isinstance(state_dict, Mapping) else None
    if not isinstance(states, tuple | list) or len(states) != len(parts):
        found = f"a state with keys {list(state_dict)}" if isinstance(state_dict, Mapping) else repr(state_dict)
        raise UsageError(
            f"{owner} was given {found} to load, which is not one of its {len(parts)} part(s); give what its "
            "state_dict() returned"
        )
    for part, state in zip(parts, states, strict=True):
        expected = part.state().keys()
        tensors = isinstance(state, Mapping) and all(isinstance(value, torch.Tensor) for value in state.values())
        if not tensors or set(state) != set(expected):
            raise UsageError(
                f"{type(part).__name__} was given a state of {sorted(state) if tensors else repr(state)} to load and "
                f"has {sorted(expected)}, tensors; give what the state_dict() of such a metric returned"
            )
    return states
