import io
import itertools

import pytest
import torch

from shoal.engine import Engine, Events

EPOCH = list(range(6))


def recording():
    seen, fired = [], []
    engine = Engine(lambda engine, batch: seen.append(batch))
    for event in Events:
        if event is not Events.EXCEPTION_RAISED:
            engine.add_event_handler(event, lambda engine, name: fired.append(name), event.name)
    return engine, seen, fired


def stopping(how):
    """A handler that calls the engine's method ``how``."""
    return lambda engine: getattr(engine, how)()


def saved_and_loaded(engine):
    """The engine's state through a file, as a new process would read it."""
    file = io.BytesIO()
    torch.save(engine.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


class Unsized:
    def __iter__(self):
        return iter(EPOCH)


class Seekable:
    """A loader that can be told where to start, as ours can."""

    def __init__(self):
        self.start = 0
        self.drawn = []
        self.epochs = []

    def __len__(self):
        return len(EPOCH)

    def set_epoch(self, epoch):
        self.epochs.append(epoch)

    def seek(self, step):
        self.start = step

    def __iter__(self):
        start, self.start = self.start, 0
        for batch in EPOCH[start:]:
            self.drawn.append(batch)
            yield batch


@pytest.mark.parametrize("stop", ["terminate", "interrupt"])
@pytest.mark.parametrize("again", ["same", "new"])
def test_a_run_that_was_stopped_goes_on_with_the_batch_that_comes_next(stop, again):
    # Trap 33.
    for make in (lambda: EPOCH, lambda: range(6), Unsized, Seekable):
        stop_and_go_on(make, stop, again)


def stop_and_go_on(make, stop, again):
    engine, seen, _ = recording()
    data = make()
    with engine.add_event_handler(Events.ITERATION_COMPLETED(once=4), stopping(stop)):
        engine.run(data, max_epochs=2)
    assert seen == [0, 1, 2, 3]
    assert (engine.state.epoch, engine.state.iteration) == (1, 4)
    state = engine.run(data if again == "same" else make(), max_epochs=2)
    assert seen == EPOCH * 2
    assert (state.epoch, state.iteration) == (2, 12)


def test_no_sample_of_an_iterator_is_lost_wherever_the_run_is_stopped():
    events = (
        Events.GET_BATCH_STARTED,
        Events.GET_BATCH_COMPLETED,
        Events.ITERATION_STARTED,
        Events.ITERATION_COMPLETED,
    )
    for event, stop in itertools.product(events, ("terminate", "interrupt")):
        engine, seen, _ = recording()
        data = iter(EPOCH)
        with engine.add_event_handler(event(once=3), stopping(stop)):
            engine.run(data)
        engine.run(data)
        assert seen == EPOCH, (event, stop)


def test_terminate_fires_terminate_and_completed_and_no_end_of_the_epoch():
    engine, _, fired = recording()
    engine.add_event_handler(Events.ITERATION_COMPLETED(once=8), lambda e: e.terminate())
    engine.run(EPOCH, max_epochs=3)
    assert fired[-3:] == ["ITERATION_COMPLETED", "TERMINATE", "COMPLETED"]
    assert fired.count("EPOCH_COMPLETED") == 1
    fired.clear()
    engine.run(EPOCH, max_epochs=3)
    assert fired[:3] == ["STARTED", "EPOCH_STARTED", "GET_BATCH_STARTED"]
    assert fired.count("EPOCH_COMPLETED") == 2


def test_terminate_may_skip_completed():
    engine, _, fired = recording()
    engine.add_event_handler(Events.ITERATION_COMPLETED(once=2), lambda e: e.terminate(skip_completed=True))
    engine.run(EPOCH)
    assert fired[-2:] == ["ITERATION_COMPLETED", "TERMINATE"]


def test_terminate_stops_after_the_event_that_it_was_called_at_whose_other_handlers_still_run():
    for event in (Events.STARTED, Events.EPOCH_STARTED, Events.ITERATION_STARTED, Events.EPOCH_COMPLETED):
        engine, seen, fired = recording()
        calls = []
        engine.add_event_handler(event, lambda e: e.terminate())
        engine.add_event_handler(event, calls.append)
        engine.run(EPOCH, max_epochs=3)
        assert len(calls) == 1
        assert fired[-3:] == [event.name, "TERMINATE", "COMPLETED"]
        assert seen == (EPOCH if event is Events.EPOCH_COMPLETED else [])


def test_terminate_by_the_process_function_finishes_the_iteration():
    engine = Engine(lambda engine, batch: engine.terminate() if batch == 2 else None)
    done = []
    engine.add_event_handler(Events.ITERATION_COMPLETED, lambda e: done.append(e.state.batch))
    engine.run(EPOCH)
    assert done == [0, 1, 2]


def test_terminate_at_an_epochs_end_goes_on_with_the_next_epoch():
    engine, seen, _ = recording()
    engine.add_event_handler(Events.EPOCH_COMPLETED(once=1), lambda e: e.terminate())
    engine.run(EPOCH, max_epochs=2)
    assert engine.run(EPOCH, max_epochs=2).epoch == 2
    assert seen == EPOCH * 2


@pytest.mark.parametrize("data", [EPOCH, Unsized()])
def test_terminate_epoch_goes_on_with_the_next_epoch_from_the_first_batch(data):
    engine, seen, fired = recording()
    steps = []
    engine.add_event_handler(Events.ITERATION_COMPLETED, lambda e: steps.append(e.state.epoch_iteration))
    engine.add_event_handler(Events.ITERATION_COMPLETED(once=2), lambda e: e.terminate_epoch())
    state = engine.run(data, max_epochs=2)
    assert seen == [0, 1, *EPOCH]
    assert steps == [1, 2, 1, 2, 3, 4, 5, 6]
    assert fired.count("EPOCH_COMPLETED") == 2
    where = fired.index("TERMINATE_SINGLE_EPOCH")
    assert fired[where + 1] == "EPOCH_COMPLETED"
    assert (state.epoch, state.iteration) == (2, 8)


def test_terminate_epoch_may_skip_the_end_of_the_epoch():
    engine, _, fired = recording()
    engine.add_event_handler(Events.ITERATION_COMPLETED(once=2), lambda e: e.terminate_epoch(skip_epoch_completed=True))
    engine.run(EPOCH, max_epochs=2)
    assert fired.count("EPOCH_COMPLETED") == 1


def test_after_an_epoch_that_was_cut_short_a_resumed_run_is_still_in_step():
    engine, _, _ = recording()
    engine.add_event_handler(Events.ITERATION_COMPLETED(once=2), lambda e: e.terminate_epoch())
    engine.add_event_handler(Events.ITERATION_COMPLETED(once=5), lambda e: e.terminate())
    engine.run(EPOCH, max_epochs=2)
    fresh, seen, _ = recording()
    fresh.load_state_dict(saved_and_loaded(engine))
    state = fresh.run(EPOCH)
    assert seen == [3, 4, 5]
    assert (state.epoch, state.iteration) == (2, 8)


def test_an_interrupted_run_goes_on_as_if_nothing_had_been():
    whole = recording()
    whole[0].run(EPOCH, max_epochs=2)
    stops = [event for event in Events if event not in (Events.EXCEPTION_RAISED, Events.COMPLETED)]
    for event in stops:
        for place in (1, 3, 6):
            engine, seen, fired = recording()
            engine.add_event_handler(event(once=place), lambda e: e.interrupt())
            engine.run(EPOCH, max_epochs=2)
            engine.run(EPOCH, max_epochs=2)
            assert seen == whole[1], event
            assert [name for name in fired if name != "INTERRUPT"] == whole[2], (event, place)


def test_an_interrupt_where_the_data_are_begun_anew_fires_nothing_twice():
    whole = recording()
    whole[0].run(EPOCH, epoch_length=10)
    engine, seen, fired = recording()
    engine.add_event_handler(Events.DATALOADER_STOP_ITERATION, lambda e: e.interrupt())
    engine.run(EPOCH, epoch_length=10)
    assert engine.state.iteration == 7
    engine.run(EPOCH, epoch_length=10)
    assert seen == whole[1]
    assert [name for name in fired if name != "INTERRUPT"] == whole[2]


def test_of_several_requests_at_one_event_the_strongest_is_served():
    for order in (("terminate", "terminate_epoch"), ("terminate_epoch", "terminate"), ("interrupt", "terminate")):
        engine, seen, fired = recording()
        for name in order:
            engine.add_event_handler(Events.ITERATION_COMPLETED(once=2), stopping(name))
        engine.run(EPOCH, max_epochs=2)
        assert fired[-2:] == ["TERMINATE", "COMPLETED"], order
        assert seen == [0, 1]


def test_interrupts_every_eleven_iterations_end_where_they_shall():
    engine, seen, fired = recording()
    engine.add_event_handler(Events.ITERATION_COMPLETED(every=11), lambda e: e.interrupt())
    places = []
    for _ in range(3):
        state = engine.run(range(10), max_epochs=3)
        places.append((state.epoch, state.iteration))
    assert places == [(2, 11), (3, 22), (3, 30)]
    assert seen == list(range(10)) * 3
    assert fired.count("INTERRUPT") == 2
    assert fired.count("STARTED") == fired.count("COMPLETED") == 1


def test_an_interrupted_run_that_is_given_other_data_uses_these():
    # Trap 35.
    engine, seen, _ = recording()
    engine.add_event_handler(Events.ITERATION_COMPLETED(once=4), lambda e: e.interrupt())
    engine.run(EPOCH, max_epochs=2)
    other = [10, 11, 12, 13, 14, 15]
    engine.run(other, max_epochs=2)
    assert seen == [0, 1, 2, 3, 14, 15, *other]


def test_a_stopped_run_can_go_on_without_naming_the_data_again():
    engine, seen, _ = recording()
    engine.add_event_handler(Events.ITERATION_COMPLETED(once=4), lambda e: e.terminate())
    engine.run(EPOCH)
    engine.run()
    assert seen == EPOCH


def test_requests_to_an_engine_that_is_not_running_say_that_they_have_no_effect(caplog):
    engine, seen, _ = recording()
    for ask in (engine.terminate, engine.terminate_epoch, engine.interrupt):
        ask()
    assert caplog.text.count("no effect") == 3
    engine.run(EPOCH)
    assert seen == EPOCH


def test_the_end_of_an_epoch_that_was_asked_for_is_kept_by_the_run_that_goes_on():
    for how in ("terminate", "interrupt"):
        for order in (("terminate_epoch", how), (how, "terminate_epoch")):
            engine, seen, fired = recording()
            for name in order:
                engine.add_event_handler(Events.ITERATION_COMPLETED(once=2), stopping(name))
            engine.run(EPOCH, max_epochs=2)
            engine.run(EPOCH, max_epochs=2)
            assert seen == [0, 1, *EPOCH], order
            assert fired.count("TERMINATE_SINGLE_EPOCH") == 1
            assert fired.count("EPOCH_COMPLETED") == 2


def test_terminate_at_an_interrupt_ends_the_run():
    engine, seen, fired = recording()
    engine.add_event_handler(Events.ITERATION_COMPLETED(once=2), lambda e: e.interrupt())
    engine.add_event_handler(Events.INTERRUPT, lambda e: e.terminate())
    engine.run(EPOCH, max_epochs=2)
    assert fired[-3:] == ["INTERRUPT", "TERMINATE", "COMPLETED"]
    engine.run(EPOCH, max_epochs=2)
    assert seen == EPOCH * 2


def test_terminate_epoch_where_an_epoch_ends_already_says_that_it_has_no_effect(caplog):
    for event in (Events.TERMINATE_SINGLE_EPOCH, Events.EPOCH_COMPLETED):
        engine, seen, _ = recording()
        caplog.clear()
        engine.add_event_handler(Events.ITERATION_COMPLETED(once=2), lambda e: e.terminate_epoch())
        engine.add_event_handler(event, lambda e: e.terminate_epoch())
        engine.run(EPOCH, max_epochs=2)
        assert seen == [0, 1, *EPOCH]
        assert "no effect" in caplog.text


def test_handlers_can_see_what_was_asked_for():
    engine, _, _ = recording()
    seen = []

    def look(engine):
        seen.append((engine.should_terminate, engine.should_terminate_single_epoch, engine.should_interrupt))

    for number, how in enumerate(("terminate_epoch", "interrupt", "terminate"), start=1):
        engine.add_event_handler(Events.ITERATION_COMPLETED(once=number), stopping(how))
    engine.add_event_handler(Events.ITERATION_COMPLETED, look)
    for _ in range(2):
        engine.run(EPOCH, max_epochs=2)
    assert seen == [(False, True, False), (False, False, True), (True, False, False)]
    look(engine)
    assert seen[-1] == (False, False, False)
