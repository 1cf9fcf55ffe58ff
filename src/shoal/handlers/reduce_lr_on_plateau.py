"""A learning rate that falls when a metric stops getting better."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from shoal._registry import nearest
from shoal.engine import Engine, Events
from shoal.engine.events import EventsList, FilteredEvent
from shoal.errors import CheckpointError, UsageError
from shoal.handlers._simulation import check_num_events
from shoal.handlers.lr_scheduler import load_torch_state, plain_torch_state
from shoal.handlers.param_scheduler import ParamScheduler, remember, set_param

__all__ = ["ReduceLROnPlateauScheduler"]

_OF_ITERATIONS = (
    Events.GET_BATCH_STARTED, Events.GET_BATCH_COMPLETED, Events.ITERATION_STARTED, Events.ITERATION_COMPLETED
)  # fmt: skip


class ReduceLROnPlateauScheduler(ParamScheduler):
    """Lowers the learning rate once the evaluator's metric has stopped getting better, by torch's ReduceLROnPlateau::

        scheduler = ReduceLROnPlateauScheduler(optimizer, metric_name="loss", trainer=trainer, factor=0.5, patience=2)
        evaluator.add_event_handler(Events.COMPLETED, scheduler)

    It looks once an evaluation, at any world size: the metric is that of all ranks, so all ranks lower the rate
    together. A metric that is NaN counts as not better.

    Args:
        optimizer: a torch optimizer.
        metric_name: the metric in ``engine.state.metrics`` of the engine that it is attached to.
        trainer: the engine whose ``state.param_history`` keeps the values; needed with ``save_history``.
        save_history: whether to append the learning rate after each evaluation there, as a list over the groups.
        param_group_index: the only group to change; None (default) changes all.
        scheduler_kwargs: for ``torch.optim.lr_scheduler.ReduceLROnPlateau``: mode (``"min"`` by default: lower is
            better), factor, patience, threshold, threshold_mode, cooldown, min_lr, eps.

    Raises:
        UsageError: an argument cannot work; the text says which.
    """

    is_function_of_index = False

    def __init__(
        self,
        optimizer: Any,
        metric_name: str,
        trainer: Engine | None = None,
        save_history: bool = False,
        param_group_index: int | None = None,
        **scheduler_kwargs: Any,
    ) -> None:
        super().__init__(optimizer, "lr", save_history, param_group_index)
        if trainer is not None and not isinstance(trainer, Engine):
            raise UsageError(f"ReduceLROnPlateauScheduler was given {trainer!r} as trainer; give an engine")
        if save_history and trainer is None:
            raise UsageError("save_history=True was given without trainer, whose state keeps the history; give trainer")
        if param_group_index is not None and isinstance(scheduler_kwargs.get("min_lr"), list | tuple):
            raise UsageError("min_lr is a list, and param_group_index names one group; give one number")
        self.metric_name = metric_name
        # Weakly: where trainer and evaluator are one engine, it holds this handler.
        self._trainer = weakref.ref(trainer) if trainer is not None else None
        try:
            self.scheduler = ReduceLROnPlateau(optimizer, **scheduler_kwargs)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"torch's ReduceLROnPlateau does not take {scheduler_kwargs or 'this optimizer'}: {error}"
            ) from error

    def __call__(self, engine: Engine | None = None, name: str | None = None) -> None:
        """Look at the metric, and lower the learning rate if it is time.

        Raises:
            UsageError: the engine has no such metric, or it is no number.
        """
        metrics = {} if engine is None else engine.state.metrics
        if self.metric_name not in metrics:
            raise UsageError(
                f"ReduceLROnPlateauScheduler looks at the metric {self.metric_name!r}"
                f"{nearest(self.metric_name, list(metrics))}, which the engine does not have; it has: "
                f"{', '.join(metrics) or 'none'}. Attach it to the evaluator, at Events.COMPLETED"
            )
        try:
            value = float(metrics[self.metric_name])
        except (TypeError, ValueError, RuntimeError) as error:
            raise UsageError(
                f"ReduceLROnPlateauScheduler looks at the metric {self.metric_name!r}, found "
                f"{metrics[self.metric_name]!r}; give the name of a metric that is one number"
            ) from error
        self._step(value)
        self.event_index += 1
        trainer = self._trainer() if self._trainer is not None else None
        if self.save_history and trainer is not None:
            remember(trainer, name or self.param_name, self._rates())

    def attach(self, engine: Engine, event: Any = Events.COMPLETED, per_optimizer_step: bool | None = None) -> None:
        """Have the metric looked at once an evaluation.

        Args:
            engine: the evaluator.
            event: when; ``Events.COMPLETED`` by default.
            per_optimizer_step: None; it has no meaning here.

        Raises:
            UsageError: the event is one of iterations.
        """
        if per_optimizer_step is not None:
            raise UsageError("ReduceLROnPlateauScheduler goes by evaluations; leave out per_optimizer_step")
        for one in event if isinstance(event, EventsList) else (event,):
            if (one.event if isinstance(one, FilteredEvent) else one) in _OF_ITERATIONS:
                raise UsageError(
                    f"ReduceLROnPlateauScheduler was to be attached to {event!r}; it looks at a metric once an "
                    "evaluation: attach it to the evaluator's Events.COMPLETED"
                )
        engine.add_event_handler(event, self)

    def value_at(self, event_index: int) -> float:
        """Not there: the learning rate follows the metric.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            f"asked for the learning rate at evaluation {event_index} of a ReduceLROnPlateauScheduler, which depends "
            "on the metric; use get_param() for that of now"
        )

    def get_param(self) -> float | list[float]:
        """The learning rate of now, a list where there are several groups."""
        rates = self._rates()
        return rates if len(rates) > 1 else rates[0]

    def state_dict(self) -> dict[str, Any]:
        """Counters, best value and learning rates, as primitives."""
        state = super().state_dict()
        return state | {"scheduler": plain_torch_state(self.scheduler), "values": self._rates()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where another one was, with its learning rates. As in torch, its settings come from the state, too.

        Raises:
            CheckpointError: the state isn't that of such a schedule.
        """
        groups = self.optimizer_param_groups
        values: Any = state_dict.get("values") if isinstance(state_dict, Mapping) else None
        is_one = isinstance(values, list) and all(isinstance(value, Real) for value in values)
        if not is_one or len(values) != len(groups) or not isinstance(state_dict.get("scheduler"), Mapping):
            raise CheckpointError(
                f"asked to restore a ReduceLROnPlateauScheduler of {len(groups)} parameter groups, found "
                f"{state_dict!r}; give what the state_dict() of such a one returned"
            )
        super().load_state_dict(state_dict)
        load_torch_state(self.scheduler, state_dict["scheduler"])
        for group, value in zip(groups, values, strict=True):
            set_param(group, "lr", value)

    def config(self) -> dict[str, Any]:
        """What the schedule is, as primitives; torch's settings are in the state."""
        return super().config() | {"metric_name": self.metric_name}

    @classmethod
    def simulate_values(  # type: ignore[override]  # it needs what the metric will be
        cls, num_events: int, metric_values: Sequence[float], init_lr: float, **scheduler_kwargs: Any
    ) -> list[list[float]]:
        """The learning rates of a run whose metric is known.

        Args:
            num_events: how many evaluations.
            metric_values: the metric at each of them; at least ``num_events``.
            init_lr: the learning rate at first.
            scheduler_kwargs: for torch's ReduceLROnPlateau.

        Returns:
            ``[event_index, learning rate after it]`` for each evaluation.
        """
        check_num_events(num_events)
        if len(metric_values) < num_events:
            raise UsageError(f"asked to simulate {num_events} evaluations, found {len(metric_values)} metric_values")
        kwargs = {key: value for key, value in scheduler_kwargs.items() if key not in ("param_name", "save_history")}
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=init_lr)
        scheduler = cls(optimizer, "metric", **kwargs)
        rows: list[list[float]] = []
        for index in range(num_events):
            scheduler._step(float(metric_values[index]))
            rows.append([index, scheduler._rates()[0]])
        return rows

    def _step(self, value: float) -> None:
        groups, own = self.optimizer.param_groups, self.optimizer_param_groups
        before = [group["lr"] if not isinstance(group["lr"], torch.Tensor) else group["lr"].clone() for group in groups]
        self.scheduler.step(value)
        for group, rate in zip(groups, before, strict=True):  # torch lowers all of them
            if not any(group is one for one in own):
                set_param(group, "lr", rate)

    def _rates(self) -> list[float]:
        return [float(group["lr"]) for group in self.optimizer_param_groups]
