import functools
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy, mse_loss, nll_loss

from shoal.errors import NotComputableError, UsageError
from shoal.metrics import Loss


@settings(max_examples=40, deadline=None)
@given(
    size=st.integers(1, 40),
    batch_size=st.integers(1, 41),
    cuts=st.lists(st.integers(0, 40), max_size=3),
    seed=st.integers(0, 1000),
)
def test_any_split_over_ranks_and_batches_gives_the_mean_over_all_samples(size, batch_size, cuts, seed):
    generator = torch.Generator().manual_seed(seed)
    y_pred, y = torch.randn(size, 2, generator=generator), torch.randn(size, 2, generator=generator)
    edges = [0, *sorted(min(cut, size) for cut in cuts), size]
    ranks = []
    for start, stop in itertools.pairwise(edges):
        metric = Loss(mse_loss)
        for batch in zip(y_pred[start:stop].split(batch_size), y[start:stop].split(batch_size), strict=True):
            metric.update(batch)
        ranks.append(metric)
    merged = ranks[0].compute_from(ranks[0].merge([metric.state() for metric in ranks]))
    assert merged == pytest.approx(float(mse_loss(y_pred.double(), y.double())), abs=1e-6)


def test_a_loss_function_may_take_more_arguments():
    scores, labels = torch.log_softmax(torch.randn(4, 3), dim=1), torch.tensor([0, 1, 2, 0])
    weight = torch.tensor([1.0, 2.0, 3.0])
    metric = Loss(nll_loss)
    metric.update((scores, labels, {"weight": weight}))
    assert metric.compute() == pytest.approx(float(nll_loss(scores, labels, weight=weight)), abs=1e-6)


def test_samples_that_the_loss_leaves_out_can_be_left_out_of_the_weight():
    scores = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, -100, 2, -100, -100, -100])
    metric = Loss(cross_entropy, batch_size=lambda y: (y != -100).sum())
    for batch in zip(scores.split(2), labels.split(2), strict=True):
        metric.update(batch)
    assert metric.compute() == pytest.approx(float(cross_entropy(scores, labels)), abs=1e-6)


def test_an_empty_batch_changes_nothing_and_no_sample_is_not_computable():
    metric = Loss(mse_loss)
    metric.update((torch.zeros(0, 2), torch.zeros(0, 2)))
    with pytest.raises(NotComputableError):
        metric.compute()
    metric.update((torch.zeros(2, 2), torch.ones(2, 2)))
    metric.update((torch.zeros(0, 2), torch.zeros(0, 2)))
    assert metric.compute() == 1.0


def test_no_graph_is_kept():
    weight = torch.ones(2, requires_grad=True)
    metric = Loss(mse_loss)
    metric.update((weight * torch.ones(2), torch.zeros(2)))
    assert not metric.state()["sum"].requires_grad


def test_a_loss_with_a_dimension_is_refused_with_the_shapes():
    metric = Loss(lambda y_pred, y: (y_pred - y) ** 2)
    with pytest.raises(
        UsageError, match=r"shape \(4, 2\) for predictions of shape \(4, 2\) and targets of shape \(4, 2\)"
    ):
        metric.update((torch.zeros(4, 2), torch.zeros(4, 2)))
    with pytest.raises(UsageError, match="a float"):
        Loss(lambda y_pred, y: 0.5).update((torch.zeros(4), torch.zeros(4)))
    with pytest.raises(UsageError, match="takes \\(y_pred, y\\)"):
        metric.update(torch.zeros(4))


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_an_error_of_the_loss_function_tells_the_shapes():
    with pytest.raises(RuntimeError) as caught:
        Loss(mse_loss).update((torch.zeros(4, 3), torch.zeros(4, 2)))
    assert caught.value.__notes__ == ["Loss was given y_pred of shape (4, 3) and y of shape (4, 2)."]


def test_half_precision_losses_are_added_up_in_double():
    metric = Loss(mse_loss)
    for _ in range(5000):
        metric.update((torch.full((1,), 0.5, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.bfloat16)))
    assert metric.compute() == 0.25


@pytest.mark.parametrize(
    ("loss_fn", "ignored"),
    [
        (cross_entropy, -100),
        (nll_loss, -100),
        (functools.partial(cross_entropy, ignore_index=1), 1),
        (functools.partial(torch.nn.CrossEntropyLoss(ignore_index=2)), 2),
    ],
)
def test_functions_of_torch_weigh_as_the_classes_do(loss_fn, ignored):
    generator = torch.Generator().manual_seed(0)
    scores, labels = torch.randn(7, 3, generator=generator), torch.tensor([ignored, 0, ignored, ignored, 0, 0, 0])
    metric = Loss(loss_fn)
    for part in (slice(0, 3), slice(3, 7)):
        metric.update((scores[part], labels[part]))
    assert metric.compute() == pytest.approx(float(loss_fn(scores, labels)), abs=1e-6)


def test_partial_functions_that_give_no_mean_are_refused_too():
    with pytest.raises(UsageError, match="reduction='sum'"):
        Loss(functools.partial(cross_entropy, reduction="sum"))
    with pytest.raises(UsageError, match="class weights"):
        Loss(functools.partial(cross_entropy, weight=torch.ones(3)))


@pytest.mark.parametrize(
    ("y", "found"),
    [
        ({"class": torch.zeros(4)}, "a dict"),
        ((torch.zeros(4), torch.zeros(4)), "a tuple"),
        ([torch.zeros(4), torch.zeros(4)], "a list"),
        (torch.tensor(1.0), r"shape \(\)"),
    ],
)
def test_targets_of_which_it_cannot_tell_how_many_they_are_need_a_batch_size(y, found):
    def loss_fn(y_pred, y):
        return y_pred.mean()

    with pytest.raises(UsageError, match=f"targets that are {found}, .* batch_size="):
        Loss(loss_fn).update((torch.ones(4), y))
    metric = Loss(loss_fn, batch_size=lambda y: 4)
    metric.update((torch.ones(4), y))
    metric.update((torch.ones(4) * 3, y))
    assert metric.compute() == 2.0
