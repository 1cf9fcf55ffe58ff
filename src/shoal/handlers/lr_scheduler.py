"""Torch's schedules of the learning rate, as one of ours."""

from __future__ import annotations

import contextlib
import inspect
import logging
import warnings
from collections import Counter
from collections.abc import Mapping
from typing import Any

from torch.optim.lr_scheduler import LRScheduler as TorchLRScheduler
from torch.optim.lr_scheduler import ReduceLROnPlateau

from shoal.checkpoint.plain import to_plain
from shoal.engine import Engine, Events
from shoal.errors import CheckpointError, UsageError
from shoal.handlers._optimizer_steps import OptimizerSteps
from shoal.handlers._simulation import apart
from shoal.handlers.param_scheduler import ParamScheduler, set_param, simulate

__all__ = ["LRScheduler", "TorchSteps", "load_torch_state", "plain_torch_state"]

_log = logging.getLogger(__name__)


class LRScheduler(ParamScheduler):
    """Has a schedule of ``torch.optim.lr_scheduler`` set the learning rate before each step::

        scheduler = LRScheduler(StepLR(optimizer, step_size=1000))
        trainer.add_event_handler(Events.ITERATION_STARTED, scheduler)

    The first step uses the schedule's first value, the second its second one, as in a loop that calls
    ``scheduler.step()`` after each step. (In Ignite 0.5.5 with torch 2.14 the first step uses the second value.) And as
    in such a loop, the schedule stands still while the optimizer does: in an iteration that accumulates gradients, or
    whose step a gradient scaler left out. ``per_optimizer_step = False`` turns that off.

    Several groups may have several values. Other parameters that a schedule moves, as OneCycleLR the momentum, move
    with it.

    Args:
        lr_scheduler: the schedule. ReduceLROnPlateau needs a score: see :class:`ReduceLROnPlateauScheduler`.
        save_history: as in :class:`ParamScheduler`.
        use_legacy: the schedule is stepped in the first call, too; for ``Events.ITERATION_COMPLETED``.

    Raises:
        UsageError: it is no such schedule.
    """

    def __init__(self, lr_scheduler: TorchLRScheduler, save_history: bool = False, use_legacy: bool = False) -> None:
        if isinstance(lr_scheduler, ReduceLROnPlateau):
            raise UsageError(
                "LRScheduler was given a ReduceLROnPlateau, which needs a score; use ReduceLROnPlateauScheduler"
            )
        if not isinstance(lr_scheduler, TorchLRScheduler):
            raise UsageError(
                f"LRScheduler was given a {type(lr_scheduler).__qualname__}; give one of torch.optim.lr_scheduler"
            )
        super().__init__(lr_scheduler.optimizer, "lr", save_history)
        self.lr_scheduler = lr_scheduler
        self.use_legacy = use_legacy
        self.per_optimizer_step = True
        if use_legacy:  # the first call comes after the first step
            self._steps, self._is_shown = OptimizerSteps(self.optimizer), True
        self._taken = 0  # steps of the schedule: the values below are those of this occurrence
        self._values = list(lr_scheduler.get_last_lr())

    def value_at(self, event_index: int) -> Any:
        """The value at an occurrence of the event, a list where the optimizer has several groups.

        Raises:
            UsageError: the occurrence is over: torch's schedules only go forward.
        """
        copied = apart(self, self.optimizer)
        copied._put(event_index)
        return list(copied._values) if len(copied._values) > 1 else copied._values[0]

    def state_dict(self) -> dict[str, Any]:
        """Where the schedule is, with the state of torch's, as tensors and primitives.

        Raises:
            CheckpointError: the schedule holds something else, e.g. in a callable object of a LambdaLR.
        """
        state = super().state_dict()
        if self.use_legacy:  # a call that is over has stepped already
            state["event_index"] = self.event_index
        return state | {
            "lr_scheduler": plain_torch_state(self.lr_scheduler),
            "steps": self._taken,
            "values": list(self._values),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where another schedule was. As in torch, its settings come from the state, too; functions don't.

        Where these differ from this run's (one that was made longer, say), a warning tells both.

        Raises:
            CheckpointError: the state isn't that of a schedule of this kind.
        """
        kind = type(self.lr_scheduler).__name__
        config = state_dict.get("config") if isinstance(state_dict, Mapping) else None
        found = config.get("lr_scheduler") if isinstance(config, Mapping) else None
        kinds = {"lr_scheduler": Mapping, "steps": int, "values": list}
        if found != kind or not all(isinstance(state_dict.get(key), one) for key, one in kinds.items()):
            raise CheckpointError(
                f"asked to restore an LRScheduler of a {kind}, found {f'that of a {found}' if found else state_dict!r}"
                "; give what the state_dict() of such a one returned"
            )
        if len(state_dict["values"]) != len(self._values):
            raise CheckpointError(
                f"asked to restore an LRScheduler of {len(self._values)} parameter groups, found a state of "
                f"{len(state_dict['values'])}; make the optimizer as in the run that was saved"
            )
        super().load_state_dict(state_dict)
        load_torch_state(self.lr_scheduler, state_dict["lr_scheduler"])
        self._taken, self._values = state_dict["steps"], list(state_dict["values"])
        self._is_shown = self.use_legacy

    def config(self) -> dict[str, Any]:
        """What the schedule is, as primitives; its settings are in the state."""
        return super().config() | {"lr_scheduler": type(self.lr_scheduler).__name__}

    @classmethod
    def simulate_values(  # type: ignore[override]  # the schedule is there already
        cls, num_events: int, lr_scheduler: TorchLRScheduler
    ) -> list[list[Any]]:
        """What the schedule would set from where it is; neither it nor its optimizer is changed.

        Returns:
            ``[event_index, value, ...]`` for each occurrence, a value for each group.
        """
        return simulate(cls(apart(lr_scheduler, lr_scheduler.optimizer)), num_events)

    def _put(self, index: int) -> None:
        goal = index + self.use_legacy
        if goal < self._taken:
            raise UsageError(
                f"a {type(self.lr_scheduler).__name__} was asked for its value {goal} and is at {self._taken}; "
                "schedules of torch only go forward: make a new one"
            )
        self._write()
        # Torch would warn of a schedule that steps before its optimizer, where that one did so in an earlier process.
        called = getattr(self.optimizer, "_opt_called", False)
        with contextlib.nullcontext() if called else _WithoutTorchsWarning():
            for _ in range(goal - self._taken):
                self.lr_scheduler.step()
        if goal > self._taken:
            self._taken, self._values = goal, list(self.lr_scheduler.get_last_lr())

    def _write(self) -> None:
        """Torch computes most values from those before, which another schedule (a warm-up) may have replaced."""
        for group, value in zip(self.optimizer.param_groups, self._values, strict=True):
            set_param(group, "lr", value)

    def _columns(self) -> list[tuple[dict[str, Any], str]]:
        return [(group, "lr") for group in self.optimizer.param_groups]


class TorchSteps:
    """Steps a schedule of torch's after each step of its optimizer; a handler for after an iteration.

    An iteration in which the optimizer took no step, since it accumulates gradients or since a gradient scaler left the
    step out, doesn't step the schedule (trap 32). (Ignite counts iterations.)

    Args:
        lr_scheduler: the schedule.
    """

    def __init__(self, lr_scheduler: TorchLRScheduler) -> None:
        self._lr_scheduler = lr_scheduler
        self._steps = OptimizerSteps(lr_scheduler.optimizer)

    def state_dict(self) -> dict[str, Any]:
        """The schedule's state."""
        return self._lr_scheduler.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Give the schedule its state."""
        self._lr_scheduler.load_state_dict(state_dict)

    def attach(self, engine: Engine) -> None:
        """Step the schedule after the iterations of ``engine``.

        At the end of an epoch, too: a window of accumulated gradients that the data cut short is stepped on there.
        """
        engine.add_event_handler(Events.STARTED, self._steps.reset)
        engine.add_event_handler(Events.ITERATION_COMPLETED | Events.EPOCH_COMPLETED, self)

    def __call__(self) -> None:
        """Step the schedule as often as the optimizer has since the last call."""
        taken = self._steps.count()
        self._steps.reset()
        for _ in range(taken):
            self._lr_scheduler.step()


def plain_torch_state(lr_scheduler: Any) -> dict[str, Any]:
    """The state of one of torch's schedules as tensors and primitives.

    Raises:
        CheckpointError: it holds something else.
    """
    plain: dict[str, Any] = to_plain(
        _without_counters(lr_scheduler.state_dict()), f"the state of a {type(lr_scheduler).__name__}"
    )
    return plain


def load_torch_state(lr_scheduler: Any, state: Mapping[str, Any]) -> None:
    """Load what :func:`plain_torch_state` returned, and tell of settings that are others now."""
    ours = _settings(lr_scheduler)
    lr_scheduler.load_state_dict(dict(state))
    _restore_counters(lr_scheduler)
    theirs = _settings(lr_scheduler)
    changed = [name for name, value in theirs.items() if name in ours and ours[name] != value]
    if changed:
        _log.warning(
            "The %s goes on with the checkpoint's settings, as torch's schedules do: %s; this run's were: %s. To have "
            "this run's, set them on it after loading.",
            type(lr_scheduler).__name__,
            ", ".join(f"{name}={theirs[name]}" for name in changed),
            ", ".join(f"{name}={ours[name]}" for name in changed),
        )


class _WithoutTorchsWarning(warnings.catch_warnings):
    def __enter__(self) -> Any:
        entered = super().__enter__()
        warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*", category=UserWarning)
        return entered


def _without_counters(value: Any) -> Any:
    """Counters, which are a class of Python's, as the dicts that they are."""
    if isinstance(value, Mapping):
        return {key: _without_counters(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_without_counters(inner) for inner in value)
    return value


def _settings(lr_scheduler: Any) -> dict[str, Any]:
    """What a schedule was made with, as far as it keeps that: attributes that are arguments of its constructor."""
    unlike = {"optimizer", "last_epoch", "schedulers"}
    kept = {name.lstrip("_"): value for name, value in vars(lr_scheduler).items()}
    names = [name for name in inspect.signature(type(lr_scheduler)).parameters if name not in unlike]
    found = {name: kept[name] for name in names if name in kept and not callable(kept[name])}
    for index, inner in enumerate(getattr(lr_scheduler, "_schedulers", ())):  # of SequentialLR and ChainedScheduler
        found |= {f"{type(inner).__name__} {index}: {name}": value for name, value in _settings(inner).items()}
    return found


def _restore_counters(lr_scheduler: Any) -> None:
    if isinstance(getattr(lr_scheduler, "milestones", None), dict):  # of MultiStepLR
        lr_scheduler.milestones = Counter(lr_scheduler.milestones)
    for inner in getattr(lr_scheduler, "_schedulers", ()):  # of SequentialLR and ChainedScheduler
        _restore_counters(inner)
