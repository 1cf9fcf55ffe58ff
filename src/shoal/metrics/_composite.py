"""The base of metrics that are made of others and hold no samples of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from shoal.errors import UsageError
from shoal.metrics.base import Inlet, Metric, State

__all__ = ["Composite", "distinct_inlets"]


class Composite(Metric):
    """A metric made of others: each of these that holds samples is fed once and gathered once, however often it occurs.

    A subclass writes ``compute_from_parts`` and ``peek``.
    """

    required_output_keys = None

    def __init__(
        self,
        inlets: Iterable[Inlet],
        output_transform: Callable[[Any], Any] | None = None,
        skip_unrolling: bool = False,
    ) -> None:
        self._inlets = distinct_inlets(inlets, type(self).__name__)
        self._parts = tuple(inlet.part for inlet in self._inlets)
        self.merges = not self._parts or any(part.merges for part in self._parts)
        usages = {part.default_usage for part in self._parts}
        self.default_usage = usages.pop() if len(usages) == 1 else Metric.default_usage
        self._made = False
        super().__init__(output_transform, None, skip_unrolling)
        self._made = True

    def inlets(self) -> tuple[Inlet, ...]:
        """How an output reaches each of the metrics that hold samples, each once."""
        return self._inlets

    def parts(self) -> tuple[Metric, ...]:
        """The metrics that hold samples, each once."""
        return self._parts

    def sources(self) -> tuple[Metric, ...]:
        """What the parts feed themselves."""
        return tuple(source for part in self._parts for source in part.sources())

    def reset(self) -> None:
        """Start every part anew."""
        if self._made:  # what the parts have seen before isn't touched by making something of them
            for part in self._parts:
                part.reset()

    def update(self, output: Any) -> None:
        """Give every part the batch."""
        for inlet in self._inlets:
            inlet.update(output)

    def take(self, engine_output: Any, skip_unrolling: bool = False) -> None:
        """Give every part the output of an engine's iteration, which takes it as if it were attached itself."""
        del skip_unrolling  # a part's own matter, and what its inlet says
        for inlet in self._inlets:
            inlet.take(engine_output)

    def state(self) -> State:
        """The states of the parts, their keys preceded by the part's place: ``"0.sum"``."""
        return {
            f"{place}.{key}": value for place, part in enumerate(self._parts) for key, value in part.state().items()
        }

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Give every part its own state."""
        for part, own in zip(self._parts, self._split(state), strict=True):
            part.load_state(own)

    def merge(self, states: Sequence[Mapping[str, torch.Tensor]]) -> State:
        """Every part's merging."""
        split = [self._split(state) for state in states]
        return _joined([part.merge([own[place] for own in split]) for place, part in enumerate(self._parts)])

    def compute_from(self, state: Mapping[str, torch.Tensor]) -> Any:
        """The value of the parts' states."""
        return self.compute_from_parts(self._split(state))

    def of(self, metric: Metric, merged: Sequence[Mapping[str, torch.Tensor]]) -> Any:
        """The value of one of the metrics that this one is made of, from the merged states of this one's parts."""
        places = {id(part): place for place, part in enumerate(self._parts)}
        return metric.compute_from_parts([merged[places[id(part)]] for part in metric.parts()])

    def _split(self, state: Mapping[str, torch.Tensor]) -> list[State]:
        split: list[State] = [{} for _ in self._parts]
        for key, value in state.items():
            place, _, own = key.partition(".")
            split[int(place)][own] = value
        return split


def distinct_inlets(inlets: Iterable[Inlet], where: str) -> tuple[Inlet, ...]:
    """Each part's inlet once.

    Raises:
        UsageError: one part would be given two different things.
    """
    by_part: dict[int, Inlet] = {}
    for inlet in inlets:
        known = by_part.setdefault(id(inlet.part), inlet)
        if (known.transforms, known.skip_unrolling) != (inlet.transforms, inlet.skip_unrolling):
            raise UsageError(
                f"{where}: one {type(inlet.part).__name__} object would take each output twice, in different forms, "
                "since it is in a MetricGroup with an output_transform and also used elsewhere; make a second object"
            )
    return tuple(by_part.values())


def _joined(states: Sequence[Mapping[str, torch.Tensor]]) -> State:
    return {f"{place}.{key}": tensor for place, state in enumerate(states) for key, tensor in state.items()}
