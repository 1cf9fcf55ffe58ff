"""Which event called a handler, and how often that event has occurred."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.engine import Engine, Events
from shoal.engine.events import EventKey

__all__ = ["axis_of", "count", "event_of"]

_OF_EPOCHS = (Events.STARTED, Events.EPOCH_STARTED, Events.EPOCH_COMPLETED, Events.COMPLETED)
_OF_ITERATIONS = (
    Events.GET_BATCH_STARTED,
    Events.GET_BATCH_COMPLETED,
    Events.ITERATION_STARTED,
    Events.ITERATION_COMPLETED,
)


def count(engine: Engine, event: EventKey) -> int:
    """How often ``event`` has occurred: iterations or epochs, or what an event of one's own was registered with."""
    counter = engine.handlers._count_by.get(event)
    return counter(engine) if counter is not None else engine.firings(event)


def axis_of(event: EventKey) -> str:
    """What the count of ``event`` counts: ``"epoch"`` or ``"iteration"``."""
    return "epoch" if event in _OF_EPOCHS else "iteration"


def event_of(engine: Engine, handler: Callable[..., Any]) -> EventKey:
    """The event that ``handler`` is attached to.

    Attached to several that count different things, it goes by iterations: their numbers never meet. The same where it
    is called by another handler.
    """
    events = [entry.event for entry in engine.handlers.find(handler)]
    kinds = {"epoch" if event in _OF_EPOCHS else "iteration" if event in _OF_ITERATIONS else event for event in events}
    return events[0] if len(kinds) == 1 else Events.ITERATION_COMPLETED
