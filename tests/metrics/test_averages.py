import math

import numpy as np
import pytest
import torch
from scipy.stats import gmean

from shoal.errors import NotComputableError, UsageError
from shoal.metrics import Average, GeometricAverage, VariableAccumulation


def after(kind, *values, **options):
    metric = kind(**options)
    for value in values:
        metric.update(value)
    return metric


def test_numbers_vectors_and_batches_are_examples_as_the_docstring_says():
    assert after(Average, 0, 1.0, np.float32(2), torch.tensor(3)).compute() == 1.5
    assert after(Average, *torch.arange(4)[:, None].expand(4, 3)).compute().tolist() == [1.5] * 3
    batches = torch.tensor([[0, 0, 0], [1, 1, 1]]), torch.tensor([[2, 2, 2], [3, 3, 3], [4, 4, 4]])
    assert after(Average, *batches).compute().tolist() == [2.0] * 3
    assert after(Average, torch.tensor([[1.0], [2.0]]), torch.tensor([[6.0]])).compute().tolist() == [3.0]
    assert after(Average, *batches).peek().tolist() == [2.0] * 3


def test_a_geometric_average_is_that_of_scipy():
    values = torch.rand(7, 3, generator=torch.Generator().manual_seed(0)) + 0.1
    expected = torch.tensor(gmean(values.double().numpy()))
    assert torch.allclose(after(GeometricAverage, values[:4], values[4:]).compute(), expected)
    assert torch.allclose(after(GeometricAverage, *values).compute(), expected)
    assert after(GeometricAverage, 1, 2, 3.0).compute() == pytest.approx(gmean([1, 2, 3]))
    assert after(GeometricAverage, 0, 2).compute() == 0.0
    with pytest.raises(UsageError, match="-1"):
        GeometricAverage().update(-1)


def test_an_accumulation_is_what_its_operation_makes_and_the_number_of_examples():
    metric = VariableAccumulation(lambda total, value: total + value**2, output_transform=lambda out: out["x"])
    metric.take({"x": 3})
    metric.take({"x": torch.tensor(4.0)})
    total, num_examples = metric.compute()
    assert (float(total), num_examples) == (25.0, 2)
    assert total.dtype == torch.float64


def test_a_pair_is_a_value_and_how_often_it_counts():
    assert after(Average, (2.0, 3), (4.0, 1)).compute() == 2.5
    assert after(Average, (torch.tensor(2.0), torch.tensor(3)), (4.0, torch.tensor(1.0))).compute() == 2.5
    assert after(Average, (torch.tensor([1.0, 2.0]), 3), (torch.tensor([5.0, 2.0]), 1)).compute().tolist() == [2.0, 2.0]
    nothing = torch.zeros(0).mean(), torch.tensor(0)  # NaN, of no tokens
    assert after(Average, (2.0, 3), nothing, (math.nan, 0)).compute() == 2.0
    for value, weight in ((1.0, torch.ones(2)), (torch.ones(2, 2), 1), ("a", 1)):
        with pytest.raises(UsageError, match="its weight"):
            Average().update((value, weight))


def test_a_perplexity_is_exact_however_tokens_are_spread():
    generator = torch.Generator().manual_seed(0)
    log_likelihoods = torch.randn(50, generator=generator).abs()
    expected = math.exp(log_likelihoods.double().mean())
    sizes = ((7, 1, 12), (), (30,))

    def on_ranks(make):
        merging, start = [], 0
        for own in sizes:
            metric = make()
            for size in own:
                tokens = log_likelihoods[start : start + size]
                start += size
                metric.take({"loss": tokens.mean(), "nll_sum": tokens.sum(), "num_tokens": size})
            merging.append(metric)
        return merging[1].compute_from(merging[1].merge([metric.state() for metric in merging]))

    def weighted():
        return Average(output_transform=lambda out: (out["loss"], out["num_tokens"])).exp()

    def ratio():
        log_likelihood = Average(output_transform=lambda out: out["nll_sum"])
        return (log_likelihood / Average(output_transform=lambda out: out["num_tokens"])).exp()

    assert float(on_ranks(weighted)) == pytest.approx(expected, abs=1e-6)
    assert float(on_ranks(ratio)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("kind", [Average, GeometricAverage])
def test_nothing_is_not_computable_and_what_does_not_fit_is_refused(kind):
    with pytest.raises(NotComputableError, match=kind.__name__):
        after(kind, torch.zeros(0, 3)).compute()
    with pytest.raises(UsageError, match="a str"):
        kind().update("1.0")
    metric = after(kind, torch.ones(3))
    with pytest.raises(UsageError, match=r"shape \(3,\) and was given shape \(2,\)"):
        metric.update(torch.ones(2))
    with pytest.raises(UsageError, match="not callable"):
        VariableAccumulation(3)


def test_a_weight_may_be_filled_anew_by_the_caller():
    average, num_tokens = Average(), torch.tensor(3)
    average.update((torch.tensor(1.0), num_tokens))
    num_tokens.fill_(1)
    average.update((torch.tensor(5.0), num_tokens))
    assert average.compute() == 2.0


def test_a_value_may_be_changed_by_the_caller():
    metric = after(VariableAccumulation, torch.ones(2), op=lambda total, value: total + value)
    metric.peek()[0].fill_(9.0)
    assert metric.compute()[0].tolist() == [1.0, 1.0]


def test_complex_numbers_and_negative_ones_of_numpy_are_refused():
    with pytest.raises(UsageError, match=r"Average was given torch\.complex64"):
        Average().update(torch.ones(2, dtype=torch.complex64))
    with pytest.raises(UsageError, match="negative numbers have no geometric mean"):
        GeometricAverage().update(np.float32(-2))
