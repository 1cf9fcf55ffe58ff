"""Precision, recall, F-scores, reports, top-k and kappa: inputs at the edges. Their values are in test_conformance."""

import json
import math

import pytest
import torch
from sklearn import metrics as sk

from shoal.engine import Engine
from shoal.errors import CollectiveError, NotComputableError, UsageError
from shoal.metrics import (
    Accuracy,
    ClassificationReport,
    CohenKappa,
    ConfusionMatrix,
    Fbeta,
    MeanPairwiseDistance,
    Precision,
    Recall,
    TopKCategoricalAccuracy,
    cmAccuracy,
)

SCORES, CLASSES = torch.eye(3)[[0, 1, 1, 2, 0]], torch.tensor([0, 1, 2, 2, 0])
BITS = torch.tensor([1, 0, 1, 0, 1, 1]), torch.tensor([1, 0, 1, 1, 0, 1])


def value(metric, *batches):
    for batch in batches:
        metric.update(batch)
    return metric.compute()


def test_binary_samples_score_class_one_unless_both_are_asked_for():
    assert value(Precision(), BITS) == value(Recall(), BITS) == 0.75
    assert value(Precision(average=None), BITS).tolist() == [0.5, 0.75]
    assert type(value(Precision(), BITS)) is float
    assert value(Fbeta(1.0), BITS) == 0.75


@pytest.mark.parametrize("rest", [(1,), (1, 2), (2, 2)])
def test_binary_shapes_are_those_of_accuracy(rest):
    g = torch.Generator().manual_seed(0)
    y_pred, y = torch.randint(0, 2, (8, *rest), generator=g), torch.randint(0, 2, (8, *rest), generator=g)
    wanted = sk.precision_score(y.flatten(), y_pred.flatten())
    assert value(Precision(), (y_pred.float(), y)) == pytest.approx(wanted, abs=1e-12)
    assert value(Precision(), (y_pred.bool(), y.bool())) == pytest.approx(wanted, abs=1e-12)


def test_every_place_of_multilabel_images_is_a_sample():
    g = torch.Generator().manual_seed(0)
    y_pred, y = (torch.randint(0, 2, (4, 3, 5), generator=g) for _ in range(2))
    flat = [part.movedim(1, -1).reshape(-1, 3).numpy() for part in (y, y_pred)]
    found = value(Recall(average="samples", is_multilabel=True), (y_pred, y))
    assert found == pytest.approx(sk.recall_score(*flat, average="samples", zero_division=0), abs=1e-12)


def test_a_perfect_score_is_exactly_one_and_nothing_predicted_is_zero():
    perfect = torch.eye(2)[[0, 1, 1]], torch.tensor([0, 1, 1])
    for metric in (Precision(average=True), Recall(average="micro"), Fbeta(2), Recall(average="weighted")):
        assert value(metric, perfect) == 1.0
    never = torch.zeros(3, dtype=torch.long), torch.tensor([0, 1, 1])
    assert value(Precision(), never) == value(Recall(), never) == value(Fbeta(1), never) == 0.0


def test_scores_of_nan_count_as_wrong_in_every_metric_of_classes():
    scores = SCORES.clone()
    scores[[0, 3], [2, 0]] = torch.nan
    wanted = value(Accuracy(), (scores, CLASSES))
    assert wanted == 0.4
    for metric in (Precision(average="micro"), Recall(average="micro"), TopKCategoricalAccuracy(1)):
        assert value(metric, (scores, CLASSES)) == wanted
    assert value(cmAccuracy(ConfusionMatrix(3)), (scores, CLASSES)) == wanted


@pytest.mark.parametrize("kind", [Precision, Recall, lambda: Fbeta(1), ClassificationReport])
def test_what_is_no_class_or_neither_0_nor_1_is_reported_with_its_number(kind):
    with pytest.raises(UsageError, match=r"2 targets that are none of its 3 classes, 0 to 2"):
        value(kind(), (SCORES, CLASSES), (SCORES[:3], torch.tensor([-1, 3, 0])))
    with pytest.raises(UsageError, match=r"1 targets that are none"):
        value(kind(), (SCORES, torch.tensor([0.0, 1.0, 0.5, 2.0, 2.0])))
    with pytest.raises(UsageError, match=r"3 binary or multilabel predictions or targets that are neither 0 nor 1"):
        value(kind(), (torch.tensor([0.2, 1.0, torch.nan]), torch.tensor([0, 1, 2])))


@pytest.mark.parametrize(
    ("y_pred", "y", "is_multilabel"),
    [((5, 3), (4,), False), ((5, 3, 4), (5, 5), False), ((5,), (5, 3), False), ((), (), False), ((5, 3), (5,), True)],
)
def test_shapes_that_do_not_fit_are_refused_with_both_named(y_pred, y, is_multilabel):
    for kind in (Precision, Recall):
        with pytest.raises(UsageError) as caught:
            kind(is_multilabel=is_multilabel).update((torch.zeros(y_pred), torch.zeros(y)))
        assert str(y_pred) in str(caught.value)
        assert str(y) in str(caught.value)


def test_batches_of_another_kind_are_refused_until_reset_and_over_ranks():
    metric = Precision()
    metric.update((SCORES, CLASSES))
    with pytest.raises(UsageError, match="multiclass batches of 3 classes and was given a binary one"):
        metric.update(BITS)
    metric.reset()
    assert value(metric, BITS) == 0.75
    others = Precision(), Precision(), Precision()
    others[0].update((SCORES, CLASSES))
    others[1].update(BITS)
    others[2].update((torch.eye(2), torch.tensor([0, 1])))
    with pytest.raises(CollectiveError, match=r"of shapes \(3,\) on rank 0, \(2,\) on rank 1"):
        others[0].merge([metric.state() for metric in others[:2]])
    with pytest.raises(CollectiveError, match="binary batches on some ranks"):
        others[1].compute_from(others[1].merge([metric.state() for metric in others[1:]]))


def test_what_cannot_work_is_refused_at_the_door():
    with pytest.raises(UsageError, match="average='mean'"):
        Precision(average="mean")
    with pytest.raises(UsageError, match="is_multilabel=True"):
        Recall(average="samples")
    with pytest.raises(UsageError, match="beta=0"):
        Fbeta(0)
    with pytest.raises(UsageError, match="average='macro'"):
        Fbeta(1, precision=Precision(average=True))
    with pytest.raises(UsageError, match="also output_transform"):
        Fbeta(1, recall=Recall(), output_transform=lambda out: out)
    with pytest.raises(UsageError, match="beta=-1"):
        ClassificationReport(beta=-1)
    with pytest.raises(UsageError, match="k=0"):
        TopKCategoricalAccuracy(0)
    with pytest.raises(UsageError, match="weights='cubic'"):
        CohenKappa(weights="cubic")
    with pytest.raises(UsageError, match="num_classes=1"):
        CohenKappa(num_classes=1)


def test_an_f_score_of_metrics_that_are_attached_too_counts_once():
    precision, recall = Precision(), Recall()
    engine = Engine(lambda engine, batch: batch)
    precision.attach(engine, "precision")
    recall.attach(engine, "recall")
    Fbeta(1, average=False, precision=precision, recall=recall).attach(engine, "f1")
    Fbeta(2, recall=recall).attach(engine, "f2")
    found = engine.run([(SCORES, CLASSES), (SCORES, CLASSES)]).metrics
    predicted = SCORES.argmax(1)
    assert found["f1"].numpy() == pytest.approx(sk.f1_score(CLASSES, predicted, average=None))
    assert found["f2"] == pytest.approx(sk.fbeta_score(CLASSES, predicted, beta=2, average="macro"))


def test_a_report_names_its_classes_and_is_json_or_a_dict():
    names = ["cat", "dog", "emu"]
    found = value(ClassificationReport(labels=names, output_dict=True), (SCORES, CLASSES))
    assert list(found) == [*names, "macro avg", "weighted avg"]
    assert found["emu"] == {"precision": 1.0, "recall": 0.5, "f1-score": pytest.approx(2 / 3), "support": 2}
    assert json.loads(value(ClassificationReport(labels=names), (SCORES, CLASSES))) == found
    assert "f2-score" in value(ClassificationReport(beta=2, output_dict=True), (SCORES, CLASSES))["0"]
    assert value(ClassificationReport(output_dict=True), BITS)["1"]["precision"] == 0.75
    with pytest.raises(UsageError, match=r"2 labels \(a, b\) and has seen 3 classes"):
        value(ClassificationReport(labels=["a", "b"]), (SCORES, CLASSES))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.float32, torch.int64])
def test_labels_of_any_dtype_are_compared_as_numbers(dtype):
    scores, y = torch.eye(300)[[0, 60, 200, 255]], torch.tensor([0, 60, 200, 254]).to(dtype)
    for metric in (Accuracy(), TopKCategoricalAccuracy(1), Recall(average="micro"), cmAccuracy(ConfusionMatrix(300))):
        assert value(metric, (scores, y)) == 0.75
    assert value(CohenKappa(num_classes=300), (y, y)) == value(CohenKappa(), (y, y)) == 1.0


def test_top_k_breaks_ties_like_argmax_so_that_equal_scores_gain_nothing():
    alike = torch.zeros(4, 4), torch.tensor([0, 1, 2, 3])
    assert [value(TopKCategoricalAccuracy(k), alike) for k in (1, 2, 4)] == [0.25, 0.5, 1.0]
    assert value(TopKCategoricalAccuracy(1), alike) == value(Accuracy(), alike)
    with pytest.raises(UsageError, match=r"\(5, 3\), which has 3 classes, and k=5"):
        TopKCategoricalAccuracy().update((SCORES, CLASSES))
    with pytest.raises(UsageError, match=r"\(5, 3\) and y of shape \(4,\)"):
        TopKCategoricalAccuracy(2).update((SCORES, CLASSES[:4]))
    with pytest.raises(UsageError, match="2 labels that are no class"):
        value(TopKCategoricalAccuracy(3), (torch.eye(3), torch.tensor([0, -100, 255])))


def test_kappa_weighs_classes_by_their_distance():
    y_pred, y = torch.tensor([0, 5, 9, 5, 0, 9]), torch.tensor([0, 5, 5, 9, 5, 9])
    for weights in (None, "linear", "quadratic"):
        wanted = sk.cohen_kappa_score(y, y_pred, labels=list(range(10)), weights=weights)
        assert value(CohenKappa(weights=weights), (y_pred, y)) == pytest.approx(wanted, abs=1e-12)
        assert value(CohenKappa(weights=weights, num_classes=10), (y_pred, y)) == pytest.approx(wanted, abs=1e-12)
    with pytest.raises(UsageError, match="3 samples with a class that is none of its 9"):
        value(CohenKappa(num_classes=9), (y_pred, y))
    with pytest.raises(UsageError, match=r"\(6, 2\)"):
        CohenKappa().update((torch.zeros(6, 2), torch.zeros(6, 2)))


# On the meta device there are no values, so that whatever would ask for one fails.
ON_META = {
    "matrix": (lambda: ConfusionMatrix(3), (SCORES, CLASSES)),
    "precision": (Precision, (SCORES, CLASSES)),
    "precision of float classes": (Precision, (SCORES, CLASSES.float())),
    "recall of bits": (lambda: Recall(average="weighted"), BITS),
    "recall of labels": (lambda: Recall(average="samples", is_multilabel=True), (SCORES, SCORES)),
    "f-score": (lambda: Fbeta(1), (SCORES, CLASSES)),
    "report": (ClassificationReport, BITS),
    "top k": (lambda: TopKCategoricalAccuracy(2), (SCORES, CLASSES)),
    "kappa": (lambda: CohenKappa(num_classes=3), (CLASSES, CLASSES)),
    "kappa of all": (CohenKappa, (CLASSES, CLASSES)),
}


@pytest.mark.parametrize("case", ON_META)
def test_no_update_asks_the_device_for_a_value(case):
    make, batch = ON_META[case]
    metric = make()
    for _ in range(2):
        metric.update(tuple(part.to("meta") for part in batch))


def test_no_sample_is_not_computable():
    for metric in (Precision(), Recall(average="samples", is_multilabel=True), Fbeta(1), ClassificationReport()):
        with pytest.raises(NotComputableError):
            metric.compute()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.float16, torch.bool])
@pytest.mark.parametrize("weights", [None, "linear", "quadratic"])
def test_kappa_takes_distances_between_classes_of_any_dtype(dtype, weights):
    y_pred, y = (torch.tensor(classes).to(dtype) for classes in ([0, 1, 2, 2, 1, 0], [0, 2, 0, 1, 1, 0]))
    wanted = sk.cohen_kappa_score(y_pred.numpy(), y.numpy(), weights=weights)
    assert value(CohenKappa(weights=weights), (y_pred, y)) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("strange", [0.3, torch.nan])
def test_kappa_refuses_scores(strange):
    with pytest.raises(UsageError, match="1 values that are no whole numbers"):
        value(CohenKappa(), (torch.tensor([strange, 1.0]), torch.tensor([0.0, 1.0])))


@pytest.mark.parametrize(
    "labels", [["a", "a", "b"], ["a", "macro avg", "b"], ["weighted avg", "a", "b"], [1, "1", "b"]]
)
def test_rows_of_a_report_do_not_hide_each_other(labels):
    with pytest.raises(UsageError, match="one row would hide another"):
        ClassificationReport(labels=labels)


def test_what_has_to_be_a_number_above_0_is_one():
    for number in ("2", None, math.nan, 0, -1.0):
        for make in (Fbeta, lambda beta: ClassificationReport(beta=beta), lambda p: MeanPairwiseDistance(p=p)):
            with pytest.raises(UsageError, match="give a number above 0"):
                make(number)
