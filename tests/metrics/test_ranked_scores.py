"""Areas under curves, and the curves: ties, one class alone, and what cannot be ranked."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from shoal.errors import UsageError
from shoal.metrics import ROC_AUC, AveragePrecision, PrecisionRecallCurve, RocCurve
from shoal.testing import run_workers

ALL = (ROC_AUC, AveragePrecision, RocCurve, PrecisionRecallCurve)


def value(metric, *batches):
    for batch in batches:
        metric.update(batch)
    return metric.compute()


@settings(max_examples=60, deadline=None)
@given(
    scores=st.lists(st.sampled_from([-1e30, -1.0, 0.0, 1e-7, 0.5, 0.5 + 1e-7, 1e30]), min_size=2, max_size=30),
    seed=st.integers(0, 99),
)
def test_ties_are_scikit_learns(scores, seed):
    ranked = torch.tensor(scores, dtype=torch.float64)
    y = torch.randint(0, 2, ranked.shape, generator=torch.Generator().manual_seed(seed))
    y[:2] = torch.tensor([0, 1])
    assert value(ROC_AUC(), (ranked, y)) == pytest.approx(sk.roc_auc_score(y, ranked), abs=1e-12)
    assert value(AveragePrecision(), (ranked, y)) == pytest.approx(sk.average_precision_score(y, ranked), abs=1e-12)
    for found, wanted in zip(value(RocCurve(), (ranked, y)), sk.roc_curve(y, ranked), strict=True):
        assert np.allclose(found, wanted, rtol=0, atol=1e-12)
    found = value(PrecisionRecallCurve(), (ranked, y))
    for part, wanted in zip(found, sk.precision_recall_curve(y, ranked), strict=True):
        assert np.allclose(part, wanted, rtol=0, atol=1e-12)


def test_one_class_alone_has_no_area_and_no_positive_no_precision():
    scores = torch.tensor([0.1, 0.4])
    assert math.isnan(value(ROC_AUC(), (scores, torch.ones(2))))
    assert math.isnan(value(ROC_AUC(), (scores, torch.zeros(2))))
    assert value(AveragePrecision(), (scores, torch.zeros(2))) == 0.0
    assert value(AveragePrecision(), (scores, torch.ones(2))) == 1.0


def test_many_samples_are_ranked_in_whole_numbers():
    g = torch.Generator().manual_seed(0)
    scores, y = torch.rand(200_000, generator=g), torch.randint(0, 2, (200_000,), generator=g)
    wanted = sk.roc_auc_score(y, scores)
    shuffled = torch.randperm(200_000, generator=g)
    found = value(ROC_AUC(), (scores, y))
    assert found == pytest.approx(wanted, abs=1e-12)
    assert value(ROC_AUC(), (scores[shuffled], y[shuffled])) == found


def test_columns_and_half_precision_and_bool_targets_are_taken():
    scores, y = torch.tensor([[0.25], [0.5], [0.75]], dtype=torch.bfloat16), torch.tensor([False, True, True])
    assert value(ROC_AUC(), (scores, y)) == 1.0


@pytest.mark.parametrize(
    ("scores", "y"), [((5,), (4,)), ((5, 3), (5,)), ((5, 3), (5, 2)), ((5, 2, 2), (5, 2, 2)), ((), ())]
)
def test_shapes_that_do_not_fit_are_refused_with_both_named_at_once(scores, y):
    for kind in ALL:
        with pytest.raises(UsageError) as caught:
            kind().update((torch.zeros(scores), torch.zeros(y)))
        assert str(scores) in str(caught.value)
        assert str(y) in str(caught.value)


def test_a_curve_is_of_one_label():
    for kind in (RocCurve, PrecisionRecallCurve):
        with pytest.raises(UsageError, match=r"\(5, 2\)"):
            kind().update((torch.zeros(5, 2), torch.zeros(5, 2)))


def test_what_has_no_rank_or_is_neither_0_nor_1_is_reported_with_its_number():
    scores, y = torch.tensor([0.1, torch.nan, 0.3]), torch.tensor([0, 1, 1])
    for kind in ALL:
        with pytest.raises(UsageError, match="1 scores that are NaN"):
            value(kind(), (scores, y))
        with pytest.raises(UsageError, match="2 targets that are neither 0 nor 1"):
            value(kind(), (torch.zeros(3), torch.tensor([-1, 0, 2])))


@pytest.mark.parametrize("kind", ALL)
def test_no_update_asks_the_device_for_a_value(kind):
    metric, column = kind(), torch.zeros(4, device="meta")  # without values, so that asking for one fails
    for _ in range(2):
        metric.update((column, column))


def values_of_ranks(scores, y):
    from shoal import runtime
    from shoal.metrics import Precision

    rank = runtime.current().rank
    own = [slice(0, 0), slice(0, 7), slice(7, 50)][rank]  # Trap 18
    found = []
    for metric in (ROC_AUC(), AveragePrecision(), RocCurve(), Precision(average=None)):
        if rank:
            metric.update(((scores[own] > 0.5) if isinstance(metric, Precision) else scores[own], y[own]))
        found.append(metric.compute())
    return found


def test_a_rank_without_samples_gives_the_value_of_one_process():
    g = torch.Generator().manual_seed(7)
    scores, y = torch.rand(50, generator=g), torch.randint(0, 2, (50,), generator=g)
    for area, precision, curve, per_class in run_workers(values_of_ranks, 3, scores, y):
        assert area == value(ROC_AUC(), (scores, y))
        assert precision == value(AveragePrecision(), (scores, y))
        assert all(torch.equal(*pair) for pair in zip(curve, value(RocCurve(), (scores, y)), strict=True))
        assert np.allclose(per_class, sk.precision_score(y, scores > 0.5, average=None), atol=1e-12)
