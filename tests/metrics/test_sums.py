import pytest
import torch

from shoal.errors import CollectiveError, NotComputableError, UsageError
from shoal.metrics._sums import Sums
from shoal.metrics.base import merged_parts


class Errors(Sums):
    sums = ("error", "count")

    def update(self, output):
        y_pred, y = output
        self.add(error=(y_pred - y).abs().sum(dim=0), count=len(y))

    def compute_from(self, state):
        return state["error"] / self.count_of(state)


def after(*batches):
    metric = Errors()
    for batch in batches:
        metric.update(batch)
    return metric


def pair(rows, width=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, width, generator=generator), torch.randn(rows, width, generator=generator)


def test_sums_add_up_over_batches_and_ranks_in_double_and_counts_in_whole_numbers():
    ranks = [after(pair(4, seed=1), pair(2, seed=2)), after(), after(pair(3, seed=3))]
    merged = ranks[0].merge([metric.state() for metric in ranks])
    assert {key: tensor.dtype for key, tensor in merged.items()} == {"error": torch.float64, "count": torch.int64}
    pairs = [pair(4, seed=1), pair(2, seed=2), pair(3, seed=3)]
    expected = torch.cat([y_pred.double() - y.double() for y_pred, y in pairs]).abs().mean(dim=0)
    # Trap 18: the rank without a sample knows no number of columns.
    assert torch.allclose(ranks[1].compute_from(merged), expected, atol=1e-6)


def test_what_was_added_is_not_what_was_given():
    total = torch.ones(2, requires_grad=True)
    metric = Errors()
    metric.add(error=total, count=1)
    with torch.no_grad():
        total.zero_()
    metric.add(error=torch.ones(2), count=torch.tensor(True))
    assert metric.state()["error"].tolist() == [2.0, 2.0]
    assert metric.state()["count"].tolist() == 2
    assert not metric.state()["error"].requires_grad


def test_a_state_is_loaded_as_if_its_samples_had_been_seen_and_then_goes_on():
    whole = after(pair(4, seed=1), pair(2, seed=2))
    other = after(pair(9, seed=5))
    other.load_state(after(pair(4, seed=1)).state())
    other.update(pair(2, seed=2))
    assert torch.equal(other.compute(), whole.compute())
    other.load_state(after().state())
    with pytest.raises(NotComputableError, match="Errors"):
        other.compute()


def test_shapes_that_cannot_be_added_are_refused_with_both_named():
    metric = after(pair(4, width=3))
    with pytest.raises(UsageError, match=r"'error' of shape \(3,\) and was given one of shape \(2,\)"):
        metric.update(pair(4, width=2))
    states = [metric.state(), after().state(), after(pair(4, width=2)).state()]
    with pytest.raises(
        CollectiveError, match=r"'error' of shapes \(3,\) on rank 0, \(0,\) on rank 1, \(2,\) on rank 2"
    ):
        metric.merge(states)


def test_ranks_with_other_metrics_are_refused():
    with pytest.raises(CollectiveError, match=r"\['count', 'error'\]\] on rank 0 and \[\['count'\]\] on"):
        merged_parts([after()], [[after().state()], [{"count": torch.tensor(1)}]])
    with pytest.raises(CollectiveError, match="made of the same, on every rank"):
        merged_parts([after()], [[after().state()], [after().state(), after().state()]])


def test_a_sum_that_has_no_name_is_refused():
    with pytest.raises(UsageError, match="'eror'"):
        after().add(eror=1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_what_is_added_first_is_not_the_callers_tensor(dtype):
    metric, given = Errors(), torch.ones(3, dtype=dtype)
    metric.add(error=given, count=1)
    given.fill_(100)
    metric.add(error=given, count=1)
    assert metric.compute().tolist() == [50.5] * 3


def test_complex_numbers_lose_nothing_unsaid():
    with pytest.raises(UsageError, match=r"Errors was given torch\.complex64 and adds up real numbers"):
        Errors().add(error=torch.complex(torch.ones(1), torch.ones(1)))
