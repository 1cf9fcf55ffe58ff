"""Clipping, the norm of the gradient, steps that a scaler skips, and weights of micro-batches by their items."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from shoal._types import Share
from shoal.errors import UsageError
from shoal.runtime import current
from shoal.testing import run_workers
from shoal.training import (
    GradientLimits,
    Precision,
    StepOptions,
    SupervisedStep,
    Window,
    auto_model,
    unwrap_model,
)


class _Plan:
    """How the global batches of the given sizes are split: the remainder goes to the first ranks."""

    def __init__(self, sizes):
        self.sizes, self.world = sizes, current()

    def counts(self, step):
        base, extra = divmod(self.sizes[step], self.world.world_size)
        return [base + (rank < extra) for rank in range(self.world.world_size)]

    def share(self, step):
        if step >= len(self.sizes):
            raise UsageError("told as little of what comes as a loader without a length does")
        counts = self.counts(step)
        return Share(counts[self.world.rank], sum(counts), min(counts))

    def part(self, step):
        counts = self.counts(step)
        start = sum(self.sizes[:step]) + sum(counts[: self.world.rank])
        return slice(start, start + counts[self.world.rank])


def _train(sizes, limits, accumulation=1, knows_length=True, tokens=False, cut_at=None):
    """Parameters and the norm at each optimizer step; epochs end before the micro-batch ``cut_at``."""
    torch.manual_seed(0)
    model = auto_model(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)).double())
    frozen_apart = list(unwrap_model(model).parameters())[:3]  # the optimizer has not all parameters
    optimizer = torch.optim.SGD(frozen_apart, lr=0.5, momentum=0.9)
    length = 5 if tokens else 1
    x = torch.randn(sum(sizes), length, 4, dtype=torch.float64)
    y = torch.randint(0, 3, (sum(sizes), length))
    if tokens:  # samples of 0 to 5 tokens; the first micro-batch of a rank may have none at all
        y[torch.arange(length).expand_as(y) >= (torch.arange(len(y)) % 6)[:, None]] = -100

    def loss_fn(scores, labels):
        return cross_entropy(scores.flatten(0, 1), labels.flatten())

    options = StepOptions(
        accumulation=accumulation, limits=limits, loss_weight=(lambda x, y: (y != -100).sum()) if tokens else None
    )
    step = SupervisedStep(model, optimizer, loss_fn, options)
    plan = _Plan(sizes)
    window = Window(accumulation, len(sizes) if knows_length else None, plan, plan.world.world_size)
    norms = []
    for _ in range(2):
        for index in range(len(sizes) if cut_at is None else cut_at):
            before = step.num_steps_taken
            step((x[plan.part(index)], y[plan.part(index)]), window.at(index))
            if step.num_steps_taken > before:
                norms.append(float(step.grad_norm))
        before = step.num_steps_taken
        step.finish_window()
        if step.num_steps_taken > before:
            norms.append(float(step.grad_norm))
    return [parameter.detach().clone() for parameter in unwrap_model(model).parameters()], norms


BY_NORM, BY_VALUE, MEASURED = GradientLimits(max_norm=0.2), GradientLimits(max_value=0.05), GradientLimits()
CASES = {
    "norm": ([6, 6, 5], BY_NORM),
    "value": ([6, 6, 5], BY_VALUE),
    "a rank without samples": ([6, 1, 1], BY_NORM),
    "accumulation": ([6, 6, 4, 7, 1], BY_NORM, 2),
    "accumulation over an unknown length": ([6, 6, 4, 6, 4], MEASURED, 3, False),
    "accumulation that is cut short": ([6, 4, 7, 5, 1, 3], BY_NORM, 3, True, False, 5),
    "tokens": ([6, 7, 5, 6, 3], BY_NORM, 1, True, True),
    "tokens of accumulated batches": ([6, 7, 5, 6, 3], MEASURED, 2, True, True),
    "tokens, a rank without samples": ([6, 1, 5, 1], MEASURED, 2, True, True),
    "tokens over an unknown length": ([6, 7, 5, 6, 4], MEASURED, 3, False, True),
}


def test_the_norm_and_what_it_is_clipped_to_are_those_of_one_process_on_the_global_batch():
    def all_cases():
        return {name: _train(*case) for name, case in CASES.items()}

    alone = all_cases()
    assert all(min(norms) > 0.2 for name, (_, norms) in alone.items() if name == "norm")
    for results in run_workers(all_cases, 3):
        for name, (parameters, norms) in results.items():
            assert norms == pytest.approx(alone[name][1], rel=1e-9), name
            for got, expected in zip(parameters, alone[name][0], strict=True):
                torch.testing.assert_close(got, expected, rtol=1e-7, atol=1e-9, msg=lambda text, name=name: name + text)


def test_micro_batches_of_unequal_token_counts_weigh_by_these_counts():
    # Trap 26: the gradient of a window is that of the mean over all its tokens, in however many batches they came.
    def weight_after(batches):
        torch.manual_seed(0)
        model = nn.Linear(3, 4).double()
        options = StepOptions(accumulation=len(batches), loss_weight=lambda x, y: (y != -100).sum())
        step = SupervisedStep(model, torch.optim.SGD(model.parameters(), lr=1.0), cross_entropy, options)
        window = Window(len(batches), len(batches), None, 1)
        for index, batch in enumerate(batches):
            step(batch, window.at(index))
        return model.weight.detach()

    x, y = torch.randn(7, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 0, -100, -100])
    split = [(x[:1], y[:1]), (x[1:5], y[1:5]), (x[5:], y[5:])]  # 1, 4 and no tokens: the last one's loss is NaN
    torch.testing.assert_close(weight_after(split), weight_after([(x, y)]))


def _scaled(fused, infinite_at, limits=None, accumulation=1):
    """A step under a real scaler on the CPU, whose loss is infinite at some of its calls."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    calls = iter(range(100))

    def loss_fn(y_pred, y):
        return (y_pred * y).mean() * (math.inf if next(calls) in infinite_at else 1.0)

    options = StepOptions(precision=Precision("cpu", torch.bfloat16, scaler), limits=limits, accumulation=accumulation)
    return model, SupervisedStep(model, optimizer, loss_fn, options)


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_the_scaler_skips_is_seen_and_changes_nothing(fused):
    # Trap 32.
    model, step = _scaled(fused, {1, 3})
    seen = []
    for _ in range(5):
        before = model.weight.detach().clone()
        step((torch.ones(3, 2), torch.ones(3, 1)))
        assert torch.equal(model.weight, before) == bool(step.step_skipped)
        seen.append((bool(step.step_skipped), int(step.num_steps_skipped), int(step.num_steps_taken)))
    assert seen == [(False, 0, 1), (True, 1, 1), (False, 1, 2), (True, 2, 2), (False, 2, 3)]


@pytest.mark.parametrize("fused", [False, True])
def test_the_norm_is_that_of_the_unscaled_gradient_and_of_the_whole_window(fused):
    model, step = _scaled(fused, {2}, GradientLimits(max_norm=1e-3), accumulation=2)
    window = Window(2, 6, None, 1)
    norms = []
    for index in range(6):
        step((torch.ones(3, 2), torch.full((3, 1), 1.0 + index % 2)), window.at(index))
        norms.append(None if step.grad_norm is None else float(step.grad_norm))
    mean = 1.5 * math.sqrt(3)  # of x (1, 1) and the bias, times y, over the two micro-batches
    assert norms[0] is None
    assert norms[1:3] == pytest.approx([mean, mean], rel=1e-2)
    assert not math.isfinite(norms[3])
    assert norms[5] == pytest.approx(mean, rel=1e-2)
    assert float(model.weight.grad.norm()) == pytest.approx(1e-3 * math.sqrt(2 / 3), rel=1e-2)
    assert int(step.num_steps_skipped) == 1


def test_bounds_that_are_none_are_refused():
    for options in ({"max_norm": 0}, {"max_norm": -1.0}, {"max_value": float("nan")}, {"max_norm": True},
                    {"max_norm": "1.0"}, {"max_value": [1.0]}):  # fmt: skip
        with pytest.raises(UsageError, match="a number above 0"):
            GradientLimits(**options)
    with pytest.raises(UsageError, match="exclude each other"):
        GradientLimits(max_norm=1.0, max_value=1.0)


def test_parameters_without_a_gradient_are_left_out():
    used, unused = nn.Parameter(torch.tensor([3.0, 4.0])), nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([used, unused], lr=1.0)
    assert float(GradientLimits().apply(optimizer)) == 0.0
    used.grad = torch.tensor([3.0, 4.0])
    assert float(GradientLimits(max_norm=1.0).apply(optimizer)) == 5.0
    torch.testing.assert_close(used.grad, torch.tensor([0.6, 0.8]))
    assert unused.grad is None
