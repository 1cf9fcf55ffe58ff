"""Requests and exceptions at each of the 13 events: what is fired, and where the next run goes on."""

import itertools

import pytest

from shoal.engine import Engine, Events

EPOCH = [0, 1, 2, 3]
BRINGS = {  # events that need a request at an iteration
    Events.TERMINATE: "terminate",
    Events.INTERRUPT: "interrupt",
    Events.TERMINATE_SINGLE_EPOCH: "terminate_epoch",
}
PLACES = list(itertools.product([event for event in Events if event is not Events.EXCEPTION_RAISED], (1, 2, 3, 7)))


class Broken(Exception):
    pass


def recording(event=None):
    """An engine with its batches and events; one that comes to ``event``."""
    seen, fired = [], []
    engine = Engine(lambda engine, batch: seen.append(batch))
    for each in Events:
        engine.add_event_handler(each, lambda *_, name: fired.append(name), name=each.name)
    if event in BRINGS:
        engine.add_event_handler(Events.ITERATION_COMPLETED(once=3), lambda e: getattr(e, BRINGS[event])())
    return engine, seen, fired


def run(engine, event):
    """Three epochs; with a pass over the data that ends within an epoch where that is the event."""
    return engine.run(EPOCH, max_epochs=3, epoch_length=5 if event is Events.DATALOADER_STOP_ITERATION else None)


def undisturbed(event):
    engine, seen, fired = recording(event)
    run(engine, event)
    while engine.state.epoch < 3 or fired[-1] != "COMPLETED":
        run(engine, event)
    return seen, fired


def asking(what, number):
    """A handler that asks once, at its call of that number."""
    calls = itertools.count(1)

    def ask(engine):
        if next(calls) == number:
            what(engine)

    return ask


@pytest.mark.parametrize(("event", "number"), PLACES)
def test_a_run_that_is_terminated_at_any_event_goes_on_with_the_batch_that_comes_next(event, number):
    engine, seen, fired = recording(event)
    engine.add_event_handler(event, asking(lambda e: e.terminate(), number))
    run(engine, event)
    happened = fired.count(event.name) >= number
    if happened and event is not Events.COMPLETED:
        where = {"TERMINATE_SINGLE_EPOCH": ["TERMINATE_SINGLE_EPOCH", "EPOCH_COMPLETED"], "TERMINATE": []}
        assert fired[-2 - len(where.get(event.name, [1])) :] == [
            *where.get(event.name, [event.name]), "TERMINATE", "COMPLETED",
        ]  # fmt: skip
    for _ in range(3):
        run(engine, event)
    assert seen == undisturbed(event)[0]
    assert engine.state.iteration == len(seen)


@pytest.mark.parametrize(("event", "number"), PLACES)
def test_a_run_that_is_interrupted_at_any_event_fires_no_event_twice(event, number):
    engine, seen, fired = recording(event)
    engine.add_event_handler(event, asking(lambda e: e.interrupt(), number))
    for _ in range(3):
        run(engine, event)
    whole = undisturbed(event)
    assert seen == whole[0]
    assert [name for name in fired if name != "INTERRUPT"] == [name for name in whole[1] if name != "INTERRUPT"]
    assert fired.count("COMPLETED") == fired.count("STARTED") == whole[1].count("COMPLETED")


@pytest.mark.parametrize(("event", "number"), PLACES)
def test_an_epoch_that_is_ended_at_any_event_ends_once_and_the_next_begins_the_data(event, number):
    engine, seen, fired = recording(event)
    ended = []
    engine.add_event_handler(event, asking(lambda e: (e.terminate_epoch(), ended.append(e.state.epoch)), number))
    for _ in range(3):
        run(engine, event)
    assert engine.state.epoch == 3
    assert fired.count("EPOCH_COMPLETED") == 3
    # At INTERRUPT and TERMINATE the next run serves it.
    no_epoch = event in (Events.STARTED, Events.EPOCH_COMPLETED, Events.COMPLETED)
    expected = event is Events.TERMINATE_SINGLE_EPOCH or (bool(ended) and not no_epoch)
    assert fired.count("TERMINATE_SINGLE_EPOCH") == expected
    if not expected:
        assert seen == undisturbed(event)[0]


@pytest.mark.parametrize(("event", "number"), PLACES)
def test_an_exception_at_any_event_is_raised_and_the_next_run_goes_on(event, number):
    def fail(engine):
        raise Broken

    engine, seen, fired = recording(event)
    engine.add_event_handler(event, asking(fail, number))
    for _ in range(4):
        if fired.count(event.name) < number:
            try:
                run(engine, event)
            except Broken:
                assert fired.count("EXCEPTION_RAISED") == 1
                assert fired[-1] == "EXCEPTION_RAISED"
        else:
            run(engine, event)
    assert seen == undisturbed(event)[0]
    assert (engine.state.epoch, engine.state.iteration) == (3, len(seen))


def test_an_exception_in_a_handler_of_exceptions_leaves_the_first_one_and_the_place():
    engine, seen, _ = recording()

    @engine.on(Events.ITERATION_STARTED(once=6))
    def fail(engine):
        engine.remove_event_handler(fail, Events.ITERATION_STARTED)
        raise Broken("the first")

    @engine.on(Events.EXCEPTION_RAISED)
    def fail_too(engine, error):
        raise OSError("the second")

    with pytest.raises(Broken, match="the first"):
        run(engine, None)
    run(engine, None)
    assert seen == EPOCH * 3
