"""Schedules of an optimizer's parameter, such as its learning rate, over the occurrences of an event."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch

from shoal._registry import nearest
from shoal.engine import Engine, Events
from shoal.errors import CheckpointError, UsageError

__all__ = ["ParamScheduler"]

_log = logging.getLogger(__name__)


class ParamScheduler:
    """Sets a parameter of an optimizer at each occurrence of an event, usually ``Events.ITERATION_STARTED``.

    The value is a function of the number of occurrences so far alone (:meth:`value_at`): the first one gets
    ``value_at(0)``, before the first step is taken. A schedule that goes on from a checkpoint is therefore the one
    that was never interrupted.

    Args:
        optimizer: a torch optimizer, or anything with ``param_groups``.
        param_name: the parameter's name in a group, e.g. ``"lr"``.
        save_history: whether to append each value, as a list over the groups, to
            ``engine.state.param_history[param_name]``.
        param_group_index: the only group to change; None (default) changes all.

    Raises:
        UsageError: the optimizer has no such group or parameter.
    """

    def __init__(
        self, optimizer: Any, param_name: str, save_history: bool = False, param_group_index: int | None = None
    ) -> None:
        groups = getattr(optimizer, "param_groups", None)
        if not isinstance(groups, list) or not groups:
            raise UsageError(
                f"{type(self).__name__} was given a {type(optimizer).__qualname__} as optimizer; "
                "give an object with param_groups, as a torch optimizer has them"
            )
        if param_group_index is not None and not -len(groups) <= param_group_index < len(groups):
            raise UsageError(f"asked for param_group_index={param_group_index}, found {len(groups)} parameter groups")
        self.optimizer = optimizer
        self.param_name = param_name
        self.param_group_index = param_group_index
        self.save_history = save_history
        self.event_index = 0
        for group in self.optimizer_param_groups:
            if param_name not in group:
                names = [name for name in group if name != "params"]
                raise UsageError(
                    f"asked to schedule {param_name!r}{nearest(param_name, names)}; the groups of the "
                    f"{type(optimizer).__qualname__} have: {', '.join(names)}"
                )

    @property
    def optimizer_param_groups(self) -> list[dict[str, Any]]:
        """The groups that are changed. Looked up each time: an optimizer that loads a state gets new ones."""
        groups: list[dict[str, Any]] = self.optimizer.param_groups
        return groups if self.param_group_index is None else [groups[self.param_group_index]]

    def value_at(self, event_index: int) -> float:
        """The value at an occurrence of the event, counted from 0."""
        raise NotImplementedError

    def get_param(self) -> float:
        """The value that the next call sets."""
        return self.value_at(self.event_index)

    def __call__(self, engine: Engine | None = None, name: str | None = None) -> None:
        """Set the value of this occurrence.

        Args:
            engine: where history is kept; may be left out without ``save_history``.
            name: the key of the history instead of ``param_name``.
        """
        value = self.get_param()
        for group in self.optimizer_param_groups:
            if isinstance(group[self.param_name], torch.Tensor):
                group[self.param_name].fill_(value)
            else:
                group[self.param_name] = value
        if self.save_history and engine is not None:
            self._remember(engine, name or self.param_name)
        self.event_index += 1

    def attach(self, engine: Engine, event: Any = Events.ITERATION_STARTED) -> None:
        """Have the value set at ``event`` of ``engine``."""
        engine.add_event_handler(event, self)

    def state_dict(self) -> dict[str, Any]:
        """Where the schedule is, and what it is, as primitives."""
        return {"event_index": self.event_index, "config": self.config()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where another schedule was.

        The schedule itself stays the one that this object was made with. Where it differs from that of the state (a
        run that was made longer, say), a warning tells both.

        Raises:
            CheckpointError: the state isn't a schedule's.
        """
        if not isinstance(state_dict, Mapping) or not isinstance(state_dict.get("event_index"), int):
            raise CheckpointError(
                f"asked to restore a {type(self).__name__}, found {state_dict!r}; give what its state_dict() returned"
            )
        theirs, ours = state_dict.get("config"), self.config()
        if theirs != ours:
            _log.warning(
                "The checkpoint's schedule differs from this run's, which is used from here on. Checkpoint: %s; this "
                "run: %s",
                theirs,
                ours,
            )
        self.event_index = state_dict["event_index"]

    def config(self) -> dict[str, Any]:
        """What the schedule is, as primitives."""
        return {"param_name": self.param_name, "param_group_index": self.param_group_index}

    @classmethod
    def simulate_values(cls, num_events: int, **scheduler_kwargs: Any) -> list[list[float]]:
        """The schedule without an optimizer.

        Args:
            num_events: how many occurrences.
            scheduler_kwargs: the constructor's arguments; optimizer and save_history are left out.

        Returns:
            ``[event_index, value]`` for each occurrence.
        """
        unused = {"optimizer", "save_history", "param_group_index"}
        kwargs = {"param_name": "lr"} | {key: value for key, value in scheduler_kwargs.items() if key not in unused}
        scheduler = cls(_Parameter(kwargs["param_name"]), **kwargs)
        return [[index, scheduler.value_at(index)] for index in range(num_events)]

    def _remember(self, engine: Engine, name: str) -> None:
        history: dict[str, list[list[float]]] = getattr(engine.state, "param_history", None) or {}
        engine.state.param_history = history
        values = [float(group[self.param_name]) for group in self.optimizer_param_groups]
        history.setdefault(name, []).append(values)


class _Parameter:
    """Stands for an optimizer where only its parameter's name matters."""

    def __init__(self, name: str) -> None:
        self.param_groups = [{name: 0.0}]
