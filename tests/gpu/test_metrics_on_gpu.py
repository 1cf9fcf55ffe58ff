"""Metrics of outputs that lie on a GPU; see docs/gpu.md."""

import math

import pytest
import torch
from torch.nn.functional import mse_loss

from shoal.metrics import (
    Accuracy,
    Average,
    EpochMetric,
    GeometricAverage,
    Loss,
    MetricGroup,
    MetricsLambda,
    RunningAverage,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU; run scripts/check-gpu where there is one"),
]


def make():
    weighed = Average(output_transform=lambda out: (out[0].mean(), 12))
    counted = Average(output_transform=lambda out: (out[0].mean(), out[1].sum()))
    return MetricGroup(
        {
            "accuracy": Accuracy(),
            "loss": Loss(mse_loss, output_transform=lambda out: (out[0], out[0] + 1)),
            "cross entropy": Loss(torch.nn.CrossEntropyLoss(ignore_index=2)),
            "places": Average(output_transform=lambda out: out[0]),
            "perplexity": MetricsLambda(math.exp, weighed),
            "counted": counted,
            "geometric": GeometricAverage(output_transform=lambda out: out[0] + 1),
            "kept": EpochMetric(
                lambda y_pred, y: float((y_pred.argmax(1) == y).double().mean()), check_compute_fn=False
            ),
            "running": RunningAverage(Accuracy()),
        }
    )


def test_updates_on_a_gpu_wait_for_nothing_and_give_what_a_cpu_gives():
    generator = torch.Generator().manual_seed(0)
    batches = [
        (torch.rand(4, 3, generator=generator), torch.randint(0, 3, (4,), generator=generator)) for _ in range(5)
    ]
    on_gpu = [(scores.cuda(), labels.cuda()) for scores, labels in batches]
    group, expected = make(), make()
    for batch in batches:
        expected.take(batch)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in on_gpu:
            group.take(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(group.compute(), expected.compute(), rtol=1e-6, atol=1e-6)

    resumed = make()
    resumed.load_state_dict(group.state_dict())
    for one in (group, resumed):
        for batch in on_gpu:
            one.take(batch)
    torch.testing.assert_close(resumed.compute(), group.compute(), rtol=1e-6, atol=1e-6)
