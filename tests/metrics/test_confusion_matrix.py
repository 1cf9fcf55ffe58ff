import numpy as np
import pytest
import torch
from sklearn import metrics as sk

from shoal.errors import NotComputableError, UsageError
from shoal.metrics import (
    Accuracy,
    ConfusionMatrix,
    DiceCoefficient,
    IoU,
    JaccardIndex,
    cmAccuracy,
    cmPrecision,
    cmRecall,
    mIoU,
)


def batch(size=60, num_classes=4, rest=(), seed=0):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(size, num_classes, *rest, generator=generator)
    return scores, torch.randint(0, num_classes, (size, *rest), generator=generator)


def value(metric, *batches):
    for one in batches:
        metric.update(one)
    return metric.compute()


@pytest.mark.parametrize("rest", [(), (3,), (2, 3)])
def test_rows_are_targets_and_columns_predictions(rest):
    scores, y = batch(rest=rest)
    matrix = value(ConfusionMatrix(4), (scores[:20], y[:20]), (scores[20:], y[20:]))
    assert matrix.dtype == torch.int64
    assert np.array_equal(matrix.numpy(), sk.confusion_matrix(y.flatten(), scores.argmax(1).flatten()))


@pytest.mark.parametrize(("average", "normalize"), [("recall", "true"), ("precision", "pred")])
def test_averages_are_scikit_learns(average, normalize):
    scores, y = batch()
    expected = sk.confusion_matrix(y, scores.argmax(1), normalize=normalize)
    assert np.allclose(value(ConfusionMatrix(4, average), (scores, y)).numpy(), expected, atol=1e-12)


def test_samples_are_entries_of_the_first_dimension():
    scores, y = batch(6, 3, (5,))
    counts = value(ConfusionMatrix(3), (scores, y))
    assert torch.equal(value(ConfusionMatrix(3, "samples"), (scores, y)), counts.double() / 6)


def test_an_averaged_matrix_goes_on_counting():
    scores, y = batch()
    metric = ConfusionMatrix(4, average="recall")
    metric.update((scores[:30], y[:30]))
    metric.compute()
    metric.update((scores[30:], y[30:]))
    assert torch.equal(metric.compute(), value(ConfusionMatrix(4, "recall"), (scores, y)))


def test_what_is_not_labelled_is_left_out_and_rows_without_a_count_stay_zero():
    scores, y = batch(8, 3)
    labelled = y.clone()
    y[[1, 4]] = torch.tensor([255, -100])
    kept = [0, 2, 3, 5, 6, 7]
    assert torch.equal(
        value(ConfusionMatrix(3), (scores, y)), value(ConfusionMatrix(3), (scores[kept], labelled[kept]))
    )
    only = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([1])
    assert value(ConfusionMatrix(3, "recall"), only).tolist() == [[0, 0, 0], [1, 0, 0], [0, 0, 0]]
    assert value(ConfusionMatrix(3), (scores, torch.full((8,), 255))).sum() == 0


def test_scores_of_nan_count_as_wrong_as_in_accuracy():
    scores, y = batch(40, 3)
    scores[::3, 1] = torch.nan
    matrix = ConfusionMatrix(3)
    assert value(cmAccuracy(matrix), (scores, y)) == value(Accuracy(), (scores, y))
    assert matrix.compute().sum() == 40


def test_scores_of_classes_are_scikit_learns():
    scores, y = batch(80, 5)
    predicted = scores.argmax(1)
    jaccard = sk.jaccard_score(y, predicted, average=None)
    recall = sk.recall_score(y, predicted, average=None)
    f1 = sk.f1_score(y, predicted, average=None)
    matrix = ConfusionMatrix(5)
    expected = [
        (IoU(matrix), jaccard),
        (JaccardIndex(matrix, ignore_index=2), np.delete(jaccard, 2)),
        (mIoU(matrix), jaccard.mean()),
        (mIoU(matrix, ignore_index=0), jaccard[1:].mean()),
        (DiceCoefficient(matrix), f1),
        (DiceCoefficient(matrix, ignore_index=4), f1[:4]),
        (cmAccuracy(matrix), sk.accuracy_score(y, predicted)),
        (cmPrecision(matrix), sk.precision_score(y, predicted, average="macro")),
        (cmRecall(matrix), recall.mean()),
        (cmRecall(matrix, average=False), recall),
    ]
    matrix.update((scores, y))
    for metric, wanted in expected:
        assert np.allclose(metric.compute(), wanted, atol=1e-12)


def test_a_perfect_matrix_scores_exactly_one_and_a_class_that_does_not_occur_nothing():
    perfect = torch.eye(3)[[0, 0, 1]], torch.tensor([0, 0, 1])
    assert value(IoU(ConfusionMatrix(3)), perfect).tolist() == [1.0, 1.0, 0.0]
    assert value(DiceCoefficient(ConfusionMatrix(3)), perfect).tolist() == [1.0, 1.0, 0.0]
    assert value(mIoU(ConfusionMatrix(3), ignore_index=2), perfect) == 1.0


@pytest.mark.parametrize(("scores", "y"), [((5, 3), (5,)), ((5, 4), (4,)), ((5,), (5,)), ((5, 4, 2), (5,)), ((), ())])
def test_shapes_that_do_not_fit_are_refused_with_both_named(scores, y):
    with pytest.raises(UsageError) as caught:
        ConfusionMatrix(4).update((torch.zeros(scores), torch.zeros(y)))
    assert str(scores) in str(caught.value)
    assert str(y) in str(caught.value)


def test_what_cannot_work_is_refused_at_the_door():
    with pytest.raises(UsageError, match="num_classes=1"):
        ConfusionMatrix(1)
    with pytest.raises(UsageError, match="average='mean'"):
        ConfusionMatrix(3, average="mean")
    with pytest.raises(UsageError, match="average='recall'"):
        IoU(ConfusionMatrix(3, average="recall"))
    with pytest.raises(UsageError, match="Accuracy and is made from"):
        cmAccuracy(Accuracy())
    for index in (3, -1, 1.0, True):
        with pytest.raises(UsageError, match="0 to 2"):
            mIoU(ConfusionMatrix(3), ignore_index=index)
    with pytest.raises(NotComputableError):
        mIoU(ConfusionMatrix(3)).compute()
