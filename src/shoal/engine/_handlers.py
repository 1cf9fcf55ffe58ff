"""Who is called at which event: handlers checked when they are attached, kept as tuples that are ready to call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from types import MethodType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from shoal.engine.events import EventEnum, EventKey, Events, FilteredEvent
from shoal.errors import HandlerSignatureError, UsageError

if TYPE_CHECKING:
    from shoal.engine.engine import Engine

__all__ = ["Call", "Entry", "HandlerTable", "Observer", "bind", "describe", "restrict"]

Call: TypeAlias = Callable[[Any], Any]  # takes the engine


def _coming_iteration(engine: Engine) -> int:
    return engine.state.iteration + 1


# An event's occurrences are counted by an attribute of the state, or else by how often it fired.
_COUNTS: dict[EventKey, Callable[[Any], int]] = {
    Events.EPOCH_STARTED: attrgetter("state.epoch"),
    Events.EPOCH_COMPLETED: attrgetter("state.epoch"),
    Events.COMPLETED: attrgetter("state.epoch"),
    Events.GET_BATCH_STARTED: _coming_iteration,
    Events.GET_BATCH_COMPLETED: _coming_iteration,
    Events.ITERATION_STARTED: attrgetter("state.iteration"),
    Events.ITERATION_COMPLETED: attrgetter("state.iteration"),
}


def describe(handler: Callable[..., Any]) -> str:
    """``name (file:line)`` of a handler, as far as Python knows them."""
    target = inspect.unwrap(handler)
    name = getattr(target, "__qualname__", None) or repr(handler)
    code = getattr(getattr(target, "__func__", target), "__code__", None)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code else name


def bind(handler: Callable[..., Any], event: EventKey, args: Sequence[Any], kwargs: dict[str, Any]) -> Call:
    """The call of ``handler`` with the engine alone.

    A handler takes the engine first, or leaves it out; one of EXCEPTION_RAISED takes the exception after it.

    Raises:
        HandlerSignatureError: it can be called in none of these ways.
        UsageError: it is not callable.
    """
    if not callable(handler):
        raise UsageError(f"a handler of {event} must be callable, and {handler!r} is not")
    raised = event is Events.EXCEPTION_RAISED
    leads = (("engine", "exception"), ("exception",), ()) if raised else (("engine",), ())
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):  # a builtin that does not tell its parameters
        return _call(handler, leads[0], args, kwargs)
    failures = []
    for lead in leads:
        try:
            signature.bind(*lead, *args, **kwargs)
        except TypeError as error:
            failures.append(error)
        else:
            failures.clear()  # their tracebacks hold this frame, and so would keep the engine alive
            return _call(handler, lead, args, kwargs)
    shown = [*leads[0], *map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]
    raise HandlerSignatureError(
        f"the handler {describe(handler)} takes {signature}, but {event} calls it with ({', '.join(shown)}), "
        f"or without the {leads[0][0]}: {failures[0]}; change its parameters or what is passed to add_event_handler"
    ) from failures[0]


def _call(handler: Callable[..., Any], lead: tuple[str, ...], args: Sequence[Any], kwargs: dict[str, Any]) -> Call:
    if lead == ("engine",) and not args and not kwargs:
        return handler
    if lead == ("engine",):
        return lambda engine: handler(engine, *args, **kwargs)
    if lead == ("engine", "exception"):
        return lambda engine: handler(engine, engine.exception, *args, **kwargs)
    if lead == ("exception",):
        return lambda engine: handler(engine.exception, *args, **kwargs)
    return lambda _: handler(*args, **kwargs)


def restrict(call: Call, chosen: FilteredEvent, count: Callable[[Engine], int]) -> Call:
    """``call`` at the occurrences that ``chosen`` picks, of an event that ``count`` numbers."""
    if chosen.event_filter is not None:
        accept = chosen.event_filter
        return lambda engine: call(engine) if accept(engine, count(engine)) else None
    if chosen.once is not None:
        picked = chosen.once
        return lambda engine: call(engine) if count(engine) in picked else None
    every = chosen.every or 1
    if chosen.before is None and chosen.after is None:
        return call if every == 1 else lambda engine: None if count(engine) % every else call(engine)
    low = chosen.after or 0
    high = float("inf") if chosen.before is None else chosen.before

    def within(engine: Engine) -> None:
        number = count(engine)
        if low < number < high and (number - low - 1) % every == 0:
            call(engine)

    return within


class Entry:
    """One handler at one event."""

    __slots__ = ("__weakref__", "bound", "call", "event", "handler", "narrow")

    def __init__(
        self, event: EventKey, handler: Callable[..., Any], bound: Call, narrow: Callable[[Call], Call]
    ) -> None:
        self.event = event
        self.handler = handler
        self.bound = bound  # at every occurrence; narrow() makes of it what is called at those that were chosen
        self.narrow = narrow
        self.call = narrow(bound)

    def is_for(self, handler: Callable[..., Any]) -> bool:
        """Whether this is ``handler``; two accesses of one bound method are the same handler."""
        same_kind = isinstance(handler, MethodType) and isinstance(self.handler, MethodType)
        return self.handler is handler or (same_kind and self.handler == handler)


class Observer(Protocol):
    """Sees what happens at a table's events, as a profiler needs it. It must not hold the engine."""

    def opening(self, event: EventKey) -> Call | None:
        """What to call before all handlers of ``event``."""
        ...

    def closing(self, event: EventKey) -> Call | None:
        """What to call after all of them, unless one raised."""
        ...

    def wrap(self, event: EventKey, handler: Callable[..., Any], call: Call) -> Call:
        """What to call instead of ``call``, which calls ``handler``."""
        ...


class HandlerTable:
    """Handlers by event, each event's as a tuple. The four events of an iteration are attributes: the loop reads them.

    Tuples are replaced, never changed, so that a handler may attach and remove others while it runs.
    """

    def __init__(self) -> None:
        self._entries: dict[EventKey, list[Entry]] = {event: [] for event in Events}
        self._ready: dict[EventKey, tuple[Call, ...]] = {}
        self._count_by = dict(_COUNTS)
        self._metric_calls: tuple[Call, ...] = ()
        self._observers: tuple[Observer, ...] = ()
        self.get_batch_started: tuple[Call, ...] = ()
        self.get_batch_completed: tuple[Call, ...] = ()
        self.iteration_started: tuple[Call, ...] = ()
        self.iteration_completed: tuple[Call, ...] = ()

    def register(self, event: EventKey, attribute: str | None = None) -> None:
        """Make an event known, counted by an attribute of the state or by its firings."""
        self._entries.setdefault(event, [])
        if attribute is not None:
            self._count_by[event] = attrgetter(f"state.{attribute}")
        self._refresh(event)

    def events(self) -> tuple[EventKey, ...]:
        """All events that are known here."""
        return tuple(self._entries)

    def counter(self, event: EventKey) -> Callable[[Any], int]:
        """Takes the engine and returns the number of the event's occurrence."""
        return self._count_by.get(event) or _firings_of(event)

    def counts_firings(self, event: EventKey) -> bool:
        """Whether the event has no attribute of the state that counts it."""
        return event not in self._count_by

    def check(self, event: EventKey) -> None:
        """Raise UsageError where the event is unknown here."""
        if event not in self._entries:
            known = ", ".join(name if isinstance(name, str) else str(name) for name in self._entries)
            raise UsageError(
                f"{event!r} is no event of this engine, which knows {known}; register it by engine.register_events()"
            )

    def add(
        self, chosen: EventKey | FilteredEvent, handler: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Entry:
        """Attach ``handler``; raises as ``check`` and ``bind`` do."""
        event = chosen.event if isinstance(chosen, FilteredEvent) else chosen
        self.check(event)
        bound = bind(handler, event, args, kwargs)
        narrow: Callable[[Call], Call] = _as_it_is
        if isinstance(chosen, FilteredEvent):
            narrow = partial(restrict, chosen=chosen, count=self.counter(event))
        entry = Entry(event, handler, bound, narrow)
        self._entries[event].append(entry)
        self._refresh(event)
        return entry

    def remove(self, entry: Entry) -> None:
        """Detach one entry; a no-op where that was done before."""
        if entry in self._entries[entry.event]:
            self._entries[entry.event].remove(entry)
            self._refresh(entry.event)

    def find(self, handler: Callable[..., Any], event: EventKey | None = None) -> list[Entry]:
        """The entries of ``handler``, at ``event`` or (None) at any."""
        if event is not None:
            self.check(event)
        events = self._entries if event is None else (event,)
        return [entry for key in events for entry in self._entries[key] if entry.is_for(handler)]

    def ready(self, event: EventKey) -> tuple[Call, ...]:
        """What to call at ``event``."""
        return self._ready.get(event, ())

    def put_metrics(self, calls: tuple[Call, ...]) -> None:
        """What to call after an iteration before all handlers, so that these find its metrics up to date."""
        self._metric_calls = calls
        self._refresh(Events.ITERATION_COMPLETED)

    def observe(self, observer: Observer) -> None:
        """Have ``observer`` see what happens from now on, at handlers that are added later too."""
        self._observers += (observer,)
        for event in self._entries:
            self._refresh(event)

    def unobserve(self, observer: Observer) -> None:
        """Undo ``observe``; a no-op where that was done before."""
        self._observers = tuple(other for other in self._observers if other is not observer)
        for event in self._entries:
            self._refresh(event)

    def _refresh(self, event: EventKey) -> None:
        self._ready[event] = self._calls(event, ())
        self.get_batch_started = self.ready(Events.GET_BATCH_STARTED)
        self.get_batch_completed = self.ready(Events.GET_BATCH_COMPLETED)
        self.iteration_started = self.ready(Events.ITERATION_STARTED)
        if event is Events.ITERATION_COMPLETED:
            self.iteration_completed = self._calls(event, self._metric_calls)

    def _calls(self, event: EventKey, metrics: tuple[Call, ...]) -> tuple[Call, ...]:
        entries = self._entries[event]
        if not self._observers:
            return (*metrics, *(entry.call for entry in entries))
        parts: list[tuple[Callable[..., Any], Call, Callable[[Call], Call]]]
        parts = [(call, call, _as_it_is) for call in metrics]
        parts += [(entry.handler, entry.bound, entry.narrow) for entry in entries]
        for observer in self._observers:
            parts = [(handler, observer.wrap(event, handler, bound), narrow) for handler, bound, narrow in parts]
        first = [call for observer in self._observers if (call := observer.opening(event)) is not None]
        last = [call for observer in reversed(self._observers) if (call := observer.closing(event)) is not None]
        return (*first, *(narrow(bound) for _, bound, narrow in parts), *last)


def _as_it_is(call: Call) -> Call:
    return call


def _firings_of(event: EventKey) -> Callable[[Any], int]:
    return lambda engine: engine._firings.get(event, 0)


def base_event(event: EventKey | FilteredEvent) -> EventEnum | str:
    """The event without its filter."""
    return event.event if isinstance(event, FilteredEvent) else event
