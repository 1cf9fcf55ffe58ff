"""Schedules of several parameters inside others, of longer runs, of parameters that are no number; what they leave."""

from __future__ import annotations

import gc

import pytest
import torch
from torch.optim import lr_scheduler as schedules

from shoal.engine import Engine, Events, create_supervised_trainer
from shoal.errors import CheckpointError, UsageError
from shoal.handlers import (
    ConcatScheduler,
    CosineAnnealingScheduler,
    ExpStateScheduler,
    GpuInfo,
    LinearCyclicalScheduler,
    LRScheduler,
    ParamGroupScheduler,
    ParamScheduler,
    PiecewiseLinear,
    ReduceLROnPlateauScheduler,
    create_lr_scheduler_with_warmup,
)


def _optimizer(num_groups=1, kind=torch.optim.SGD, **options):
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))]} for _ in range(num_groups)]
    return kind(groups, **({"lr": 0.1} | options))


@pytest.mark.parametrize("second", ["another parameter", "another optimizer", "a part of a sequence"])
def test_a_warm_up_of_several_parameters_or_optimizers_is_refused(second):
    optimizer = _optimizer(momentum=0.9)
    rate = LinearCyclicalScheduler(optimizer, "lr", 0.1, 1.0, 10)
    if second == "another optimizer":
        scheduler = ParamGroupScheduler([rate, LinearCyclicalScheduler(_optimizer(), "lr", 0.1, 1.0, 10)])
    else:
        scheduler = ParamGroupScheduler([rate, LinearCyclicalScheduler(optimizer, "momentum", 0.9, 0.8, 10)])
    if second == "a part of a sequence":
        scheduler = ConcatScheduler([LinearCyclicalScheduler(optimizer, "lr", 0.1, 1.0, 10), scheduler], [5])
    with pytest.raises(UsageError, match="warm up each of its schedules"):
        create_lr_scheduler_with_warmup(scheduler, 0.0, 4)


def _wrapped(optimizer):
    return LRScheduler(schedules.ExponentialLR(optimizer, 0.5))


NESTED = {
    "alone": _wrapped,
    "in a group": lambda o: ParamGroupScheduler([_wrapped(o)]),
    "in a group in a sequence": lambda o: ConcatScheduler(
        [ParamGroupScheduler([_wrapped(o)]), PiecewiseLinear(o, "lr", [(0, 0.0)])], [50]
    ),
    "in a sequence in a group": lambda o: ParamGroupScheduler(
        [ConcatScheduler([_wrapped(o), PiecewiseLinear(o, "lr", [(0, 0.0)])], [50])]
    ),
}


@pytest.mark.parametrize("place", NESTED)
def test_a_wrapped_schedule_counts_optimizer_steps_wherever_it_is(place):
    optimizer = _optimizer()
    model = torch.nn.Linear(1, 1)
    optimizer.param_groups[0]["params"] = list(model.parameters())
    trainer = create_supervised_trainer(model, optimizer, torch.nn.functional.mse_loss, gradient_accumulation_steps=3)
    NESTED[place](optimizer).attach(trainer)
    rates = []
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: rates.append(optimizer.param_groups[0]["lr"]))
    trainer.run([(torch.ones(2, 1), torch.ones(2, 1))] * 9)
    assert rates == pytest.approx([0.1] * 3 + [0.05] * 3 + [0.025] * 3)


class _Betas(ParamScheduler):
    def get_param(self):
        return (0.5, 0.9)


@pytest.mark.parametrize("num_groups", [1, 2, 3])
def test_a_tuple_is_one_value_for_all_groups(num_groups):
    optimizer = _optimizer(num_groups, torch.optim.Adam)
    trainer = Engine(lambda engine, batch: None)
    _Betas(optimizer, "betas", save_history=True).attach(trainer)
    trainer.run(range(1))
    assert [group["betas"] for group in optimizer.param_groups] == [(0.5, 0.9)] * num_groups
    assert trainer.state.param_history == {"betas": [[(0.5, 0.9)] * num_groups]}


def test_a_longer_run_is_told_that_the_schedule_of_torch_is_that_of_the_checkpoint(caplog):
    def sequence(length):
        optimizer = _optimizer()
        warm = schedules.LinearLR(optimizer, total_iters=2)
        return schedules.SequentialLR(optimizer, [warm, schedules.CosineAnnealingLR(optimizer, length)], [2])

    for make, name in (
        (lambda length: schedules.CosineAnnealingLR(_optimizer(), length), "T_max=5; this run's were: T_max=20"),
        (lambda length: schedules.MultiStepLR(_optimizer(), [length]), "milestones"),
        (sequence, "CosineAnnealingLR 1: T_max=5; this run's were"),
    ):
        state = LRScheduler(make(5)).state_dict()
        caplog.clear()
        LRScheduler(make(5)).load_state_dict(state)
        assert not caplog.records
        LRScheduler(make(20)).load_state_dict(state)
        assert name in caplog.text
    caplog.clear()
    state = ReduceLROnPlateauScheduler(_optimizer(), "loss", patience=3).state_dict()
    ReduceLROnPlateauScheduler(_optimizer(), "loss", patience=5).load_state_dict(state)
    assert "patience=3; this run's were: patience=5" in caplog.text


MAKES = {
    "line": lambda o: PiecewiseLinear(o, "lr", [(0, 0.0), (3, 0.1)]),
    "wrapped": _wrapped,
    "sequence": lambda o: ConcatScheduler([CosineAnnealingScheduler(o, "lr", 0.1, 0.0, 9), _wrapped(o)], [3]),
    "group": lambda o: ParamGroupScheduler([_wrapped(o)]),
    "plateau": lambda o: ReduceLROnPlateauScheduler(o, "loss"),
    "state": lambda _: ExpStateScheduler(1.0, 0.5, "weight"),
}


@pytest.mark.parametrize("kind", MAKES)
def test_a_state_with_anything_else_in_it_is_an_error_of_checkpoints_or_loads(kind):
    good = MAKES[kind](_optimizer()).state_dict()
    bad = [None, 3, [], {}, {"event_index": 1, "config": None}]
    for key in good:
        bad += [good | {key: value} for value in (None, 3, "x", ["x"], {}, [], -1, float("nan"))]
        bad.append({name: value for name, value in good.items() if name != key})
    refused = 0
    for state in bad:
        scheduler = MAKES[kind](_optimizer())
        before = scheduler.state_dict()
        try:
            scheduler.load_state_dict(state)
        except CheckpointError:
            refused += 1
            assert scheduler.state_dict() == before
    assert refused > 8


def test_schedules_that_are_gone_leave_nothing_at_the_optimizer():
    optimizer = _optimizer()
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            trainer = Engine(lambda engine, batch: optimizer.step())
            PiecewiseLinear(optimizer, "lr", [(0, 0.0)]).attach(trainer, per_optimizer_step=True)
            trainer.run(range(2))
        assert len(optimizer._optimizer_step_post_hooks) == 1
        del trainer
        assert not optimizer._optimizer_step_post_hooks
    finally:
        gc.enable()


def test_a_plateau_of_a_metric_that_is_no_number_names_it():
    evaluator = Engine(lambda engine, batch: None)
    evaluator.state.metrics["per class"] = torch.zeros(3)
    scheduler = ReduceLROnPlateauScheduler(_optimizer(), "per class")
    with pytest.raises(UsageError, match="'per class', found tensor"):
        scheduler(evaluator)


def test_a_gpu_without_a_utilization_is_told_once(monkeypatch, caplog):
    # A fake: no machine here has a part of a GPU, for which the driver has no such number.
    class NVMLErrorNotSupported(Exception):
        pass

    def fail(device):
        raise NVMLErrorNotSupported("not supported")

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (25, 100))
    monkeypatch.setattr(torch.cuda, "utilization", fail)
    info = GpuInfo.__new__(GpuInfo)
    info._device, info._has_utilization = torch.device("cuda", 0), True
    trainer = Engine(lambda engine, batch: None)
    info.attach(trainer)
    with caplog.at_level("INFO", logger="shoal.engine"):
        trainer.run(range(2))
    assert trainer.state.metrics == {"gpu:0 mem(%)": 75}
    assert caplog.text.count("not supported") == 1
