"""Ends a training that no longer gets better."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Literal

from shoal import runtime
from shoal.engine import Engine, Events
from shoal.engine.events import EventLike, EventsList
from shoal.errors import CheckpointError, UsageError

__all__ = ["EarlyStopping"]


class EarlyStopping:
    """Terminates the trainer after ``patience`` evaluations in a row without an improvement.

    Attach it to the evaluator: ``evaluator.add_event_handler(Events.COMPLETED, handler)``.

    A score is an improvement where it is better than the best one so far, by more than ``min_delta``. NaN never is, nor
    is it ever the best. (In Ignite a first score of NaN is, and nothing improves on it.)

    On several ranks attach it on all of them: each call gathers the ranks' scores, in one collective, and all go by
    that of rank 0, so that they stop together. Scores of merged metrics are the same on all; where they differ, this is
    said once.

    It has a state: saved and loaded with the training, a resumed run stops where the uninterrupted one would.

    Args:
        patience: evaluations without an improvement after which the trainer is terminated; at least 1.
        score_function: takes the engine that this is attached to and returns the score.
        trainer: the engine to terminate. It is held weakly.
        min_delta: by how much a score must be better.
        cumulative_delta: False (default) measures ``min_delta`` from the best score, also where that was no
            improvement; True from the score that was the last improvement, so that small steps add up.
        min_delta_mode: ``"abs"``, or ``"rel"``: ``min_delta`` is a part of the absolute value of the score that it is
            measured from. (In Ignite of its signed value, so that with negative scores worse ones improve.)
        mode: ``"max"`` where higher scores are better, ``"min"`` where lower are.
        grace_period: so many evaluations at the start do not count: their scores are not looked at.
        threshold: another name of ``min_delta``.
        cumulative: another name of ``cumulative_delta``.
        threshold_mode: another name of ``min_delta_mode``.

    Attributes:
        counter: evaluations since the last improvement.
        best_score: what ``min_delta`` is measured from; None before the first score that is a number.
        num_evaluations: calls so far, the grace period included.

    Raises:
        UsageError: an argument is out of range or of another kind.
    """

    def __init__(
        self,
        patience: int,
        score_function: Callable[[Engine], float],
        trainer: Engine,
        min_delta: float = 0.0,
        cumulative_delta: bool = False,
        min_delta_mode: Literal["abs", "rel"] = "abs",
        mode: Literal["min", "max"] = "max",
        *,
        grace_period: int = 0,
        threshold: float | None = None,
        cumulative: bool | None = None,
        threshold_mode: Literal["abs", "rel"] | None = None,
    ) -> None:
        self.min_delta = min_delta if threshold is None else threshold
        self.cumulative_delta = cumulative_delta if cumulative is None else cumulative
        self.min_delta_mode = min_delta_mode if threshold_mode is None else threshold_mode
        for label, number, least in (("patience", patience, 1), ("grace_period", grace_period, 0)):
            if isinstance(number, bool) or not isinstance(number, int) or number < least:
                raise UsageError(f"asked for {label}={number!r}; give a whole number of at least {least}")
        if not callable(score_function):
            raise UsageError(f"asked for score_function={score_function!r}; give a function of the engine")
        if not isinstance(trainer, Engine):
            raise UsageError(f"asked to stop a {type(trainer).__qualname__}; give the engine that trains")
        if not isinstance(self.min_delta, (int, float)) or not self.min_delta >= 0.0:
            raise UsageError(f"asked for min_delta={self.min_delta!r}; give a number of at least 0")
        for label, chosen, choices in (("min_delta_mode", self.min_delta_mode, ("abs", "rel")),
                                       ("mode", mode, ("min", "max"))):  # fmt: skip
            if chosen not in choices:
                raise UsageError(f"asked for {label}={chosen!r}; give one of {', '.join(map(repr, choices))}")
        self.patience = patience
        self.score_function = score_function
        self.mode = mode
        self.grace_period = grace_period
        self._trainer = weakref.ref(trainer)
        self._said = False
        self.counter = 0
        self.best_score: float | None = None
        self.num_evaluations = 0

    @property
    def trainer(self) -> Engine:
        """The engine to terminate; raises UsageError where it is gone."""
        trainer = self._trainer()
        if trainer is None:
            raise UsageError("asked to stop a trainer that is gone; keep a reference to it as long as it is evaluated")
        return trainer

    def __call__(self, engine: Engine) -> None:
        """Take the score of an evaluation, and terminate the trainer where there were enough without improvement.

        Raises:
            UsageError: the score is no number, or the trainer is gone.
        """
        trainer = self.trainer
        score = self._agreed(engine)
        self.num_evaluations += 1
        if self.num_evaluations <= self.grace_period:
            return
        if self._improves(score):
            self.best_score, self.counter = score, 0
            return
        if not self.cumulative_delta and self.best_score is not None and not math.isnan(score):
            self.best_score = max(score, self.best_score) if self.mode == "max" else min(score, self.best_score)
        self.counter += 1
        if self.counter >= self.patience:
            trainer.logger.info(
                "EarlyStopping: no improvement in %d evaluations; the best score was %s. The training stops.",
                self.counter,
                self.best_score,
            )
            trainer.terminate()

    def attach(
        self,
        engine: Engine,
        event: EventLike = Events.COMPLETED,
        reset_engine: Engine | None = None,
        reset_event: EventLike = Events.STARTED,
    ) -> None:
        """Attach to an evaluator; and start anew with a training.

        Args:
            engine: the evaluator.
            event: when to look at its score.
            reset_engine: usually the trainer; None (default) never resets. (In Ignite it is then the evaluator, each
                run of which would set the counter to 0.)
            reset_event: its event at which all is forgotten; at STARTED only of a run that starts from nothing, so
                that one which is resumed goes on counting.
        """
        engine.add_event_handler(event, self)
        if reset_engine is None:
            return
        for chosen in reset_event if isinstance(reset_event, EventsList) else (reset_event,):
            at_start = Events.STARTED in (chosen, getattr(chosen, "event", None))
            reset_engine.add_event_handler(chosen, self._reset_unless_resumed if at_start else self.reset)

    def reset(self) -> None:
        """Forget all scores."""
        self.counter, self.best_score, self.num_evaluations = 0, None, 0

    def state_dict(self) -> dict[str, Any]:
        """The counter, the best score and the number of evaluations."""
        return {"counter": self.counter, "best_score": self.best_score, "num_evaluations": self.num_evaluations}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state; one without ``num_evaluations`` is taken to be past the grace period.

        Raises:
            CheckpointError: it is no such state.
        """
        try:
            counter, best = int(state_dict["counter"]), state_dict["best_score"]
            best = None if best is None or math.isnan(best) else float(best)  # NaN of a first score in Ignite
            number = int(state_dict.get("num_evaluations", self.grace_period + counter))
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise CheckpointError(
                f"asked to load the state of EarlyStopping, found {state_dict!r}; use what its state_dict() gave"
            ) from error
        self.counter, self.best_score, self.num_evaluations = counter, best, number

    def _agreed(self, engine: Engine) -> float:
        """The score of rank 0, on all ranks."""
        given = self.score_function(engine)
        try:
            score = float(given)
        except (TypeError, ValueError) as error:
            raise UsageError(f"score_function returned {given!r}; return a number") from error
        if runtime.current().world_size == 1:
            return score
        scores: list[float] = runtime.all_gather(score)
        if not self._said and len({repr(other) for other in scores}) > 1:
            self._said = True
            engine.logger.warning(
                "EarlyStopping: the ranks have different scores, %s, and go by that of rank 0; take the score from a "
                "metric, which is the same on all",
                scores,
            )
        return scores[0]

    def _improves(self, score: float) -> bool:
        if math.isnan(score):
            return False
        if self.best_score is None:
            return True
        delta = self.min_delta * (abs(self.best_score) if self.min_delta_mode == "rel" else 1.0)
        if math.isinf(self.best_score):
            delta = 0.0
        return score > self.best_score + delta if self.mode == "max" else score < self.best_score - delta

    def _reset_unless_resumed(self, engine: Engine) -> None:
        if engine.state.iteration == 0:
            self.reset()
