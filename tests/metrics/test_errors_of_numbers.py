"""Squared and absolute errors, distances and the share of variance: what one number can be taken for another by."""

import pytest
import torch
from sklearn.metrics import mean_squared_error, r2_score

from shoal.errors import UsageError
from shoal.metrics import MeanAbsoluteError, MeanPairwiseDistance, MeanSquaredError, R2Score, RootMeanSquaredError

ALL = (MeanSquaredError, RootMeanSquaredError, MeanAbsoluteError, R2Score, MeanPairwiseDistance)


def value(metric, *batches):
    for batch in batches:
        metric.update(batch)
    return metric.compute()


def test_a_sample_is_an_entry_of_the_first_dimension():
    y_pred, y = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[0.0, 0.0], [3.0, 6.0]])
    assert value(MeanSquaredError(), (y_pred, y)) == (1 + 4 + 0 + 4) / 2
    assert value(MeanAbsoluteError(), (y_pred, y)) == (1 + 2 + 0 + 2) / 2
    assert value(RootMeanSquaredError(), (y_pred, y)) == 4.5**0.5
    assert value(MeanPairwiseDistance(p=1, eps=0), (y_pred, y)) == 2.5
    over_all = MeanSquaredError(output_transform=lambda out: (out[0].flatten(), out[1].flatten()))
    over_all.take((y_pred, y))
    assert over_all.compute() == pytest.approx(mean_squared_error(y, y_pred))


def test_a_column_fits_a_vector_and_is_not_broadcast():
    y_pred, y = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([1.0, 2.0, 3.0])
    for kind in (MeanSquaredError, MeanAbsoluteError):
        assert value(kind(), (y_pred, y)) == value(kind(), (y, y_pred)) == pytest.approx(1 / 3)
    assert value(R2Score(), (y_pred, y)) == pytest.approx(0.5)


@pytest.mark.parametrize(("y_pred", "y"), [((5,), (5, 5)), ((5,), (4,)), ((5, 3), (5,)), ((5, 3), (3, 5)), ((), ())])
def test_shapes_that_do_not_fit_are_refused_with_both_named(y_pred, y):
    for kind in ALL:
        with pytest.raises(UsageError) as caught:
            kind().update((torch.zeros(y_pred), torch.zeros(y)))
        assert str(y_pred) in str(caught.value)
        assert str(y) in str(caught.value)


def test_half_precision_and_whole_numbers_are_added_up_in_double():
    y = torch.zeros(1, dtype=torch.bfloat16)
    metric = MeanSquaredError()
    for _ in range(3000):
        metric.update((y + 0.5, y))
    assert metric.compute() == 0.25
    assert value(MeanAbsoluteError(), (torch.tensor([3, -1]), torch.tensor([0, 0], dtype=torch.uint8))) == 2.0


def test_targets_far_from_zero_lose_nothing():
    g = torch.Generator().manual_seed(0)
    y = 1e7 + torch.randn(1000, generator=g, dtype=torch.float64)
    y_pred = y + 0.3 * torch.randn(1000, generator=g, dtype=torch.float64)
    batches = zip(y_pred.split(64), y.split(64), strict=True)
    assert value(R2Score(), *batches) == pytest.approx(r2_score(y, y_pred), abs=1e-6)


def test_equal_targets_have_no_variance_to_explain():
    y = torch.full((4,), 2.0)
    assert value(R2Score(), (y, y)) == 1.0
    assert value(R2Score(), (y + 1, y)) == 0.0


def test_what_this_rank_has_is_shown_without_waiting_for_the_device():
    metric = RootMeanSquaredError()
    assert metric.peek() is None
    metric.update((torch.tensor([3.0]), torch.tensor([0.0])))
    assert isinstance(metric.peek(), torch.Tensor)
    assert float(metric.peek()) == 3.0


@pytest.mark.parametrize("kind", ALL)
def test_no_update_asks_the_device_for_a_value(kind):
    metric, column = kind(), torch.zeros(4, 1, device="meta")  # without values, so that asking for one fails
    for _ in range(2):
        metric.update((column, column))


def test_a_norm_that_is_none_is_refused():
    with pytest.raises(UsageError, match="p=0"):
        MeanPairwiseDistance(p=0)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 7])
def test_targets_that_are_all_equal_have_no_variance_however_they_come(batch_size):
    y = torch.full((7,), 0.1, dtype=torch.float64)  # whose plain mean is another number
    assert value(R2Score(), *[(part + 1, part) for part in y.split(batch_size)]) == 0.0
    assert value(R2Score(), *[(part, part) for part in y.split(batch_size)]) == 1.0


def test_complex_numbers_are_refused():
    y = torch.complex(torch.ones(2), torch.ones(2))
    for kind in ALL:
        with pytest.raises(UsageError, match="complex numbers are neither scores nor classes"):
            kind().update((y, y))
