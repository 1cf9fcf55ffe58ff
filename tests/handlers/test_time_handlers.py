"""TimeLimit and Timer, on a clock that is moved by hand: the real one cannot be made to run an hour."""

from __future__ import annotations

import gc
import time
import weakref

import pytest
import torch

from shoal.engine import Engine, Events
from shoal.errors import CheckpointError, UsageError
from shoal.handlers import TimeLimit, Timer


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 100.0

    monkeypatch.setattr(time, "monotonic", lambda: Clock.now)
    monkeypatch.setattr(time, "perf_counter", lambda: Clock.now)
    return Clock


def _each_takes(clock, seconds):
    def step(engine, batch):
        clock.now += seconds

    return Engine(step)


def test_it_stops_at_the_first_iteration_after_the_limit(clock):
    trainer = _each_takes(clock, 10)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, TimeLimit(limit_sec=35))
    trainer.run(range(3), max_epochs=5)
    assert trainer.state.iteration == 4


def test_time_already_used_survives_a_resume(clock, tmp_path):
    first = TimeLimit(60)
    clock.now += 45
    torch.save(first.state_dict(), tmp_path / "state.pt")
    clock.now += 1000  # between the two runs
    second = TimeLimit(60)
    clock.now += 5
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))  # Trap 40
    trainer = _each_takes(clock, 10)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, second)
    trainer.run(range(10))
    assert (trainer.state.iteration, second.used_sec) == (2, 65)
    for bad in ({"seconds": 1}, {"used_sec": float("nan")}, {"used_sec": -1.0}):
        with pytest.raises(CheckpointError, match="TimeLimit"):
            second.load_state_dict(bad)
    assert second.used_sec == 65


@pytest.mark.parametrize("options", [{"limit_sec": 0}, {"limit_sec": None}, {"limit_sec": float("inf")},
                                     {"agree_every": 0}, {"limit_sec": True}])  # fmt: skip
def test_limits_that_cannot_work_are_refused(options):
    with pytest.raises(UsageError, match=next(iter(options))):
        TimeLimit(**options)


def test_a_timer_by_hand(clock):
    timer = Timer(average=True)
    for _ in range(4):
        timer.resume()
        clock.now += 2
        timer.pause()
        clock.now += 100
        timer.step()
    assert (timer.value(), timer.total, timer.step_count, timer.running) == (2, 8, 4, False)
    timer.average = False
    assert timer.value() == 8
    assert timer.reset().value() == 0
    clock.now += 3
    assert timer.value() == 3


def test_a_timer_at_events_counts_the_steps_alone(clock):
    trainer, whole, steps = _each_takes(clock, 10), Timer(), Timer(average=True)
    assert whole.attach(trainer) is whole
    steps.attach(
        trainer, start=Events.STARTED, resume=Events.ITERATION_STARTED,
        pause=Events.ITERATION_COMPLETED, step=Events.ITERATION_COMPLETED,
    )  # fmt: skip

    @trainer.on(Events.GET_BATCH_STARTED | Events.EPOCH_COMPLETED)
    def slow_data(engine):
        clock.now += 100

    trainer.run(range(3), max_epochs=2)
    assert (steps.value(), steps.step_count) == (10, 6)
    assert whole.value() == 860
    clock.now += 5
    assert whole.value() == 860


def test_they_do_not_keep_the_engine_alive(clock):
    gc.disable()
    try:
        trainer, timer, limit = _each_takes(clock, 1), Timer(), TimeLimit(1)
        timer.attach(trainer)
        trainer.add_event_handler(Events.ITERATION_COMPLETED, limit)
        trainer.run(range(3))
        reference = weakref.ref(trainer)
        del trainer
        assert reference() is None
    finally:
        gc.enable()
