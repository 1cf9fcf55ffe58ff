"""Ends a training that has had its time."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from shoal import runtime
from shoal.engine import Engine
from shoal.errors import CheckpointError, UsageError

__all__ = ["TimeLimit"]


class TimeLimit:
    """Terminates the engine once ``limit_sec`` seconds have gone by. Attach to ``Events.ITERATION_COMPLETED``.

    The time runs from when this is made, on a clock that never jumps, evaluations and all. Saved and loaded with the
    training, what earlier runs have used counts too: leave it out of the checkpoint where each job has the whole time
    (as one of a scheduler that ends jobs after some hours), put it in where all jobs share it.

    One process stops at the first iteration after the limit. Several must stop together, and their clocks differ: they
    agree, by one all-reduce of a number, after each ``agree_every`` iterations and at the end of an epoch, and stop as
    soon as one is over the limit. Attach it on all ranks then, and leave time for so many iterations, and for the last
    checkpoint. A run that goes on after that stops at its next agreement.

    Args:
        limit_sec: seconds, above 0.
        agree_every: iterations between two agreements of the ranks.

    Raises:
        UsageError: an argument is out of range.
    """

    def __init__(self, limit_sec: float = 28800, *, agree_every: int = 20) -> None:
        number = isinstance(limit_sec, (int, float)) and not isinstance(limit_sec, bool)
        if not number or not (math.isfinite(limit_sec) and limit_sec > 0):
            raise UsageError(f"asked for limit_sec={limit_sec!r}; give a number of seconds above 0")
        if isinstance(agree_every, bool) or not isinstance(agree_every, int) or agree_every < 1:
            raise UsageError(f"asked for agree_every={agree_every!r}; give a whole number of at least 1")
        self.limit_sec = limit_sec
        self.agree_every = agree_every
        self._used_before = 0.0
        self._started = time.monotonic()
        self._agreed_at: int | None = None

    @property
    def used_sec(self) -> float:
        """Seconds used so far, those of earlier runs included."""
        return self._used_before + time.monotonic() - self._started

    def __call__(self, engine: Engine) -> None:
        """Terminate ``engine`` if the time is over."""
        alone = runtime.current().world_size == 1
        if not alone and not self._is_time_to_agree(engine):
            return
        over = self.used_sec > self.limit_sec
        if not alone:
            over = runtime.all_reduce(int(over), "MAX") > 0
        if over:
            engine.logger.info(
                "TimeLimit: %.0f seconds are used, of %s. The training stops.", self.used_sec, self.limit_sec
            )
            engine.terminate()

    def state_dict(self) -> dict[str, Any]:
        """The seconds that are used."""
        return {"used_sec": self.used_sec}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Count the seconds of an earlier run as used; time goes on from now.

        Raises:
            CheckpointError: it is no such state.
        """
        try:
            used = float(state_dict["used_sec"])
            if not used >= 0.0:
                raise ValueError(used)  # the limit would never come
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"asked to load the state of TimeLimit, found {state_dict!r}; use what its state_dict() gave"
            ) from error
        self._used_before, self._started = used, time.monotonic()

    def _is_time_to_agree(self, engine: Engine) -> bool:
        """The same answer on all ranks, which run the same iterations."""
        state = engine.state
        since = state.iteration if self._agreed_at is None else state.iteration - self._agreed_at
        at_end = state.epoch_length is not None and state.epoch_iteration >= state.epoch_length
        if not at_end and 0 <= since < self.agree_every:
            return False
        self._agreed_at = state.iteration
        return True
