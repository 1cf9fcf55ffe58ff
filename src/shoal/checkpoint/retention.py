"""Which checkpoints stay: bookkeeping alone, no file is touched here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.errors import CheckpointError, UsageError

__all__ = ["Plan", "Retention", "Saved"]


@dataclass(frozen=True, slots=True)
class Saved:
    """One checkpoint that was saved.

    Attributes:
        filename: its file's name in the folder.
        score: its score, higher is better; None where newer is better.
    """

    filename: str
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What will hold once a new checkpoint is safe.

    Attributes:
        saved: the checkpoints that stay, the new one among them, the next to go first.
        dropped: names of the files to delete, none of them the new one's.
    """

    saved: tuple[Saved, ...]
    dropped: tuple[str, ...]


class Retention:
    """The ``n_saved`` newest checkpoints, or the ``n_saved`` best.

    Order by score: NaN is worse than any number, and than minus infinity. Of two equal scores the older one goes
    first; a new one that only equals the worst kept is taken where ``greater_or_equal`` says so.

    Args:
        n_saved: how many stay, at least 1; None keeps all.
        greater_or_equal: whether an equal score is good enough to replace the worst that is kept.
    """

    def __init__(self, n_saved: int | None = 1, *, greater_or_equal: bool = False) -> None:
        if n_saved is not None and (isinstance(n_saved, bool) or not isinstance(n_saved, int) or n_saved < 1):
            raise UsageError(f"asked for n_saved={n_saved!r}; keep at least 1 checkpoint, or None for all")
        self.n_saved = n_saved
        self.greater_or_equal = greater_or_equal
        self.saved: tuple[Saved, ...] = ()

    def plan(self, filename: str, score: float | None = None) -> Plan | None:
        """What a checkpoint of that name and score would do; None when it is not good enough to be saved.

        A file of the same name counts as replaced: it makes room, and must not be better than the new one.
        """
        new = Saved(filename, score)
        others = tuple(old for old in self.saved if old.filename != filename)
        replaced = next((old for old in self.saved if old.filename == filename), None)
        if score is not None:
            if replaced is not None and _rank(replaced) > _rank(new):
                return None
            if replaced is None and self._is_full(others) and not self._beats(new, others[0]):
                return None
        ordered = [*others, new] if score is None else sorted([*others, new], key=_rank)
        num_dropped = 0 if self.n_saved is None else max(0, len(ordered) - self.n_saved)
        dropped = tuple(old.filename for old in ordered[:num_dropped])
        return Plan(tuple(ordered[num_dropped:]), dropped)

    def commit(self, plan: Plan) -> None:
        """The new checkpoint is safe: the plan holds from now on."""
        self.saved = plan.saved

    def state_dict(self, plan: Plan | None = None) -> dict[str, Any]:
        """The bookkeeping as primitives, as it is or as it will be with ``plan``."""
        saved = self.saved if plan is None else plan.saved
        return {"saved": [{"filename": item.filename, "score": item.score} for item in saved]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the bookkeeping of an earlier run.

        Raises:
            CheckpointError: the state is not a retention's.
        """
        try:
            self.saved = tuple(Saved(str(item["filename"]), item["score"]) for item in state["saved"])
        except (KeyError, TypeError) as error:
            raise CheckpointError(
                f"asked to restore which checkpoints are kept, found {dict(state)!r}; use a checkpoint that was "
                "written with include_self=True"
            ) from error

    def _is_full(self, saved: tuple[Saved, ...]) -> bool:
        return self.n_saved is not None and len(saved) >= self.n_saved

    def _beats(self, new: Saved, worst: Saved) -> bool:
        return _rank(new) >= _rank(worst) if self.greater_or_equal else _rank(new) > _rank(worst)


def _rank(item: Saved) -> tuple[bool, float]:
    """A key that sorts by score, NaN (and no score at all) before everything."""
    if item.score is None or math.isnan(item.score):
        return (False, 0.0)
    return (True, item.score)
