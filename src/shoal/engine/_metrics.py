"""The metrics of an engine: when each starts anew, takes a batch and gives its value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from shoal import runtime
from shoal._registry import nearest
from shoal.errors import CollectiveError, NotComputableError, UsageError
from shoal.metrics import Metric

if TYPE_CHECKING:
    from shoal.engine._handlers import Call
    from shoal.engine.engine import Engine
    from shoal.engine.state import State

__all__ = ["USAGES", "MetricTable", "Usage"]

Moment = Literal["run", "epoch", "iteration"]


@dataclass(frozen=True, slots=True)
class Usage:
    """When a metric starts anew, and when its value is put into ``state.metrics``."""

    reset: Moment
    publish: Moment


USAGES = {
    "epoch_wise": Usage(reset="epoch", publish="epoch"),
    "batch_wise": Usage(reset="iteration", publish="iteration"),
    "running_epoch_wise": Usage(reset="run", publish="epoch"),
    "running_batch_wise": Usage(reset="run", publish="iteration"),
    "single_epoch_running_batch_wise": Usage(reset="epoch", publish="iteration"),
}


@dataclass(frozen=True, slots=True)
class _Link:
    name: str
    metric: Metric
    usage: Usage


class MetricTable:
    """The metrics attached to one engine, by name. All that give their value at one moment share one collective."""

    def __init__(self) -> None:
        self._links: dict[str, _Link] = {}

    def attach(self, metric: Metric, name: str, usage: str | None) -> None:
        """Attach under ``name``; raises UsageError for a name that is taken or a usage that doesn't exist."""
        if name in self._links:
            raise UsageError(
                f"a metric was to be attached as {name!r}, which is the name of {self._links[name].metric!r} here; "
                "choose another name or detach that one first"
            )
        chosen = usage or metric.default_usage
        if chosen not in USAGES:
            raise UsageError(
                f"the metric {name!r} was to be attached with usage={chosen!r}{nearest(chosen, USAGES)}; "
                f"choose one of {', '.join(USAGES)}"
            )
        self._links[name] = _Link(name, metric, USAGES[chosen])

    def detach(self, metric: Metric) -> None:
        """Detach from every name; raises UsageError where it is attached to none."""
        if not self.has(metric):
            raise UsageError(f"{metric!r} was to be detached from an engine to which it is not attached")
        self._links = {name: link for name, link in self._links.items() if link.metric is not metric}

    def has(self, metric: Metric) -> bool:
        """Whether ``metric`` is attached."""
        return any(link.metric is metric for link in self._links.values())

    def calls(self) -> tuple[Call, ...]:
        """What to call after each iteration."""
        calls = [_taking(link.metric, anew=link.usage.reset == "iteration") for link in self._links.values()]
        each = [link for link in self._links.values() if link.usage.publish == "iteration"]
        calls.extend(_showing(link) for link in each if not link.metric.merges)
        if any(link.metric.merges for link in each):
            calls.append(lambda engine: self.publish(engine.state, "iteration", lenient=True))
        return tuple(calls)

    def reset(self, *moments: Moment) -> None:
        """Start anew the metrics that do so at one of ``moments``."""
        for link in self._links.values():
            if link.usage.reset in moments:
                link.metric.reset()

    def claim(self) -> None:
        """Mark the metrics as in use by this engine's run.

        Raises:
            UsageError: another engine that is running uses one; both would add to the same sums.
        """
        for link in self._links.values():
            if link.metric.in_use_by not in (None, self):
                self.release()
                raise UsageError(
                    f"the metric {link.name!r} is attached to another engine too, which is running; engines that run "
                    "one inside the other need a metric object each"
                )
            link.metric.in_use_by = self

    def release(self) -> None:
        """Undo ``claim``."""
        for link in self._links.values():
            if link.metric.in_use_by is self:
                link.metric.in_use_by = None

    def forget(self, state: State) -> None:
        """Take the values of an earlier run out of ``state.metrics``."""
        for name in self._links:
            state.metrics.pop(name, None)

    def publish(self, state: State, moment: Moment, *, lenient: bool = False) -> None:
        """Put the values of the metrics of ``moment``, over all ranks, into ``state.metrics``; one collective in all.

        Args:
            state: of the engine.
            moment: ``"epoch"`` or ``"iteration"``.
            lenient: a metric that has seen no sample is left out.

        Raises:
            NotComputableError: a metric has seen no sample on any rank, and not ``lenient``.
            CollectiveError: the ranks have different metrics attached.
        """
        links = [link for link in self._links.values() if link.usage.publish == moment and link.metric.merges]
        if not links:
            return
        by_rank = runtime.gather_states([link.metric.state() for link in links])
        counts = [len(states) for states in by_rank]
        if set(counts) != {len(links)}:
            raise CollectiveError(
                f"an engine has {counts} metrics attached on ranks 0 to {len(counts) - 1}; attach the same on each"
            )
        for place, link in enumerate(links):
            merged = link.metric.merge([states[place] for states in by_rank])
            _put(state, link, lambda link=link, merged=merged: link.metric.compute_from(merged), lenient)  # type: ignore[misc]


def _put(state: State, link: _Link, compute: Callable[[], Any], lenient: bool) -> None:
    try:
        value = compute()
    except NotComputableError as error:
        state.metrics.pop(link.name, None)
        if lenient:
            return
        raise NotComputableError(f"the metric {link.name!r}: {error}") from error
    if isinstance(value, torch.Tensor) and value.dim() == 0:
        value = value.item()
    if isinstance(value, Mapping):
        state.metrics.update(value)
    state.metrics[link.name] = value


def _taking(metric: Metric, *, anew: bool) -> Call:
    take, reset = metric.take, metric.reset
    if not anew:
        return lambda engine: take(engine.state.output)

    def take_anew(engine: Engine) -> None:
        reset()
        take(engine.state.output)

    return take_anew


def _showing(link: _Link) -> Call:
    """Shows this rank's value after each iteration; nothing is exchanged, and nothing waits for the device."""
    name, peek = link.name, link.metric.peek

    def show(engine: Engine) -> None:
        value = peek()
        if value is not None:
            engine.state.metrics[name] = value

    return show
