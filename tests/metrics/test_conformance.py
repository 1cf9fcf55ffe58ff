"""Every metric of the table: any split over ranks and batches gives one process's value, which is scikit-learn's."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from shoal import metrics as m
from shoal.testing import check_metric

EXACT = 0.0
SUMS = 1e-6


@dataclass(frozen=True)
class Case:
    make: Callable[[], m.Metric]
    draw: Callable[[torch.Generator, int], tuple[torch.Tensor, ...]]
    reference: Callable[..., Any]
    tolerance: float = EXACT


def classes(g, size):
    """Scores with ties, and classes."""
    return torch.randint(0, 4, (size, 3), generator=g).float(), torch.randint(0, 3, (size,), generator=g)


def images(g, size):
    return torch.randn(size, 3, 2, generator=g), torch.randint(0, 3, (size, 2), generator=g)


def bits(g, size):
    return torch.randint(0, 2, (size,), generator=g), torch.randint(0, 2, (size,), generator=g)


def labels(g, size):
    return torch.randint(0, 2, (size, 3), generator=g), torch.randint(0, 2, (size, 3), generator=g)


def ranked(g, size):
    """Scores with ties for 0 and 1."""
    return torch.randint(0, 6, (size,), generator=g).float() / 6, torch.randint(0, 2, (size,), generator=g)


def ranked_labels(g, size):
    return torch.randn(size, 2, generator=g), torch.randint(0, 2, (size, 2), generator=g)


def numbers(g, size):
    return 100 + torch.randn(size, generator=g), 100 + torch.randn(size, generator=g)


def vectors(g, size):
    return torch.randn(size, 3, generator=g), torch.randn(size, 3, generator=g)


def column(g, size):
    return (torch.rand(size, 1, generator=g) + 0.5,)


def flat(y_pred, y):
    """Predicted and true classes, as scikit-learn takes them."""
    return y.flatten(), y_pred.argmax(1).flatten() if y_pred.dim() > y.dim() else y_pred.flatten()


def by_class(function, **options):
    return lambda y_pred, y: function(*flat(y_pred, y), zero_division=0, **options)


def by_label(function, **options):
    return lambda y_pred, y: function(y, y_pred, zero_division=0, **options)


def averaged(cls, function):
    three, two = {"labels": [0, 1, 2]}, {"labels": [0, 1]}
    cases = [
        Case(cls, classes, by_class(function, average=None, **three)),
        Case(cls, bits, by_class(function, average="binary")),
        Case(lambda: cls(average=None), bits, by_class(function, average=None, **two)),
        Case(lambda: cls(is_multilabel=True), labels, by_label(function, average=None)),
        Case(lambda: cls(average="samples", is_multilabel=True), labels, by_label(function, average="samples"), SUMS),
    ]
    for average in ("micro", "macro", "weighted"):
        cases += [
            Case(lambda average=average: cls(average=average), images, by_class(function, average=average, **three)),
            Case(lambda average=average: cls(average=average), bits, by_class(function, average=average, **two)),
            Case(
                lambda average=average: cls(average=average, is_multilabel=True),
                labels,
                by_label(function, average=average),
            ),
        ]
    # The mean of three classes may be rounded in another order than scikit-learn's.
    return [Case(c.make, c.draw, c.reference, max(c.tolerance, 1e-12)) for c in cases]


def of_matrix(cls, function, **options):
    return [Case(lambda: cls(m.ConfusionMatrix(3), **options), images, function, 1e-12)]


def jaccard(y_pred, y, average=None):
    return sk.jaccard_score(*flat(y_pred, y), average=average, labels=[0, 1, 2], zero_division=0)


def report(y_pred, y):
    found = sk.classification_report(*flat(y_pred, y), labels=[0, 1, 2], zero_division=0, output_dict=True)
    if "micro avg" in found:
        del found["micro avg"]
    found.pop("accuracy", None)
    return found


def distance(y_pred, y):
    return torch.nn.functional.pairwise_distance(y_pred.double(), y.double()).mean().item()


def kappa(weights):
    def of(y_pred, y):
        return sk.cohen_kappa_score(y, y_pred, labels=[0, 1], weights=weights)

    return of


def auc_of_labels(y_pred, y):
    return np.mean([sk.roc_auc_score(y[:, place], y_pred[:, place]) for place in range(2)])


def f_half(y_pred, y):
    return sk.fbeta_score(*flat(y_pred, y), beta=0.5, average="macro", labels=[0, 1, 2], zero_division=0)


CASES = {
    "Accuracy": [
        Case(m.Accuracy, images, lambda p, y: sk.accuracy_score(*flat(p, y))),
        Case(m.Accuracy, bits, lambda p, y: sk.accuracy_score(y, p)),
        Case(lambda: m.Accuracy(is_multilabel=True), labels, lambda p, y: sk.accuracy_score(y, p)),
    ],
    "Average": [Case(m.Average, column, lambda x: x.double().mean(0), SUMS)],
    "AveragePrecision": [
        Case(m.AveragePrecision, ranked, lambda p, y: sk.average_precision_score(y, p), 1e-12),
        Case(m.AveragePrecision, ranked_labels, lambda p, y: sk.average_precision_score(y, p), 1e-12),
    ],
    "ClassificationReport": [Case(lambda: m.ClassificationReport(output_dict=True), classes, report, 1e-12)],
    "CohenKappa": [
        Case(lambda w=w, n=n: m.CohenKappa(weights=w, num_classes=n), bits, kappa(w), 1e-12)
        for w in (None, "linear", "quadratic")
        for n in (None, 2)
    ],
    "ConfusionMatrix": [
        Case(lambda: m.ConfusionMatrix(3), images, lambda p, y: sk.confusion_matrix(*flat(p, y), labels=[0, 1, 2]))
    ],
    "DiceCoefficient": of_matrix(m.DiceCoefficient, by_class(sk.f1_score, average=None, labels=[0, 1, 2])),
    "EpochMetric": [Case(lambda: m.EpochMetric(torch.dist), vectors, torch.dist, SUMS)],
    "Fbeta": [
        Case(lambda: m.Fbeta(0.5), classes, f_half, 1e-12),
        Case(lambda: m.Fbeta(1, average=False, is_multilabel=True), labels, by_label(sk.f1_score, average=None), 1e-12),
        Case(lambda: m.Fbeta(1), bits, by_class(sk.f1_score, average="binary"), 1e-12),
        Case(lambda: m.Fbeta(2, precision=m.Precision()), bits, by_class(sk.fbeta_score, beta=2), 1e-12),
    ],
    "GeometricAverage": [Case(m.GeometricAverage, column, lambda x: x.double().log().mean(0).exp(), SUMS)],
    "IoU": of_matrix(m.IoU, jaccard),
    "JaccardIndex": of_matrix(m.JaccardIndex, lambda p, y: jaccard(p, y)[1:], ignore_index=0),
    "Loss": [
        Case(
            lambda: m.Loss(torch.nn.functional.mse_loss),
            numbers,
            lambda p, y: sk.mean_squared_error(y.double(), p.double()),
            SUMS,
        )
    ],
    "MeanAbsoluteError": [
        Case(m.MeanAbsoluteError, numbers, lambda p, y: sk.mean_absolute_error(y.double(), p.double()), SUMS),
        Case(m.MeanAbsoluteError, vectors, lambda p, y: 3 * sk.mean_absolute_error(y.double(), p.double()), SUMS),
    ],
    "MeanPairwiseDistance": [Case(m.MeanPairwiseDistance, vectors, distance, SUMS)],
    "MeanSquaredError": [
        Case(m.MeanSquaredError, numbers, lambda p, y: sk.mean_squared_error(y.double(), p.double()), SUMS),
        Case(m.MeanSquaredError, vectors, lambda p, y: 3 * sk.mean_squared_error(y.double(), p.double()), SUMS),
    ],
    "MetricGroup": [
        Case(
            lambda: m.MetricGroup({"a": m.Accuracy(), "r": m.Recall(average="micro")}),
            classes,
            lambda p, y: dict.fromkeys("ar", sk.accuracy_score(*flat(p, y))),
        )
    ],
    "MetricsLambda": [
        Case(
            lambda: m.MetricsLambda(lambda a, b: a - b, m.Accuracy(), m.Precision(average="micro")),
            classes,
            lambda p, y: 0.0,
        )
    ],
    "Precision": averaged(m.Precision, sk.precision_score),
    "PrecisionRecallCurve": [
        Case(m.PrecisionRecallCurve, ranked, lambda p, y: sk.precision_recall_curve(y, p.double()), 1e-12)
    ],
    "R2Score": [Case(m.R2Score, numbers, lambda p, y: sk.r2_score(y.double(), p.double()), SUMS)],
    "ROC_AUC": [
        Case(m.ROC_AUC, ranked, lambda p, y: sk.roc_auc_score(y, p), 1e-12),
        Case(m.ROC_AUC, ranked_labels, auc_of_labels, 1e-12),
    ],
    "Recall": averaged(m.Recall, sk.recall_score),
    "RocCurve": [Case(m.RocCurve, ranked, lambda p, y: sk.roc_curve(y, p.double()), 1e-12)],
    "RootMeanSquaredError": [
        Case(m.RootMeanSquaredError, numbers, lambda p, y: sk.root_mean_squared_error(y.double(), p.double()), SUMS)
    ],
    "TopKCategoricalAccuracy": [
        Case(
            lambda: m.TopKCategoricalAccuracy(2),
            images,
            lambda p, y: sk.top_k_accuracy_score(y.flatten(), p.movedim(1, -1).reshape(-1, 3), k=2, labels=[0, 1, 2]),
        ),
        Case(lambda: m.TopKCategoricalAccuracy(1), classes, lambda p, y: sk.accuracy_score(*flat(p, y))),
    ],
    "VariableAccumulation": [
        Case(
            lambda: m.VariableAccumulation(lambda a, x: a + x.sum(0)),
            column,
            lambda x: (x.double().sum(0), len(x)),
            SUMS,
        )
    ],
    "cmAccuracy": of_matrix(m.cmAccuracy, lambda p, y: sk.accuracy_score(*flat(p, y))),
    "cmPrecision": of_matrix(m.cmPrecision, by_class(sk.precision_score, average="macro", labels=[0, 1, 2])),
    "cmRecall": of_matrix(m.cmRecall, by_class(sk.recall_score, average=None, labels=[0, 1, 2]), average=False),
    "mIoU": of_matrix(m.mIoU, lambda p, y: jaccard(p, y, "macro")),
}

OF_ONE_RANK = {
    "Frequency": "a count by time",
    "RunningAverage": "each rank's own, weighted by when a value came",
}


def test_every_metric_of_the_table_is_checked():
    assert CASES.keys() | OF_ONE_RANK.keys() == set(m.METRICS)


@pytest.mark.parametrize("name", sorted(CASES))
@settings(max_examples=6, deadline=None)
@given(size=st.integers(1, 30), seed=st.integers(0, 1000))
def test_any_split_over_ranks_and_batches_gives_the_value_of_one_process(name, size, seed):
    for case in CASES[name]:
        samples = case.draw(torch.Generator().manual_seed(seed), size)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # undefined values, which both have to give alike
            expected = case.reference(*samples)
            check_metric(case.make, samples, expected=expected, tolerance=case.tolerance, num_trials=4, seed=seed)
