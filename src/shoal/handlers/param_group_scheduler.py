"""Schedules side by side: one for each parameter group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.engine import Engine
from shoal.errors import UsageError
from shoal.handlers.concat_scheduler import load_parts
from shoal.handlers.param_scheduler import ParamScheduler, check_part, simulate

__all__ = ["ParamGroupScheduler"]


class ParamGroupScheduler(ParamScheduler):
    """Calls several schedules at each occurrence, say one for each parameter group::

        scheduler = ParamGroupScheduler([
            LinearCyclicalScheduler(optimizer, "lr", 1e-4, 1e-2, 1000, param_group_index=0),
            CosineAnnealingScheduler(optimizer, "lr", 1e-3, 1e-5, 1000, param_group_index=1),
        ], names=["backbone lr", "head lr"])
        trainer.add_event_handler(Events.ITERATION_STARTED, scheduler)

    Args:
        schedulers: one or more, also of different parameters or optimizers.
        names: the keys of their histories. By default the parameters' names, numbered (``lr_0``, ``lr_1``) where two
            have the same: in Ignite these would be mixed in one list.
        save_history: whether each schedule keeps its history; those that were asked to keep one do so anyway.

    Raises:
        UsageError: an argument cannot work; the text says which.
    """

    def __init__(
        self, schedulers: Sequence[ParamScheduler], names: Sequence[str] | None = None, save_history: bool = False
    ) -> None:
        if not isinstance(schedulers, Sequence) or not schedulers:
            raise UsageError(f"asked for schedulers={schedulers!r}; give one or more, in a list")
        for scheduler in schedulers:
            check_part(scheduler)
        given = list(_default_names(schedulers) if names is None else names)
        if len(given) != len(schedulers) or not all(isinstance(name, str) for name in given):
            raise UsageError(f"asked for names={names!r} of {len(schedulers)} schedulers; give as many texts")
        self.schedulers = list(schedulers)
        self.names = given
        super().__init__(schedulers[0].optimizer, schedulers[0].param_name)
        if save_history:
            for scheduler in schedulers:
                scheduler.save_history = True

    @property
    def optimizer_param_groups(self) -> list[dict[str, Any]]:
        """The groups that the schedules change, each once."""
        groups = [group for scheduler in self.schedulers for group in scheduler.optimizer_param_groups]
        return list({id(group): group for group in groups}.values())

    def __call__(self, engine: Engine | None = None, name: str | None = None) -> None:
        """Have each schedule set the value of this occurrence.

        Args:
            engine: where history is kept.
            name: put before the names, as ``name/own name``.
        """
        for scheduler, own in zip(self.schedulers, self.names, strict=True):
            if self.per_optimizer_step:
                scheduler.per_optimizer_step = True
            scheduler(engine, f"{name}/{own}" if name else own)
        self.event_index = self.schedulers[0].event_index

    def value_at(self, event_index: int) -> list[Any]:
        """The schedules' values at an occurrence of the event, counted from 0."""
        return [scheduler.value_at(event_index) for scheduler in self.schedulers]

    def get_param(self) -> list[Any]:
        """The values that the next call sets."""
        return [scheduler.get_param() for scheduler in self.schedulers]

    def state_dict(self) -> dict[str, Any]:
        """Where each schedule is, as primitives."""
        states = [scheduler.state_dict() for scheduler in self.schedulers]
        return {"event_index": states[0]["event_index"], "config": self.config(), "schedulers": states}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where other schedules were; see :meth:`BaseParamScheduler.load_state_dict`.

        Raises:
            CheckpointError: the state isn't that of as many schedules.
        """
        load_parts(self, self.schedulers, state_dict)
        super().load_state_dict(state_dict)

    def config(self) -> dict[str, Any]:
        """What the schedule is, as primitives, but for its parts."""
        return {"names": list(self.names)}

    @classmethod
    def simulate_values(  # type: ignore[override]  # the schedulers are there already
        cls, num_events: int, schedulers: Sequence[ParamScheduler]
    ) -> list[list[Any]]:
        """What the schedules would set; neither they nor their optimizers are changed.

        Returns:
            ``[event_index, value, ...]`` for each occurrence, the values in the order of the schedules.
        """
        return simulate(cls(schedulers), num_events)

    def _put(self, index: int) -> None:
        for scheduler in self.schedulers:
            scheduler._put(index)
            scheduler.event_index = index + 1

    def _optimizers(self) -> list[Any]:
        return [optimizer for scheduler in self.schedulers for optimizer in scheduler._optimizers()]

    def _counts_steps(self) -> bool:
        return self.per_optimizer_step or any(scheduler._counts_steps() for scheduler in self.schedulers)

    def _check_names(self) -> None:
        """Each schedule has done so."""

    def _columns(self) -> list[tuple[dict[str, Any], str]]:
        return [column for scheduler in self.schedulers for column in scheduler._columns()]


def _default_names(schedulers: Sequence[ParamScheduler]) -> list[str]:
    shared = Counter(scheduler.param_name for scheduler in schedulers)
    names = [scheduler.param_name for scheduler in schedulers]
    return [f"{name}_{index}" if shared[name] > 1 else name for index, name in enumerate(names)]
