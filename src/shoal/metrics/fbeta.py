"""Precision and recall in one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shoal.errors import UsageError
from shoal.metrics._class_counts import ClassCounts, Scores, ratio
from shoal.metrics._inputs import check_positive
from shoal.metrics.metrics_lambda import MetricsLambda
from shoal.metrics.precision import Precision
from shoal.metrics.recall import Recall

__all__ = ["Fbeta", "f_score"]


class Fbeta(MetricsLambda):
    """The weighted harmonic mean of precision P and recall R: (1 + beta²) P R / (beta² P + R), 0 where both are.

    Args:
        beta: weight of the recall, above 0; 1 gives F1.
        average: True (default): the mean over the classes, a float. False: per class or label, a float64 tensor of
            shape ``(C,)``. Binary samples give the score of class 1, a float, either way.
        precision: a ``Precision(average=False)`` to make it from, which may be attached too and is counted once.
        recall: the same, a ``Recall(average=False)``.
        output_transform: see ``Metric``; where neither is given.
        device: see ``Metric``; where neither is given.
        is_multilabel: whether the labels of a sample do not exclude each other; where neither is given.

    Raises:
        UsageError: ``beta`` is not above 0, or ``precision`` or ``recall`` is averaged, or given along with
            ``output_transform``, ``device`` or ``is_multilabel``.

    Source: van Rijsbergen (1979); as ``sklearn.metrics.fbeta_score`` with ``zero_division=0``. As in Ignite, but
    without the small number that keeps a perfect score there below 1; ``is_multilabel`` is Shoal's.
    """

    def __init__(
        self,
        beta: float,
        average: bool = True,
        precision: Precision | None = None,
        recall: Recall | None = None,
        output_transform: Callable[[Any], Any] | None = None,
        device: torch.device | str | None = None,
        *,
        is_multilabel: bool = False,
    ) -> None:
        check_positive("Fbeta", "beta", beta)
        given = {"precision": precision, "recall": recall}
        for name, metric in given.items():
            if metric is None:
                continue
            if metric.average is not False:
                raise UsageError(f"Fbeta was given a {name} with average={metric.average!r}; give one with False")
            if output_transform is not None or device is not None or is_multilabel:
                raise UsageError(
                    f"Fbeta was given {name} and also output_transform, device or is_multilabel; give these to "
                    f"the {name} instead"
                )
        if precision is None and recall is None:
            counts = ClassCounts(output_transform, is_multilabel, device)
            super().__init__(lambda scores: _of_scores(scores, beta, average), counts)
            return
        one = precision if precision is not None else recall
        assert one is not None
        super().__init__(
            lambda p, r: _averaged(f_score(p, r, beta), average),
            precision if precision is not None else _twin(Precision, one),
            recall if recall is not None else _twin(Recall, one),
        )


def f_score(precision: float | torch.Tensor, recall: float | torch.Tensor, beta: float) -> torch.Tensor:
    """The formula, in float64."""
    p, r = (torch.as_tensor(value, dtype=torch.float64) for value in (precision, recall))
    return ratio((1 + beta**2) * p * r, beta**2 * p + r)


def _twin(kind: type[Precision | Recall], of: Precision | Recall) -> Precision | Recall:
    """A metric of the other kind that takes what ``of`` takes."""
    return kind(of.output_transform, False, of.is_multilabel, of.device, of.skip_unrolling)


def _of_scores(scores: Scores, beta: float, average: bool) -> float | torch.Tensor:
    values = f_score(scores.precision, scores.recall, beta)
    return float(values[1]) if scores.binary else _averaged(values, average)


def _averaged(values: torch.Tensor, average: bool) -> float | torch.Tensor:
    return float(values.mean()) if average or values.dim() == 0 else values
