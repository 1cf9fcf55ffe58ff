"""Precision, recall and F-score of every class at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import torch

from shoal.errors import UsageError
from shoal.metrics._class_counts import ClassCounts, Scores, ratio
from shoal.metrics._inputs import check_positive
from shoal.metrics.fbeta import f_score
from shoal.metrics.metrics_lambda import MetricsLambda

__all__ = ["ClassificationReport"]

_MEANS = ("macro avg", "weighted avg")


class ClassificationReport(MetricsLambda):
    """Precision, recall, F-score and number of targets of each class, and their means.

    ``update`` takes what ``Precision`` takes.

    Args:
        beta: weight of the recall in the F-score, above 0; 1 by default.
        output_dict: True gives a dict, False (default) the same as JSON text.
        output_transform: see ``Metric``.
        device: see ``Metric``.
        is_multilabel: whether the labels of a sample do not exclude each other.
        labels: names of the classes, in order; their numbers by default.

    Raises:
        UsageError: ``beta`` is not above 0, or two rows would have one name; when the value is computed: there are
            more or fewer classes than ``labels``.

    The value maps each class, ``"macro avg"`` (the mean over classes) and ``"weighted avg"`` (that weighted by the
    number of targets) to ``{"precision", "recall", "f1-score", "support"}``; with ``beta=2``, ``"f2-score"``. Each is
    the value of ``sklearn.metrics.classification_report`` with ``zero_division=0``. Unlike in Ignite, there is a
    weighted mean and the support, binary samples are two classes (there an error), and the samples are counted once,
    not twice.
    """

    def __init__(
        self,
        beta: float = 1,
        output_dict: bool = False,
        output_transform: Callable[[Any], Any] | None = None,
        device: torch.device | str | None = None,
        is_multilabel: bool = False,
        labels: Sequence[str] | None = None,
    ) -> None:
        check_positive("ClassificationReport", "beta", beta)
        names = None if labels is None else [str(label) for label in labels]
        if names is not None and len({*names, *_MEANS}) < len(names) + len(_MEANS):
            raise UsageError(
                f"ClassificationReport was given labels={names!r}, where one row would hide another; give each class a "
                f"name of its own, other than {' and '.join(map(repr, _MEANS))}"
            )

        def report(scores: Scores) -> dict[str, dict[str, float]] | str:
            table = _table(scores, beta, names)
            return table if output_dict else json.dumps(table)

        super().__init__(report, ClassCounts(output_transform, is_multilabel, device))


def _table(scores: Scores, beta: float, names: list[str] | None) -> dict[str, dict[str, float]]:
    num_classes = len(scores.support)
    if names is not None and len(names) != num_classes:
        raise UsageError(
            f"ClassificationReport was given {len(names)} labels ({', '.join(names)}) and has seen {num_classes} "
            "classes; give one name a class"
        )
    columns = {
        "precision": scores.precision,
        "recall": scores.recall,
        f"f{beta:g}-score": f_score(scores.precision, scores.recall, beta),
    }
    total = int(scores.support.sum())
    table: dict[str, dict[str, float]] = {
        name: {key: float(values[place]) for key, values in columns.items()} | {"support": int(scores.support[place])}
        for place, name in enumerate(names or [str(number) for number in range(num_classes)])
    }
    table["macro avg"] = {key: float(values.mean()) for key, values in columns.items()} | {"support": total}
    table["weighted avg"] = {
        key: float(ratio((values * scores.support).sum(), scores.support.sum())) for key, values in columns.items()
    } | {"support": total}
    return table
