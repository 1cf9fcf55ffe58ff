"""Schedules of an attribute of an engine's state, such as a weight of the loss, over the occurrences of an event."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

from shoal.engine import Engine, Events, State
from shoal.errors import UsageError
from shoal.handlers._simulation import check_num_events
from shoal.handlers.param_scheduler import BaseParamScheduler, remember
from shoal.handlers.piecewise_linear import checked_milestones, line_between

__all__ = [
    "ExpStateScheduler",
    "LambdaStateScheduler",
    "MultiStepStateScheduler",
    "PiecewiseLinearStateScheduler",
    "PwLinearStateScheduler",
    "StateParamScheduler",
    "StepStateScheduler",
]


_KEPT_BY_THE_ENGINE = frozenset(vars(State())) | {"epoch_iteration", "batch_index"}


class StateParamScheduler(BaseParamScheduler):
    """Sets ``engine.state.<param_name>`` at each occurrence of an event; derive from it and define :meth:`value_at`.

    Occurrence k, counted from 1, sets ``value_at(k)``. What is there before the first one is ``value_at(0)``, where
    this handler made the attribute (in Ignite it is None), or else what was there.

    Args:
        param_name: the attribute's name.
        save_history: whether to append each value to ``engine.state.param_history[param_name]``.
        create_new: whether the attribute must not exist when the handler is attached. Otherwise it may, and is made
            where it doesn't.

    Raises:
        UsageError: the name is none of an attribute, or one that the engine keeps itself.
    """

    def __init__(self, param_name: str, save_history: bool = False, create_new: bool = False) -> None:
        if not isinstance(param_name, str) or not param_name.isidentifier():
            raise UsageError(f"asked for param_name={param_name!r}; give the name of an attribute")
        super().__init__(param_name, save_history)
        self.create_new = create_new

    def attach(self, engine: Engine, event: Any = Events.ITERATION_COMPLETED) -> None:
        """Have the value set at ``event`` of ``engine``, and put there when a resumed run starts.

        Raises:
            UsageError: ``create_new`` was asked for, and the state has such an attribute; or the engine needs it.
        """
        state = engine.state
        if self.param_name in _KEPT_BY_THE_ENGINE:
            raise UsageError(
                f"asked to schedule state.{self.param_name}, which the engine sets itself; take another name"
            )
        if not hasattr(state, self.param_name):
            setattr(state, self.param_name, self.value_at(self.event_index))
        elif self.create_new:
            raise UsageError(
                f"asked for a new attribute state.{self.param_name}, which is there already; take another name, or "
                "create_new=False to take it over"
            )
        engine.add_event_handler(Events.STARTED, self._put_back)
        engine.add_event_handler(event, self)

    def __call__(self, engine: Engine) -> None:
        """Set the value of this occurrence."""
        self.event_index += 1
        value = self.get_param()
        setattr(engine.state, self.param_name, value)
        if self.save_history:
            remember(engine, self.param_name, value)

    @classmethod
    def simulate_values(cls, num_events: int, **scheduler_kwargs: Any) -> list[list[Any]]:
        """The schedule without an engine.

        Args:
            num_events: how many occurrences.
            scheduler_kwargs: the constructor's arguments; save_history and create_new are left out.

        Returns:
            ``[index, value]`` for each occurrence; the index is counted from 0, as in Ignite, and the value is that of
            the occurrence after it: ``value_at(index + 1)``.
        """
        check_num_events(num_events)
        kwargs = {key: value for key, value in scheduler_kwargs.items() if key not in ("save_history", "create_new")}
        scheduler = cls(**({"param_name": "value"} | kwargs))
        return [[index, scheduler.value_at(index + 1)] for index in range(num_events)]

    def _put_back(self, engine: Engine) -> None:
        if self.event_index > 0:
            setattr(engine.state, self.param_name, self.value_at(self.event_index))


class LambdaStateScheduler(StateParamScheduler):
    """The value is what a function of the occurrence's number returns.

    Args:
        lambda_obj: takes the number, from 1 (0 for what is there before), and returns the value. It isn't part of the
            state: a resumed run brings its own. (Ignite saves it, which only unsafe loading can read.)
        param_name, save_history, create_new: as in :class:`StateParamScheduler`.

    Raises:
        UsageError: as :class:`StateParamScheduler`, or ``lambda_obj`` is not callable.
    """

    def __init__(
        self,
        lambda_obj: Callable[[int], Any],
        param_name: str,
        save_history: bool = False,
        create_new: bool = False,
    ) -> None:
        super().__init__(param_name, save_history, create_new)
        if not callable(lambda_obj):
            raise UsageError(f"asked for lambda_obj={lambda_obj!r}; give a function of the occurrence's number")
        self.lambda_obj = lambda_obj

    def value_at(self, event_index: int) -> Any:
        """The value after so many occurrences."""
        return self.lambda_obj(event_index)


class PiecewiseLinearStateScheduler(StateParamScheduler):
    """Linear between milestones, constant before the first and from the last one on.

    Args:
        milestones_values: as in :class:`PiecewiseLinear`, the occurrences counted from 1.
        param_name, save_history, create_new: as in :class:`StateParamScheduler`.

    Raises:
        UsageError: as :class:`StateParamScheduler`, or the milestones cannot work.
    """

    def __init__(
        self,
        milestones_values: Sequence[tuple[int, float]],
        param_name: str,
        save_history: bool = False,
        create_new: bool = False,
    ) -> None:
        super().__init__(param_name, save_history, create_new)
        self.milestones, self.values = checked_milestones(milestones_values)

    def value_at(self, event_index: int) -> float:
        """The value after so many occurrences."""
        return line_between(self.milestones, self.values, event_index)

    def config(self) -> dict[str, Any]:
        """What the schedule is, as primitives."""
        pairs = [[milestone, value] for milestone, value in zip(self.milestones, self.values, strict=True)]
        return super().config() | {"milestones_values": pairs}


PwLinearStateScheduler = PiecewiseLinearStateScheduler


class _DecayingState(StateParamScheduler):
    """An initial value that is multiplied by ``gamma`` some times."""

    def __init__(
        self, initial_value: float, gamma: float, param_name: str, save_history: bool, create_new: bool
    ) -> None:
        super().__init__(param_name, save_history, create_new)
        for name, value in (("initial_value", initial_value), ("gamma", gamma)):
            if not isinstance(value, Real) or not math.isfinite(value):
                raise UsageError(f"asked for {name}={value!r}; give a finite number")
        self.initial_value = initial_value
        self.gamma = gamma

    def num_decays(self, event_index: int) -> int:
        raise NotImplementedError

    def value_at(self, event_index: int) -> float:
        """The value after so many occurrences."""
        value: float = self.initial_value * self.gamma ** self.num_decays(event_index)
        return value

    def config(self) -> dict[str, Any]:
        """What the schedule is, as primitives."""
        return super().config() | {"initial_value": self.initial_value, "gamma": self.gamma}


class ExpStateScheduler(_DecayingState):
    """After k occurrences the value is ``initial_value * gamma ** k``.

    Args:
        initial_value: before the first occurrence.
        gamma: the factor.
        param_name, save_history, create_new: as in :class:`StateParamScheduler`.
    """

    def __init__(
        self, initial_value: float, gamma: float, param_name: str, save_history: bool = False, create_new: bool = False
    ) -> None:
        super().__init__(initial_value, gamma, param_name, save_history, create_new)

    def num_decays(self, event_index: int) -> int:
        """How often the factor has been applied."""
        return event_index


class StepStateScheduler(_DecayingState):
    """After every ``step_size`` occurrences the value is multiplied by ``gamma``.

    Args:
        initial_value: before the first decay.
        gamma: the factor.
        step_size: occurrences from one decay to the next, at least 1.
        param_name, save_history, create_new: as in :class:`StateParamScheduler`.
    """

    def __init__(
        self,
        initial_value: float,
        gamma: float,
        step_size: int,
        param_name: str,
        save_history: bool = False,
        create_new: bool = False,
    ) -> None:
        super().__init__(initial_value, gamma, param_name, save_history, create_new)
        if isinstance(step_size, bool) or not isinstance(step_size, int) or step_size < 1:
            raise UsageError(f"asked for step_size={step_size!r}; give a whole number of at least 1")
        self.step_size = step_size

    def num_decays(self, event_index: int) -> int:
        """How often the factor has been applied."""
        return event_index // self.step_size

    def config(self) -> dict[str, Any]:
        """What the schedule is, as primitives."""
        return super().config() | {"step_size": self.step_size}


class MultiStepStateScheduler(_DecayingState):
    """At each milestone the value is multiplied by ``gamma``.

    Args:
        initial_value: before the first milestone.
        gamma: the factor.
        milestones: occurrences, counted from 1, in rising order; one that is there twice counts twice.
        param_name, save_history, create_new: as in :class:`StateParamScheduler`.
    """

    def __init__(
        self,
        initial_value: float,
        gamma: float,
        milestones: Sequence[int],
        param_name: str,
        save_history: bool = False,
        create_new: bool = False,
    ) -> None:
        super().__init__(initial_value, gamma, param_name, save_history, create_new)
        whole = isinstance(milestones, Sequence) and all(type(milestone) is int for milestone in milestones)
        if not whole or list(milestones) != sorted(milestones):
            raise UsageError(f"asked for milestones={milestones!r}; give whole numbers in rising order")
        self.milestones = list(milestones)

    def num_decays(self, event_index: int) -> int:
        """How often the factor has been applied."""
        return bisect_right(self.milestones, event_index)

    def config(self) -> dict[str, Any]:
        """What the schedule is, as primitives."""
        return super().config() | {"milestones": list(self.milestones)}
