"""What a metric has seen survives a file that is loaded with ``weights_only=True``."""

import logging
import math

import pytest
import torch
from torch.nn.functional import mse_loss

from shoal.errors import UsageError
from shoal.metrics import (
    Accuracy,
    Average,
    EpochMetric,
    Frequency,
    GeometricAverage,
    Loss,
    Metric,
    MetricGroup,
    MetricsLambda,
    RunningAverage,
    VariableAccumulation,
)


def pair(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(6, 2, generator=generator), torch.randint(0, 2, (6,), generator=generator)


def number(seed):
    return float(torch.rand((), generator=torch.Generator().manual_seed(seed)))


def grouped():
    accuracy = Accuracy()
    return MetricGroup({"accuracy": accuracy, "error": 1 - accuracy, "first": Average(lambda out: out[0][0])})


CASES = {
    "accuracy": (Accuracy, pair),
    "loss": (lambda: Loss(mse_loss, lambda out: (out[0][:, 0], out[1].float())), pair),
    "average": (Average, number),
    "average of vectors": (Average, lambda seed: pair(seed)[0]),
    "geometric average": (GeometricAverage, number),
    "accumulation": (lambda: VariableAccumulation(lambda total, value: total + value), number),
    "running average": (RunningAverage, number),
    "running average of tensors": (RunningAverage, lambda seed: pair(seed)[0]),
    "running average of a metric": (lambda: RunningAverage(Accuracy()), pair),
    "all outputs": (lambda: EpochMetric(lambda y_pred, y: float(y_pred[:, 0].dot(y.float()))), pair),
    "lambda": (lambda: MetricsLambda(math.exp, Average() / 2), number),
    "group": (grouped, pair),
}


@pytest.mark.parametrize("case", CASES)
def test_samples_survive_a_file_bit_for_bit(case, tmp_path):  # Trap 40
    make, output = CASES[case]
    straight, saved, loaded = make(), make(), make()
    for seed in range(5):
        straight.take(output(seed))
    for seed in range(3):
        saved.take(output(seed))
    loaded.take(output(9))
    torch.save(saved.state_dict(), tmp_path / "metric.pt")
    loaded.load_state_dict(torch.load(tmp_path / "metric.pt", weights_only=True))
    for seed in range(3, 5):
        loaded.take(output(seed))
    torch.testing.assert_close(loaded.compute(), straight.compute(), rtol=0, atol=0)


@pytest.mark.parametrize("case", CASES)
def test_a_metric_that_has_seen_nothing_saves_that(case, tmp_path):
    make, output = CASES[case]
    torch.save(make().state_dict(), tmp_path / "metric.pt")
    loaded = make()
    loaded.take(output(1))
    loaded.load_state_dict(torch.load(tmp_path / "metric.pt", weights_only=True))
    assert loaded.peek() is None


def test_a_saved_state_does_not_change_with_the_metric():
    metric = Frequency()
    metric.update(3)
    saved = metric.state_dict()
    metric.update(4)
    assert saved["parts"][0]["count"] == 3


def test_what_is_no_state_of_such_a_metric_is_refused():
    for state in ({}, {"parts": []}, Accuracy().state()):
        with pytest.raises(UsageError, match="Accuracy was given a state with keys"):
            Accuracy().load_state_dict(state)
    with pytest.raises(UsageError, match=r"Accuracy was given a state of \['accumulator', 'num_examples'\]"):
        Accuracy().load_state_dict(Average().state_dict())
    for state in (None, 5, [Accuracy().state()]):
        with pytest.raises(UsageError, match=r"to load, which is not one of its 1 part\(s\)"):
            Accuracy().load_state_dict(state)
    for part in (None, {"sum": 1, "count": 2, "not_binary": 0, "no_class": 0}):
        with pytest.raises(UsageError, match=r"Accuracy was given a state of .* and has .*, tensors"):
            Accuracy().load_state_dict({**Accuracy().state_dict(), "parts": [part]})


def test_nothing_is_loaded_of_a_state_that_fits_in_part():
    group, other = grouped(), MetricGroup({"accuracy": Accuracy(), "first": Accuracy()})
    group.take(pair(0))
    before = group.compute()
    with pytest.raises(UsageError, match="Average was given a state of"):
        group.load_state_dict(other.state_dict())
    torch.testing.assert_close(group.compute(), before, rtol=0, atol=0)


def test_a_metric_of_ones_own_without_load_state_says_so():
    class Mine(Metric):
        def reset(self):
            pass

        def update(self, output):
            pass

        def state(self):
            return {"n": torch.zeros(1)}

        def compute_from(self, state):
            return 0.0

    with pytest.raises(UsageError, match="Mine cannot take a state up"):
        Mine().load_state_dict(Mine().state_dict())


def test_samples_of_another_rank_are_left_out_and_those_of_fewer_ranks_are_said_to_lack(caplog):
    metric = Accuracy()
    metric.update(pair(0))
    value = metric.compute()
    with caplog.at_level(logging.WARNING, logger="shoal.metrics"):
        metric.load_state_dict({**metric.state_dict(), "world_size": 2})
        assert metric.compute() == value
        assert "rank 0 of 1 was given the samples of rank 0 of 2; those of other ranks are missing" in caplog.text
        metric.load_state_dict({**metric.state_dict(), "rank": 1, "world_size": 2})
        assert metric.peek() is None
        assert "rank 1 of 2; they are left out" in caplog.text
        caplog.clear()
        average = RunningAverage()
        average.update(3.0)
        average.load_state_dict({**average.state_dict(), "rank": 1, "world_size": 2})
        assert average.peek() == 3.0
        assert not caplog.text
        group = MetricGroup({"of all": Average(), "of this rank": average})
        group.load_state_dict({**group.state_dict(), "rank": 1, "world_size": 2})
        assert group.peek() == {"of this rank": 3.0}
