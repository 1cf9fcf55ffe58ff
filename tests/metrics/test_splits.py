"""Any split of the samples over ranks and batches gives the value of one process."""

import itertools
import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import gmean
from torch.nn.functional import mse_loss

from shoal.metrics import Accuracy, Average, EpochMetric, GeometricAverage, Loss, MetricGroup, MetricsLambda


@st.composite
def splits(draw):
    """Samples, and the slices of them that each of 1 to 4 ranks has as its batches; ranks may have none."""
    size = draw(st.integers(1, 40))
    batch_size = draw(st.integers(1, 41))
    cuts = sorted(draw(st.lists(st.integers(0, size), max_size=3)))
    edges = [0, *cuts, size]
    ranks = [
        [slice(at, min(at + batch_size, stop)) for at in range(start, stop, batch_size)]
        for start, stop in itertools.pairwise(edges)
    ]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    return torch.rand(size, 3, generator=generator), torch.randint(0, 3, (size,), generator=generator), ranks


def value(make, outputs_by_rank):
    """What the ranks compute together; each sees its outputs alone."""
    metrics = [make() for _ in outputs_by_rank]
    for metric, outputs in zip(metrics, outputs_by_rank, strict=True):
        for output in outputs:
            metric.take(output)
    states = [metric.state() for metric in metrics]
    return metrics[-1].compute_from(metrics[-1].merge(states))


@settings(max_examples=60, deadline=None)
@given(splits())
def test_counts_are_those_of_one_process_bit_for_bit(split):
    scores, labels, ranks = split

    def make():
        accuracy = Accuracy()
        members = {"accuracy": accuracy, "error": 1 - accuracy, "odds": MetricsLambda(lambda a: a / (2 - a), accuracy)}
        kept = EpochMetric(lambda y_pred, y: (y_pred.argmax(1) == y).sum().item() / len(y), check_compute_fn=False)
        return MetricGroup({**members, "kept": kept})

    found = value(make, [[(scores[own], labels[own]) for own in batches] for batches in ranks])
    right = int((scores.argmax(1) == labels).sum()) / len(labels)
    assert found == {"accuracy": right, "error": 1 - right, "odds": right / (2 - right), "kept": right}


@settings(max_examples=60, deadline=None)
@given(splits())
def test_sums_are_those_of_one_process_to_the_sixth_digit(split):
    scores, labels, ranks = split

    def make():
        one = Average(output_transform=lambda out: out[0][:, :1])
        weighed = Average(output_transform=lambda out: (out[0].mean(), out[0].numel()))
        return MetricGroup(
            {
                "loss": Loss(mse_loss, output_transform=lambda out: (out[0][:, 0], out[1].float())),
                "mean": one,
                "places": Average(output_transform=lambda out: out[0]),
                "perplexity": MetricsLambda(math.exp, weighed),
                "ratio": one.sum() / weighed,
                "geometric": GeometricAverage(output_transform=lambda out: out[0] + 0.1),
            }
        )

    found = value(make, [[(scores[own], labels[own]) for own in batches] for batches in ranks])
    exact = scores.double()
    expected = {
        "loss": mse_loss(exact[:, 0], labels.double()),
        "mean": exact[:, :1].mean(0),
        "places": exact.mean(0),
        "perplexity": exact.mean().exp(),
        "ratio": exact[:, 0].mean() / exact.mean(),
        "geometric": torch.as_tensor(gmean((scores + 0.1).double().numpy())),
    }
    for name, wanted in expected.items():
        torch.testing.assert_close(
            torch.as_tensor(found[name]).double(), wanted.double(), rtol=1e-6, atol=1e-6, msg=name
        )
