"""What there is to say and to see at the end of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.recipes.curves import Curves, draw_curves
from shoal.recipes.progress import format_duration
from shoal.runs import CONFIG_FILE, ENVIRONMENT_FILE, METRICS_FILE, REPORT_FILE

__all__ = ["CURVES_FILE", "Outcome", "draw", "outcome_of", "words"]

CURVES_FILE = "curves.png"

Records = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        folder: the run's folder.
        best_accuracy: the best validation accuracy; None where nothing was evaluated.
        best_epoch: the epoch after which it was reached, or None.
        stopped_by: the number of the signal that stopped the run, or None for one that came to its end.
    """

    folder: str
    best_accuracy: float | None = None
    best_epoch: int | None = None
    stopped_by: int | None = None


def outcome_of(records: Records, folder: Path, stopped_by: int | None) -> Outcome:
    """The outcome of a run with these records of ``metrics.jsonl``."""
    scores = [(r["val/accuracy"], -int(r["val/epoch"])) for r in records if "val/accuracy" in r]
    if not scores:
        return Outcome(str(folder), stopped_by=stopped_by)
    accuracy, negative_epoch = max(scores)  # of equal ones the first
    return Outcome(str(folder), accuracy, -negative_epoch, stopped_by)


def draw(records: Records, folder: Path, *, title: str, steps_per_epoch: int) -> None:
    """Draw ``curves.png`` into the run's folder."""
    curves = Curves(title=title, steps_per_epoch=steps_per_epoch)
    by_name = {
        "batch/loss": curves.batch_loss,
        "batch/accuracy": curves.batch_accuracy,
        "batch/learning_rate": curves.learning_rate,
        "train/loss": curves.train_loss,
        "train/accuracy": curves.train_accuracy,
        "val/loss": curves.val_loss,
        "val/accuracy": curves.val_accuracy,
    }
    for record in records:
        for name, curve in by_name.items():
            if name in record:
                curve.add(int(record["step"]), float(record[name]))
    draw_curves(folder / CURVES_FILE, curves)


def words(outcome: Outcome, title: str, steps: tuple[int, int], num_epochs: int, seconds: float) -> list[str]:
    """The lines to print: how it went, what is in the folder, how to look at it and how to go on.

    Args:
        outcome: how it ended.
        title: what was trained on what.
        steps: those that are done, and those of the whole run.
        num_epochs: epochs of the whole run.
        seconds: how long this session of the run took.
    """
    folder = Path(outcome.folder)
    resume = f"shoal train cifar10 --resume-from {folder}"
    if outcome.stopped_by is None:
        opening = f"Trained {title}, {num_epochs} epochs, in {format_duration(seconds)}."
        resume += f" --num-epochs {2 * num_epochs}"
    else:
        opening = f"Stopped after step {steps[0]} of {steps[1]} ({title}); everything is saved."
    best = []
    if outcome.best_accuracy is not None:
        best = [f"Best validation accuracy: {outcome.best_accuracy:.4f}, after epoch {outcome.best_epoch}."]
    has_report = (folder / REPORT_FILE).is_file()
    files = [
        *([(REPORT_FILE, "curves, times, mistakes and set-up, for a browser")] if has_report else []),
        (CURVES_FILE, "loss, accuracy and learning rate"),
        *((path.name, "best weights") for path in sorted(folder.glob("best_model_*.pt"))),
        *((path.name, "to go on from") for path in sorted(folder.glob("training_checkpoint_*.pt"))),
        (METRICS_FILE, "all numbers, one JSON object a line"),
        (f"{CONFIG_FILE}, {ENVIRONMENT_FILE}", "what ran, and on what"),
    ]
    width = max(len(name) for name, _ in files)
    return [
        "",
        opening,
        *best,
        "",
        f"{folder}/",
        *(f"  {name:<{width}}  {what}" for name, what in files),
        "",
        *([f"Look at it:  {folder / REPORT_FILE}"] if has_report else []),
        f"{'or:' if has_report else 'Look at it:':<12} tensorboard --logdir {folder.parent}",
        f"Go on:       {resume}",
    ]
