"""The metrics of an engine: when each starts anew, takes a batch and gives its value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch

from shoal import runtime
from shoal.engine._handlers import restrict
from shoal.engine.events import Events
from shoal.errors import CollectiveError, NotComputableError, UsageError
from shoal.metrics import Metric
from shoal.metrics.base import Inlet, merged_parts
from shoal.metrics.usage import BatchFiltered, MetricUsage, Moment, UsageLike, usage_of

if TYPE_CHECKING:
    from shoal.engine._handlers import Call
    from shoal.engine.engine import Engine
    from shoal.engine.state import State

__all__ = ["MetricTable"]


@dataclass(frozen=True, slots=True)
class _Link:
    name: str
    metric: Metric
    usage: MetricUsage


@dataclass(frozen=True, slots=True)
class _Feed:
    """How a metric that holds samples is fed, for all that are made of it, and the first name that asked for it."""

    inlet: Inlet
    usage: MetricUsage
    name: str

    def holders(self) -> tuple[Metric, ...]:
        """The metrics whose samples come and go with this feeding: the part, and what it feeds itself."""
        return tuple(_held_by(self.inlet.part))

    def fits(self, inlet: Inlet, usage: MetricUsage) -> bool:
        """Whether one and the same feeding serves both; when values are shown may differ."""
        own, other = self.inlet, inlet
        same_way = (own.transforms, own.skip_unrolling) == (other.transforms, other.skip_unrolling)
        return same_way and self.usage.reset == usage.reset and _filters(self.usage) == _filters(usage)


class MetricTable:
    """The metrics attached to one engine, by name. All that give their value at one moment share one collective.

    A metric that holds samples is fed once an iteration and gathered once a collective, however many of those that are
    attached are made of it.
    """

    def __init__(self) -> None:
        self._links: dict[str, _Link] = {}
        self._feeds: tuple[_Feed, ...] = ()
        self._claims = False  # while the engine runs
        self._runs = object()  # what metrics know this engine's runs by, without holding it
        self._flat: dict[str, set[Any]] = {}  # by name, the keys of a value that is a mapping, put into state.metrics

    def attach(self, metric: Metric, name: str, usage: UsageLike | None) -> None:
        """Attach under ``name``.

        Raises:
            UsageError: the name is taken or no text, the usage doesn't exist, or the metric is made of one that is fed
                in another way here.
        """
        if not isinstance(name, str) or not name:
            raise UsageError(f"{metric!r} was to be attached under the name {name!r}; give a text")
        if name in self._links:
            raise UsageError(
                f"a metric was to be attached as {name!r}, which is the name of {self._links[name].metric!r} here; "
                "choose another name or detach that one first"
            )
        link = _Link(name, metric, usage_of(usage or metric.default_usage, name))
        if isinstance(link.usage, BatchFiltered):
            Events.ITERATION_COMPLETED(**link.usage.filters)  # raises where they are none
        self._put({**self._links, name: link})

    def detach(self, metric: Metric, usage: UsageLike | None = None) -> None:
        """Detach from every name, or those of one usage; raises UsageError where there is none."""
        found = self._names_of(metric, usage)
        if not found:
            asked = "" if usage is None else f" with usage={usage!r}"
            raise UsageError(f"{metric!r} was to be detached from an engine to which it is not attached{asked}")
        self._put({name: link for name, link in self._links.items() if name not in found})

    def has(self, metric: Metric, usage: UsageLike | None = None) -> bool:
        """Whether ``metric`` is attached, with any usage or the one given."""
        return bool(self._names_of(metric, usage))

    def calls(self) -> tuple[Call, ...]:
        """What to call after each iteration."""
        calls = [_taking(feed) for feed in self._feeds]
        each = [link for link in self._links.values() if link.usage.publish == "iteration"]
        calls.extend(self._showing(link) for link in each if not link.metric.merges)
        if any(link.metric.merges for link in each):
            calls.append(lambda engine: self.publish(engine.state, "iteration", lenient=True))
        return tuple(calls)

    def reset(self, *moments: Moment) -> None:
        """Start anew the metrics that do so at one of ``moments``."""
        for feed in self._feeds:
            if feed.usage.reset in moments:
                feed.inlet.part.reset()

    def renew(self) -> None:
        """Start anew all metrics but those whose own state was loaded since the last run: the engine's was now."""
        for feed in self._feeds:
            if not feed.inlet.part.was_loaded:
                feed.inlet.part.reset()

    def claim(self, *moments: Moment) -> list[str]:
        """Mark the metrics as in use by this engine's run.

        Args:
            moments: with what has begun already and now goes on: ``"run"``, and ``"epoch"`` in the middle of one.

        Returns:
            The names of those that have to go on with samples which another engine's run has replaced since: they start
            anew.

        Raises:
            UsageError: another engine that is running uses one; both would add to the same sums.
        """
        self._check_free(self._feeds)
        self._claims = True
        lost = []
        for feed in self._feeds:
            part = feed.inlet.part
            if feed.usage.reset in moments and part.fed_in not in (None, self._runs) and not part.was_loaded:
                part.reset()
                lost.append(feed.name)
            for metric in feed.holders():
                metric.in_use_by, metric.fed_in = self, self._runs
                metric.was_loaded = False
        return lost

    def release(self) -> None:
        """Undo ``claim``."""
        self._claims = False
        for feed in self._feeds:
            for metric in feed.holders():
                if metric.in_use_by is self:
                    metric.in_use_by = None

    def forget(self, state: State) -> None:
        """Take the values of an earlier run out of ``state.metrics``."""
        for name in (*self._links, *self._flat):
            self._withdraw(state, name)

    def publish(self, state: State, moment: Moment, *, lenient: bool = False) -> None:
        """Put the values of the metrics of ``moment``, over all ranks, into ``state.metrics``; one collective in all.

        After an iteration, metrics whose value is each rank's own take no part.

        Args:
            state: of the engine.
            moment: ``"epoch"`` or ``"iteration"``.
            lenient: a metric that has seen no sample is left out.

        Raises:
            NotComputableError: a metric has seen no sample on any rank, and not ``lenient``.
            CollectiveError: the ranks have different metrics attached.
        """
        at_epoch = moment == "epoch"
        links = [link for link in self._links.values() if link.usage.publish == moment]
        links = sorted(
            (link for link in links if at_epoch or link.metric.merges), key=attrgetter("name")
        )  # in whatever order a rank has attached them
        parts = tuple({id(part): part for link in links for part in link.metric.parts()}.values())
        if not parts:
            return
        names = {f"{link.name} ({type(link.metric).__name__})": torch.zeros(0) for link in links}
        gathered = runtime.gather_states([names, *(part.state() for part in parts)])
        for rank, (found, *_) in enumerate(gathered):
            if found.keys() != gathered[0][0].keys():
                raise CollectiveError(
                    f"an engine has the metrics {', '.join(gathered[0][0])} on rank 0 and {', '.join(found)} on rank "
                    f"{rank}; attach the same on each"
                )
        states = merged_parts(parts, [states for _, *states in gathered])
        merged = dict(zip(map(id, parts), states, strict=True))
        for link in links:
            own = [merged[id(part)] for part in link.metric.parts()]
            self._show(state, link, lambda link=link, own=own: link.metric.compute_from_parts(own), lenient)  # type: ignore[misc]

    def _show(self, state: State, link: _Link, compute: Callable[[], Any], lenient: bool) -> None:
        try:
            value = compute()
        except NotComputableError as error:
            self._withdraw(state, link.name)
            if lenient:
                return
            raise NotComputableError(f"the metric {link.name!r}: {error}") from error
        except Exception as error:
            error.add_note(f"It was the metric {link.name!r} that was computed.")
            raise
        link.metric.shown(value)
        self._enter(state, link.name, _plain(value))

    def _showing(self, link: _Link) -> Call:
        """Shows this rank's value after each iteration; nothing is exchanged, and nothing waits for the device."""
        name, peek, enter, withdraw = link.name, link.metric.peek, self._enter, self._withdraw

        def show(engine: Engine) -> None:
            value = peek()
            if value.__class__ is dict:
                enter(engine.state, name, value)
            elif value is not None:
                engine.state.metrics[name] = value
            else:
                withdraw(engine.state, name)

        return show

    def _enter(self, state: State, name: str, value: Any) -> None:
        """Put a value into ``state.metrics``; the items of one that is a mapping also under their own keys."""
        if isinstance(value, Mapping):
            if name in value:
                raise UsageError(
                    f"the metric {name!r} has values named {list(value)}, one of them as itself; attach it under "
                    "another name"
                )
            flat = {key: item for key, item in value.items() if key not in self._links}
            for key in self._flat.get(name, set()) - flat.keys():
                state.metrics.pop(key, None)
            state.metrics.update(flat)
            self._flat[name] = set(flat)
        state.metrics[name] = value

    def _withdraw(self, state: State, name: str) -> None:
        """Take a value out of ``state.metrics``, and what was put there of its items."""
        for key in (name, *self._flat.pop(name, ())):
            state.metrics.pop(key, None)

    def _check_free(self, feeds: Iterable[_Feed]) -> None:
        for feed in feeds:
            if any(metric.in_use_by not in (None, self) for metric in feed.holders()):
                raise UsageError(
                    f"the metric {feed.name!r} is attached to another engine too, which is running; engines that "
                    "run one inside the other need a metric object each"
                )

    def _names_of(self, metric: Metric, usage: UsageLike | None) -> list[str]:
        asked = None if usage is None else usage_of(usage)
        return [n for n, link in self._links.items() if link.metric is metric and asked in (None, link.usage)]

    def _put(self, links: dict[str, _Link]) -> None:
        feeds = _feeds_of(links.values())
        if self._claims:
            self._check_free(feeds)
        before, self._feeds = self._feeds, feeds
        self._links = links
        if not self._claims:
            return
        # In the middle of a run: what is attached starts anew, and what is detached is free for others.
        fed = {id(feed.inlet.part) for feed in before}
        for feed in feeds:
            if id(feed.inlet.part) not in fed and not feed.inlet.part.was_loaded:
                feed.inlet.part.reset()
        for feed in before:
            for metric in feed.holders():
                metric.in_use_by = None
        for feed in feeds:
            for metric in feed.holders():
                metric.in_use_by, metric.fed_in = self, self._runs


def _feeds_of(links: Iterable[_Link]) -> tuple[_Feed, ...]:
    """How each metric that holds samples is fed, once for all that are made of it.

    Raises:
        UsageError: one would be fed in two ways.
    """
    feeds: dict[int, _Feed] = {}
    for link in links:
        for inlet in link.metric.inlets():
            feed = feeds.setdefault(id(inlet.part), _Feed(inlet, link.usage, link.name))
            if not feed.fits(inlet, link.usage):
                raise _two_ways(feed, link)
    held: dict[int, _Feed] = {}
    for feed in feeds.values():
        for metric in feed.holders():
            if held.setdefault(id(metric), feed) is not feed:
                raise _two_holders(held[id(metric)], feed, metric)
    return tuple(feeds.values())


def _held_by(part: Metric) -> Iterator[Metric]:
    yield part
    for source in part.sources():
        for inner in source.parts():
            yield from _held_by(inner)


def _two_holders(one: _Feed, other: _Feed, metric: Metric) -> UsageError:
    return UsageError(
        f"the metrics {one.name!r} and {other.name!r} use one {type(metric).__name__} object, which a RunningAverage "
        "among them feeds and starts anew by itself; give each an object of its own"
    )


def _two_ways(feed: _Feed, link: _Link) -> UsageError:
    part = type(feed.inlet.part).__name__
    if feed.usage == link.usage:
        return UsageError(
            f"the metrics {feed.name!r} and {link.name!r} hand one {part} object an output in different forms; give "
            "each an object of its own"
        )
    return UsageError(
        f"the metric {feed.name!r} uses one {part} object with usage={feed.usage!r} and {link.name!r} with "
        f"usage={link.usage!r}, which start it anew, or feed it, at different times; give each an object of its own"
    )


def _filters(usage: MetricUsage) -> dict[str, Any]:
    return usage.filters if isinstance(usage, BatchFiltered) else {}


def _plain(value: Any) -> Any:
    """The value with numbers in place of tensors without dimensions."""
    if isinstance(value, torch.Tensor):
        return value.item() if value.dim() == 0 else value
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, Mapping) else value


def _taking(feed: _Feed) -> Call:
    inlet, usage, part = feed.inlet, feed.usage, feed.inlet.part
    plain = not inlet.transforms and not inlet.skip_unrolling
    take: Callable[[Any], None] = part.take if plain else inlet.take
    if isinstance(usage, BatchFiltered):
        chosen = Events.ITERATION_COMPLETED(**usage.filters)
        return restrict(lambda engine: take(engine.state.output), chosen, attrgetter("state.iteration"))
    if usage.reset != "iteration":
        return lambda engine: take(engine.state.output)
    reset = part.reset

    def take_anew(engine: Engine) -> None:
        reset()
        take(engine.state.output)

    return take_anew
