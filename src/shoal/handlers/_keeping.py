"""Everything that a trial run changes, kept and put back."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MethodType
from typing import Any

import numpy as np
import torch

from shoal.engine import Engine

__all__ = ["kept"]


@contextmanager
def kept(trainer: Engine, objects: Mapping[str, Any]) -> Iterator[None]:
    """Start from nothing in the block; at its end, also after an exception, put back what it has changed.

    That is the state of ``objects``, of the trainer's gradient scaler, of the handlers and metrics that are attached to
    it, the trainer's place and its state, and the random states of this process. Copies lie in the main memory.

    Args:
        trainer: the engine that runs in the block.
        objects: by name, with ``state_dict()`` and ``load_state_dict()``.
    """
    scaler = getattr(trainer.state, "scaler", None)
    found = [*objects.values(), *_handlers_of(trainer), *([] if scaler is None else [scaler])]
    every = list({id(item): item for item in found}.values())
    states = [_copied(item.state_dict()) for item in every]
    restores = [_tensors_of_groups(item) for item in every]
    # Metrics come last: going to another place starts them anew.
    metrics = [link.metric for link in trainer._metrics._links.values()]
    samples = [_copied(metric.state_dict()) for metric in metrics]
    restore_place, restore_random = _rewound(trainer), _random_states()
    try:
        yield
    finally:
        for item, state, restore in zip(every, states, restores, strict=True):
            item.load_state_dict(state)
            restore()
        restore_place()
        for metric, state in zip(metrics, samples, strict=True):
            metric.load_state_dict(state)
        restore_random()


def _handlers_of(trainer: Engine) -> list[Any]:
    """Attached objects that have a state, themselves or by one of their methods."""
    handlers = [entry.handler for entries in trainer.handlers._entries.values() for entry in entries]
    owners = [handler.__self__ if isinstance(handler, MethodType) else handler for handler in handlers]
    # Of their class: a logger that passes names on to its service would have to open it to answer.
    kinds = [(owner, type(owner)) for owner in owners]
    return [owner for owner, kind in kinds if hasattr(kind, "state_dict") and hasattr(kind, "load_state_dict")]


def _tensors_of_groups(item: Any) -> Callable[[], None]:
    """What makes an optimizer's groups hold the tensors that they hold now, with the values that were loaded since.

    Loading leaves others there, on the processor: captured graphs, which hold these, would go on with the last rate.
    """
    groups = getattr(item, "param_groups", ())
    tensors = [{name: value for name, value in group.items() if isinstance(value, torch.Tensor)} for group in groups]

    def restore() -> None:
        for group, own in zip(getattr(item, "param_groups", ()), tensors, strict=True):
            for name, tensor in own.items():
                tensor.copy_(group[name])
                group[name] = tensor

    return restore


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
    left = {name: getattr(trainer, name) for name in ("_loaded", "_paused", "_failed", "_cut")}

    if was_run:
        own = {key: place[key] for key in trainer.state_dict_user_keys}
        trainer.load_state_dict({"iteration": 0, "epoch": 0, "epoch_length": None, **own})

    def restore() -> None:
        trainer.load_state_dict(place)
        for name, value in left.items():  # else the next run would take the place for that of a checkpoint
            setattr(trainer, name, value)
        state = vars(trainer.state)
        # Of a window of accumulated gradients that was open, these are gone: its batches come again.
        placed = {name: state[name] for name in ("iteration", "epoch_base", "data_base")}
        state.clear()
        state.update(attributes | placed)
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
