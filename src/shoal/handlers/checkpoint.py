"""Saves objects while an engine runs, and loads them again."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from torch import nn

from shoal import checkpoint as files
from shoal import runtime
from shoal.checkpoint import CheckpointManager, Naming, Store
from shoal.engine import Engine, Events
from shoal.engine.events import EventEnum, EventKey
from shoal.errors import CheckpointError, UsageError
from shoal.handlers._counts import count, event_of
from shoal.training import unwrap_model

__all__ = ["Checkpoint", "CheckpointEvents"]

_SELF = "checkpointer"
# Where a run breaks off, its place is the iteration.
_OUT_OF_TURN = (Events.EXCEPTION_RAISED, Events.INTERRUPT, Events.TERMINATE, Events.TERMINATE_SINGLE_EPOCH)


class CheckpointEvents(EventEnum):
    """Fired by :class:`Checkpoint` in the engine that it is attached to, if that engine knows them.

    It does after ``engine.register_events(*CheckpointEvents)``. (In Ignite the first save registers them; here it would
    become a part of the engine's state in its middle.)
    """

    SAVED_CHECKPOINT = "saved_checkpoint"


class Checkpoint:
    """Saves objects at the events that it is attached to: the newest ``n_saved`` times, or the best.

    Attach it on every rank or on ``save_on_rank`` alone: it does not communicate. (But for an optimizer whose state is
    spread over the ranks, such as a ZeroRedundancyOptimizer: then it must be on all, which go by the score of
    ``save_on_rank``. A model whose weights are spread is refused.) A file appears whole or not at
    all, and an old one is deleted only after the new one is on the disk.

    A file holds ``{name: state}``, or the state itself where a single object is saved. It loads with
    ``torch.load(..., weights_only=True)``. Models are saved without the wrapping for data parallelism.

    Names are ``{filename_prefix}_{name}_{global_step}_{score_name}={score}.pt`` of those parts that there are:
    ``training_checkpoint_200.pt``, ``best_model_5_val_accuracy=0.6588.pt``. Without ``global_step_transform`` the step
    is the iteration or the epoch, as the event counts; a handler of events of both kinds goes by the iteration, as does
    one of EXCEPTION_RAISED, INTERRUPT or TERMINATE. (In Ignite it is the iteration at every event.)

    Two checkpoints that are kept never share a file. Where the name of another would be taken, as by scores that agree
    to four decimals in a name without a step, ``-2``, ``-3``, … is put before the ending. (In Ignite one file is lost.)
    A checkpoint of the same step, name and score is kept once, the newer in the older's place.

    Without a score every call saves, and the file saved longest ago goes first. With one, NaN is worse than any
    number, and of equal scores the older goes first.

    After each save an engine that knows ``CheckpointEvents`` fires ``Checkpoint.SAVED_CHECKPOINT``, on all ranks that
    have the handler.

    Args:
        to_save: objects with ``state_dict()`` and ``load_state_dict()`` by name, or dicts and lists of such. An engine
            is held weakly.
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

    Attributes:
        seconds: what collecting, writing and deleting have taken in this process, all calls together.

    Raises:
        UsageError: an argument cannot work; the text says which. A ``save_on_rank`` that the world doesn't have is
            found at the first call.
    """

    SAVED_CHECKPOINT: ClassVar[CheckpointEvents] = CheckpointEvents.SAVED_CHECKPOINT

    class Item(NamedTuple):
        """One checkpoint that is kept: the score, or without scores the step, and the file's name."""

        priority: float | None
        filename: str

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
        self._include_self = include_self
        self._held = self._hold_all(to_save)
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
        self.seconds = 0.0
        self._score_function = score_function
        self._global_step_transform = global_step_transform
        self._has_own_pattern = filename_pattern is not None
        self._manager = CheckpointManager(
            save_handler,
            naming=Naming(name=self._name, prefix=filename_prefix, score_name=score_name, pattern=filename_pattern),
            n_saved=n_saved,
            greater_or_equal=greater_or_equal,
            save_on_rank=save_on_rank,
        )

    @property
    def to_save(self) -> dict[str, Any]:
        """The objects that are saved."""
        return {name: files.map_leaves(lambda held: held(), item, "state_dict") for name, item in self._held.items()}

    @property
    def save_handler(self) -> Any:
        """What writes the files."""
        return self._manager.store

    @property
    def last_checkpoint(self) -> str | Path | None:
        """The file saved last: its path in a folder, else its name; None before the first.

        (In Ignite, with scores, the best one.)
        """
        return self._manager.last_checkpoint

    @property
    def best_checkpoint(self) -> str | Path | None:
        """The file with the highest score, or without scores the newest; None before the first."""
        return self._manager.best_checkpoint

    @property
    def saved(self) -> list[Item]:
        """The checkpoints that are kept, the next to go first."""
        kept = self._manager.retention.saved
        return [self.Item(item.step if item.score is None else item.score, item.filename) for item in kept]

    def __call__(self, engine: Engine, *_: Any) -> None:
        """Save, if the score is good enough to stay.

        Args:
            engine: where the step and the score come from.
            _: not looked at; at EXCEPTION_RAISED it is the exception.

        Raises:
            CheckpointError: it could not be saved; what was saved before is still there.
            UsageError: there is no such rank as ``save_on_rank``, or the score is no number.
        """
        started = time.perf_counter()
        event = event_of(engine, self)
        step = self._step(engine, event)
        spread = self._spread(engine)
        score = self._score(engine)
        if spread and score is not None:  # all must come to the same end
            score = runtime.broadcast(score, self._manager.save_on_rank)
        # An evaluator's own count doesn't tell where the training is.
        same_step = step if score is None or self._global_step_transform is not None else None
        shows_step = self._global_step_transform is not None or score is None or self._has_own_pattern
        saved = self._manager.save(
            self._collect,
            step=step,
            score=score,
            filename_step=step if shows_step else None,
            same_step=same_step,
            name=self._name,
            prepare=partial(self._gather, spread),
        )
        self.seconds += time.perf_counter() - started
        if saved is not None and engine.has_registered_events(self.SAVED_CHECKPOINT):
            engine.fire_event(self.SAVED_CHECKPOINT)

    def state_dict(self) -> dict[str, Any]:
        """Which files are kept."""
        return self._manager.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on with the files that an earlier run has kept."""
        self._manager.load_state_dict(state_dict)

    def reset(self) -> None:
        """Forget which files are kept; they stay where they are."""
        self._manager.load_state_dict({"saved": []})

    def reload_objects(
        self, to_load: Mapping[str, Any], load_kwargs: Mapping[str, Any] | None = None, **filename_components: Any
    ) -> None:
        """Give each object its state from a file that this handler has saved.

        Args:
            to_load: as in :meth:`load_objects`.
            load_kwargs: ``strict`` and ``assign`` for it.
            filename_components: ``name``, ``score`` and ``global_step`` of the file, of those that its name has. None
                at all: the file saved last.

        Raises:
            CheckpointError: as :meth:`load_objects`, or nothing has been saved.
            UsageError: files are not saved into a folder, or another component was given.
        """
        dirname = getattr(self.save_handler, "dirname", None)
        if dirname is None:
            raise UsageError(
                f"asked to reload from a {type(self.save_handler).__qualname__}, which has no folder; read the "
                "checkpoint and call load_objects"
            )
        unknown = sorted(set(filename_components) - {"name", "score", "global_step"})
        if unknown:
            raise UsageError(f"asked to reload by {', '.join(unknown)}; give name, score and global_step")
        path = self.last_checkpoint
        if filename_components:
            naming = replace(self._manager.naming, name=filename_components.get("name", self._name))
            components = {"step": filename_components.get("global_step"), "score": filename_components.get("score")}
            path = Path(dirname) / naming.filename(**components)
        if path is None:
            raise CheckpointError(f"asked to reload from '{dirname}', where this handler has saved nothing yet")
        self.load_objects(to_load, path, **(load_kwargs or {}))

    @staticmethod
    def load_objects(
        to_load: Mapping[str, Any],
        checkpoint: Mapping[str, Any] | str | os.PathLike[str],
        strict: bool = True,
        assign: bool = False,
    ) -> None:
        """Give each object its state, or leave all as they were and raise; what remains of that is in
        :func:`shoal.checkpoint.restore_states`.

        Args:
            to_load: objects with ``load_state_dict()``, by the names that they were saved under. A single one also
                takes a file that is its own state. Models, and those in the file, may be wrapped (for data
                parallelism, by ``torch.compile``) or not.
            checkpoint: what ``torch.load`` returned, or the path of a file.
            strict: whether a model's state must have exactly the model's keys; otherwise a log line says what differs.
            assign: whether a model takes over the tensors of the file, as in ``nn.Module.load_state_dict``.

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
        files.restore_states(to_load, checkpoint, strict=strict, assign=assign, unwrap=_unwrap)

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

    def _hold_all(self, to_save: Mapping[str, Any]) -> dict[str, Any]:
        files.check_objects(to_save, argument="to_save", method="state_dict")
        if self._include_self and _SELF in to_save:
            raise UsageError(f"to_save has an object named {_SELF!r}, which include_self=True needs; rename it")
        return {name: files.map_leaves(_hold, item, "state_dict") for name, item in to_save.items()}

    @property
    def _name(self) -> str:
        return next(iter(self._held)) if len(self._held) == 1 and not self._include_self else "checkpoint"

    def _step(self, engine: Engine, event: EventKey) -> int:
        if self._global_step_transform is not None:
            if not engine.handlers.find(self):  # called by another handler, whose event it is then
                event = engine.last_event_name or event
            return self._global_step_transform(engine, event)
        return engine.state.iteration if event in _OUT_OF_TURN else count(engine, event)

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
        only = next(iter(self._held.values())) if len(states) == 1 else None
        return states[self._name] if callable(only) else states  # a dict or list of objects keeps its name

    def _spread(self, engine: Engine) -> dict[str, Any]:
        """Optimizers that keep a part of their state on each rank, by name."""
        found = {
            ".".join(map(str, path)): item
            for path, item in files.leaves(self.to_save, "state_dict").items()
            if hasattr(item, "consolidate_state_dict")
        }
        if found and engine.exception is not None and runtime.current().world_size > 1:
            raise CheckpointError(  # other ranks may be anywhere, and would be waited for
                f"asked to save {next(iter(found))!r}, whose state is spread over the ranks, while an exception is "
                "handled on this one; leave it out of what is saved at EXCEPTION_RAISED"
            )
        return found

    def _gather(self, spread: Mapping[str, Any]) -> None:
        """Each optimizer is asked, on all ranks, to bring its state together on the one that saves."""
        for name, item in spread.items():
            try:
                item.consolidate_state_dict(to=self._manager.save_on_rank)
            except RuntimeError as error:
                raise CheckpointError(
                    f"asked to save {name!r}, whose state is spread over the ranks, and could not gather it from all: "
                    f"{error}. Attach the handler on every rank"
                ) from error


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
