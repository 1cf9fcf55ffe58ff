import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score

from shoal.errors import NotComputableError, UsageError
from shoal.metrics import Accuracy


def value(*batches, **options):
    metric = Accuracy(**options)
    for batch in batches:
        metric.update(batch)
    return metric.compute()


def draw(*shape, high=2, seed=0):
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


def test_multiclass_counts_the_highest_score():
    scores = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.4, 0.6]])
    assert value((scores, torch.tensor([1, 0, 0]))) == 2 / 3


@pytest.mark.parametrize("rest", [(), (4,), (3, 4)])
def test_every_place_of_further_dimensions_is_a_sample(rest):
    scores, labels = torch.randn(5, 3, *rest, generator=torch.Generator().manual_seed(1)), draw(5, *rest, high=3)
    expected = accuracy_score(labels.flatten(), scores.argmax(1).flatten())
    assert value((scores, labels)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("predicted", "target"),
    [((6,), (6,)), ((6, 1), (6,)), ((6, 1), (6, 1)), ((6,), (6, 1)), ((6, 4), (6, 4)), ((6, 1, 4), (6, 4))],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_binary_compares_zeros_and_ones(predicted, target, dtype):
    y_pred, y = draw(*predicted, seed=1).to(dtype), draw(*target, seed=2)
    assert value((y_pred, y)) == pytest.approx(accuracy_score(y.flatten(), y_pred.flatten().long()), abs=1e-12)


def test_multilabel_needs_every_label_right():
    y_pred, y = draw(9, 3, seed=3), draw(9, 3, seed=4)
    y[:4] = y_pred[:4]
    assert value((y_pred.float(), y), is_multilabel=True) == pytest.approx(accuracy_score(y.numpy(), y_pred.numpy()))
    y_pred, y = draw(4, 2, 5, seed=3), draw(4, 2, 5, seed=4)
    flat = [part.movedim(1, -1).reshape(-1, 2).numpy() for part in (y, y_pred)]
    assert value((y_pred, y), is_multilabel=True) == pytest.approx(accuracy_score(*flat))


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 40),
    num_classes=st.integers(2, 5),
    batch_size=st.integers(1, 41),
    cuts=st.lists(st.integers(0, 40), max_size=3),
    seed=st.integers(0, 1000),
)
def test_any_split_over_ranks_and_batches_gives_scikit_learns_value_bit_for_bit(
    size, num_classes, batch_size, cuts, seed
):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(size, num_classes, generator=generator)
    labels = torch.randint(0, num_classes, (size,), generator=generator)
    edges = [0, *sorted(min(cut, size) for cut in cuts), size]
    ranks = []
    for start, stop in itertools.pairwise(edges):
        metric = Accuracy()
        for batch in zip(scores[start:stop].split(batch_size), labels[start:stop].split(batch_size), strict=True):
            metric.update(batch)
        ranks.append(metric)
    merged = ranks[0].compute_from(ranks[0].merge([metric.state() for metric in ranks]))
    assert merged == accuracy_score(labels.numpy(), scores.argmax(1).numpy())


@pytest.mark.parametrize(
    ("y_pred", "y", "options"),
    [
        ((5, 3), (4,), {}),
        ((5, 3), (5, 4), {}),
        ((5, 3, 4), (5, 5), {}),
        ((5,), (5, 3), {}),
        ((5, 3, 2, 2), (5,), {}),
        ((), (), {}),
        ((5, 3), (5,), {"is_multilabel": True}),
        ((5,), (5,), {"is_multilabel": True}),
        ((5, 3), (5, 4), {"is_multilabel": True}),
    ],
)
def test_shapes_that_do_not_fit_are_refused_with_both_named(y_pred, y, options):
    with pytest.raises(UsageError) as caught:
        Accuracy(**options).update((torch.zeros(y_pred), torch.zeros(y)))
    assert str(y_pred) in str(caught.value)
    assert str(y) in str(caught.value)


def test_outputs_that_are_no_pair_of_tensors_are_refused():
    for output in (torch.zeros(3), (torch.zeros(3),), (torch.zeros(3), [1, 2, 3]), (torch.zeros(3),) * 3, "ab"):
        with pytest.raises(UsageError, match="pair of tensors"):
            Accuracy().update(output)


def test_batches_of_another_kind_are_refused_until_reset():
    metric = Accuracy()
    metric.update((torch.zeros(4, 3), torch.zeros(4)))
    with pytest.raises(UsageError, match=r"multiclass batches of 3 classes and was given a binary one"):
        metric.update((torch.zeros(4), torch.zeros(4)))
    metric.reset()
    metric.update((torch.zeros(4), torch.zeros(4)))


@pytest.mark.parametrize(
    ("y_pred", "y", "options", "spoilt"),
    [
        (torch.zeros(4, 3), torch.tensor([0, 3, -1, 2]), {}, 2),
        (torch.zeros(4, 3), torch.tensor([0.0, 3.0, 1.0, 2.0]), {}, 1),
        (torch.zeros(3), torch.tensor([0, 2, 1]), {}, 1),
        (torch.zeros(2, 2), torch.tensor([[0, 2], [1, -1]]), {"is_multilabel": True}, 2),
    ],
)
def test_labels_that_are_no_class_are_reported_with_their_number(y_pred, y, options, spoilt):
    metric = Accuracy(**options)
    metric.update((y_pred, y))
    with pytest.raises(UsageError, match=f"{spoilt} labels that are no class"):
        metric.compute()


def test_predictions_that_are_not_thresholded_are_reported_with_their_number():
    metric = Accuracy()
    metric.update((torch.tensor([0.0, 0.5, 1.0]), torch.tensor([0, 1, 1])))
    metric.update((torch.tensor([float("nan")]), torch.tensor([1])))
    with pytest.raises(UsageError, match="2 binary or multilabel predictions"):
        metric.compute()


def test_no_sample_is_not_computable_and_an_empty_batch_changes_nothing():
    metric = Accuracy()
    with pytest.raises(NotComputableError):
        metric.compute()
    metric.update((torch.zeros(0, 3), torch.zeros(0)))
    with pytest.raises(NotComputableError):
        metric.compute()
    metric.update((torch.eye(3), torch.tensor([0, 1, 1])))
    metric.update((torch.zeros(0, 3), torch.zeros(0)))
    assert metric.compute() == 2 / 3


def test_asking_for_the_value_changes_nothing():
    metric = Accuracy()
    metric.update((torch.eye(2), torch.tensor([0, 0])))
    assert [metric.compute(), metric.compute()] == [0.5, 0.5]
    metric.update((torch.eye(2), torch.tensor([0, 1])))
    assert metric.compute() == 0.75
    metric.reset()
    metric.update((torch.eye(2), torch.tensor([1, 0])))
    assert metric.compute() == 0.0


def test_outputs_are_transformed_picked_from_mappings_and_left_out():
    batch = {"y": torch.tensor([0, 1]), "y_pred": torch.eye(2), "loss": 3}
    metric = Accuracy()
    metric.take(batch)
    metric.take(None)
    assert metric.compute() == 1.0
    with pytest.raises(UsageError, match=r"\['y_pred', 'y'\]"):
        metric.take({"y": 1})
    other = Accuracy(output_transform=lambda out: None if isinstance(out, int) else (out, out))
    other.take(0)
    other.take(torch.tensor([0, 1]))
    assert other.compute() == 1.0
    with pytest.raises(UsageError, match="not callable"):
        Accuracy(output_transform=3)


def test_counts_beyond_the_whole_numbers_of_floats_stay_exact():
    metric = Accuracy()
    half = 2**60
    state = {**metric.state(), "sum": torch.tensor(half - 1), "count": torch.tensor(half)}
    assert metric.compute_from(metric.merge([state, state])) == np.float64(1.0) - 2**-60
