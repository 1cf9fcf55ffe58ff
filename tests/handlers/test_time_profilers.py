"""The profilers, on a clock that is moved by hand, since times that are waited for are never exact."""

from __future__ import annotations

import csv
import gc
import time
import weakref
from contextlib import suppress

import pytest
import torch
from torch import nn

from shoal.engine import Engine, EventEnum, Events
from shoal.errors import UsageError
from shoal.handlers import BasicTimeProfiler, Checkpoint, HandlersTimeProfiler
from shoal.handlers._profiling import Samples, Stats
from shoal.metrics import RunningAverage


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 100.0

    monkeypatch.setattr(time, "perf_counter", lambda: Clock.now)
    return Clock


class _Own(EventEnum):
    BACKWARD = "backward"


def _training(clock):
    """2 epochs of 3 iterations: data 1 s, a step of 10 s with 2 s of handlers in it, handlers of 100 s and 1000 s."""

    class Data:
        def __len__(self):
            return 3

        def __iter__(self):
            for number in range(3):
                clock.now += 1
                yield number

    def step(engine, batch):
        clock.now += 10
        engine.fire_event(_Own.BACKWARD)
        return float(batch)

    trainer = Engine(step)
    trainer.register_events(*_Own)
    trainer.add_event_handler(_Own.BACKWARD, _takes, clock, 2)
    trainer.add_event_handler(Events.ITERATION_COMPLETED(every=2), _takes, clock, 100)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, _takes, clock, 1000)
    RunningAverage(output_transform=float).attach(trainer, "average")
    return trainer, Data()


def _takes(engine, clock, seconds):
    clock.now += seconds


def test_where_the_time_of_a_run_goes(clock, tmp_path, capsys):
    trainer, data = _training(clock)
    profiler = BasicTimeProfiler()
    profiler.attach(trainer)
    profiler.attach(trainer)  # once is enough
    trainer.run(data, max_epochs=2)
    results = profiler.get_results()
    assert results["processing_stats"] == {
        "count": 6, "total": 60, "min/index": (10, 0), "max/index": (10, 0), "mean": 10, "std": 0,
    }  # fmt: skip
    assert results["dataflow_stats"]["total"] == 6
    events = results["event_handlers_stats"]
    assert (events["ITERATION_COMPLETED"]["total"], events["ITERATION_COMPLETED"]["max/index"]) == (300, (100, 1))
    assert events["EPOCH_COMPLETED"]["total"] == 2000
    assert events["COMPLETED"] == {
        "count": 1,
        "total": 0,
        "min/index": (0, 0),
        "max/index": (0, 0),
        "mean": 0,
        "std": 0,
    }
    assert events["total_time"] == 2312
    assert results["event_handlers_names"]["ITERATION_COMPLETED_names"] == ["metrics", "_takes"]
    assert profiler.phases() == {
        "data": 6, "step": 60, "evaluation": 0, "checkpoint": 0, "handlers": 2312, "rest": 0,
    }  # fmt: skip
    text = profiler.print_results(results)
    assert text in capsys.readouterr().out
    assert "process function" in text and "10.00000/0" in text

    profiler.write_results(tmp_path / "times.csv")
    rows = list(csv.DictReader((tmp_path / "times.csv").open()))
    assert [(row["epoch"], row["iteration"]) for row in rows] == [(f"{1 + i // 4}", f"{i}") for i in range(1, 7)]
    assert [float(row["Event_ITERATION_COMPLETED"]) for row in rows] == [0, 100, 0, 100, 0, 100]
    assert sum(float(row["Event_EPOCH_COMPLETED"]) for row in rows) == 2000
    profiler.reset()
    assert profiler.get_results()["processing_stats"] == {"count": 0, "total": 0.0}
    assert "not yet triggered" in profiler.print_results(profiler.get_results())


def test_phases_tell_evaluation_and_checkpoints_apart(clock, tmp_path):
    trainer, data = _training(clock)
    evaluator = Engine(lambda engine, batch: _takes(engine, clock, 7))

    class Slow(nn.Linear):
        def state_dict(self, *args, **kwargs):
            clock.now += 5
            return super().state_dict(*args, **kwargs)

    newest, best = Checkpoint({"m": Slow(1, 1)}, tmp_path), Checkpoint({"best": Slow(1, 1)}, tmp_path)
    trainer.add_event_handler(Events.ITERATION_COMPLETED(every=3), newest)
    evaluator.add_event_handler(Events.COMPLETED, best)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda engine: evaluator.run([0, 1]))
    newest(trainer)
    profiler = BasicTimeProfiler()
    profiler.attach(trainer, evaluators=[evaluator], checkpoints=[newest, best])
    trainer.run(data, max_epochs=2)
    assert profiler.phases() == {
        "data": 6, "step": 60, "evaluation": 28, "checkpoint": 20, "handlers": 2312, "rest": 0,
    }  # fmt: skip
    for bad in ({"evaluators": [3]}, {"checkpoints": [evaluator]}):
        with pytest.raises(UsageError, match=next(iter(bad))):
            profiler.attach(trainer, **bad)


@pytest.mark.parametrize("event", [Events.STARTED, Events.GET_BATCH_STARTED, Events.GET_BATCH_COMPLETED,
                                   Events.ITERATION_STARTED, Events.ITERATION_COMPLETED, _Own.BACKWARD])  # fmt: skip
@pytest.mark.parametrize("profiler_type", [BasicTimeProfiler, HandlersTimeProfiler])
def test_after_a_reset_in_a_run_times_count_from_there(clock, event, profiler_type):
    trainer, data = _training(clock)
    profiler = profiler_type()
    profiler.attach(trainer)
    trainer.add_event_handler(event(once=1), profiler.reset)
    trainer.run(data, max_epochs=2)
    whole = profiler if profiler_type is BasicTimeProfiler else profiler._whole
    step, drawing = whole.get_results()["processing_stats"]["total"], whole.get_results()["dataflow_stats"]["total"]
    num_steps = 5 if event is Events.ITERATION_COMPLETED else 6
    lost = 10 if event is _Own.BACKWARD else 0  # of the first step, what was before the reset
    assert step == num_steps * 10 - lost
    assert drawing == (6 if event in (Events.STARTED, Events.GET_BATCH_STARTED) else 5)


def test_evaluations_are_seen_after_a_reset_once_and_only_those_of_the_run(clock):
    trainer, data = _training(clock)
    evaluator = Engine(lambda engine, batch: _takes(engine, clock, 7))
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda engine: evaluator.run([0, 1]))
    profiler = BasicTimeProfiler()
    for _ in range(2):
        profiler.attach(trainer, evaluators=[evaluator])
    trainer.run(data, max_epochs=1)
    profiler.reset()
    evaluator.run([0, 1])  # by hand, outside
    trainer.run(data, max_epochs=2)
    assert profiler.phases()["evaluation"] == 14
    assert sum(profiler.phases().values()) == 1 * 3 + 10 * 3 + 1206 + 14


@pytest.mark.parametrize("ending", ["interrupt", "raise", "terminate"])
def test_an_evaluation_that_is_broken_off_is_one(clock, ending):
    trainer, data = _training(clock)
    evaluator = Engine(lambda engine, batch: _takes(engine, clock, 7))

    @evaluator.on(Events.ITERATION_COMPLETED(once=2))
    def stop(engine):
        if ending == "raise":
            raise KeyError
        getattr(engine, ending)()

    @trainer.on(Events.EPOCH_COMPLETED)
    def evaluate(engine):
        with suppress(KeyError):
            evaluator.run([0, 1, 2])

    profiler = BasicTimeProfiler()
    profiler.attach(trainer, evaluators=[evaluator])
    trainer.run(data)
    assert profiler.phases()["evaluation"] == 14


@pytest.mark.parametrize("ending", ["terminate", "skip", "interrupt", "raise"])
def test_a_run_that_is_broken_off_and_taken_up_again(clock, ending):
    trainer, data = _training(clock)
    profiler = BasicTimeProfiler()
    profiler.attach(trainer)

    @trainer.on(Events.ITERATION_COMPLETED(once=4))
    def stop(engine):
        if ending == "raise":
            raise KeyError
        engine.terminate(skip_completed=True) if ending == "skip" else getattr(engine, ending)()

    if ending == "raise":
        with pytest.raises(KeyError):
            trainer.run(data, max_epochs=2)
    else:
        trainer.run(data, max_epochs=2)
    clock.now += 10_000  # between the runs
    trainer.run(data)
    phases = profiler.phases()
    assert (phases["step"], phases["data"], phases["handlers"]) == (60, 6, 2312)
    assert phases["rest"] == (0 if ending == "interrupt" else 1)  # a batch is drawn again to come to the place
    assert profiler.get_results()["processing_stats"]["count"] == 6


def test_how_long_each_handler_takes(clock, tmp_path, capsys):
    trainer, data = _training(clock)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, _takes, clock, 3)
    trainer.add_event_handler(Events.TERMINATE, _takes, clock, 3)
    profiler = HandlersTimeProfiler()
    profiler.attach(trainer)
    trainer.add_event_handler(Events.EPOCH_STARTED(once=2), _takes, clock, 50)  # later
    trainer.run(data, max_epochs=2)
    rows = {(name, event): numbers for name, event, *numbers in profiler.get_results()}
    assert rows["_takes", "BACKWARD"] == [12, (2, 0), (2, 0), 2, 0]
    assert rows["_takes", "ITERATION_COMPLETED"] == [300, (100, 0), (100, 0), 100, 0]
    assert rows["_takes", "EPOCH_COMPLETED"][0] == 2000
    assert rows["_takes #2", "EPOCH_COMPLETED"][0] == 6
    assert rows["_takes", "EPOCH_STARTED"][0] == 50
    assert rows["_takes", "TERMINATE"][0] == "not triggered"
    assert rows["metrics", "ITERATION_COMPLETED"][0] == 0
    assert rows["Total", ""][0] == 2368
    assert rows["Processing", ""][0] == 60 and rows["Dataflow", ""][0] == 6
    text = profiler.print_results(profiler.get_results())
    assert text in capsys.readouterr().out and "Event Name" in text
    profiler.write_results(tmp_path / "times.csv")
    written = [row for row in csv.DictReader((tmp_path / "times.csv").open()) if row["event"] == "ITERATION_COMPLETED"]
    assert [(row["iteration"], row["seconds"]) for row in written if row["handler"] == "_takes"] == [
        ("2", "100.0"), ("4", "100.0"), ("6", "100.0"),
    ]  # fmt: skip


def test_the_memory_of_a_long_run_is_bounded_and_the_sums_are_whole():
    samples, stats = Samples(2, limit=8), Stats()
    for number in range(1, 1001):
        samples.add(1, number, (1.0, number))
        stats.add(float(number))
    rows = list(samples)
    assert len(rows) <= 8
    assert sum(row[2] for row in rows) == sum(row[3] for row in rows) == 1000
    assert sum(row[4] for row in rows) == stats.total == 500_500
    assert rows[-1][1] == 1000
    values = torch.arange(1, 1001, dtype=torch.float64)
    assert stats.as_dict()["std"] == pytest.approx(values.std().item())
    assert stats.as_dict()["min/index"] == (1, 0) and stats.as_dict()["max/index"] == (1000, 999)


@pytest.mark.parametrize("profiler_type", [BasicTimeProfiler, HandlersTimeProfiler])
def test_a_profiler_keeps_neither_the_engine_nor_handlers_alive(clock, profiler_type):
    torch.optim.SGD([torch.zeros(1)])  # the first one imports more of torch, which leaves cycles of its own
    gc.collect()
    gc.disable()
    try:
        trainer, data = _training(clock)
        profiler, handler = profiler_type(synchronize=True), nn.Linear(1, 1)
        trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda engine, held: None, handler)
        trainer.add_event_handler(Events.COMPLETED, lambda engine: profiler.get_results())
        profiler.attach(trainer)
        trainer.run(data, max_epochs=2)
        references = weakref.ref(trainer), weakref.ref(handler)
        del trainer, handler
        assert [reference() for reference in references] == [None, None]
        assert profiler.get_results()
    finally:
        gc.enable()
