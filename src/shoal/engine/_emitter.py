"""Attaching handlers to events and firing them: the half of the engine that knows nothing of data or epochs."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar

from shoal.engine._handlers import Call, Entry, HandlerTable, base_event, describe
from shoal.engine.events import EventEnum, EventKey, EventLike, Events, EventsList
from shoal.engine.state import State
from shoal.errors import UsageError

__all__ = ["Emitter", "RemovableEventHandle"]

H = TypeVar("H", bound=Callable[..., Any])


class RemovableEventHandle:
    """What ``add_event_handler`` returns: removes what it attached, by ``remove()`` or at the end of a ``with`` block.

    It keeps neither the engine nor the handler alive.
    """

    def __init__(self, emitter: Emitter, entries: list[Entry]) -> None:
        self._emitter = weakref.ref(emitter)
        self._entries = [weakref.ref(entry) for entry in entries]

    def remove(self) -> None:
        """Detach the handler from the events that it was attached to in this call; a no-op the second time."""
        emitter = self._emitter()
        for reference in self._entries:
            entry = reference()
            if emitter is not None and entry is not None:
                emitter.handlers.remove(entry)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


class Emitter:
    """Handlers by event, and their firing.

    Attributes:
        state: what handlers read and add to.
        handlers: who is called at which event.
        exception: the one that is being handled, or None.
        last_event_name: the event whose handlers are being called, or were last; None before the first. An event that
            a handler fires is not it any more once ``fire_event`` has returned.
    """

    def __init__(self) -> None:
        self.state = State()
        self.handlers = HandlerTable()
        self.logger = logging.getLogger("shoal.engine.Engine")
        self.exception: BaseException | None = None
        self.last_event_name: EventKey | None = None
        self._firings: dict[EventKey, int] = {}

    def register_events(self, *events: EventKey, event_to_attr: Mapping[EventKey, str] | None = None) -> None:
        """Make events of your own known to this engine, and to no other.

        Args:
            events: members of an ``EventEnum``, or strings (which cannot be filtered).
            event_to_attr: the attribute of ``state`` that counts an event, for its filters; it is made, 0 at first,
                and you increase it. An event without one is counted by its firings.

        Raises:
            UsageError: an event is neither, or ``event_to_attr`` names one that is unknown here.
        """
        counted = dict(event_to_attr or {})
        for event in events:
            if not isinstance(event, EventEnum | str):
                raise UsageError(
                    f"register_events was given {event!r}; give members of a class derived from EventEnum, or strings"
                )
            self.handlers.register(event)
        for event, attribute in counted.items():
            self.handlers.check(event)
            self.handlers.register(event, attribute)
            if not hasattr(self.state, attribute):
                setattr(self.state, attribute, 0)

    def add_event_handler(
        self, event_name: EventLike, handler: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> RemovableEventHandle:
        """Have ``handler`` called at an event.

        Args:
            event_name: an event, filtered or not, or several joined by ``|``.
            handler: called with the engine, then ``args`` and ``kwargs``; it may leave out the engine. One of
                ``Events.EXCEPTION_RAISED`` is given the exception after the engine.
            args: passed to the handler.
            kwargs: passed to the handler.

        Returns:
            A handle that removes it again, also as a context manager.

        Raises:
            HandlerSignatureError: the handler cannot be called like that; the text names it and its place.
            UsageError: the event is unknown to this engine, or the handler isn't callable.
        """
        events = tuple(event_name) if isinstance(event_name, EventsList) else (event_name,)
        for event in events:
            self.handlers.check(base_event(event))
        entries = [self.handlers.add(event, handler, args, kwargs) for event in events]
        return RemovableEventHandle(self, entries)

    def on(self, event_name: EventLike, *args: Any, **kwargs: Any) -> Callable[[H], H]:
        """``add_event_handler`` as a decorator."""

        def attach(handler: H) -> H:
            self.add_event_handler(event_name, handler, *args, **kwargs)
            return handler

        return attach

    def has_event_handler(self, handler: Callable[..., Any], event_name: EventLike | None = None) -> bool:
        """Whether ``handler`` is attached to ``event_name`` (filters are not looked at), or (None) to any event."""
        if event_name is None:
            return bool(self.handlers.find(handler))
        events = event_name if isinstance(event_name, EventsList) else (event_name,)
        return all(self.handlers.find(handler, base_event(event)) for event in events)

    def remove_event_handler(self, handler: Callable[..., Any], event_name: EventLike) -> None:
        """Detach ``handler`` from an event; filters are not looked at.

        Raises:
            UsageError: it is not attached there.
        """
        for event in event_name if isinstance(event_name, EventsList) else (event_name,):
            entries = self.handlers.find(handler, base_event(event))
            if not entries:
                raise UsageError(
                    f"the handler {describe(handler)} was to be removed from {base_event(event)}, "
                    "to which it is not attached; ask has_event_handler() first"
                )
            for entry in entries:
                self.handlers.remove(entry)

    def has_registered_events(self, event_name: EventKey) -> bool:
        """Whether this engine knows the event."""
        try:
            self.handlers.check(event_name)
        except UsageError:
            return False
        return True

    def fire_event(self, event_name: EventKey) -> None:
        """Call the handlers of an event, in the order in which they were attached.

        Raises:
            UsageError: the event is unknown to this engine.
        """
        self.handlers.check(event_name)
        around = self.last_event_name
        self._fire_all(event_name)
        if around is not None:  # the handlers of ``around`` that are still to be called belong to it
            self.last_event_name = around

    def event_count(self, event_name: EventKey) -> int:
        """The number of the event's occurrence, as its filters are told it; see ``EventEnum.__call__``.

        At the drawing of a batch that is the number of the iteration to come, and so it is between two drawings.

        Raises:
            UsageError: the event is unknown to this engine.
        """
        self.handlers.check(event_name)
        return self.handlers.counter(event_name)(self)

    def _counted_firings(self) -> dict[str, int]:
        """How often each event of one's own has fired that no attribute of the state counts."""
        return {str(event): count for event, count in self._firings.items() if not isinstance(event, Events)}

    def _take_firings(self, counts: Mapping[str, int]) -> None:
        """Go on counting from what ``_counted_firings`` returned."""
        known = {str(event): event for event in self.handlers.events() if not isinstance(event, Events)}
        self._firings = {known[name]: count for name, count in counts.items() if name in known}
        if unknown := [name for name in counts if name not in known]:
            self.logger.warning(
                "The engine's state counts %s, which this engine doesn't know: their filters count from 1 again. Call "
                "register_events() before load_state_dict().", ", ".join(unknown),
            )  # fmt: skip

    def _fire_all(self, event: EventKey) -> None:
        calls = self._calls_of(event)
        self.last_event_name = event
        for call in calls:
            call(self)

    def _calls_of(self, event: EventKey) -> tuple[Call, ...]:
        """What to call at a firing of ``event``, which is counted."""
        if self.handlers.counts_firings(event):
            self._firings[event] = self._firings.get(event, 0) + 1
        return self.handlers.ready(event)
