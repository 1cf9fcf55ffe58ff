"""What is counted of scores that rank samples: exact, with ties, in whole numbers as far as they reach."""

from __future__ import annotations

from collections.abc import Callable

import torch

from shoal.errors import UsageError

__all__ = [
    "average_precision",
    "binary_columns",
    "counts_by_threshold",
    "mean_over_labels",
    "one_curve",
    "precision_recall_curve",
    "roc_auc",
    "roc_curve",
]

Curve = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def binary_columns(owner: str, scores: torch.Tensor, target: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The scores and targets of each label, as ``(N,)`` float64 and ``(N,)`` int64.

    Raises:
        UsageError: a score is NaN, or a target is neither 0 nor 1.
    """
    if strange := int(((target != 0) & (target != 1)).sum()):
        raise UsageError(f"{owner} was given {strange} targets that are neither 0 nor 1; use output_transform")
    if unknown := int(scores.isnan().sum()):
        raise UsageError(f"{owner} was given {unknown} scores that are NaN, which have no rank")
    ranked, truth = (part.unsqueeze(1) if part.dim() == 1 else part for part in (scores, target))
    return list(zip(ranked.double().unbind(1), truth.long().unbind(1), strict=True))


def counts_by_threshold(scores: torch.Tensor, target: torch.Tensor) -> Curve:
    """How many negatives and positives score at least as high as each score that occurs, from the highest down.

    Args:
        scores: ``(N,)``.
        target: ``(N,)`` of 0 and 1.

    Returns:
        False positives and true positives (int64), and the thresholds; one entry a distinct score.
    """
    ranked, order = scores.sort(descending=True)
    hits = target[order].cumsum(0)
    last = torch.ones(len(ranked), dtype=torch.bool)
    last[:-1] = ranked[1:] != ranked[:-1]
    places = last.nonzero().squeeze(1)
    return places + 1 - hits[places], hits[places], ranked[places]


def roc_auc(scores: torch.Tensor, target: torch.Tensor) -> float:
    """The area under the ROC curve by the trapezoidal rule: one rounding in all. NaN where a class doesn't occur."""
    false, true, _ = counts_by_threshold(scores, target)
    nothing = torch.zeros(1, dtype=torch.int64)
    widths = false.diff(prepend=nothing)
    heights = true + torch.cat([nothing, true[:-1]])
    num_pairs = int(false[-1]) * int(true[-1])
    return float((widths * heights).sum().item() / (2 * num_pairs)) if num_pairs else float("nan")


def average_precision(scores: torch.Tensor, target: torch.Tensor) -> float:
    """The sum over thresholds of the gain in recall times the precision; 0.0 where there is no positive."""
    false, true, _ = counts_by_threshold(scores, target)
    gains = true.diff(prepend=torch.zeros(1, dtype=torch.int64))
    num_positives = int(true[-1])
    return float((gains * (true.double() / (true + false))).sum() / num_positives) if num_positives else 0.0


def roc_curve(scores: torch.Tensor, target: torch.Tensor) -> Curve:
    """Rates of false and of true positives, and thresholds, which fall from infinity.

    Points on a straight line between two others are dropped. A rate without anything to count is NaN.
    """
    false, true, thresholds = counts_by_threshold(scores, target)
    keep = torch.ones(len(false), dtype=torch.bool)
    keep[1:-1] = (false.diff(n=2) != 0) | (true.diff(n=2) != 0)
    first = torch.zeros(1, dtype=torch.float64)
    rates = [torch.cat([first, counts[keep].double()]) / counts[-1] for counts in (false, true)]
    return rates[0], rates[1], torch.cat([torch.full_like(first, float("inf")), thresholds[keep]])


def precision_recall_curve(scores: torch.Tensor, target: torch.Tensor) -> Curve:
    """Precision and recall, ending with 1 and 0, and the rising thresholds, which are one fewer."""
    false, true, thresholds = counts_by_threshold(scores, target)
    precision = true.double() / (true + false)
    recall = true.double() / true[-1] if int(true[-1]) else torch.ones(len(true), dtype=torch.float64)
    end = torch.ones(1, dtype=torch.float64)
    return torch.cat([precision.flip(0), end]), torch.cat([recall.flip(0), end - 1]), thresholds.flip(0)


def mean_over_labels(
    owner: str, function: Callable[[torch.Tensor, torch.Tensor], float]
) -> Callable[[torch.Tensor, torch.Tensor], float]:
    """``function`` of one label, or its mean over the labels of ``(N, C)``."""

    def compute(scores: torch.Tensor, target: torch.Tensor) -> float:
        values = [function(*column) for column in binary_columns(owner, scores, target)]
        return sum(values) / len(values)

    return compute


def one_curve(
    owner: str, function: Callable[[torch.Tensor, torch.Tensor], Curve]
) -> Callable[[torch.Tensor, torch.Tensor], Curve]:
    """``function`` of the one label that there is."""

    def compute(scores: torch.Tensor, target: torch.Tensor) -> Curve:
        return function(*binary_columns(owner, scores, target)[0])

    return compute
