"""Events, and the loop that fires them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.engine._emitter import RemovableEventHandle
from shoal.engine.engine import Engine
from shoal.engine.events import CallableEventWithFilter, EventEnum, Events, EventsList, FilteredEvent
from shoal.engine.state import State

if TYPE_CHECKING:
    from shoal.engine.supervised import create_supervised_evaluator, create_supervised_trainer
    from shoal.engine.supervised_steps import (
        supervised_evaluation_step,
        supervised_evaluation_step_amp,
        supervised_training_step,
        supervised_training_step_amp,
    )

__all__ = [
    "CallableEventWithFilter",
    "Engine",
    "EventEnum",
    "Events",
    "EventsList",
    "FilteredEvent",
    "RemovableEventHandle",
    "State",
    "create_supervised_evaluator",
    "create_supervised_trainer",
    "supervised_evaluation_step",
    "supervised_evaluation_step_amp",
    "supervised_training_step",
    "supervised_training_step_amp",
]


def __getattr__(name: str) -> Any:
    """The supervised engines, whose training step is imported when they are first asked for."""
    if name in ("create_supervised_evaluator", "create_supervised_trainer"):
        from shoal.engine import supervised

        return getattr(supervised, name)
    if name.startswith("supervised_") and name in __all__:
        from shoal.engine import supervised_steps

        return getattr(supervised_steps, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
