"""What a run says about itself in ``state.json``: what it was to do, and how it ended."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from shoal.runs.folder import STATE_FILE
from shoal.runs.trust import UNREADABLE, count_of

__all__ = ["Plan", "RunState", "read_state", "write_state"]

Word = Literal["running", "finished", "stopped", "failed"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run is to do.

    Attributes:
        title: what is trained on what; shown to the user.
        command: what starts such a run and, with ``--resume-from``, goes on with one.
        num_epochs: epochs of the whole run.
        steps_per_epoch: optimisation steps of an epoch.
        score: the metric that says how good the run is, as ``metrics.jsonl`` calls it; more is better.
    """

    title: str
    command: str
    num_epochs: int
    steps_per_epoch: int
    score: str = "val/accuracy"


@dataclass(frozen=True, kw_only=True)
class RunState:
    """The content of ``state.json``.

    Attributes:
        state: ``running`` is written at the start and stays where a run is killed, so it holds only while the run has
            its folder locked (:func:`shoal.runs.is_locked`).
        plan: what the run is to do.
        step: optimisation steps that were done when this was written.
        reason: the signal that stopped it, or the error that ended it, in a line; else empty.
    """

    state: Word
    plan: Plan
    step: int = 0
    reason: str = ""


def write_state(folder: Path, state: RunState) -> None:
    """Write ``state.json``, which appears whole."""
    from shoal.checkpoint import atomic_write_text

    atomic_write_text(folder / STATE_FILE, json.dumps(asdict(state), indent=2) + "\n")


def read_state(folder: Path) -> RunState | None:
    """The content of ``state.json``; None where there is none, as in runs of older versions, or it cannot be read."""
    try:
        content: dict[str, Any] = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
        plan, state = content["plan"], content["state"]
        if state not in get_args(Word):
            raise ValueError(state)
        return RunState(
            state=state,
            plan=Plan(
                title=str(plan["title"]),
                command=str(plan["command"]),
                num_epochs=count_of(plan["num_epochs"]),
                steps_per_epoch=max(1, count_of(plan["steps_per_epoch"])),
                score=str(plan["score"]),
            ),
            step=count_of(content["step"]),
            reason=str(content["reason"]),
        )
    except UNREADABLE:
        return None
