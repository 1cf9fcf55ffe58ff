import pytest
import torch

from shoal.errors import UsageError
from shoal.metrics import Accuracy, Average, Metric, MetricsLambda


class Seen(Metric):
    def reset(self):
        self.outputs = []

    def update(self, output):
        self.outputs.append(output)

    def state(self):
        return {}

    def compute_from(self, state):
        return None


def seen(output, **options):
    metric = Seen(**options)
    metric.take(output)
    return metric.outputs


def test_two_lists_are_one_update_a_pair_each_a_batch_of_one():
    outputs = seen(([torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])], (7, torch.tensor(8))))
    assert [(y_pred.tolist(), y.tolist()) for y_pred, y in outputs] == [([[1.0, 2.0]], [7]), ([[3.0, 4.0]], [8])]
    assert seen(([], [])) == []


def test_lists_of_samples_give_what_one_batch_gives():
    scores, labels = torch.eye(3), [0, 1, 1]
    metric = Accuracy()
    metric.take((list(scores), labels))
    assert metric.compute() == 2 / 3
    metric.reset()
    metric.take({"y_pred": list(scores), "y": labels})
    assert metric.compute() == 2 / 3


def test_all_else_is_handed_over_as_it_is():
    pair = (torch.zeros(2), torch.zeros(2))
    nested = ((torch.zeros(2), torch.zeros(2)), (torch.zeros(2), torch.zeros(2)))
    for output in (pair, torch.zeros(2), [1, 2], ("ab", "cd"), (), (torch.zeros(2), [1, 2]), [["a"], ["b"]]):
        assert seen(output)[0] is output
    assert seen(nested, skip_unrolling=True)[0] is nested
    inside = Seen()
    MetricsLambda(abs, inside, skip_unrolling=True).take(nested)
    assert inside.outputs[0] is nested


def test_lists_that_are_no_two_of_one_length_are_refused():
    with pytest.raises(UsageError, match=r"2 lists of lengths \[1, 2\]"):
        Seen().take(([1], [1, 2]))
    with pytest.raises(UsageError, match=r"3 lists of lengths \[1, 1, 1\].*skip_unrolling=True"):
        Seen().take(([1], [1], [1]))


def test_a_metric_without_required_keys_takes_no_mapping():
    with pytest.raises(UsageError, match=r"Average was given an output with keys \['loss'\] and takes no mapping"):
        Average().take({"loss": 1.0})
