import re

import pytest

from shoal.engine import Engine, EventEnum, Events, FilteredEvent
from shoal.errors import HandlerSignatureError, UsageError


def do_nothing(engine, batch):
    return None


def occurrences(chosen, *, data=range(10), max_epochs=5):
    """The counts at which ``chosen`` called a handler."""
    engine = Engine(do_nothing)
    counts = []
    event = chosen.event if isinstance(chosen, FilteredEvent) else chosen
    count = {
        Events.EPOCH_STARTED: lambda state: state.epoch,
        Events.EPOCH_COMPLETED: lambda state: state.epoch,
        Events.GET_BATCH_COMPLETED: lambda state: state.iteration + 1,
    }.get(event, lambda state: state.iteration)
    engine.add_event_handler(chosen, lambda e: counts.append(count(e.state)))
    engine.run(data, max_epochs=max_epochs)
    return counts


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (Events.EPOCH_COMPLETED, [1, 2, 3, 4, 5]),
        (Events.EPOCH_COMPLETED(every=2), [2, 4]),
        (Events.ITERATION_COMPLETED(every=15), [15, 30, 45]),
        (Events.ITERATION_STARTED(every=1, before=3), [1, 2]),
        (Events.ITERATION_STARTED(once=7), [7]),
        (Events.ITERATION_STARTED(once=[7, 30, 99]), [7, 30]),
        (Events.ITERATION_STARTED(before=4), [1, 2, 3]),
        (Events.ITERATION_STARTED(after=47), [48, 49, 50]),
        (Events.ITERATION_STARTED(after=8, before=11), [9, 10]),
        (Events.ITERATION_STARTED(every=5, after=8, before=25), [9, 14, 19, 24]),
        (Events.EPOCH_COMPLETED(every=2, after=1, before=5), [2, 4]),
        (Events.EPOCH_STARTED(event_filter=lambda engine, count: count in (1, 4)), [1, 4]),
        (Events.GET_BATCH_COMPLETED(lambda engine, count: count == 3), [3]),
        (Events.GET_BATCH_COMPLETED(every=20), [20, 40]),
    ],
)
def test_a_filter_picks_its_occurrences(chosen, expected):
    assert occurrences(chosen) == expected


def test_a_filter_that_cannot_work_is_refused_with_its_event_named():
    for options in (
        {},
        {"every": 0},
        {"every": -1},
        {"every": 1.5},
        {"every": True},
        {"once": 0},
        {"once": []},
        {"once": [1, "2"]},
        {"before": -1},
        {"after": "3"},
        {"once": 1, "every": 2},
        {"event_filter": lambda e, c: True, "every": 2},
        {"event_filter": lambda e: True},
        {"event_filter": 3},
    ):
        with pytest.raises(UsageError, match="ITERATION_STARTED"):
            Events.ITERATION_STARTED(**options)


def test_joined_events_and_filters_each_call_the_handler():
    engine = Engine(do_nothing)
    calls = []
    chosen = Events.STARTED | Events.EPOCH_COMPLETED(every=3) | Events.COMPLETED | Events.ITERATION_STARTED(once=[1, 2])
    engine.add_event_handler(chosen, lambda e: calls.append((e.state.epoch, e.state.iteration)))
    engine.run(range(2), max_epochs=5)
    assert calls == [(0, 0), (1, 1), (1, 2), (3, 6), (5, 10)]


def test_validation_every_third_epoch_and_at_the_end_runs_twice_where_both_fall_together():
    engine = Engine(do_nothing)
    epochs = []
    engine.add_event_handler(Events.EPOCH_COMPLETED(every=3) | Events.COMPLETED, lambda e: epochs.append(e.state.epoch))
    engine.run(range(2), max_epochs=6)
    assert epochs == [3, 6, 6]


def test_handlers_are_called_in_the_order_of_attaching_with_their_arguments():
    engine = Engine(do_nothing)
    calls = []

    @engine.on(Events.COMPLETED, 1, name="a")
    def with_engine(engine, number, name):
        calls.append((engine.state.epoch, number, name))

    @engine.on(Events.COMPLETED, 2, name="b")
    def without_engine(number, name):
        calls.append((number, name))

    @engine.on(Events.COMPLETED)
    def alone():
        calls.append(())

    @engine.on(Events.COMPLETED, 3)
    def anything(*args, **kwargs):
        calls.append((args[0] is engine, args[1:], kwargs))

    engine.run(range(1))
    assert calls == [(1, 1, "a"), (2, "b"), (), (True, (3,), {})]


class Recorder:
    def __init__(self):
        self.calls = 0

    def __call__(self, engine):
        self.calls += 1

    def method(self):
        self.calls += 10


def test_callable_objects_bound_methods_and_builtins_are_handlers():
    engine, recorder, listed = Engine(do_nothing), Recorder(), []
    engine.add_event_handler(Events.STARTED, recorder)
    engine.add_event_handler(Events.STARTED, recorder.method)
    engine.add_event_handler(Events.STARTED, listed.append)
    engine.run(range(1))
    assert recorder.calls == 11
    assert listed == [engine]
    assert engine.has_event_handler(recorder.method, Events.STARTED)
    assert engine.has_event_handler(recorder)
    assert not engine.has_event_handler(Recorder().method)


@pytest.mark.parametrize(
    ("event", "args", "kwargs"),
    [
        (Events.STARTED, (1,), {}),
        (Events.ITERATION_COMPLETED(every=2), (), {"missing": 1}),
        (Events.STARTED | Events.COMPLETED, (1, 2), {}),
        (Events.EXCEPTION_RAISED, (1,), {}),
    ],
)
def test_a_handler_that_does_not_fit_is_refused_when_attached_with_its_name_and_place(event, args, kwargs):
    # Trap 38.
    def picky(engine, a, b, c):
        raise AssertionError

    engine = Engine(do_nothing)
    place = rf"picky \({re.escape(__file__)}:{picky.__code__.co_firstlineno}\)"
    with pytest.raises(HandlerSignatureError, match=place) as caught:
        engine.add_event_handler(event, picky, *args, **kwargs)
    assert "Events." in str(caught.value)
    assert isinstance(caught.value, TypeError)
    assert not engine.has_event_handler(picky)


def test_what_is_not_callable_or_no_event_is_refused():
    engine = Engine(do_nothing)
    with pytest.raises(UsageError, match="callable"):
        engine.add_event_handler(Events.STARTED, "handler")
    with pytest.raises(UsageError, match="register_events"):
        engine.add_event_handler("unknown", lambda: None)
    with pytest.raises(UsageError, match="register_events"):
        engine.fire_event("unknown")


def test_a_process_function_that_does_not_fit_is_refused():
    with pytest.raises(HandlerSignatureError, match="only_batch"):

        def only_batch(batch):
            return batch

        Engine(only_batch)
    with pytest.raises(UsageError, match="function"):
        Engine(None)


def test_handlers_can_be_removed_by_name_by_handle_and_by_a_with_block():
    engine = Engine(do_nothing)
    calls = []

    def first():
        calls.append("first")

    def second():
        calls.append("second")

    engine.add_event_handler(Events.STARTED(every=1) | Events.COMPLETED, first)
    engine.remove_event_handler(first, Events.STARTED)
    handle = engine.add_event_handler(Events.STARTED | Events.COMPLETED, second)
    with engine.add_event_handler(Events.STARTED, first):
        engine.run(range(1))
    assert calls == ["second", "first", "first", "second"]
    handle.remove()
    handle.remove()
    calls.clear()
    engine.run(range(1))
    assert calls == ["first"]
    assert engine.has_event_handler(first, Events.COMPLETED)
    assert not engine.has_event_handler(first, Events.STARTED | Events.COMPLETED)
    with pytest.raises(UsageError, match="not attached"):
        engine.remove_event_handler(second, Events.STARTED)


def test_a_handle_removes_only_what_it_attached():
    engine = Engine(do_nothing)
    calls = []

    def handler():
        calls.append(1)

    engine.add_event_handler(Events.STARTED, handler)
    with engine.add_event_handler(Events.STARTED, handler):
        engine.run(range(1))
    engine.run(range(1))
    assert len(calls) == 3


def test_handlers_attached_and_removed_by_a_running_handler_count_from_the_next_firing():
    engine = Engine(do_nothing)
    calls = []

    def late(engine):
        calls.append(("late", engine.state.iteration))

    @engine.on(Events.ITERATION_COMPLETED)
    def change(engine):
        calls.append(("change", engine.state.iteration))
        if engine.state.iteration == 2:
            engine.add_event_handler(Events.ITERATION_COMPLETED, late)
            engine.remove_event_handler(change, Events.ITERATION_COMPLETED)

    engine.run(range(4))
    assert calls == [("change", 1), ("change", 2), ("late", 3), ("late", 4)]


class Backprop(EventEnum):
    BACKWARD_STARTED = "backward_started"
    BACKWARD_COMPLETED = "backward_completed"


def test_own_events_are_counted_by_their_attribute_or_by_firings_and_known_to_one_engine_only():
    def step(engine, batch):
        engine.fire_event(Backprop.BACKWARD_STARTED)
        engine.state.num_backward += 2
        engine.fire_event(Backprop.BACKWARD_COMPLETED)
        engine.fire_event("plain")

    engine, other = Engine(step), Engine(do_nothing)
    engine.register_events(*Backprop, event_to_attr={Backprop.BACKWARD_COMPLETED: "num_backward"})
    engine.register_events("plain")
    calls = []
    engine.add_event_handler(Backprop.BACKWARD_STARTED(every=3), lambda e: calls.append(("s", e.state.iteration)))
    engine.add_event_handler(Backprop.BACKWARD_COMPLETED(once=8), lambda e: calls.append(("c", e.state.iteration)))
    engine.add_event_handler("plain", lambda e: calls.append(("p", e.state.iteration)))
    assert engine.state.num_backward == 0
    engine.run(range(4))
    assert calls == [("p", 1), ("p", 2), ("s", 3), ("p", 3), ("c", 4), ("p", 4)]
    assert engine.has_registered_events(Backprop.BACKWARD_STARTED)
    assert not other.has_registered_events(Backprop.BACKWARD_STARTED)
    assert not hasattr(other.state, "num_backward")
    with pytest.raises(UsageError):
        other.add_event_handler(Backprop.BACKWARD_STARTED(every=3), do_nothing)
    with pytest.raises(UsageError, match="EventEnum"):
        engine.register_events(3)


def test_an_engine_tells_the_count_of_an_event_and_which_one_its_handlers_are_called_at():
    engine, names = Engine(lambda engine, batch: engine.fire_event(Backprop.BACKWARD_STARTED)), []
    engine.register_events(*Backprop)
    assert engine.last_event_name is None
    assert engine.event_count(Events.ITERATION_COMPLETED) == 0

    def look(engine):
        names.append(engine.last_event_name.name)

    for event in (Events.EPOCH_STARTED, Events.GET_BATCH_STARTED, Events.ITERATION_COMPLETED, *Backprop):
        engine.add_event_handler(event, look)
    engine.add_event_handler(Events.EPOCH_COMPLETED, lambda e: e.fire_event(Backprop.BACKWARD_COMPLETED))
    engine.add_event_handler(Events.EPOCH_COMPLETED, look)  # after one that fired another event
    engine.run([1])
    assert names == [
        "EPOCH_STARTED", "GET_BATCH_STARTED", "BACKWARD_STARTED", "ITERATION_COMPLETED",
        "BACKWARD_COMPLETED", "EPOCH_COMPLETED",
    ]  # fmt: skip
    assert engine.last_event_name is Events.COMPLETED
    assert engine.event_count(Events.EPOCH_COMPLETED) == 1
    assert engine.event_count(Backprop.BACKWARD_STARTED) == 1
    with pytest.raises(UsageError, match="register_events"):
        engine.event_count("unknown")


class Phases(EventEnum):
    """Another enum whose values are those of ``Backprop`` and of ``Events``."""

    BACKWARD_STARTED = "backward_started"
    STARTED = "started"


def test_enums_that_share_names_and_values_are_events_apart():
    one, other = Engine(do_nothing), Engine(do_nothing)
    one.register_events(*Backprop)
    other.register_events(*Phases)
    with pytest.raises(UsageError):
        one.add_event_handler(Phases.BACKWARD_STARTED, do_nothing)
    with pytest.raises(UsageError):
        other.fire_event(Backprop.BACKWARD_STARTED)
    one.register_events(*Phases, "started")
    calls = []
    for event in (Events.STARTED, Phases.STARTED, Phases.BACKWARD_STARTED, Backprop.BACKWARD_STARTED, "started"):
        one.add_event_handler(event, lambda event: calls.append(event), event)
    for event in (Phases.STARTED, Backprop.BACKWARD_STARTED, "started"):
        one.fire_event(event)
    assert calls == [Phases.STARTED, Backprop.BACKWARD_STARTED, "started"]
    assert one.event_count(Phases.BACKWARD_STARTED) == 0
