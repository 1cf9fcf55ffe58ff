"""Schedules: the value of an iteration is a function of its number."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal.engine import Engine, Events
from shoal.errors import CheckpointError, UsageError
from shoal.handlers import PiecewiseLinear

MILESTONES = [(0, 0.0), (4, 0.4), (10, 0.0)]


def _optimizer(num_groups=1):
    return torch.optim.SGD([{"params": [torch.nn.Parameter(torch.zeros(1))]} for _ in range(num_groups)], lr=9.0)


def _run(scheduler, optimizer, data, **kwargs):
    """The learning rates that the steps of a run see."""
    seen = []
    trainer = Engine(lambda engine, batch: seen.append(optimizer.param_groups[0]["lr"]))
    trainer.add_event_handler(Events.ITERATION_STARTED, scheduler)
    trainer.run(data, **kwargs)
    return seen


def test_the_first_step_uses_the_first_value_and_the_last_one_is_next_to_the_last():
    optimizer = _optimizer()
    seen = _run(PiecewiseLinear(optimizer, "lr", MILESTONES), optimizer, range(5), max_epochs=3)
    expected = [0.0, 0.1, 0.2, 0.3, 0.4, 0.4 * 5 / 6, 0.4 * 4 / 6, 0.2, 0.4 * 2 / 6, 0.4 / 6, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert seen == pytest.approx(expected)
    assert seen[0] == 0.0
    simulated = PiecewiseLinear.simulate_values(15, param_name="lr", milestones_values=MILESTONES)
    assert simulated == [[index, value] for index, value in enumerate(seen)]


@given(
    st.lists(st.tuples(st.integers(0, 20), st.floats(-5, 5)), min_size=1, max_size=5),
    st.integers(0, 30),
)
def test_the_value_is_numpy_s_interpolation(pairs, index):
    pairs = sorted({milestone: (milestone, value) for milestone, value in pairs}.values())
    scheduler = PiecewiseLinear(_optimizer(), "lr", pairs)
    assert scheduler.value_at(index) == pytest.approx(np.interp(index, *zip(*pairs, strict=True)), abs=1e-12)


def test_two_values_at_one_milestone_are_a_jump():
    # What a warm-up of 0 epochs gives.
    values = PiecewiseLinear.simulate_values(3, milestones_values=[(0, 0.0), (0, 0.4), (2, 0.0)])
    assert values == [[0, 0.4], [1, 0.2], [2, 0.0]]


@pytest.mark.parametrize("stop", [1, 4, 7, 11])
def test_a_resumed_schedule_is_the_uninterrupted_one_exactly(stop):
    milestones = [(0, 0.0), (3, 0.7), (12, 0.1)]
    optimizer = _optimizer()
    whole = _run(PiecewiseLinear(optimizer, "lr", milestones), optimizer, range(12), max_epochs=1)
    first, second = PiecewiseLinear(optimizer, "lr", milestones), PiecewiseLinear(optimizer, "lr", milestones)
    seen = _run(first, optimizer, range(stop), max_epochs=1)
    state = first.state_dict()
    second.load_state_dict(state)
    assert seen + _run(second, optimizer, range(12 - stop), max_epochs=1) == whole


def test_one_group_or_all_and_tensors_are_set():
    optimizer = _optimizer(3)
    PiecewiseLinear(optimizer, "lr", [(0, 0.5)], param_group_index=1)()
    assert [group["lr"] for group in optimizer.param_groups] == [9.0, 0.5, 9.0]
    held = torch.tensor(9.0)
    optimizer.param_groups[2]["lr"] = held
    PiecewiseLinear(optimizer, "lr", [(0, 0.25)])()
    assert [float(group["lr"]) for group in optimizer.param_groups] == [0.25, 0.25, 0.25]
    assert held == 0.25


def test_the_groups_are_those_that_the_optimizer_has_now():
    optimizer = _optimizer()
    scheduler = PiecewiseLinear(optimizer, "momentum", [(0, 0.5)])
    optimizer.load_state_dict(optimizer.state_dict())  # replaces the groups
    scheduler()
    assert optimizer.param_groups[0]["momentum"] == 0.5


def test_history_is_kept_where_it_is_asked_for():
    optimizer = _optimizer(2)
    scheduler = PiecewiseLinear(optimizer, "lr", MILESTONES, save_history=True)
    trainer = Engine(lambda engine, batch: None)
    scheduler.attach(trainer)
    trainer.run(range(3))
    assert trainer.state.param_history["lr"] == [[0.0, 0.0], [0.1, 0.1], [0.2, 0.2]]


def test_a_longer_run_uses_its_own_schedule_and_says_so(caplog):
    optimizer = _optimizer()
    short, long = (PiecewiseLinear(optimizer, "lr", [(0, 1.0), (end, 0.0)]) for end in (4, 8))
    _run(short, optimizer, range(4))
    long.load_state_dict(short.state_dict())
    assert long.get_param() == 0.5
    assert "differs" in caplog.text


@pytest.mark.parametrize(
    ("milestones", "text"),
    [
        ([], "at least one pair"),
        ([(3, 0.1), (2, 0.2)], "goes back from 3 to 2"),
        ([(0.5, 0.1)], "whole numbers"),
        ([(0, float("nan"))], "finite"),
        ([(0, "a")], "finite"),
        ([0, 1], "pairs"),
    ],
)
def test_milestones_that_cannot_work_are_refused(milestones, text):
    with pytest.raises(UsageError, match=text):
        PiecewiseLinear(_optimizer(), "lr", milestones)


def test_what_the_optimizer_does_not_have_is_refused():
    with pytest.raises(UsageError, match=r"'momentun' \(did you mean 'momentum'\?\)"):
        PiecewiseLinear(_optimizer(), "momentun", MILESTONES)
    with pytest.raises(UsageError, match="param_group_index=2, found 1"):
        PiecewiseLinear(_optimizer(), "lr", MILESTONES, param_group_index=2)
    with pytest.raises(UsageError, match="param_groups"):
        PiecewiseLinear(torch.nn.Linear(1, 1), "lr", MILESTONES)
    with pytest.raises(CheckpointError, match="state_dict"):
        PiecewiseLinear(_optimizer(), "lr", MILESTONES).load_state_dict({"last_epoch": 3})
