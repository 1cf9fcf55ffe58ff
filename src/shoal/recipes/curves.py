"""``curves.png``: loss, accuracy and learning rate of a run, drawn from its recorded metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from shoal.report.curves import moving_average

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Curve", "Curves", "draw_curves"]

# Two colours that people who see few colours can tell apart (Okabe and Ito), and greys.
_TRAIN, _VAL, _INK, _GRID = "#0072B2", "#D55E00", "#333333", "#E3E3E3"
_WIDTH_IN, _HEIGHT_IN, _DPI = 8.0, 8.5, 140
_MANY_POINTS = 40
_OUTLIER = 25
"""A loss of more than so many times the median is one."""


@dataclass
class Curve:
    """Values over the optimisation steps.

    Attributes:
        steps: the step after which each value was taken, rising.
        values: one value a step.
    """

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, step: int, value: float) -> None:
        """Append one point; a second one at the last step replaces it."""
        if self.steps and self.steps[-1] == step:
            self.values[-1] = value
            return
        self.steps.append(step)
        self.values.append(value)


@dataclass(kw_only=True)
class Curves:
    """What is drawn.

    Attributes:
        title: what was trained on what.
        steps_per_epoch: turns steps into epochs on the horizontal axis.
        batch_loss, batch_accuracy, learning_rate: of single training batches.
        train_loss, train_accuracy: over all training images, at each evaluation.
        val_loss, val_accuracy: over all validation images, at each evaluation.
    """

    title: str
    steps_per_epoch: int
    batch_loss: Curve = field(default_factory=Curve)
    batch_accuracy: Curve = field(default_factory=Curve)
    learning_rate: Curve = field(default_factory=Curve)
    train_loss: Curve = field(default_factory=Curve)
    train_accuracy: Curve = field(default_factory=Curve)
    val_loss: Curve = field(default_factory=Curve)
    val_accuracy: Curve = field(default_factory=Curve)


def draw_curves(path: Path, curves: Curves) -> None:
    """Draw ``curves`` into the PNG file ``path``, which appears whole."""
    import io

    from matplotlib.figure import Figure  # without pyplot: no backend is chosen, no state is kept

    from shoal.checkpoint import atomic_write_bytes

    figure = Figure(figsize=(_WIDTH_IN, _HEIGHT_IN), dpi=_DPI, layout="constrained")
    loss, accuracy, rate = figure.subplots(3, 1, sharex=True, height_ratios=(3, 3, 1.5))
    figure.suptitle(curves.title, x=0.02, ha="left", fontsize=13, fontweight="bold", color=_INK)

    per_epoch = curves.steps_per_epoch
    _draw_batches(loss, curves.batch_loss, per_epoch)
    _draw_evaluations(loss, curves.train_loss, curves.val_loss, per_epoch)
    _finish(loss, "Loss", legend="upper right")
    _scale_loss(loss, [*curves.batch_loss.values, *curves.train_loss.values, *curves.val_loss.values])

    _draw_batches(accuracy, curves.batch_accuracy, per_epoch)
    _draw_evaluations(accuracy, curves.train_accuracy, curves.val_accuracy, per_epoch)
    _mark_best(accuracy, curves.val_accuracy, per_epoch)
    _finish(accuracy, "Accuracy", legend="lower right")
    accuracy.set_ylim(0, 1.04)

    rate.plot(_epochs(curves.learning_rate, per_epoch), curves.learning_rate.values, color=_INK, linewidth=1.6)
    _finish(rate, "Learning rate")
    rate.set_ylim(bottom=0)
    rate.set_xlabel("Epoch", color=_INK)
    rate.set_xlim(left=0)

    content = io.BytesIO()
    figure.savefig(content, format="png", facecolor="white")
    atomic_write_bytes(path, content.getvalue())


def _epochs(curve: Curve, per_epoch: int) -> list[float]:
    return [step / per_epoch for step in curve.steps]


def _draw_batches(axes: Axes, curve: Curve, per_epoch: int) -> None:
    """The single batches faintly, and over them their moving average where there are many."""
    many = len(curve.steps) >= _MANY_POINTS
    epochs = _epochs(curve, per_epoch)
    label = None if many else "training batches"
    axes.plot(epochs, curve.values, color=_TRAIN, alpha=0.25 if many else 0.5, linewidth=1.0, label=label)
    if many:
        averaged = moving_average(curve.values)
        axes.plot(epochs, averaged, color=_TRAIN, alpha=0.65, linewidth=1.6, label="training batches, averaged")


def _draw_evaluations(axes: Axes, train: Curve, val: Curve, per_epoch: int) -> None:
    style: dict[str, Any] = {"marker": "o", "markersize": 4.5, "linewidth": 1.8}
    if train.steps:
        axes.plot(_epochs(train, per_epoch), train.values, color=_TRAIN, label="training set", **style)
    if val.steps:
        axes.plot(_epochs(val, per_epoch), val.values, color=_VAL, label="validation set", **style)


def _mark_best(axes: Axes, val: Curve, per_epoch: int) -> None:
    if not val.values:
        return
    best = max(range(len(val.values)), key=val.values.__getitem__)
    epoch, value = val.steps[best] / per_epoch, val.values[best]
    above = value < 0.85
    axes.annotate(
        f"best {value:.4f}\nepoch {epoch:g}",
        (epoch, value),
        xytext=(-6, 10 if above else -12),
        textcoords="offset points",
        ha="right",
        va="bottom" if above else "top",
        fontsize=9,
        color=_VAL,
    )


def _finish(axes: Axes, title: str, legend: Literal["upper right", "lower right"] | None = None) -> None:
    axes.set_title(title, loc="left", fontsize=10.5, color=_INK)
    axes.grid(color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#999999")
    axes.tick_params(colors=_INK, labelsize=9)
    if legend is not None and axes.get_legend_handles_labels()[0]:
        axes.legend(loc=legend, frameon=False, fontsize=9)


def _scale_loss(axes: Axes, values: Sequence[float]) -> None:
    """From 0 up; logarithmic where one early outlier would press everything else onto the axis."""
    shown = sorted(value for value in values if value > 0)
    if shown and shown[-1] > _OUTLIER * shown[len(shown) // 2]:
        from matplotlib.ticker import StrMethodFormatter

        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.set_title("Loss (logarithmic)", loc="left", fontsize=10.5, color=_INK)
    else:
        axes.set_ylim(bottom=0)
