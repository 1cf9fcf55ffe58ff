"""The step of another engine."""

from __future__ import annotations

import weakref
from typing import Any

from shoal.engine import Engine
from shoal.engine.events import EventEnum, EventKey
from shoal.errors import UsageError
from shoal.handlers._counts import count

__all__ = ["GlobalStep", "global_step_from_engine"]


class GlobalStep:
    """Made by :func:`global_step_from_engine`. It does not keep the engine alive."""

    def __init__(self, engine: Engine, custom_event_name: EventKey | None) -> None:
        self._engine = weakref.ref(engine)
        self.event_name = custom_event_name

    def __call__(self, engine: Any, event_name: EventKey) -> int:  # noqa: ARG002 - the engine that a handler is on
        """How often the event has occurred in the engine that this was made from."""
        source = self._engine()
        if source is None:
            raise UsageError(
                "global_step_from_engine was asked for the step of an engine that is gone; keep a reference to it as "
                "long as its step is needed"
            )
        return count(source, self.event_name or event_name)


def global_step_from_engine(engine: Engine, custom_event_name: EventKey | None = None) -> GlobalStep:
    """A ``global_step_transform`` that takes the step from ``engine``: an evaluator's results at the trainer's epoch.

    Args:
        engine: usually the trainer.
        custom_event_name: the event of ``engine`` to count; None (default) is the event that the handler is called
            at, so an evaluator's ``COMPLETED`` gives the trainer's epoch.

    Raises:
        UsageError: ``engine`` is no engine, or ``custom_event_name`` no event or one that is filtered.
    """
    if not isinstance(engine, Engine):
        raise UsageError(f"global_step_from_engine was given a {type(engine).__name__}; give an engine")
    if not isinstance(custom_event_name, EventEnum | str | None):
        raise UsageError(
            f"global_step_from_engine was given the event {custom_event_name!r}; give one without a filter"
        )
    return GlobalStep(engine, custom_event_name)
