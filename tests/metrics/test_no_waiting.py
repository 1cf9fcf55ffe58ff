"""An update never waits for the device: on a CPU too, the operations by which it would can be seen."""

import math

import pytest
import torch
from torch.nn.functional import mse_loss
from torch.utils._python_dispatch import TorchDispatchMode

from shoal.metrics import (
    Accuracy,
    Average,
    EpochMetric,
    Frequency,
    GeometricAverage,
    Loss,
    MetricGroup,
    MetricsLambda,
    RunningAverage,
)

# Those whose result, or its shape, the host has to know at once.
WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "is_nonzero", "bincount")


class Watch(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().removeprefix("aten::").split(".")[0]
        if name.startswith(WAITING):
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


SCORES, CLASSES = torch.eye(4)[:, :3], torch.tensor([0, 1, 2, 2])
BITS = torch.tensor([0, 1, 1, 0])

CASES = {
    "classes": (Accuracy(), (SCORES, CLASSES)),
    "bits": (Accuracy(), (BITS, BITS)),
    "labels": (Accuracy(is_multilabel=True), (SCORES, SCORES)),
    "loss": (Loss(mse_loss), (SCORES, SCORES)),
    "loss that ignores": (Loss(torch.nn.CrossEntropyLoss(ignore_index=2)), (SCORES, CLASSES)),
    "average": (Average(), SCORES),
    "weighed": (Average(), (SCORES.mean(), CLASSES.sum())),
    "geometric": (GeometricAverage(), SCORES),
    "all outputs": (EpochMetric(torch.dist, check_compute_fn=False), (SCORES, SCORES)),
    "throughput": (Frequency(), CLASSES.sum()),
    "running": (RunningAverage(), SCORES.mean()),
    "running, of a metric": (RunningAverage(Accuracy()), (SCORES, CLASSES)),
    "lambda": (MetricsLambda(math.exp, Accuracy()), (SCORES, CLASSES)),
    "group": (MetricGroup({"loss": Loss(mse_loss), "none": Average(lambda out: out[0])}), (SCORES, SCORES)),
}


@pytest.mark.parametrize("case", CASES)
def test_an_update_waits_for_nothing(case):
    metric, output = CASES[case]
    with Watch() as watch:
        for _ in range(3):
            metric.take(output)
    assert watch.seen == []
    with Watch() as watch:
        metric.compute()
        torch.ones(()).item()
    assert watch.seen  # the watch sees what waits
