"""Inputs that would give a wrong number without a word."""

import pytest
import torch
from torch import nn

from shoal.errors import UsageError
from shoal.metrics import Accuracy, Loss


def test_scores_of_nan_predict_nothing_right():
    metric = Accuracy()
    metric.update((torch.full((3, 2), torch.nan), torch.zeros(3, dtype=torch.long)))
    metric.update((torch.tensor([[1.0, 0.0]]), torch.zeros(1, dtype=torch.long)))
    assert metric.compute() == 0.25


def test_a_loss_that_is_no_mean_over_samples_is_refused():
    with pytest.raises(UsageError, match="reduction='sum'"):
        Loss(nn.CrossEntropyLoss(reduction="sum"))
    with pytest.raises(UsageError, match="class weights"):
        Loss(nn.CrossEntropyLoss(weight=torch.ones(3)))


def test_ignored_labels_weigh_nothing_also_a_batch_of_them():
    loss_fn = nn.CrossEntropyLoss(ignore_index=1)
    torch.manual_seed(0)
    scores, labels = torch.randn(6, 3), torch.tensor([1, 1, 0, 2, 1, 2])
    metric = Loss(loss_fn)
    for part in (slice(0, 2), slice(2, 5), slice(5, 6)):
        metric.update((scores[part], labels[part]))
    assert metric.compute() == pytest.approx(loss_fn(scores, labels).item())


def test_labels_that_are_ignored_by_default_weigh_nothing_in_images_of_any_size():
    loss_fn = nn.CrossEntropyLoss()
    generator = torch.Generator().manual_seed(0)
    metric, total, count = Loss(loss_fn), 0.0, 0
    for size in (2, 5):
        scores = torch.randn(3, 4, size, size, generator=generator)
        labels = torch.randint(0, 4, (3, size, size), generator=generator)
        labels[0] = -100
        metric.update((scores, labels))
        total += nn.functional.cross_entropy(scores.double(), labels, reduction="sum").item()
        count += int((labels != -100).sum())
    assert metric.compute() == pytest.approx(total / count, abs=1e-6)
