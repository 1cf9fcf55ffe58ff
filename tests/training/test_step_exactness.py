"""A step at any world size is the step of one process on the global batch."""

import torch
from torch import nn

from shoal._types import Share
from shoal.runtime import current
from shoal.testing import run_workers
from shoal.training import StepOptions, SupervisedStep, Window, auto_model, unwrap_model


class _Plan:
    """How the global batches of the given sizes are split: the remainder goes to the first ranks."""

    def __init__(self, sizes, rank, world_size):
        self.sizes, self.rank, self.world_size = sizes, rank, world_size

    def counts(self, step):
        base, extra = divmod(self.sizes[step], self.world_size)
        return [base + (rank < extra) for rank in range(self.world_size)]

    def share(self, step):
        counts = self.counts(step)
        return Share(counts[self.rank], sum(counts), min(counts))

    def part(self, step):
        counts = self.counts(step)
        start = sum(self.sizes[:step]) + sum(counts[: self.rank])
        return slice(start, start + counts[self.rank])


def _train(sizes, with_norm=False, accumulation=1, epochs=2):
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4) if with_norm else nn.Identity(), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * 16, 3)).double()
    x = torch.randn(sum(sizes), 1, 4, 4, dtype=torch.float64)
    y = torch.randint(0, 3, (sum(sizes),))
    world = current()
    plan = _Plan(sizes, world.rank, world.world_size)
    model = auto_model(model, sync_bn=with_norm)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9, weight_decay=1e-3)
    step = SupervisedStep(model, optimizer, nn.CrossEntropyLoss(), StepOptions(accumulation=accumulation))
    window = Window(accumulation, len(sizes), plan, world.world_size)
    losses = []
    for _ in range(epochs):
        for index in range(len(sizes)):
            part = plan.part(index)
            losses.append(step((x[part], y[part]), window.at(index)).loss.item())
    return {key: value.clone() for key, value in unwrap_model(model).state_dict().items()}, step.num_steps_taken, losses


def _assert_same(got, expected):
    assert got.keys() == expected.keys()
    for key in expected:
        torch.testing.assert_close(
            got[key], expected[key], rtol=1e-6, atol=1e-7, msg=lambda text, key=key: f"{key}: {text}"
        )


CASES = {
    "even": {"sizes": [6, 6]},
    "uneven": {"sizes": [7, 7, 4]},
    "a rank without samples at the end": {"sizes": [6, 6, 1]},
    "a rank that never has samples": {"sizes": [1, 1, 1]},
    "batch normalisation": {"sizes": [7, 7, 5], "with_norm": True},
    "batch normalisation and a rank without samples": {"sizes": [6, 2], "with_norm": True},
    "accumulation": {"sizes": [6] * 5, "accumulation": 2},
    "accumulation with a short end": {"sizes": [6, 6, 6, 6, 1], "accumulation": 4},
    "accumulation over unequal micro-batches": {"sizes": [6, 6, 6, 1, 5], "accumulation": 3},
}


def test_a_step_at_any_world_size_is_the_step_of_one_process():
    def all_cases():
        return {name: _train(**case) for name, case in CASES.items()}

    alone = all_cases()
    for world_size in (2, 3):
        for rank, results in enumerate(run_workers(all_cases, world_size)):
            for name, (state, steps, _) in results.items():
                assert steps == alone[name][1], (name, rank)
                _assert_same(state, alone[name][0])


def test_the_last_window_is_divided_by_what_it_holds():
    # Trap 26: 125 micro-batches in windows of 4.
    torch.manual_seed(0)
    model = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    step = SupervisedStep(model, optimizer, lambda out, y: (out * y).mean(), StepOptions(accumulation=4))
    window = Window(4, 125, None, 1)
    start = model.weight.detach().clone()
    for index in range(124):
        step((torch.zeros(1, 2), torch.ones(1, 1)), window.at(index))
    assert torch.equal(model.weight, start)
    assert step.num_steps_taken == 31
    step((torch.ones(1, 2), torch.ones(1, 1)), window.at(124))
    assert step.num_steps_taken == 32
    torch.testing.assert_close(model.weight.detach(), start - 1.0)


def test_a_window_that_an_unknown_epoch_length_cuts_short_is_weighed_by_what_it_got():
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    step = SupervisedStep(model, optimizer, lambda out, y: (out * y).mean(), StepOptions(accumulation=4))
    window = Window(4, None, None, 1)
    for index in range(6):
        step((torch.ones(1, 1), torch.ones(1, 1)), window.at(index))
    step.finish_window()
    step.finish_window()
    assert step.num_steps_taken == 2
    torch.testing.assert_close(model.weight.detach(), torch.tensor([[-2.0]]))


def test_the_reported_loss_is_the_loss_not_a_part_of_it():
    # Trap 27.
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    step = SupervisedStep(model, optimizer, lambda out, y: y.mean(), StepOptions(accumulation=4))
    window = Window(4, 8, None, 1)
    y = torch.full((2, 1), 3.0, requires_grad=True)
    assert [step((torch.ones(2, 1), y), window.at(i)).loss.item() for i in range(8)] == [3.0] * 8
