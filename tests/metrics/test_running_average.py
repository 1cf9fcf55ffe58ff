import math

import pytest
import torch

from shoal.errors import NotComputableError, UsageError
from shoal.metrics import Accuracy, Average, Loss, RunningAverage, TopKCategoricalAccuracy


def after(values, **options):
    metric = RunningAverage(**options)
    for value in values:
        metric.update(value)
    return metric


def test_it_is_the_exponential_moving_average_that_starts_at_the_first_value():
    average = 1.0
    for value in (2.0, 3.0):
        average = 0.98 * average + 0.02 * value
    assert after([1, 2.0, 3]).compute() == pytest.approx(average)
    assert after([1, 2.0, 3]).peek() == pytest.approx(average)
    assert type(after([1]).compute()) is float


def test_tensors_stay_tensors_without_a_graph_and_are_not_those_that_were_given():
    value = torch.tensor(2.0, requires_grad=True)
    metric = after([value])
    first = metric.peek()
    with torch.no_grad():
        value.fill_(100.0)
    assert float(first) == 2.0
    metric.update(torch.tensor(4.0))
    assert isinstance(metric.peek(), torch.Tensor)
    assert float(metric.peek()) == pytest.approx(2.04)
    assert float(first) == 2.0
    assert not metric.peek().requires_grad
    assert metric.compute() == pytest.approx(2.04)


def test_small_steps_are_not_lost_in_half_precision():
    values = [torch.tensor(1.0, dtype=torch.bfloat16)] + [torch.tensor(1.0078125, dtype=torch.bfloat16)] * 200
    assert after(values, alpha=0.98).compute() == pytest.approx(1.0078125, abs=2e-4)


def test_tensors_of_one_shape_are_averaged_place_by_place():
    metric = after([torch.tensor([1, 2]), torch.tensor([3, 2])], alpha=0.5)
    assert metric.compute().tolist() == [2.0, 2.0]
    with pytest.raises(UsageError, match=r"shape \(2,\) and was given one of shape \(3,\)"):
        metric.update(torch.zeros(3))


def test_numbers_and_tensors_may_mix():
    assert after([1.0, torch.tensor(3.0), 2], alpha=0.5).compute() == pytest.approx(2.0)


def test_none_leaves_it_as_it_is_and_nothing_is_not_computable():
    metric = after([None])
    assert metric.peek() is None
    with pytest.raises(NotComputableError):
        metric.compute()
    metric.update(1.0)
    metric.update(None)
    assert metric.compute() == 1.0
    metric.reset()
    assert metric.peek() is None


def test_a_source_metric_is_averaged_by_its_value_for_each_batch():
    metric = RunningAverage(Accuracy(), alpha=0.5)
    metric.take((torch.eye(2), torch.tensor([0, 0])))
    metric.take((torch.zeros(0, 2), torch.zeros(0)))
    metric.take(None)
    metric.take((torch.eye(2), torch.tensor([0, 1])))
    assert float(metric.peek()) == 0.75


@pytest.mark.parametrize(
    "options",
    [{"alpha": 0.0}, {"alpha": 1.5}, {"src": 3}, {"src": Accuracy(), "output_transform": lambda x: x}],
)
def test_what_cannot_work_is_refused(options):
    with pytest.raises(UsageError, match="RunningAverage was given"):
        RunningAverage(**options)


def test_what_is_no_number_is_refused():
    with pytest.raises(UsageError, match="str"):
        RunningAverage().update("1.0")


def test_the_mean_over_ranks_counts_those_that_have_a_value():
    ranks = [after([3.0]), after([]), after([torch.tensor(5.0)])]
    merged = ranks[0].merge([metric.state() for metric in ranks])
    assert ranks[0].compute_from(merged) == 4.0


def take(metric, *outputs):
    for output in outputs:
        metric.take(output)
    return metric


def test_batches_that_weigh_nothing_leave_the_average_as_it_is():
    scores, labels, ignored = torch.eye(3), torch.arange(3), torch.full((3,), -100)
    loss = float(torch.nn.functional.cross_entropy(scores, labels))
    metric = take(RunningAverage(Loss(torch.nn.CrossEntropyLoss())), (scores, ignored))
    assert int(metric.state()["count"]) == 0  # the device alone knows until then
    with pytest.raises(NotComputableError):
        metric.compute()
    take(metric, (scores, labels), (scores, ignored))
    assert float(metric.peek()) == pytest.approx(loss)
    assert metric.compute() == pytest.approx(loss)

    nothing = (torch.tensor(torch.nan), torch.tensor(0))
    some = [(torch.tensor(value), torch.tensor(2)) for value in (1.0, 3.0)]
    assert take(RunningAverage(Average(), alpha=0.5), nothing, some[0], nothing, some[1]).compute() == 2.0


def test_a_loss_of_nan_is_not_taken_for_one_of_no_weight():
    metric = take(RunningAverage(Loss(torch.nn.CrossEntropyLoss())), (torch.full((2, 3), torch.nan), torch.arange(2)))
    assert math.isnan(metric.compute())


@pytest.mark.parametrize(
    ("src", "output"),
    [
        (Accuracy, (torch.tensor([0.2, 0.7]), torch.tensor([0, 1]))),  # not thresholded
        (Accuracy, (torch.eye(3), torch.tensor([0, 1, 3]))),
        (TopKCategoricalAccuracy, (torch.eye(5), torch.tensor([0, 1, 2, 3, 255]))),
    ],
)
def test_what_a_metric_cannot_refuse_without_waiting_makes_no_number(src, output):
    assert math.isnan(take(RunningAverage(src()), output).compute())


def test_weights_out_of_range_and_of_other_types_are_refused():
    for alpha in (0.0, 1.1, math.nan, "0.9", None):
        with pytest.raises(UsageError, match="above 0 and at most 1"):
            RunningAverage(alpha=alpha)
