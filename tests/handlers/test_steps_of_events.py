"""Which step a handler's event stands for."""

import pytest

from shoal.engine import Engine, EventEnum, Events
from shoal.errors import UsageError
from shoal.handlers import global_step_from_engine
from shoal.handlers._counts import axis_of, count, event_of


class Phase(EventEnum):
    DONE = "done"


def test_every_event_of_an_engine_has_the_step_of_its_epoch_or_its_iteration():
    engine, steps = Engine(lambda engine, batch: None), {}
    for event in Events:
        engine.add_event_handler(event, lambda e, at: steps.setdefault(at.name, (axis_of(at), count(e, at))), event)
    engine.add_event_handler(Events.ITERATION_COMPLETED(once=3), lambda e: e.terminate_epoch())
    engine.add_event_handler(Events.ITERATION_COMPLETED(once=9), lambda e: e.interrupt())
    engine.add_event_handler(Events.ITERATION_COMPLETED(once=10), lambda e: e.terminate())
    for _ in range(2):
        engine.run(range(4), epoch_length=5, max_epochs=3)
    assert steps == {
        "STARTED": ("epoch", 0),
        "EPOCH_STARTED": ("epoch", 1),
        "GET_BATCH_STARTED": ("iteration", 1),
        "GET_BATCH_COMPLETED": ("iteration", 1),
        "ITERATION_STARTED": ("iteration", 1),
        "ITERATION_COMPLETED": ("iteration", 1),
        "TERMINATE_SINGLE_EPOCH": ("iteration", 3),
        "EPOCH_COMPLETED": ("epoch", 1),
        "DATALOADER_STOP_ITERATION": ("iteration", 7),
        "INTERRUPT": ("iteration", 9),
        "TERMINATE": ("iteration", 10),
        "COMPLETED": ("epoch", 3),
    }


def test_a_handler_of_several_events_knows_which_one_calls_it():
    engine, calls = Engine(lambda engine, batch: None), []

    class Kept:
        def __call__(self, engine):
            event = event_of(engine, self)
            calls.append((event.name, count(engine, event)))

    by_epoch, mixed, inner = Kept(), Kept(), Kept()
    engine.add_event_handler(Events.STARTED | Events.EPOCH_COMPLETED | Events.COMPLETED, by_epoch)
    engine.run(range(2), max_epochs=2)
    assert calls == [("STARTED", 0), ("EPOCH_COMPLETED", 1), ("EPOCH_COMPLETED", 2), ("COMPLETED", 2)]
    calls.clear()
    other = Engine(lambda engine, batch: None)
    other.add_event_handler(Events.EPOCH_COMPLETED | Events.ITERATION_COMPLETED(every=3), mixed)
    other.run(range(4))
    assert calls == [("ITERATION_COMPLETED", 3), ("ITERATION_COMPLETED", 4)]
    calls.clear()
    third = Engine(lambda engine, batch: None)
    third.add_event_handler(Events.EPOCH_COMPLETED, lambda e: inner(e))  # called by another handler
    third.run(range(2))
    assert calls == [("ITERATION_COMPLETED", 2)]


def test_an_event_of_ones_own_is_counted_as_it_was_registered():
    def step(engine, batch):
        engine.state.num_phases += 10
        engine.fire_event(Phase.DONE)
        engine.fire_event("plain")

    engine = Engine(step)
    engine.register_events(Phase.DONE, "plain", event_to_attr={Phase.DONE: "num_phases"})
    engine.run(range(3))
    assert (count(engine, Phase.DONE), count(engine, "plain")) == (30, 3)


def test_a_step_of_what_is_no_engine_or_at_a_filtered_event_is_refused_when_it_is_asked_for():
    engine = Engine(lambda engine, batch: None)
    for wrong in (None, 3):
        with pytest.raises(UsageError, match="give an engine"):
            global_step_from_engine(wrong)
    for event in (Events.EPOCH_COMPLETED(every=2), Events.STARTED | Events.COMPLETED):
        with pytest.raises(UsageError, match="without a filter"):
            global_step_from_engine(engine, event)
