"""Schedules in cycles, one after the other, side by side and after a warm-up; of an optimizer and of a state."""

from __future__ import annotations

import gc
import io
import itertools
import math
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim.lr_scheduler import ExponentialLR

from shoal.engine import Engine, Events
from shoal.errors import CheckpointError, UsageError
from shoal.handlers import (
    ConcatScheduler,
    CosineAnnealingScheduler,
    CyclicalScheduler,
    ExpStateScheduler,
    LambdaStateScheduler,
    LinearCyclicalScheduler,
    LRScheduler,
    MultiStepStateScheduler,
    ParamGroupScheduler,
    ParamScheduler,
    PiecewiseLinear,
    PiecewiseLinearStateScheduler,
    PwLinearStateScheduler,
    StateParamScheduler,
    StepStateScheduler,
    create_lr_scheduler_with_warmup,
)


def _optimizer(num_groups=1, lr=0.1):
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr * (i + 1)} for i in range(num_groups)]
    return torch.optim.SGD(groups, lr=lr, momentum=0.5)


def _values(scheduler, count, column=0):
    """What the optimizer holds at each of ``count`` occurrences."""
    seen = []
    for _ in range(count):
        scheduler()
        seen.append([group["lr"] for group in scheduler.optimizer.param_groups])
    return [row[column] for row in seen] if column is not None else seen


def _through_a_file(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


# Cycles ---------------------------------------------------------------------------------------------------------------


def _cycle_by_cycle(scheduler, count):
    """The same, counted out as its docstring tells it."""
    start, end, size = scheduler.start_value, scheduler.end_value, scheduler.cycle_size
    warmup = scheduler.warmup_duration
    values = []
    while len(values) < count:
        values += [scheduler.value_in_cycle(start, end, index / size) for index in range(size)]
        next_start = start * scheduler.start_value_mult
        values += [end + (next_start - end) * index / warmup for index in range(warmup)]
        start, end = next_start, end * scheduler.end_value_mult
        size, warmup = max(2, int(size * scheduler.cycle_mult)), int(warmup * scheduler.cycle_mult)
    return values[:count]


@settings(deadline=None)  # a first call imports
@given(
    st.sampled_from([LinearCyclicalScheduler, CosineAnnealingScheduler]),
    st.integers(2, 9), st.sampled_from([0.5, 1.0, 1.1, 1.5, 2.0]), st.sampled_from([0.5, 1.0]),
    st.sampled_from([1.0, 2.0]), st.integers(0, 4),
)  # fmt: skip
def test_a_cycle_follows_the_other_as_if_counted_out(kind, size, mult, start_mult, end_mult, warmup):
    options = {"monotonic": True} if kind is LinearCyclicalScheduler else {}
    scheduler = kind(_optimizer(), "lr", 1.0, 0.1, size, mult, start_mult, end_mult, warmup, **options)
    expected = _cycle_by_cycle(scheduler, 60)
    assert [scheduler.value_at(index) for index in range(60)] == pytest.approx(expected)


def test_known_values_of_the_cycles():
    def simulated(kind, **options):
        return [value for _, value in kind.simulate_values(6, start_value=1.0, end_value=0.0, cycle_size=4, **options)]

    assert simulated(LinearCyclicalScheduler) == pytest.approx([1, 0.5, 0, 0.5, 1, 0.5])
    assert simulated(LinearCyclicalScheduler, monotonic=True) == pytest.approx([1, 0.75, 0.5, 0.25, 1, 0.75])
    half = math.sqrt(0.5) / 2
    assert simulated(CosineAnnealingScheduler) == pytest.approx([1, 0.5 + half, 0.5, 0.5 - half, 1, 0.5 + half])


def test_a_value_far_out_costs_no_walk_over_all_cycles():
    scheduler = LinearCyclicalScheduler(_optimizer(), "lr", 0.0, 1.0, 10, cycle_mult=1.05)  # 10 * 1.05 is 10 again
    assert scheduler.place_at(10**15 + 3) == (10**14, 3, 10, 0)
    assert CosineAnnealingScheduler(_optimizer(), "lr", 0.0, 1.0, 10, cycle_mult=2).value_at(10**12) <= 1.0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"cycle_size": 1}, "cycle_size=1"),
        ({"cycle_size": 2.5}, "cycle_size=2.5"),
        ({"cycle_size": True}, "cycle_size=True"),
        ({"cycle_size": 4, "cycle_mult": 0}, "cycle_mult=0"),
        ({"cycle_size": 4, "start_value": math.nan}, "start_value=nan"),
        ({"cycle_size": 4, "warmup_duration": -1}, "warmup_duration=-1"),
        ({"cycle_size": 4, "warmup_duration": 2}, "without monotonic=True"),
    ],
)
def test_cycles_that_cannot_work_are_refused(options, text):
    with pytest.raises(UsageError, match=text):
        LinearCyclicalScheduler(
            **({"optimizer": _optimizer(), "param_name": "lr", "start_value": 1, "end_value": 0} | options)
        )


# One after the other, side by side ------------------------------------------------------------------------------------


def test_each_schedule_in_a_row_starts_with_its_first_value():
    optimizer = _optimizer()
    up = LinearCyclicalScheduler(optimizer, "lr", 0.0, 0.4, 8)
    down = CosineAnnealingScheduler(optimizer, "lr", 0.4, 0.0, 4)
    last = PiecewiseLinear(optimizer, "lr", [(0, 9.0)])
    simulated = ConcatScheduler.simulate_values(9, schedulers=[up, down, last], durations=[3, 4])
    scheduler = ConcatScheduler([up, down, last], durations=[3, 4])
    expected = [0.0, 0.1, 0.2] + [down.value_at(index) for index in range(4)] + [9.0, 9.0]
    assert _values(scheduler, 9) == pytest.approx(expected)
    assert simulated == [[index, value] for index, value in enumerate(_values(_again(scheduler), 9))]


def _again(scheduler):
    scheduler.load_state_dict(scheduler.state_dict() | {"event_index": 0})
    return scheduler


def test_groups_have_a_schedule_each_with_a_history_each():
    optimizer = _optimizer(2)
    parts = [
        LinearCyclicalScheduler(optimizer, "lr", 1.0, 0.0, 4, param_group_index=0),
        PiecewiseLinear(optimizer, "lr", [(0, 0.0), (2, 0.2)], param_group_index=1),
        PiecewiseLinear(optimizer, "momentum", [(0, 0.9)]),
    ]
    assert ParamGroupScheduler.simulate_values(2, parts) == [[0, 1.0, 0.0, 0.9], [1, 0.5, 0.1, 0.9]]
    scheduler = ParamGroupScheduler(parts, save_history=True)
    trainer = Engine(lambda engine, batch: None)
    scheduler.attach(trainer)
    trainer.run(range(3))
    history = trainer.state.param_history
    assert history == {"lr_0": [[1.0], [0.5], [0.0]], "lr_1": [[0.0], [0.1], [0.2]], "momentum": [[0.9, 0.9]] * 3}
    assert scheduler.get_param() == [0.5, 0.2, 0.9]
    named = ParamGroupScheduler(parts, names=["a", "b", "c"])
    named(trainer)
    assert set(trainer.state.param_history) == {"lr_0", "lr_1", "momentum", "a", "b", "c"}


def test_groups_of_two_optimizers_are_scheduled_together():
    generator, critic = _optimizer(), torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])
    parts = [PiecewiseLinear(generator, "momentum", [(0, 0.1)]), PiecewiseLinear(critic, "lr", [(0, 0.2)])]
    ParamGroupScheduler(parts)()
    assert (generator.param_groups[0]["momentum"], critic.param_groups[0]["lr"]) == (0.1, 0.2)
    assert ParamGroupScheduler.simulate_values(1, parts) == [[0, 0.1, 0.2]]


def test_what_cannot_be_put_together_is_refused():
    optimizer = _optimizer()

    def line(param_name="lr", optimizer=optimizer):
        return PiecewiseLinear(optimizer, param_name, [(0, 0.1)])

    one = line()
    for schedulers, durations, text in (
        ([line()], [], "two or more"),
        ([line(), 3], [1], "schedulers holds a int"),
        ([line(), ExponentialLR(optimizer, 0.9)], [1], r"LRScheduler\(\.\.\.\)"),
        ([line(), line("momentum")], [1], "'lr' and 'momentum'"),
        ([line(), line(optimizer=_optimizer())], [1], "another optimizer"),
        ([one, one], [1], "twice"),
        ([line(), line()], [1, 2], "give one for each but the last: 1"),
        ([line(), line()], [0], "durations holds 0"),
    ):
        with pytest.raises(UsageError, match=text):
            ConcatScheduler(schedulers, durations)
    for schedulers, names, text in (([], None, "one or more"), ([3], None, "a int"), ([line()], ["a", "b"], "as many")):
        with pytest.raises(UsageError, match=text):
            ParamGroupScheduler(schedulers, names)
    with pytest.raises(CheckpointError, match="of 2 schedulers"):
        ConcatScheduler([line(), line()], [1]).load_state_dict(line().state_dict())


# Warm-up --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of_torch", [True, False])
@pytest.mark.parametrize(
    ("duration", "end", "expected"),
    [
        (3, None, [0.0, 0.05, 0.1, 0.05, 0.025]),  # the end is the schedule's first value, once
        (2, None, [0.0, 0.1, 0.05, 0.025]),
        (3, 0.1, [0.0, 0.05, 0.1, 0.05, 0.025]),
        (3, 0.2, [0.0, 0.1, 0.2, 0.1, 0.05]),
    ],
)
def test_a_warm_up_starts_with_its_first_value_and_hands_over_without_a_gap(of_torch, duration, end, expected):
    # Trap 29.
    optimizer = _optimizer()
    halving = ExponentialLR(optimizer, 0.5) if of_torch else PiecewiseLinear(
        optimizer, "lr", [(index, 0.1 * 0.5**index) for index in range(5)]
    )  # fmt: skip
    simulated = [None] * len(expected)
    scheduler = create_lr_scheduler_with_warmup(halving, 0.0, duration, end, output_simulated_values=simulated)
    assert optimizer.param_groups[0]["lr"] == 0.1  # looking ahead has changed nothing
    assert _values(scheduler, len(expected)) == pytest.approx(expected)
    assert [row[1] for row in simulated] == pytest.approx(expected)


def test_a_warm_up_leads_each_group_to_its_own_rate():
    optimizer = _optimizer(2)
    scheduler = create_lr_scheduler_with_warmup(ExponentialLR(optimizer, 0.5), 0.0, 3)
    rows = _values(scheduler, 4, column=None)
    assert rows == [pytest.approx(row) for row in ([0.0, 0.0], [0.05, 0.1], [0.1, 0.2], [0.05, 0.1])]


def test_a_warm_up_that_cannot_work_is_refused():
    schedule = PiecewiseLinear(_optimizer(), "lr", [(0, 0.1)])
    for arguments, text in (
        ((schedule, 0.0, 1), "warmup_duration=1"),
        ((schedule, "0", 3), "warmup_start_value='0'"),
        ((3, 0.0, 3), "a int"),
        ((schedule, 0.0, 3, None, False, 5), "output_simulated_values=5"),
    ):
        with pytest.raises(UsageError, match=text):
            create_lr_scheduler_with_warmup(*arguments)


# Going on -------------------------------------------------------------------------------------------------------------


class _Own(ParamScheduler):
    """As users of Ignite write one."""

    def get_param(self):
        return [0.1 * (self.event_index + 1 + group) for group in range(len(self.optimizer_param_groups))]


def _cosine(optimizer, group=None):
    return CosineAnnealingScheduler(optimizer, "lr", 0.3, 0.1, 5, cycle_mult=1.5, param_group_index=group)


def _linear(optimizer, group=None):
    return LinearCyclicalScheduler(optimizer, "lr", 0.1, 0.7, 6, start_value_mult=0.7, param_group_index=group)


KINDS = {
    "linear": _linear,
    "cosine": _cosine,
    "own": lambda optimizer: _Own(optimizer, "lr"),
    "concat": lambda optimizer: ConcatScheduler(
        [_linear(optimizer), _cosine(optimizer), _Own(optimizer, "lr")], [5, 7]
    ),
    "groups": lambda optimizer: ParamGroupScheduler([_linear(optimizer, 0), _cosine(optimizer, 1)]),
    "warm-up": lambda optimizer: create_lr_scheduler_with_warmup(_cosine(optimizer), 0.0, 7),
    "warm-up of torch's": lambda optimizer: create_lr_scheduler_with_warmup(ExponentialLR(optimizer, 0.9), 0.0, 7),
    "nested": lambda optimizer: ConcatScheduler(
        [
            ConcatScheduler([_linear(optimizer), _cosine(optimizer)], [3]),
            ParamGroupScheduler([_linear(optimizer, 0), _cosine(optimizer, 1)]),
            LRScheduler(ExponentialLR(optimizer, 0.9)),
        ],
        [8, 5],
    ),
}


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(sorted(KINDS)), st.integers(0, 24), st.booleans())
def test_a_resumed_schedule_is_the_uninterrupted_one(kind, stop, keeps_the_optimizer):
    whole = _values(KINDS[kind](_optimizer(2)), 24, column=None)
    first_optimizer, second_optimizer = _optimizer(2), _optimizer(2)
    first, second = KINDS[kind](first_optimizer), KINDS[kind](second_optimizer)
    begun = _values(first, stop, column=None)
    if keeps_the_optimizer:
        second_optimizer.load_state_dict(first_optimizer.state_dict())
    second.load_state_dict(_through_a_file(first.state_dict()))  # Trap 40
    assert begun + _values(second, 24 - stop, column=None) == whole


def test_a_scheduler_that_only_defines_get_param_can_be_simulated_and_put_in_a_row():
    class Rising(ParamScheduler):
        def get_param(self):
            return 0.1 * self.event_index

    assert Rising.simulate_values(3) == [[0, 0.0], [1, 0.1], [2, 0.2]]
    optimizer = _optimizer()
    scheduler = ConcatScheduler([PiecewiseLinear(optimizer, "lr", [(0, 9.0)]), Rising(optimizer, "lr")], [1])
    assert _values(scheduler, 3) == pytest.approx([9.0, 0.0, 0.1])
    with pytest.raises(NotImplementedError, match="neither"):
        ParamScheduler(optimizer, "lr").get_param()
    with pytest.raises(NotImplementedError):
        CyclicalScheduler(optimizer, "lr", 0, 1, 3).get_param()


def test_simulated_values_are_drawn():
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    optimizer = _optimizer(2)
    for kind, options, lines in (
        (PiecewiseLinear, {"param_name": "momentum", "milestones_values": [(0, 0.0), (3, 1.0)]}, 1),
        (ConcatScheduler, {"schedulers": [_linear(optimizer), _cosine(optimizer)], "durations": [2]}, 1),
        (ParamGroupScheduler, {"schedulers": [_linear(optimizer, 0), _cosine(optimizer, 1)]}, 2),
        (LRScheduler, {"lr_scheduler": ExponentialLR(optimizer, 0.5)}, 2),
        (ExpStateScheduler, {"param_name": "weight", "initial_value": 1.0, "gamma": 0.5}, 1),
    ):
        axes = kind.plot_values(4, **options)
        assert len(axes.lines) == lines
        assert axes.get_ylabel() == options.get("param_name", "lr")
        assert list(axes.lines[-1].get_ydata()) == [row[-1] for row in kind.simulate_values(4, **options)]
        plt.close("all")
    with pytest.raises(UsageError, match="num_events=-1"):
        PiecewiseLinear.simulate_values(-1, milestones_values=[(0, 0.0)])


# Of a state -----------------------------------------------------------------------------------------------------------

STATE_KINDS = {
    "lambda": (LambdaStateScheduler, (lambda index: [index, -index],), [[k, -k] for k in range(6)]),
    "linear": (PwLinearStateScheduler, ([(2, 1.0), (4, 3.0)],), [1, 1, 1, 2, 3, 3]),
    "exponential": (ExpStateScheduler, (1.0, 0.5), [1, 0.5, 0.25, 0.125, 0.0625, 0.03125]),
    "step": (StepStateScheduler, (1.0, 0.5, 2), [1, 1, 0.5, 0.5, 0.25, 0.25]),
    "multi-step": (MultiStepStateScheduler, (1.0, 0.5, [2, 4, 4]), [1, 1, 0.5, 0.5, 0.125, 0.125]),
}


@pytest.mark.parametrize("kind", STATE_KINDS)
def test_a_state_s_attribute_has_the_value_of_the_occurrences_so_far_also_after_a_resume(kind):
    make, arguments, expected = STATE_KINDS[kind]

    def train(count, state=None):
        seen = []
        trainer = Engine(lambda engine, batch: seen.append(engine.state.weight))
        scheduler = make(*arguments, param_name="weight", save_history=True)
        scheduler.attach(trainer)
        if state is not None:
            scheduler.load_state_dict(state)
        trainer.run(range(count))
        return seen, trainer, scheduler

    seen, trainer, _ = train(6)
    assert seen == expected
    assert trainer.state.param_history["weight"][:5] == expected[1:]
    for stop in (1, 3, 5):
        begun, _, first = train(stop)
        state = _through_a_file(first.state_dict())  # Trap 40
        assert begun + train(6 - stop, state)[0] == expected


def test_state_values_can_be_simulated():
    values = LambdaStateScheduler.simulate_values(3, lambda_obj=lambda index: index * 10)
    assert values == [[0, 10], [1, 20], [2, 30]]
    assert PiecewiseLinearStateScheduler is PwLinearStateScheduler


def test_an_attribute_is_made_or_taken_over_as_asked():
    trainer = Engine(lambda engine, batch: None)
    trainer.state.weight = 7.0
    ExpStateScheduler(1.0, 0.5, "weight").attach(trainer, Events.EPOCH_COMPLETED)
    assert trainer.state.weight == 7.0
    trainer.run(range(3), max_epochs=2)
    assert trainer.state.weight == 0.25
    with pytest.raises(UsageError, match="there already"):
        ExpStateScheduler(1.0, 0.5, "weight", create_new=True).attach(trainer)
    ExpStateScheduler(1.0, 0.5, "other", create_new=True).attach(trainer)
    assert trainer.state.other == 1.0
    with pytest.raises(UsageError, match="sets itself"):
        ExpStateScheduler(1.0, 0.5, "iteration").attach(trainer)


def test_state_schedules_that_cannot_work_are_refused():
    for make, text in (
        (lambda: StateParamScheduler("two words"), "two words"),
        (lambda: LambdaStateScheduler(3, "weight"), "lambda_obj=3"),
        (lambda: StepStateScheduler(1.0, 0.5, 0, "weight"), "step_size=0"),
        (lambda: ExpStateScheduler("a", 0.5, "weight"), "initial_value='a'"),
        (lambda: MultiStepStateScheduler(1.0, 0.5, [4, 2], "weight"), "rising order"),
        (lambda: PiecewiseLinearStateScheduler([], "weight"), "at least one pair"),
    ):
        with pytest.raises(UsageError, match=text):
            make()


# Memory ---------------------------------------------------------------------------------------------------------------


def test_schedules_keep_no_engine_alive():
    optimizer = _optimizer(2)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)  # imports more of torch, which leaves cycles of its own
    gc.collect()
    gc.disable()
    try:
        trainer = Engine(lambda engine, batch: optimizer.step())
        schedulers = [make(optimizer) for make in KINDS.values()]
        for scheduler in schedulers:
            scheduler.save_history = True
            scheduler.attach(trainer)
        states = [kind(*given, f"weight_{at}") for at, (kind, given, _) in enumerate(STATE_KINDS.values())]
        for scheduler in states:
            scheduler.attach(trainer)
        trainer.run(range(12))
        gone = [weakref.ref(thing) for thing in itertools.chain([trainer], schedulers, states)]
        del trainer, schedulers, states, scheduler
        assert [reference() for reference in gone] == [None] * len(gone)
    finally:
        gc.enable()
