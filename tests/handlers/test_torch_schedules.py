"""Torch's own schedules: wrapped, saved, and counted in steps of their optimizer."""

from __future__ import annotations

import io

import pytest
import torch
from torch.optim import lr_scheduler as schedules
from torch.optim.swa_utils import SWALR

from shoal import common
from shoal.engine import Engine, Events, create_supervised_trainer
from shoal.errors import CheckpointError, UsageError
from shoal.handlers import (
    LRScheduler,
    ParamGroupScheduler,
    PiecewiseLinear,
    ReduceLROnPlateauScheduler,
    create_lr_scheduler_with_warmup,
)
from shoal.testing import run_workers


def _optimizer(num_groups=2):
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": 0.1 * (i + 1)} for i in range(num_groups)]
    return torch.optim.SGD(groups, momentum=0.5)


class _Decay:
    """A function that has state, as users write one."""

    def __init__(self):
        self.base = 0.9

    def __call__(self, step):
        return self.base**step


KINDS = {
    "lambda": lambda o: schedules.LambdaLR(o, [lambda step: 0.9**step, _Decay()]),
    "multiplicative": lambda o: schedules.MultiplicativeLR(o, lambda step: 0.9),
    "step": lambda o: schedules.StepLR(o, 2),
    "multi-step": lambda o: schedules.MultiStepLR(o, [2, 5, 5]),
    "constant": lambda o: schedules.ConstantLR(o, 0.5, 3),
    "linear": lambda o: schedules.LinearLR(o, 0.1, 1.0, 4),
    "exponential": lambda o: schedules.ExponentialLR(o, 0.9),
    "polynomial": lambda o: schedules.PolynomialLR(o, 6, power=2.0),
    "cosine": lambda o: schedules.CosineAnnealingLR(o, 5),
    "warm restarts": lambda o: schedules.CosineAnnealingWarmRestarts(o, 3, 2),
    "one cycle": lambda o: schedules.OneCycleLR(o, 0.4, total_steps=20),
    "cyclic": lambda o: schedules.CyclicLR(o, 0.01, 0.1, step_size_up=3),
    "cyclic, own scale": lambda o: schedules.CyclicLR(o, 0.01, 0.1, step_size_up=3, scale_fn=_Decay()),
    "sequential": lambda o: schedules.SequentialLR(
        o, [schedules.LinearLR(o, total_iters=3), schedules.MultiStepLR(o, [2, 4])], [3]
    ),
    "chained": lambda o: schedules.ChainedScheduler([schedules.ConstantLR(o, 0.5, 3), schedules.ExponentialLR(o, 0.9)]),
    "averaging": lambda o: SWALR(o, 0.05, anneal_epochs=4),
}


def _read(optimizer):
    return [(group["lr"], group["momentum"]) for group in optimizer.param_groups]


def _bare_loop(optimizer, schedule, count):
    seen = []
    for _ in range(count):
        seen.append(_read(optimizer))
        optimizer.step()
        schedule.step()
    return seen


def _train(optimizer, scheduler, count):
    """What the steps of an engine's run see."""
    seen = []

    def step(engine, batch):
        seen.append(_read(optimizer))
        optimizer.step()

    trainer = Engine(step)
    trainer.add_event_handler(Events.ITERATION_STARTED, scheduler)
    if count:
        trainer.run(range(count))
    return seen


def _through_a_file(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def _kinds_inside(value):
    if isinstance(value, dict):
        return {type(value)}.union(*(_kinds_inside(inner) for inner in value.values()))
    if isinstance(value, list | tuple):
        return {type(value)}.union(*(_kinds_inside(inner) for inner in value))
    return {type(value)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrapped_schedule_is_the_bare_loop_from_its_first_value_on_also_resumed(kind):
    optimizer = _optimizer()
    expected = _bare_loop(optimizer, KINDS[kind](optimizer), 12)
    optimizer = _optimizer()
    schedule = KINDS[kind](optimizer)
    simulated = LRScheduler.simulate_values(12, schedule)
    assert _train(optimizer, LRScheduler(schedule), 12) == expected  # Trap 29
    assert simulated == [[index, *(rate for rate, _ in row)] for index, row in enumerate(expected)]
    for stop in (0, 1, 4, 7):
        first, second = _optimizer(), _optimizer()
        ours, theirs = LRScheduler(KINDS[kind](first)), LRScheduler(KINDS[kind](second))
        begun = _train(first, ours, stop)
        state = ours.state_dict()
        assert _kinds_inside(state) <= {dict, list, tuple, int, float, bool, str, type(None)}
        second.load_state_dict(first.state_dict())
        theirs.load_state_dict(_through_a_file(state))  # Trap 40
        assert begun + _train(second, theirs, 12 - stop) == expected
        assert theirs.state_dict() == _advanced(kind, 12)


def _advanced(kind, count):
    optimizer = _optimizer()
    scheduler = LRScheduler(KINDS[kind](optimizer))
    _train(optimizer, scheduler, count)
    return scheduler.state_dict()


@pytest.mark.parametrize("kind", [*KINDS, "plateau"])
def test_torch_s_own_objects_are_saved_plainly_and_resume(kind, tmp_path):
    def make(optimizer):
        return schedules.ReduceLROnPlateau(optimizer, patience=1) if kind == "plateau" else KINDS[kind](optimizer)

    def go(optimizer, schedule, count):
        for _ in range(count):
            optimizer.step()
            schedule.step(*([1.0] if kind == "plateau" else []))
        return _read(optimizer)

    whole = _optimizer()
    expected = go(whole, make(whole), 9)
    first, second = _optimizer(), _optimizer()
    schedule, other = make(first), make(second)
    go(first, schedule, 4)
    torch.save({"optimizer": first.state_dict(), "schedule": schedule.state_dict()}, tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)  # Trap 40
    second.load_state_dict(state["optimizer"])
    other.load_state_dict(state["schedule"])
    assert go(second, other, 5) == expected


def test_the_rates_of_a_tensor_stay_in_that_tensor():
    rate = torch.tensor(0.4)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)
    held = optimizer.param_groups[0]["lr"]
    scheduler = create_lr_scheduler_with_warmup(schedules.ExponentialLR(optimizer, 0.5), 0.0, 3)
    seen = []
    trainer = Engine(lambda engine, batch: (seen.append(float(held)), optimizer.step()))
    scheduler.attach(trainer)
    trainer.run(range(5))
    assert seen == pytest.approx([0.0, 0.2, 0.4, 0.2, 0.1])
    _through_a_file(scheduler.state_dict())


def test_the_legacy_order_steps_after_the_iteration():
    optimizer = _optimizer(1)
    expected = _bare_loop(optimizer, schedules.ExponentialLR(optimizer, 0.5), 6)

    def train(count, state=None):
        optimizer = _optimizer(1)
        scheduler = LRScheduler(schedules.ExponentialLR(optimizer, 0.5), save_history=True, use_legacy=True)
        if state is not None:
            optimizer.load_state_dict(state[0])
            scheduler.load_state_dict(_through_a_file(state[1]))
        seen = []
        trainer = Engine(lambda engine, batch: (seen.append(_read(optimizer)), optimizer.step()))
        scheduler.attach(trainer, Events.ITERATION_COMPLETED)
        trainer.run(range(count))
        return seen, (optimizer.state_dict(), scheduler.state_dict()), trainer.state.param_history["lr"]

    seen, _, history = train(6)
    assert seen == expected
    assert history[:5] == [[row[0][0]] for row in expected[1:]]
    for stop in range(1, 6):
        begun, state, _ = train(stop)
        assert begun + train(6 - stop, state)[0] == expected


def test_values_ahead_can_be_looked_up_and_those_behind_not():
    optimizer = _optimizer()
    scheduler = LRScheduler(schedules.ExponentialLR(optimizer, 0.5))
    assert scheduler.get_param() == [0.1, 0.2]
    assert scheduler.value_at(2) == pytest.approx([0.025, 0.05])
    _train(optimizer, scheduler, 3)
    assert _read(optimizer)[0][0] == pytest.approx(0.025)
    assert scheduler.get_param() == pytest.approx([0.0125, 0.025])
    with pytest.raises(UsageError, match="only go forward"):
        scheduler.value_at(0)


def test_states_of_others_are_refused():
    optimizer = _optimizer()
    scheduler = LRScheduler(schedules.ExponentialLR(optimizer, 0.5))
    for state, text in (
        ({"last_epoch": 3}, "last_epoch"),
        (LRScheduler(schedules.StepLR(optimizer, 2)).state_dict(), "that of a StepLR"),
        (LRScheduler(schedules.ExponentialLR(_optimizer(1), 0.5)).state_dict(), "of 2 parameter groups"),
    ):
        with pytest.raises(CheckpointError, match=text):
            scheduler.load_state_dict(state)
    for thing, text in ((3, "a int"), (schedules.ReduceLROnPlateau(optimizer), "ReduceLROnPlateauScheduler")):
        with pytest.raises(UsageError, match=text):
            LRScheduler(thing)


def test_a_function_that_holds_more_than_numbers_is_named_when_its_state_is_asked_for():
    class Holder:
        def __init__(self):
            self.model = torch.nn.Linear(1, 1)

        def __call__(self, step):
            return 1.0

    with pytest.raises(CheckpointError, match=r"state of a LambdaLR.*Linear"):
        LRScheduler(schedules.LambdaLR(_optimizer(), Holder())).state_dict()


# Steps of the optimizer -----------------------------------------------------------------------------------------------


def _attached(trainer, optimizer, way):
    """A schedule that falls by a half with each step, in each of the ways to attach it."""
    torch_schedule = schedules.ExponentialLR(optimizer, 0.5)
    if way == "setup":
        common.setup_common_training_handlers(trainer, lr_scheduler=torch_schedule, with_pbars=False, stop_on_nan=False)
    elif way == "wrapped":
        common.setup_common_training_handlers(
            trainer, lr_scheduler=LRScheduler(torch_schedule), with_pbars=False, stop_on_nan=False
        )
    else:
        line = [(index, 0.4 * 0.5**index) for index in range(40)]
        PiecewiseLinear(optimizer, "lr", line).attach(trainer, per_optimizer_step=True)


WAYS = ["setup", "wrapped", "per step"]


@pytest.mark.parametrize("way", WAYS)
def test_a_schedule_counts_the_steps_of_accumulated_gradients(way):
    # Trap 28: epochs of 5 iterations are windows of 2, 2 and 1.
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4)
    rates = []
    optimizer.register_step_pre_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))
    trainer = create_supervised_trainer(model, optimizer, torch.nn.functional.mse_loss, gradient_accumulation_steps=2)
    _attached(trainer, optimizer, way)
    trainer.run([(torch.ones(2, 1), torch.ones(2, 1))] * 5, max_epochs=3)
    assert rates == pytest.approx([0.4 * 0.5**step for step in range(9)])


@pytest.mark.parametrize("way", WAYS)
def test_a_window_that_the_data_cut_short_is_counted(way):
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4)
    rates = []
    optimizer.register_step_pre_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))
    trainer = create_supervised_trainer(model, optimizer, torch.nn.functional.mse_loss, gradient_accumulation_steps=2)
    _attached(trainer, optimizer, way)

    class Stream:
        def __iter__(self):
            return iter([(torch.ones(2, 1), torch.ones(2, 1))] * 3)

    trainer.run(Stream(), max_epochs=2)
    assert rates == pytest.approx([0.4, 0.2, 0.1, 0.05])


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_step_that_the_scaler_leaves_out_does_not_advance_the_schedule(way, fused):
    # Trap 32. On a CPU the scaler works as it does on a GPU: it looks for infinities and leaves the step out.
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.Adam([weight], lr=0.4, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    seen = []

    def step(engine, batch):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.zero_grad()
        scaler.scale((weight * batch).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    trainer = Engine(step)
    _attached(trainer, optimizer, way)
    inf = float("inf")
    trainer.run([inf, inf, 1.0, inf, 1.0, 1.0])
    assert seen == pytest.approx([0.4, 0.4, 0.4, 0.2, 0.2, 0.1])


@pytest.mark.parametrize("way", ["wrapped", "per step"])
@pytest.mark.parametrize("stop", range(1, 8))
def test_a_run_stopped_within_a_window_goes_on_with_the_rate_of_that_window(way, stop):
    def make(optimizer):
        if way == "wrapped":
            return LRScheduler(schedules.ExponentialLR(optimizer, 0.5))
        scheduler = PiecewiseLinear(optimizer, "lr", [(index, 0.4 * 0.5**index) for index in range(9)])
        scheduler.per_optimizer_step = True
        return scheduler

    def train(numbers, state=None):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.4)
        scheduler, seen = make(optimizer), []
        if state is not None:
            optimizer.load_state_dict(state[0])
            scheduler.load_state_dict(_through_a_file(state[1]))

        def step(engine, number):
            seen.append(optimizer.param_groups[0]["lr"])
            if number % 3 == 0:
                optimizer.step()

        trainer = Engine(step)
        trainer.add_event_handler(Events.ITERATION_STARTED, scheduler)
        trainer.run(numbers)
        return seen, (optimizer.state_dict(), scheduler.state_dict())

    whole = train(range(1, 9))[0]
    assert whole == pytest.approx([0.4, 0.4, 0.4, 0.2, 0.2, 0.2, 0.1, 0.1])
    begun, state = train(range(1, stop + 1))
    assert begun + train(range(stop + 1, 9), state)[0] == whole


def test_a_schedule_at_epochs_advances_once_an_epoch():
    optimizer = _optimizer(1)
    scheduler = LRScheduler(schedules.ExponentialLR(optimizer, 0.5), save_history=True)
    trainer = Engine(lambda engine, batch: optimizer.step())
    scheduler.attach(trainer, Events.EPOCH_STARTED)
    trainer.run(range(4), max_epochs=3)
    assert trainer.state.param_history["lr"] == [[0.1], [0.05], [0.025]]


def test_called_by_hand_a_schedule_goes_on_whatever_the_optimizer_does():
    optimizer = _optimizer(1)
    scheduler = PiecewiseLinear(optimizer, "lr", [(0, 0.0), (4, 0.4)])
    scheduler.per_optimizer_step = True
    for _ in range(3):
        scheduler()
    assert _read(optimizer)[0][0] == pytest.approx(0.2)
    other = PiecewiseLinear(type("Own", (), {"param_groups": [{"lr": 0.0}]})(), "lr", [(0, 0.0)])
    other.per_optimizer_step = True
    with pytest.raises(UsageError, match="count the steps of a Own"):
        other(Engine(lambda engine, batch: None))


def test_groups_of_two_optimizers_each_count_their_own_steps():
    often, seldom = _optimizer(1), _optimizer(1)
    halves = [(index, 0.5**index) for index in range(9)]
    scheduler = ParamGroupScheduler([PiecewiseLinear(often, "lr", halves), PiecewiseLinear(seldom, "lr", halves)])
    seen = []

    def step(engine, number):
        seen.append((_read(often)[0][0], _read(seldom)[0][0]))
        often.step()
        if number % 2:
            seldom.step()

    trainer = Engine(step)
    scheduler.attach(trainer, per_optimizer_step=True)
    trainer.run(range(4))
    assert seen == [(1.0, 1.0), (0.5, 1.0), (0.25, 0.5), (0.125, 0.5)]


def _last_rates():
    """A schedule of a whole run, sized for optimizer steps, on however many ranks there are."""
    import shoal.distributed as idist

    data = torch.utils.data.TensorDataset(torch.rand(50, 1), torch.ones(50, 1))
    loader = idist.auto_dataloader(data, batch_size=6, shuffle=True)
    model = idist.auto_model(torch.nn.Linear(1, 1))
    num_steps = -(-len(loader) // 2) * 2
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch_schedule = schedules.LinearLR(optimizer, 1.0, 0.0, num_steps)
    other = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    trainer = create_supervised_trainer(model, optimizer, torch.nn.functional.mse_loss, gradient_accumulation_steps=2)
    common.setup_common_training_handlers(trainer, lr_scheduler=torch_schedule, with_pbars=False)
    optimizer.register_step_post_hook(lambda *_: other.step())
    ours = PiecewiseLinear(other, "lr", [(0, 1.0), (num_steps - 1, 0.0)])
    ours.attach(trainer, per_optimizer_step=True)
    trainer.run(loader, max_epochs=2)
    return num_steps, optimizer.param_groups[0]["lr"], other.param_groups[0]["lr"]


def test_a_schedule_sized_for_optimizer_steps_ends_where_it_should_at_every_world_size():
    # Trap 28.
    for ranks in (1, 2, 3):
        assert run_workers(_last_rates, ranks) == [(10, 0.0, 0.0)] * ranks


# A plateau ------------------------------------------------------------------------------------------------------------


def _plateau(trainer=None, **options):
    optimizer = _optimizer()
    defaults = {"factor": 0.5, "patience": 1, "save_history": trainer is not None}
    return optimizer, ReduceLROnPlateauScheduler(optimizer, "loss", trainer=trainer, **(defaults | options))


def _evaluate(scheduler, losses, evaluator=None):
    """One evaluation for each loss."""
    evaluator = evaluator or Engine(lambda engine, batch: None)
    values = iter(losses)
    evaluator.add_event_handler(Events.EPOCH_COMPLETED, lambda e: e.state.metrics.update(loss=next(values)))
    scheduler.attach(evaluator)
    for _ in losses:
        evaluator.run(range(3))


LOSSES = [5.0, 4.0, 4.0, 4.0, 4.0, float("nan"), 4.0, 1.0]


def test_a_plateau_lowers_the_rates_once_an_evaluation():
    # Trap 28.
    trainer = Engine(lambda engine, batch: None)
    _, scheduler = _plateau(trainer)
    _evaluate(scheduler, LOSSES)
    first = [0.1, 0.1, 0.1, 0.05, 0.05, 0.025, 0.025, 0.025]
    assert trainer.state.param_history["lr"] == [pytest.approx([rate, 2 * rate]) for rate in first]
    assert scheduler.get_param() == pytest.approx([0.025, 0.05])
    simulated = ReduceLROnPlateauScheduler.simulate_values(8, LOSSES, 0.1, factor=0.5, patience=1)
    assert simulated == [[index, pytest.approx(rate)] for index, rate in enumerate(first)]


@pytest.mark.parametrize("stop", range(1, 8))
def test_a_plateau_goes_on_where_it_was_with_its_rates(stop):
    whole_optimizer, whole = _plateau()
    _evaluate(whole, LOSSES)
    _, first = _plateau()
    second_optimizer, second = _plateau()
    _evaluate(first, LOSSES[:stop])
    state = _through_a_file(first.state_dict())  # Trap 40
    assert _kinds_inside(state) <= {dict, list, int, float, bool, str, type(None)}
    second.load_state_dict(state)
    _evaluate(second, LOSSES[stop:])
    assert _read(second_optimizer) == _read(whole_optimizer)
    assert second.state_dict() == whole.state_dict()


def test_a_plateau_may_lower_one_group_alone():
    optimizer, scheduler = _plateau(param_group_index=1, mode="max")
    _evaluate(scheduler, [1.0, 1.0, 1.0])
    assert [rate for rate, _ in _read(optimizer)] == pytest.approx([0.1, 0.1])
    assert scheduler.get_param() == pytest.approx(0.1)


def test_a_plateau_that_cannot_work_is_refused():
    optimizer, scheduler = _plateau()
    evaluator = Engine(lambda engine, batch: None)
    with pytest.raises(UsageError, match="once an evaluation"):
        scheduler.attach(evaluator, Events.ITERATION_COMPLETED(every=3))
    evaluator.add_event_handler(Events.COMPLETED, scheduler)
    evaluator.state.metrics["los"] = 1.0
    with pytest.raises(UsageError, match=r"'loss' \(did you mean 'los'\?\)"):
        evaluator.run(range(2))
    with pytest.raises(UsageError, match="depends on the metric"):
        scheduler.value_at(3)
    with pytest.raises(UsageError, match="goes by a metric"):
        ParamGroupScheduler([scheduler])
    with pytest.raises(UsageError, match="goes by events"):
        create_lr_scheduler_with_warmup(scheduler, 0.0, 3)
    with pytest.raises(CheckpointError, match="ReduceLROnPlateauScheduler"):
        scheduler.load_state_dict({"event_index": 3})
    for options, text in (
        ({"trainer": 3}, "3 as trainer"),
        ({"save_history": True}, "without trainer"),
        ({"patience": 1, "pacience": 2}, "pacience"),
        ({"mode": "low"}, "low"),
        ({"param_group_index": 0, "min_lr": [0.1, 0.1]}, "min_lr"),
    ):
        with pytest.raises(UsageError, match=text):
            ReduceLROnPlateauScheduler(optimizer, "loss", **options)
    with pytest.raises(UsageError, match="attach it to the evaluator"):
        common.setup_common_training_handlers(evaluator, lr_scheduler=scheduler, with_pbars=False)
    with pytest.raises(UsageError, match="2 metric_values"):
        ReduceLROnPlateauScheduler.simulate_values(3, [1.0, 2.0], 0.1)
