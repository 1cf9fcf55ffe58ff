"""Saves objects while an engine runs, and loads them again."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from numbers import Integral
from pathlib import Path
from typing import Any

from torch import nn

from shoal import checkpoint as files
from shoal import runtime
from shoal.checkpoint import CheckpointManager, Naming, Store
from shoal.engine import Engine
from shoal.engine.events import EventKey
from shoal.errors import UsageError
from shoal.handlers._counts import count, event_of
from shoal.training import unwrap_model

__all__ = ["Checkpoint"]

_SELF = "checkpointer"


class Checkpoint:
    """Saves objects at the events that it is attached to: the newest ``n_saved`` times, or the best.

    Attach it on every rank or on ``save_on_rank`` alone: it does not communicate (but for an optimizer whose state is
    spread over the ranks, which must be gathered from all). A file appears whole or not at all, and an old one is
    deleted only after the new one is on the disk.

    A file holds ``{name: state}``, or the state itself where a single object is saved. It loads with
    ``torch.load(..., weights_only=True)``. Models are saved without the wrapping for data parallelism.

    Names are ``{filename_prefix}_{name}_{global_step}_{score_name}={score}.pt`` of those parts that there are:
    ``training_checkpoint_200.pt``, ``best_model_5_val_accuracy=0.6588.pt``. Without ``global_step_transform`` the step
    is the iteration or the epoch, as the event counts; a handler of events of both kinds goes by the iteration (in
    Ignite by either, and names can meet).

    Without a score every call saves, and the file saved longest ago goes first. With one, NaN is worse than any
    number, and of equal scores the older goes first.

    Args:
        to_save: objects with ``state_dict()`` and ``load_state_dict()``, by name.
        save_handler: a folder, or what is called with (checkpoint, filename) or (checkpoint, filename, metadata) and
            may have ``remove(filename)``. A folder may hold other files (in Ignite it must be empty).
        filename_prefix: put before the name.
        score_function: takes the engine and returns the score, higher is better.
        score_name: put before the score. Without ``score_function`` it names the metric that is the score.
        n_saved: how many stay; None keeps all.
        global_step_transform: takes the engine and the event and returns the step; see ``global_step_from_engine``.
        filename_pattern: a format string instead of the default name; see :meth:`setup_filename_pattern`.
        include_self: whether the file also holds which files are kept, as ``"checkpointer"``, so that a run that goes
            on from it deletes the right ones.
        greater_or_equal: whether an equal score replaces the worst that is kept.
        save_on_rank: the rank that saves.

    Raises:
        UsageError: an argument cannot work; the text says which.
    """

    def __init__(
        self,
        to_save: Mapping[str, Any],
        save_handler: str | os.PathLike[str] | Store | Callable[..., None],
        filename_prefix: str = "",
        score_function: Callable[[Engine], float] | None = None,
        score_name: str | None = None,
        n_saved: int | None = 1,
        global_step_transform: Callable[[Engine, EventKey], int] | None = None,
        filename_pattern: str | None = None,
        include_self: bool = False,
        greater_or_equal: bool = False,
        save_on_rank: int = 0,
    ) -> None:
        files.check_objects(to_save, argument="to_save", method="state_dict")
        if include_self and _SELF in to_save:
            raise UsageError(f"to_save has an object named {_SELF!r}, which include_self=True needs; rename it")
        if not isinstance(save_handler, (str, os.PathLike)) and not callable(save_handler):
            raise UsageError(
                f"asked for save_handler={save_handler!r}; give a folder, or what can be called with "
                "(checkpoint, filename)"
            )
        for label, function in (("score_function", score_function), ("global_step_transform", global_step_transform)):
            if function is not None and not callable(function):
                raise UsageError(f"asked for {label}={function!r}; give a function")
        for label, text in (("filename_prefix", filename_prefix), ("score_name", score_name or "")):
            if not isinstance(text, str):
                raise UsageError(f"asked for {label}={text!r}; give a text")
        if isinstance(save_on_rank, bool) or not isinstance(save_on_rank, int) or save_on_rank < 0:
            raise UsageError(f"asked for save_on_rank={save_on_rank!r}; give a rank, from 0")
        if score_function is None and score_name is not None:
            score_function = self.get_default_score_fn(score_name)
        self._held = {name: _hold(item) for name, item in to_save.items()}
        self._include_self = include_self
        self._score_function = score_function
        self._global_step_transform = global_step_transform
        self._has_own_pattern = filename_pattern is not None
        only = next(iter(to_save)) if len(to_save) == 1 and not include_self else None
        self._manager = CheckpointManager(
            save_handler,
            naming=Naming(
                name=only or "checkpoint", prefix=filename_prefix, score_name=score_name, pattern=filename_pattern
            ),
            n_saved=n_saved,
            greater_or_equal=greater_or_equal,
            save_on_rank=save_on_rank,
        )

    @property
    def to_save(self) -> dict[str, Any]:
        """The objects that are saved."""
        return {name: held() for name, held in self._held.items()}

    @property
    def save_handler(self) -> Any:
        """What writes the files."""
        return self._manager.store

    @property
    def last_checkpoint(self) -> str | Path | None:
        """The file saved last: its path in a folder, else its name; None before the first."""
        return self._manager.last_checkpoint

    def __call__(self, engine: Engine) -> None:
        """Save, if the score is good enough to stay.

        Raises:
            CheckpointError: it could not be saved; what was saved before is still there.
        """
        event = event_of(engine, self)
        step = self._global_step_transform(engine, event) if self._global_step_transform else count(engine, event)
        score = self._score(engine)
        shows_step = self._global_step_transform is not None or score is None or self._has_own_pattern
        if self._manager.would_save(score=score, filename_step=step if shows_step else None):
            self._gather_spread_states()
        self._manager.save(self._collect, step=step, score=score, filename_step=step if shows_step else None)

    def state_dict(self) -> dict[str, Any]:
        """Which files are kept."""
        return self._manager.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on with the files that an earlier run has kept."""
        self._manager.load_state_dict(state_dict)

    def reset(self) -> None:
        """Forget which files are kept; they stay where they are."""
        self._manager.load_state_dict({"saved": []})

    @staticmethod
    def load_objects(
        to_load: Mapping[str, Any], checkpoint: Mapping[str, Any] | str | os.PathLike[str], strict: bool = True
    ) -> None:
        """Give each object its state.

        Args:
            to_load: objects with ``load_state_dict()``, by the names that they were saved under. A single one also
                takes a file that is its own state. Models may be wrapped for data parallelism, or not.
            checkpoint: what ``torch.load`` returned, or the path of a file.
            strict: whether a model's state must have exactly the model's keys; otherwise a log line says what differs.

        Raises:
            CheckpointError: the file cannot be read, lacks an object, or an object does not take its state.
            UsageError: ``to_load`` or ``checkpoint`` is of another kind.
        """
        files.check_objects(to_load, argument="to_load", method="load_state_dict")
        if isinstance(checkpoint, (str, os.PathLike)):
            checkpoint = files.load(checkpoint)
        if not isinstance(checkpoint, Mapping):
            raise UsageError(
                f"asked to load from a {type(checkpoint).__qualname__}; give a path or what torch.load returned"
            )
        files.restore_states(to_load, checkpoint, strict=strict, unwrap=_unwrap)

    @staticmethod
    def get_default_score_fn(metric_name: str, score_sign: float = 1.0) -> Callable[[Engine], float]:
        """A score function that takes ``engine.state.metrics[metric_name]``.

        Args:
            metric_name: the metric.
            score_sign: 1.0 (default) where higher is better, -1.0 where lower is.
        """
        if score_sign not in (1.0, -1.0):
            raise UsageError(f"asked for score_sign={score_sign!r}; give 1.0 or -1.0")

        def score(engine: Engine) -> float:
            metrics = engine.state.metrics
            if metric_name not in metrics:
                raise UsageError(
                    f"the score is the metric {metric_name!r}, which the engine does not have; it has: "
                    f"{', '.join(metrics) or 'none'}. Attach the metric, or the checkpoint to the engine that has it"
                )
            value: float = metrics[metric_name]
            return value if score_sign == 1.0 else -value

        return score

    @staticmethod
    def setup_filename_pattern(
        with_prefix: bool = True,
        with_score: bool = True,
        with_score_name: bool = True,
        with_global_step: bool = True,
    ) -> str:
        """The default pattern with the parts that are asked for; see :func:`shoal.checkpoint.default_pattern`."""
        return files.default_pattern(
            with_prefix=with_prefix,
            with_score=with_score,
            with_score_name=with_score_name,
            with_global_step=with_global_step,
        )

    def _score(self, engine: Engine) -> float | None:
        if self._score_function is None:
            return None
        score = self._score_function(engine)
        if isinstance(score, Integral):
            return int(score)
        try:
            return float(score)
        except (TypeError, ValueError) as error:
            raise UsageError(f"score_function returned {score!r}; return a number, higher for better") from error

    def _collect(self, bookkeeping: dict[str, Any]) -> Any:
        states = files.collect_states(self.to_save, _unwrap)
        if self._include_self:
            states[_SELF] = bookkeeping
        return next(iter(states.values())) if len(states) == 1 else states

    def _gather_spread_states(self) -> None:
        """An optimizer that keeps a part of its state on each rank is asked, on all, to bring them together."""
        if runtime.current().world_size == 1:
            return
        for item in self.to_save.values():
            if hasattr(item, "consolidate_state_dict"):
                item.consolidate_state_dict(to=self._manager.save_on_rank)


def _unwrap(item: Any) -> Any:
    return unwrap_model(item) if isinstance(item, nn.Module) else item


def _hold(item: Any) -> Callable[[], Any]:
    """Keeps ``item``; an engine weakly, since the engine that this handler is attached to keeps the handler."""
    if not isinstance(item, Engine):
        return lambda: item
    reference = weakref.ref(item)

    def engine() -> Engine:
        found = reference()
        if found is None:
            raise UsageError("asked to save an engine that is gone; keep a reference to it as long as it is saved")
        return found

    return engine
