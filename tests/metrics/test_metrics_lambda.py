import copy
import math
import operator
import pickle

import numpy as np
import pytest
import torch

from shoal.errors import NotComputableError, UsageError
from shoal.metrics import Accuracy, Average, Metric, MetricsLambda, RunningAverage


class Last(Metric):
    """The last value that was given, of any kind; says how often it was fed."""

    def reset(self):
        self.value, self.num_updates = None, 0

    def update(self, output):
        self.value, self.num_updates = torch.as_tensor(output), self.num_updates + 1

    def state(self):
        return {"value": torch.zeros(0) if self.value is None else self.value}

    def load_state(self, state):
        self.value = state["value"]

    def merge(self, states):
        return dict(states[0])

    def compute_from(self, state):
        if not state["value"].numel():
            raise NotComputableError("Last has seen nothing")
        return state["value"].item() if state["value"].dim() == 0 else state["value"]


def of(value):
    metric = Last()
    metric.update(value)
    return metric


OPERATORS = (
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    operator.pow,
)


@pytest.mark.parametrize("operation", OPERATORS, ids=lambda operation: operation.__name__)
def test_every_operator_works_with_numbers_tensors_and_metrics_on_both_sides(operation):
    for value in (5.0, 5, torch.tensor([5.0, 7.0])):
        metric = of(value)
        plain = value if not isinstance(value, torch.Tensor) else value.clone()
        for other in (2, 2.5, torch.tensor(2.0), torch.tensor([2.0, 3.0]), np.float64(2.0), of(2.0)):
            known = other.value.item() if isinstance(other, Last) else other
            for result, expected in (
                (operation(metric, other), operation(plain, known)),
                (operation(other, metric), operation(known, plain)),
            ):
                assert isinstance(result, MetricsLambda)
                computed = torch.as_tensor(result.compute(), dtype=torch.float64)
                assert torch.allclose(computed, torch.as_tensor(expected, dtype=torch.float64))


def test_signs_products_indices_and_methods_apply_to_the_value():
    matrix = torch.tensor([[1.0, -2.0], [3.0, -4.0]])
    metric = of(matrix)
    assert torch.equal((-metric).compute(), -matrix)
    assert torch.equal((+metric).compute(), matrix)
    assert torch.equal(abs(metric).compute(), matrix.abs())
    assert torch.equal((metric @ metric).compute(), matrix @ matrix)
    assert torch.equal((matrix @ metric).compute(), matrix @ matrix)
    assert torch.equal(metric[0].compute(), matrix[0])
    assert float(metric[1, 0].compute()) == 3.0
    assert torch.equal(metric[:, 1:].compute(), matrix[:, 1:])
    assert float(metric.mean().compute()) == -0.5
    assert torch.equal(metric.sum(dim=1).compute(), matrix.sum(dim=1))
    assert float(of(2.0).exp().compute()) == pytest.approx(math.exp(2.0))
    assert MetricsLambda(lambda value: {"half": value / 2}, of(4.0))["half"].compute() == 2.0


def test_a_division_of_numbers_by_zero_gives_what_one_of_tensors_gives():
    zero, one = of(0.0), of(1)
    assert (one / zero).compute() == math.inf
    assert (-one / zero).compute() == -math.inf
    for result in (2 * zero * zero / (zero + zero), one % zero, zero // zero):
        assert math.isnan(result.compute())
    assert (zero**-1).compute() == math.inf
    assert (of(10.0) ** 1000).compute() == math.inf


def test_a_name_that_no_value_has_is_found_at_once():
    with pytest.raises(AttributeError, match="'Last' object has no attribute 'udpate'"):
        of(1.0).udpate(3)
    with pytest.raises(AttributeError):
        of(1.0)._mean()


def test_metrics_hash_and_compare_by_identity_and_are_no_sequences():
    one, other = of(1.0), of(1.0)
    assert one != other
    assert len({one, other, one}) == 2
    for use in (list, lambda metric: 1.0 in metric, lambda metric: metric < other):
        with pytest.raises(TypeError):
            use(one)


def test_metrics_are_copied_and_pickled_with_what_they_have_seen():
    metric = Accuracy()
    metric.update((torch.eye(2), torch.tensor([0, 0])))
    assert copy.deepcopy(metric).compute() == 0.5
    assert pickle.loads(pickle.dumps(metric * 2)).compute() == 1.0


def test_a_function_takes_metrics_by_place_by_name_and_inside_lists_and_dicts():
    def mix(first, rest, *, scale, named):
        return (first + sum(rest[0]) + rest[1]) * scale + named["metric"] + named["number"]

    one, two, three, four = (of(float(n)) for n in range(1, 5))
    whole = MetricsLambda(mix, one, [(two, 10), three], scale=four, named={"metric": one, "number": 0.5})
    assert whole.compute() == (1 + 12 + 3) * 4 + 1 + 0.5
    assert len(whole.parts()) == 4
    assert whole.peek() == whole.compute()


def test_a_metric_that_occurs_often_takes_a_batch_once():
    leaf = Last()
    whole = (leaf + leaf) * abs(leaf) / leaf
    whole.update(3.0)
    assert leaf.num_updates == 1
    assert whole.compute() == 6.0
    whole.take(4.0)
    assert leaf.num_updates == 2
    whole.reset()
    assert leaf.num_updates == 0
    assert whole.peek() is None
    with pytest.raises(NotComputableError):
        whole.compute()


def test_a_lambda_merges_each_of_its_metrics_in_that_ones_way():
    def on_rank(*values):
        mean, last = Average(), Last()
        for value in values:
            mean.update(value)
        last.update(10.0)
        return mean * last

    ranks = [on_rank(1.0, 2.0), on_rank(), on_rank(6.0)]
    merged = ranks[1].merge([metric.state() for metric in ranks])
    assert ranks[1].compute_from(merged) == 30.0


def test_a_lambda_of_averages_of_this_rank_is_itself_of_this_rank():
    average = RunningAverage()
    assert not (average * 2).merges
    assert (average * 2).default_usage == average.default_usage
    assert (average * Average()).merges


def test_a_lambda_of_nothing_is_a_constant_and_one_of_no_function_is_refused():
    assert MetricsLambda(max, 1, 2).compute() == 2
    with pytest.raises(UsageError, match="not callable"):
        MetricsLambda(3, Last())


def test_a_root_of_a_negative_number_is_nan_as_a_tensors_is():
    loss = Average()
    loss.update(-8.0)
    assert math.isnan((loss**0.5).compute())
    assert (loss**2).compute() == 64.0


def test_arrays_on_either_side_are_taken_place_by_place():
    vector = Average()
    vector.update(torch.tensor([1.0, 2.0]))
    array = np.array([3.0, 4.0])
    assert (array - vector).compute().tolist() == [2.0, 2.0]
    assert (vector - array).compute().tolist() == [-2.0, -2.0]
    assert (array * vector).compute().tolist() == [3.0, 8.0]
    assert float((array @ vector).compute()) == 11.0
