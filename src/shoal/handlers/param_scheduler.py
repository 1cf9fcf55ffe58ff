"""Schedules of an optimizer's parameter, such as its learning rate, over the occurrences of an event."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import torch

from shoal._registry import nearest
from shoal.engine import Engine, Events
from shoal.errors import CheckpointError, UsageError
from shoal.handlers._optimizer_steps import OptimizerSteps
from shoal.handlers._simulation import StandIn, apart, check_num_events, draw

__all__ = ["BaseParamScheduler", "ParamScheduler", "check_part", "remember", "set_param", "simulate"]

_log = logging.getLogger(__name__)


class BaseParamScheduler:
    """What schedules of an optimizer's parameter and of a state's attribute have in common.

    The value is a function of the number of occurrences so far alone, so that there is one number to save: a schedule
    that goes on from a checkpoint is the one that was never interrupted.

    Args:
        param_name: what is set.
        save_history: whether to append each value to ``engine.state.param_history[param_name]``.

    Attributes:
        event_index: occurrences so far.
    """

    def __init__(self, param_name: str, save_history: bool = False) -> None:
        self.param_name = param_name
        self.save_history = save_history
        self.event_index = 0

    def value_at(self, event_index: int) -> Any:
        """The value at an occurrence of the event; a schedule of one's own defines this, or ``get_param``.

        A list has the values of the parameter groups, one each.
        """
        if type(self).get_param is BaseParamScheduler.get_param:
            raise NotImplementedError(f"{type(self).__qualname__} defines neither value_at() nor get_param()")
        before, self.event_index = self.event_index, event_index
        try:
            return self.get_param()
        finally:
            self.event_index = before

    def get_param(self) -> Any:
        """The value at ``event_index``."""
        return self.value_at(self.event_index)

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
        index = state_dict.get("event_index") if isinstance(state_dict, Mapping) else None
        if isinstance(index, bool) or not isinstance(index, int) or index < 0:
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
        self.event_index = index

    def config(self) -> dict[str, Any]:
        """What the schedule is, as primitives."""
        return {"param_name": self.param_name}

    @classmethod
    def simulate_values(cls, num_events: int, **scheduler_kwargs: Any) -> list[list[Any]]:
        """The values of a schedule that is made only for this; see the subclasses for what it takes."""
        raise NotImplementedError

    @classmethod
    def plot_values(cls, num_events: int, **scheduler_kwargs: Any) -> Any:
        """Draw what :meth:`simulate_values` returns for the same arguments into pyplot's current axes.

        Returns:
            The axes.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        return draw(cls.simulate_values(num_events, **scheduler_kwargs), scheduler_kwargs.get("param_name", "lr"))


class ParamScheduler(BaseParamScheduler):
    """Sets a parameter of an optimizer at each occurrence of an event, usually ``Events.ITERATION_STARTED``.

    The first occurrence gets ``value_at(0)``, before the first step is taken.

    A schedule counts occurrences of its event. Where an optimizer step takes several iterations (gradient accumulation)
    or is left out (a gradient scaler found infinities), one that is sized for optimizer steps has to count these
    instead: set ``per_optimizer_step``, or pass it to :meth:`attach`. (Ignite counts occurrences only.) ::

        scheduler = PiecewiseLinear(optimizer, "lr", [(0, 0.4), (num_steps, 0.0)])
        scheduler.attach(trainer, per_optimizer_step=True)

    Args:
        optimizer: a torch optimizer, or anything with ``param_groups``.
        param_name: the parameter's name in a group, e.g. ``"lr"``.
        save_history: whether to append each value, as a list over the groups, to
            ``engine.state.param_history[param_name]``.
        param_group_index: the only group to change; None (default) changes all.

    Attributes:
        per_optimizer_step: whether a call that an engine makes goes on only if the optimizer has taken a step since the
            one before.

    Raises:
        UsageError: the optimizer has no such group or parameter.
    """

    is_function_of_index = True
    """Whether it can be a part of another schedule."""

    def __init__(
        self, optimizer: Any, param_name: str, save_history: bool = False, param_group_index: int | None = None
    ) -> None:
        super().__init__(param_name, save_history)
        groups = getattr(optimizer, "param_groups", None)
        if not isinstance(groups, list) or not groups:
            raise UsageError(
                f"{type(self).__name__} was given a {type(optimizer).__qualname__} as optimizer; "
                "give an object with param_groups, as a torch optimizer has them"
            )
        if param_group_index is not None and not -len(groups) <= param_group_index < len(groups):
            raise UsageError(f"asked for param_group_index={param_group_index}, found {len(groups)} parameter groups")
        self.optimizer = optimizer
        self.param_group_index = param_group_index
        self.per_optimizer_step = False
        self._steps: OptimizerSteps | None = None
        self._is_shown = False  # the value before event_index was set by a call, not by an earlier process
        self._check_names()

    @property
    def optimizer_param_groups(self) -> list[dict[str, Any]]:
        """The groups that are changed. Looked up each time: an optimizer that loads a state gets new ones."""
        groups: list[dict[str, Any]] = self.optimizer.param_groups
        return groups if self.param_group_index is None else [groups[self.param_group_index]]

    def __call__(self, engine: Engine | None = None, name: str | None = None) -> None:
        """Set the value of this occurrence.

        Args:
            engine: where history is kept; may be left out, and then each call goes on, whatever the optimizer does.
            name: the key of the history instead of ``param_name``.
        """
        index = self.event_index
        if engine is not None and self.per_optimizer_step:
            if self._steps is None:
                self._steps = OptimizerSteps(self.optimizer)
            index = self._next_index()
            self._steps.reset()
        self._put(index)
        self.event_index, self._is_shown = index + 1, True
        if self.save_history and engine is not None:
            values = [_shown(group[self.param_name]) for group in self.optimizer_param_groups]
            remember(engine, name or self.param_name, values)

    def attach(
        self, engine: Engine, event: Any = Events.ITERATION_STARTED, per_optimizer_step: bool | None = None
    ) -> None:
        """Have the value set at ``event`` of ``engine``.

        Args:
            engine: the engine.
            event: when.
            per_optimizer_step: as the attribute, which None (default) leaves as it is.
        """
        if per_optimizer_step is not None:
            self.per_optimizer_step = per_optimizer_step
        engine.add_event_handler(event, self)

    def state_dict(self) -> dict[str, Any]:
        """Where the schedule is, and what it is, as primitives."""
        index = self._next_index() if self.per_optimizer_step else self.event_index
        return {"event_index": index, "config": self.config()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where another schedule was; see :meth:`BaseParamScheduler.load_state_dict`."""
        super().load_state_dict(state_dict)
        self._is_shown = False
        if self._steps is not None:
            self._steps.reset()

    def config(self) -> dict[str, Any]:
        """What the schedule is, as primitives."""
        return super().config() | {"param_group_index": self.param_group_index}

    @classmethod
    def simulate_values(cls, num_events: int, **scheduler_kwargs: Any) -> list[list[Any]]:
        """The schedule without an optimizer.

        Args:
            num_events: how many occurrences.
            scheduler_kwargs: the constructor's arguments; optimizer and save_history are left out.

        Returns:
            ``[event_index, value]`` for each occurrence.
        """
        check_num_events(num_events)
        unused = {"optimizer", "save_history", "param_group_index"}
        kwargs = {"param_name": "lr"} | {key: value for key, value in scheduler_kwargs.items() if key not in unused}
        scheduler = cls(StandIn([{kwargs["param_name"]: 0.0}]), **kwargs)
        return [[index, scheduler.value_at(index)] for index in range(num_events)]

    # What composed schedules are made of --------------------------------------------------------------------------

    def _put(self, index: int) -> None:
        """Have the optimizer hold the value of occurrence ``index``."""
        value, groups = self.value_at(index), self.optimizer_param_groups
        if not isinstance(value, list):  # a tuple is one value, as Adam's betas
            value = [value] * len(groups)
        elif len(value) != len(groups):
            raise UsageError(f"{type(self).__name__} gave {len(value)} values for {len(groups)} parameter groups")
        for group, one in zip(groups, value, strict=True):
            set_param(group, self.param_name, one)

    def _check_names(self) -> None:
        for group in self.optimizer_param_groups:
            if self.param_name not in group:
                names = [name for name in group if name != "params"]
                raise UsageError(
                    f"asked to schedule {self.param_name!r}{nearest(self.param_name, names)}; the groups of the "
                    f"{type(self.optimizer).__qualname__} have: {', '.join(names)}"
                )

    def _optimizers(self) -> list[Any]:
        return [self.optimizer]

    def _columns(self) -> list[tuple[dict[str, Any], str]]:
        """Where to read what this sets: a group and a name for each value that differs from the others."""
        return [(self.optimizer_param_groups[0], self.param_name)]

    def _counts_steps(self) -> bool:
        """Whether a schedule that this is a part of has to count steps of the optimizer."""
        return self.per_optimizer_step

    def _next_index(self) -> int:
        """The index of the next call: the last one's again, where the optimizer has taken no step since."""
        waits = self._is_shown and self._steps is not None and self._steps.count() == 0
        return self.event_index - waits


def check_part(scheduler: object) -> None:
    """Raise UsageError for what cannot be a part of another schedule."""
    if not isinstance(scheduler, ParamScheduler):
        raise UsageError(
            f"schedulers holds a {type(scheduler).__qualname__}; give schedules of shoal.handlers, and one of torch's "
            "as LRScheduler(...)"
        )
    if not scheduler.is_function_of_index:
        raise UsageError(
            f"schedulers holds a {type(scheduler).__qualname__}, which goes by a metric; attach it to the evaluator"
        )


def simulate(scheduler: ParamScheduler, num_events: int, param_names: Sequence[str] | None = None) -> list[list[Any]]:
    """What ``scheduler`` would set from its first occurrence on, without changing it or its optimizer.

    Returns:
        ``[event_index, value, ...]`` for each occurrence: the parameters of ``param_names`` in the first group, or else
        the schedule's own parameter, for each group where they may differ.
    """
    check_num_events(num_events)
    copied = apart(scheduler, *scheduler._optimizers())
    columns = copied._columns()
    if param_names is not None:
        columns = [(copied.optimizer.param_groups[0], name) for name in param_names]
    rows: list[list[Any]] = []
    for index in range(num_events):
        copied._put(index)
        rows.append([index, *(_shown(group[name]) for group, name in columns)])
    return rows


def remember(engine: Engine, name: str, value: Any) -> None:
    """Append to ``engine.state.param_history[name]``."""
    history: dict[str, list[Any]] = getattr(engine.state, "param_history", None) or {}
    engine.state.param_history = history
    history.setdefault(name, []).append(value)


def _shown(value: Any) -> Any:
    return float(value) if isinstance(value, Real | torch.Tensor) else value


def set_param(group: dict[str, Any], name: str, value: Any) -> None:
    """Set a parameter of a group; a tensor keeps its identity, since compiled code and captured graphs hold it."""
    if isinstance(group[name], torch.Tensor):
        group[name].fill_(value)
    else:
        group[name] = value
