"""The check of what metrics promise finds those that break a promise."""

import pytest
import torch

from shoal.errors import UsageError
from shoal.metrics import Metric
from shoal.metrics._sums import Sums
from shoal.testing import check_metric

SAMPLES = (torch.arange(12.0), torch.arange(12.0) % 3)


class MeanDifference(Sums):
    sums = ("total", "count")

    def update(self, output):
        y_pred, y = output
        if len(y):
            self.add(total=(y_pred - y).sum(), count=len(y))

    def compute_from(self, state):
        count = self.count_of(state)
        return float(state["total"]) / count


class MeanOfMeans(MeanDifference):
    """Batches of unequal sizes weigh the same."""

    def update(self, output):
        y_pred, y = output
        if len(y):
            self.add(total=(y_pred - y).mean(), count=1)


class OfLastRank(MeanDifference):
    def merge(self, states):
        return dict(states[-1])


class Counting(MeanDifference):
    """Computing counts as a sample."""

    def compute_from(self, state):
        value = super().compute_from(state)
        self.add(count=1)
        return value


class Keeping(Metric):
    """Keeps the caller's tensors."""

    def reset(self):
        self.kept = []

    def update(self, output):
        if len(output[0]):
            self.kept.append(output[0])

    def state(self):
        return {
            "total": torch.cat(self.kept).sum() if self.kept else torch.zeros(()),
            "count": torch.tensor(len(self.kept)),
        }

    def compute_from(self, state):
        return float(state["total"])


class ForgetsNothing(MeanDifference):
    def reset(self):
        if not hasattr(self, "_sums"):
            super().reset()


class Zero(MeanDifference):
    """Has a value without samples."""

    def compute_from(self, state):
        return super().compute_from(state) if int(state["count"].sum()) else 0.0


class OtherError(MeanDifference):
    """Fails on no sample in another way."""

    def compute_from(self, state):
        return float(state["total"]) / float(state["count"])


class CannotGoOn(MeanDifference):
    def load_state(self, state):
        self.reset()


class OtherKeys(MeanDifference):
    def state(self):
        state = super().state()
        return {key: value for key, value in state.items() if value.numel()} or {"count": torch.zeros(0)}

    def merge(self, states):
        return super().merge([state for state in states if "total" in state] or states[:1])


def test_a_metric_that_keeps_its_promises_passes_and_its_value_is_returned():
    assert check_metric(MeanDifference, SAMPLES, expected=4.5, tolerance=0.0) == 4.5


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (MeanOfMeans, "gives the value of ranks with batches of"),
        (OfLastRank, r"(?s)gives the value of ranks with batches of|has the value"),
        (Counting, "gives a value asked for again"),
        (Keeping, "gives the value of one process as 0.0, and what was expected as 4.5"),
        (ForgetsNothing, r"after reset\(\), where compute\(\) has to raise NotComputableError"),
        (Zero, "has the value 0.0 before any sample"),
        (OtherError, "raises ValueError .* before any sample, where compute"),
        (CannotGoOn, "was computed before any rank had seen a sample"),
        (OtherKeys, r"has keys \['count', 'total'\] with and \['count'\] without samples"),
    ],
)
def test_each_broken_promise_is_told(broken, says):
    with pytest.raises((AssertionError, RuntimeError), match=says):
        check_metric(broken, SAMPLES, expected=4.5)


@pytest.mark.parametrize("samples", [(), (torch.zeros(0),), (torch.zeros(3), torch.zeros(2))])
def test_samples_that_are_none_or_no_pairs_are_refused(samples):
    with pytest.raises(UsageError, match="check_metric was given samples of lengths"):
        check_metric(MeanDifference, samples)


def test_a_value_that_is_not_the_expected_one_is_told_with_both():
    with pytest.raises(AssertionError, match=r"one process as 4\.5, and what was expected as 4\.6"):
        check_metric(MeanDifference, SAMPLES, expected=4.6)
    check_metric(MeanDifference, SAMPLES, expected=4.6, tolerance=0.1)
