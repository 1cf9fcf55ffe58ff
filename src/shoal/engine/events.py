"""The events of a run, and the filters that pick some of their occurrences."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from numbers import Integral
from typing import TYPE_CHECKING, TypeAlias

from shoal.errors import UsageError

if TYPE_CHECKING:
    from shoal.engine.engine import Engine

__all__ = [
    "CallableEventWithFilter",
    "EventEnum",
    "EventFilter",
    "EventKey",
    "EventLike",
    "Events",
    "EventsList",
    "FilteredEvent",
]

EventFilter: TypeAlias = "Callable[[Engine, int], bool]"


@dataclass(frozen=True, slots=True)
class FilteredEvent:
    """Some occurrences of an event; made by calling the event: ``Events.EPOCH_COMPLETED(every=3)``.

    Attributes:
        event: the event whose occurrences are counted.
        every: with no bound, the multiples of it. With ``after`` or ``before``, every so many occurrences from the
            first one inside the bounds.
        once: the only occurrences that count.
        before: occurrences lower than it.
        after: occurrences higher than it.
        event_filter: called with the engine and the occurrence's number; whether it counts.
    """

    event: EventEnum
    every: int | None = None
    once: frozenset[int] | None = None
    before: int | None = None
    after: int | None = None
    event_filter: EventFilter | None = None

    def __or__(self, other: EventLike) -> EventsList:
        return EventsList(self, other)


class EventsList:
    """Several events, filtered or not; made by ``|``. A handler that is attached to it is attached to each."""

    def __init__(self, *events: EventLike) -> None:
        flat: list[EventKey | FilteredEvent] = []
        for event in events:
            flat.extend(event if isinstance(event, EventsList) else (event,))
        self._events = tuple(flat)

    def __iter__(self) -> Iterator[EventKey | FilteredEvent]:
        return iter(self._events)

    def __len__(self) -> int:
        return len(self._events)

    def __or__(self, other: EventLike) -> EventsList:
        return EventsList(self, other)

    def __repr__(self) -> str:
        return f"EventsList({', '.join(map(repr, self._events))})"


class EventEnum(Enum):
    """The base of all events. Derive from it for events of your own, and tell the engine by ``register_events``.

    Example::

        class BackpropEvents(EventEnum):
            BACKWARD_COMPLETED = "backward_completed"

        engine.register_events(*BackpropEvents)
    """

    def __call__(
        self,
        event_filter: EventFilter | None = None,
        every: int | None = None,
        once: int | Sequence[int] | None = None,
        before: int | None = None,
        after: int | None = None,
    ) -> FilteredEvent:
        """This event, restricted to some of its occurrences.

        Occurrences are counted from 1. The events of an iteration are counted by the number of the iteration (the
        drawing of its batch included, where Ignite counts from 0), those of an epoch and COMPLETED by ``state.epoch``,
        an event of one's own by the state attribute that it was registered with, all others by how often they fired
        since the run started from nothing.

        Args:
            event_filter: takes the engine and the occurrence's number and returns whether it counts.
            every: the multiples of it. With ``before`` or ``after`` it counts from the first occurrence inside the
                bounds: ``every=5, after=10`` are 11, 16, 21, …
            once: one occurrence, or a list of them.
            before: occurrences lower than it.
            after: occurrences higher than it.

        Raises:
            UsageError: nothing was given, kinds of filter were mixed that exclude each other (``event_filter``,
                ``once``, and ``every`` with bounds), or a number is out of range.
        """
        bounded = every is not None or before is not None or after is not None
        given = (event_filter is not None, once is not None, bounded)
        if sum(given) != 1:
            raise UsageError(
                f"{self} was filtered by event_filter={event_filter!r}, every={every!r}, once={once!r}, "
                f"before={before!r}, after={after!r}; give one of event_filter, once, or every/before/after"
            )
        if event_filter is not None:
            _check_filter(self, event_filter)
        for name, number, least in (("every", every, 1), ("before", before, 0), ("after", after, 0)):
            _check_number(self, name, number, least)
        picked = list(once) if isinstance(once, Iterable) else [once]
        if not picked:
            raise UsageError(f"{self} was filtered by an empty list of once; name at least one occurrence")
        for number in picked:
            _check_number(self, "once", number, 1)
        return FilteredEvent(
            self,
            every=every,
            once=None if once is None else frozenset(number for number in picked if number is not None),
            before=before,
            after=after,
            event_filter=event_filter,
        )

    def __or__(self, other: EventLike) -> EventsList:
        return EventsList(self, other)


class Events(EventEnum):
    """The events that every engine fires, in the order of a run.

    ==============================  ====================================================================
    ``STARTED``                     a run starts, or goes on after it was terminated or loaded
    ``EPOCH_STARTED``               an epoch starts, or is entered again in its middle by such a run
    ``GET_BATCH_STARTED``           before a batch is drawn
    ``DATALOADER_STOP_ITERATION``   the data ended and more is needed; they are iterated anew after it
    ``GET_BATCH_COMPLETED``         a batch was drawn; it may be replaced in ``state.batch``
    ``ITERATION_STARTED``           before the process function
    ``ITERATION_COMPLETED``         after it
    ``TERMINATE_SINGLE_EPOCH``      the epoch is about to end because of ``terminate_epoch()``
    ``EPOCH_COMPLETED``             an epoch ended; the metrics of the epoch are in ``state.metrics``
    ``INTERRUPT``                   the run is about to pause because of ``interrupt()``
    ``TERMINATE``                   the run is about to end because of ``terminate()``
    ``COMPLETED``                   the run ended, by reaching its goal or by ``terminate()``
    ``EXCEPTION_RAISED``            an exception ended the run; handlers are called with (engine, exception)
    ==============================  ====================================================================

    A run that is terminated fires no EPOCH_COMPLETED for the epoch that it leaves in its middle.
    """

    STARTED = "started"
    EPOCH_STARTED = "epoch_started"
    GET_BATCH_STARTED = "get_batch_started"
    DATALOADER_STOP_ITERATION = "dataloader_stop_iteration"
    GET_BATCH_COMPLETED = "get_batch_completed"
    ITERATION_STARTED = "iteration_started"
    ITERATION_COMPLETED = "iteration_completed"
    TERMINATE_SINGLE_EPOCH = "terminate_single_epoch"
    EPOCH_COMPLETED = "epoch_completed"
    INTERRUPT = "interrupt"
    TERMINATE = "terminate"
    COMPLETED = "completed"
    EXCEPTION_RAISED = "exception_raised"


CallableEventWithFilter: TypeAlias = EventEnum | FilteredEvent
"""An event, filtered or not, for annotations and ``isinstance``; in Ignite it is the class of both."""

EventKey: TypeAlias = "EventEnum | str"
EventLike: TypeAlias = "EventKey | FilteredEvent | EventsList"


def _check_number(event: EventEnum, name: str, number: int | None, least: int) -> None:
    if number is not None and (isinstance(number, bool) or not isinstance(number, Integral) or number < least):
        raise UsageError(f"{event} was filtered by {name}={number!r}; give a whole number of at least {least}")


def _check_filter(event: EventEnum, event_filter: EventFilter) -> None:
    try:
        inspect.signature(event_filter).bind(None, 1)
    except TypeError as error:
        raise UsageError(
            f"{event} was given an event_filter that cannot be called with (engine, count): {error}; "
            "give a function of these two that returns a bool"
        ) from error
    except ValueError:  # a builtin that does not tell its parameters
        return
