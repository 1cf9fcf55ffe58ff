"""Everything that a trial run changes, kept and put back."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from shoal.engine import Engine
from shoal.handlers.lr_scheduler import TorchSteps
from shoal.handlers.param_scheduler import BaseParamScheduler

__all__ = ["kept"]


@contextmanager
def kept(trainer: Engine, objects: Mapping[str, Any]) -> Iterator[None]:
    """Start from nothing in the block; at its end, also after an exception, put back what it has changed.

    That is the state of ``objects``, of the trainer's gradient scaler and of the schedules that are attached to it, the
    trainer's place and its state, and the random states of this process. Copies lie in the main memory.

    Args:
        trainer: the engine that runs in the block.
        objects: by name, with ``state_dict()`` and ``load_state_dict()``.
    """
    every = [*objects.values(), *_schedules_of(trainer)]
    scaler = getattr(trainer.state, "scaler", None)
    if scaler is not None and not any(scaler is item for item in every):
        every.append(scaler)
    states = [_copied(item.state_dict()) for item in every]
    restore_place, restore_random = _rewound(trainer), _random_states()
    try:
        yield
    finally:
        for item, state in zip(every, states, strict=True):
            item.load_state_dict(state)
        restore_place()
        restore_random()


def _schedules_of(trainer: Engine) -> list[Any]:
    handlers = [entry.handler for entries in trainer.handlers._entries.values() for entry in entries]
    found: list[Any] = []
    for handler in handlers:
        if isinstance(handler, BaseParamScheduler | TorchSteps) and not any(handler is other for other in found):
            found.append(handler)
    return found


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        copied = copy.copy(value)  # of the same class, with what a model's state carries besides its entries
        for key, inner in value.items():
            copied[key] = _copied(inner)
        return copied
    if type(value) in (list, tuple):
        return type(value)(_copied(inner) for inner in value)
    return copy.deepcopy(value)


def _rewound(trainer: Engine) -> Callable[[], None]:
    """Take the trainer to before its first run; what is returned takes it back to where it was."""
    place = trainer.state_dict()
    was_run = place["max_epochs"] is not None or place["max_iters"] is not None
    attributes = {
        name: copy.copy(value) if type(value) in (dict, list) else value for name, value in vars(trainer.state).items()
    }
    history = copy.deepcopy(getattr(trainer.state, "param_history", None))

    if was_run:
        own = {key: place[key] for key in trainer.state_dict_user_keys}
        trainer.load_state_dict({"iteration": 0, "epoch": 0, "epoch_length": None, **own})

    def restore() -> None:
        if was_run:
            trainer.load_state_dict(place)
        vars(trainer.state).clear()
        vars(trainer.state).update(attributes)
        if history is not None:
            trainer.state.param_history = history

    return restore


def _random_states() -> Callable[[], None]:
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None

    def restore() -> None:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state(cuda)

    return restore
