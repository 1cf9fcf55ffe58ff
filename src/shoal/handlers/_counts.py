"""Which event called a handler, and how often that event has occurred."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.engine import Engine, Events
from shoal.engine.events import EventKey

__all__ = ["axis_of", "count", "event_of"]

_OF_EPOCHS = (Events.STARTED, Events.EPOCH_STARTED, Events.EPOCH_COMPLETED, Events.COMPLETED)
_AT_DRAWING = (Events.GET_BATCH_STARTED, Events.GET_BATCH_COMPLETED)  # of the iteration to come


def count(engine: Engine, event: EventKey) -> int:
    """The step of ``event``: how many epochs or iterations were begun, or the count of an event of one's own.

    Unlike ``Engine.event_count`` it never counts how often a run started or was stopped: such numbers would lie among
    those of epochs and iterations.
    """
    if event in _OF_EPOCHS:
        return engine.state.epoch
    if isinstance(event, Events) and event not in _AT_DRAWING:
        return engine.state.iteration
    return engine.event_count(event)


def axis_of(event: EventKey) -> str:
    """What the count of ``event`` counts: ``"epoch"`` or ``"iteration"``."""
    return "epoch" if event in _OF_EPOCHS else "iteration"


def event_of(engine: Engine, handler: Callable[..., Any]) -> EventKey:
    """The event at which ``handler`` is called.

    Attached to several that count different things, it goes by iterations: their numbers never meet. The same where it
    is called by another handler.
    """
    events = {entry.event for entry in engine.handlers.find(handler)}
    kinds = {axis_of(event) if isinstance(event, Events) else event for event in events}
    if len(kinds) != 1:
        return Events.ITERATION_COMPLETED
    return engine.last_event_name if engine.last_event_name in events else min(events, key=str)
