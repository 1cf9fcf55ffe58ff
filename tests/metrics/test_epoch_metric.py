import warnings

import pytest
import torch
from sklearn.metrics import roc_auc_score

from shoal.errors import CollectiveError, NotComputableError, UsageError
from shoal.metrics import EpochMetric, MetricGroup
from shoal.metrics.epoch_metric import EpochMetricWarning


def auc(y_pred, y):
    return float(roc_auc_score(y.numpy(), y_pred.numpy()))


def after(*batches, compute_fn=torch.dist, **options):
    metric = EpochMetric(compute_fn, check_compute_fn=False, **options)
    for batch in batches:
        metric.update(batch)
    return metric


def test_the_function_is_given_all_outputs_of_ranks_with_many_few_and_none():
    generator = torch.Generator().manual_seed(0)
    scores, labels = torch.rand(20, generator=generator), torch.randint(0, 2, (20,), generator=generator)
    sizes = (11, 0, 1, 8)
    ranks = [
        after(*zip(s.split(3), y.split(3), strict=True), compute_fn=auc) if len(s) else after(compute_fn=auc)
        for s, y in zip(scores.split(sizes), labels.split(sizes), strict=True)
    ]
    for rank in ranks:  # Trap 18
        assert rank.compute_from(rank.merge([metric.state() for metric in ranks])) == auc(scores, labels)
    with pytest.raises(NotComputableError, match="EpochMetric"):
        after().compute_from(after().merge([after().state()] * 2))


def test_outputs_are_kept_as_they_were():
    scores = torch.zeros(3)
    metric = after((scores, torch.zeros(3, 1)))
    scores.fill_(9.0)
    metric.update((torch.zeros(0), torch.zeros(0)))
    assert metric.state()["y_pred"].tolist() == [0.0] * 3
    assert metric.state()["y"].shape == (3,)
    assert not after((torch.zeros(2, requires_grad=True), torch.zeros(2))).state()["y_pred"].requires_grad


def test_outputs_may_have_any_further_dimensions():
    seen = []
    metric = after((torch.zeros(2, 3, 4), torch.zeros(2, 5)), compute_fn=lambda *both: seen.append(both))
    metric.update((torch.ones(1, 3, 4), torch.ones(1, 5)))
    metric.compute()
    assert [tuple(part.shape) for part in seen[0]] == [(3, 3, 4), (3, 5)]


def test_a_function_that_fails_on_the_first_batch_is_a_warning_unless_it_is_not_tried():
    batch = torch.tensor([0.1, 0.9]), torch.tensor([1, 1])

    def failing(y_pred, y):
        raise ZeroDivisionError("of two")

    with pytest.warns(EpochMetricWarning, match=r"shapes \(2,\) and \(2,\), with ZeroDivisionError: of two"):
        EpochMetric(failing).update(batch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        after(batch, compute_fn=failing)
        EpochMetric(torch.dist).update(batch)


def test_what_does_not_fit_is_refused_with_both_shapes():
    for output, match in (
        ((torch.zeros(3), torch.zeros(4)), r"\(3,\) and y of shape \(4,\)"),
        ((torch.zeros(()), torch.zeros(1)), r"\(\) and y of shape \(1,\)"),
        ((torch.zeros(3), [1, 2, 3]), r"\['Tensor', 'list'\]"),
        (torch.zeros(3), "Tensor"),
    ):
        with pytest.raises(UsageError, match=match):
            after().update(output)
    metric = after((torch.zeros(3, 2), torch.zeros(3)))
    with pytest.raises(UsageError, match=r"y_pred of torch.float32 and shape \(3, 2\) and was given .* of \(4, 5\)"):
        metric.update((torch.zeros(4, 5), torch.zeros(4)))
    with pytest.raises(UsageError, match=r"y of torch.float32 and shape \(3,\) and was given torch.int64 of \(4,\)"):
        metric.update((torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)))
    other = after((torch.zeros(4, 5), torch.zeros(4)))
    with pytest.raises(CollectiveError, match=r"y_pred as torch.float32 of \(3, 2\) on rank 0, .* \(4, 5\) on rank 1"):
        metric.merge([metric.state(), other.state()])
    with pytest.raises(UsageError, match="not callable"):
        EpochMetric(3)


def test_a_function_that_works_in_place_changes_no_sample():
    def total_of_doubles(y_pred, y):
        return float(y_pred.mul_(2).sum())

    metric = EpochMetric(total_of_doubles, check_compute_fn=True)
    for _ in range(2):
        metric.update((torch.ones(3), torch.ones(3)))
    group = MetricGroup({"one": metric, "same": metric + 0})
    assert [group.compute(), group.compute()] == [{"one": 12.0, "same": 12.0}] * 2


def test_samples_of_a_checkpoint_lie_on_the_cpu_and_those_that_follow_elsewhere():
    from torch._subclasses.fake_tensor import FakeTensorMode  # a GPU's tensors without a GPU

    metric = EpochMetric(torch.dist, check_compute_fn=False)
    with FakeTensorMode():
        metric.load_state({"y_pred": torch.ones(2), "y": torch.ones(2)})
        metric.update((torch.empty(3, device="cuda"), torch.empty(3, device="cuda")))
        state = metric.state()
    assert {name: (tensor.shape, tensor.device.type) for name, tensor in state.items()} == {
        "y_pred": ((5,), "cpu"),
        "y": ((5,), "cpu"),
    }
