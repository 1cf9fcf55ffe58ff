"""Which checkpoints stay: bookkeeping alone, no file is touched here."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from shoal.checkpoint.naming import is_file_name
from shoal.errors import CheckpointError, UsageError

__all__ = ["Plan", "Retention", "Saved"]


@dataclass(frozen=True, slots=True)
class Saved:
    """One checkpoint that was saved.

    Attributes:
        filename: its file's name in the folder.
        score: its score, higher is better; None where newer is better.
        step: where the training was, as far as that is known.
    """

    filename: str
    score: float | None = None
    step: int | None = None

    def is_same(self, other: Saved) -> bool:
        """Whether ``other``, whose name may not be free, is this one again: of the same known step, score and name."""
        known = self.step is not None and self.step == other.step
        scores = _rank(self) == _rank(other) and (self.score is None) == (other.score is None)
        return known and scores and _is_named_like(self.filename, other.filename)


@dataclass(frozen=True, slots=True)
class Plan:
    """What will hold once a new checkpoint is safe.

    Attributes:
        saved: the checkpoints that stay, the new one among them, the next to go first.
        dropped: names of the files to delete, none of them the new one's.
        filename: the new one's file.
    """

    saved: tuple[Saved, ...]
    dropped: tuple[str, ...]
    filename: str


class Retention:
    """The ``n_saved`` newest checkpoints, or the ``n_saved`` best.

    Order by score: NaN is worse than any number, and than minus infinity. Of two equal scores the older one goes
    first; a new one that only equals the worst kept is taken where ``greater_or_equal`` says so.

    Two checkpoints that stay never share a file: where a new one's name is that of another that stays, it gets
    ``-2``, ``-3``, … before the ending. A checkpoint of the same known step, name and score is the same one,
    saved again: it takes its own place.

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

    def plan(
        self, filename: str, score: float | None = None, step: int | None = None, *, in_place: bool = False
    ) -> Plan | None:
        """What a checkpoint of that name and score would do; None when it is not good enough to be saved.

        Args:
            filename: the name that it would like to have.
            score: higher is better; None where newer is better.
            step: where the training is; None where that isn't known.
            in_place: whether a file that is there would be broken while it is written to: then the new one has a name
                that none has, also none of those that go.
        """
        new = Saved(filename, score, step)
        before = next((old for old in self.saved if old.is_same(new)), None)
        others = [old for old in self.saved if old is not before]
        at = len(others)
        if score is not None:
            others.sort(key=_rank)
            at = bisect_right([_rank(old) for old in others], _rank(new))
        num_dropped = 0 if self.n_saved is None else max(0, len(others) + 1 - self.n_saved)
        if score is not None and num_dropped and not self._beats(new, others[num_dropped - 1]):
            return None
        going = [*others[:num_dropped], *(() if before is None else (before,))]
        if in_place:
            new = replace(new, filename=_free_name(filename, {old.filename for old in self.saved}))
        elif before is not None:
            new = replace(new, filename=before.filename)
        else:
            new = replace(new, filename=_free_name(filename, {old.filename for old in others[num_dropped:]}))
        return Plan(
            saved=(*others[num_dropped:at], new, *others[at:]),
            dropped=tuple(old.filename for old in going if old.filename != new.filename),
            filename=new.filename,
        )

    def commit(self, plan: Plan) -> None:
        """The new checkpoint is safe: the plan holds from now on."""
        self.saved = plan.saved

    def state_dict(self, plan: Plan | None = None) -> dict[str, Any]:
        """The bookkeeping as primitives, as it is or as it will be with ``plan``."""
        saved = self.saved if plan is None else plan.saved
        return {"saved": [asdict(item) for item in saved]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the bookkeeping of an earlier run.

        Raises:
            CheckpointError: the state is not a retention's.
        """
        try:
            saved = tuple(Saved(item["filename"], item["score"], item.get("step")) for item in state["saved"])
            for item in saved:
                _check(item)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise CheckpointError(
                f"asked to restore which checkpoints are kept, found {state!r}; use a checkpoint that was "
                "written with include_self=True"
            ) from error
        self.saved = saved

    def _beats(self, new: Saved, worst: Saved) -> bool:
        return _rank(new) >= _rank(worst) if self.greater_or_equal else _rank(new) > _rank(worst)


def _check(item: Saved) -> None:
    """Raises ValueError where it is nothing that was saved: its file is going to be deleted."""
    if not isinstance(item.filename, str) or not is_file_name(item.filename):
        raise ValueError(f"{item.filename!r} is no file name")
    if item.score is not None:
        math.isnan(item.score)  # raises TypeError


def _rank(item: Saved) -> tuple[bool, float]:
    """A key that sorts by score, NaN (and no score at all) before everything."""
    if item.score is None or math.isnan(item.score):
        return (False, 0.0)
    return (True, item.score)


def _free_name(filename: str, taken: Collection[str]) -> str:
    """``filename``, or where that is taken the same with a number before its ending."""
    start, ending = _parts(filename)
    number, free = 1, filename
    while free in taken:
        number += 1
        free = f"{start}-{number}{ending}"
    return free


def _is_named_like(filename: str, wanted: str) -> bool:
    """Whether ``filename`` is what :func:`_free_name` may have made of ``wanted``."""
    start, ending = _parts(wanted)
    return filename == wanted or re.fullmatch(re.escape(start) + r"-\d+" + re.escape(ending), filename) is not None


def _parts(filename: str) -> tuple[str, str]:
    ending = Path(filename).suffix
    if ending[1:].isdigit():  # the decimals of a score are no ending
        ending = ""
    return filename.removesuffix(ending), ending
