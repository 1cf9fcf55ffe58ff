import io
import itertools

import pytest
import torch

from shoal.engine import Engine, EventEnum, Events
from shoal.errors import DataError, UsageError

EPOCH = list(range(6))


class Phase(EventEnum):
    DONE = "done"


def recording():
    seen, fired = [], []
    engine = Engine(lambda engine, batch: seen.append(batch))
    for event in Events:
        if event is not Events.EXCEPTION_RAISED:
            engine.add_event_handler(event, lambda engine, name: fired.append(name), event.name)
    return engine, seen, fired


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


@pytest.mark.parametrize("make", [lambda: EPOCH, Unsized, Seekable, lambda: iter(EPOCH * 3)])
def test_a_state_saved_anywhere_goes_on_in_a_new_process_with_the_samples_not_yet_seen(make):
    # Trap 34: also of loaders without a length and of iterators.
    for stopped_at, event in itertools.product(range(1, 18), (Events.ITERATION_STARTED, Events.ITERATION_COMPLETED)):
        save_at_and_go_on(make, stopped_at, event)


def save_at_and_go_on(make, stopped_at, event):
    options = {} if not hasattr(make(), "__next__") else {"epoch_length": 6}
    engine, seen, _ = recording()
    states = []
    engine.add_event_handler(event(once=stopped_at), lambda e: (states.append(saved_and_loaded(e)), e.terminate()))
    engine.run(make(), max_epochs=3, **options)
    fresh, rest, fired = recording()
    fresh.load_state_dict(states[0])
    state = fresh.run(make(), max_epochs=3)
    assert seen + rest == EPOCH * 3
    assert (state.epoch, state.iteration) == (3, 18)
    done = stopped_at - (event is Events.ITERATION_STARTED)
    ended = (done - (event is Events.ITERATION_COMPLETED)) // 6
    assert fired.count("EPOCH_COMPLETED") == 3 - ended


@pytest.mark.parametrize("event", [Events.EPOCH_STARTED, Events.EPOCH_COMPLETED])
def test_a_state_saved_at_the_edge_of_an_epoch_repeats_and_loses_nothing(event):
    engine, _, _ = recording()
    states = []
    engine.add_event_handler(event, lambda e: states.append(saved_and_loaded(e)))
    engine.run(EPOCH, max_epochs=3)
    for epoch in (1, 2):
        fresh, seen, fired = recording()
        fresh.load_state_dict(states[epoch - 1])
        fresh.run(EPOCH, max_epochs=3)
        left = 3 - epoch + (event is Events.EPOCH_STARTED)
        assert seen == EPOCH * left
        assert fired.count("EPOCH_STARTED") == fired.count("EPOCH_COMPLETED") == left


def test_a_loader_that_can_seek_draws_nothing_twice_and_is_told_its_epoch():
    engine, _, _ = recording()
    engine.add_event_handler(Events.ITERATION_COMPLETED(once=10), lambda e: e.terminate())
    engine.run(Seekable(), max_epochs=3)
    loader = Seekable()
    fresh, _, _ = recording()
    fresh.load_state_dict(engine.state_dict())
    fresh.run(loader, max_epochs=3)
    assert loader.drawn == [4, 5, *EPOCH]
    assert loader.epochs == [1, 2]


@pytest.mark.parametrize("epoch_length", [4, 9])
def test_epochs_of_another_length_than_the_data_resume_at_the_right_place_in_these(epoch_length):
    engine, seen, _ = recording()
    states = []
    engine.add_event_handler(Events.ITERATION_COMPLETED, lambda e: states.append(e.state_dict()))
    engine.run(EPOCH, max_epochs=5, epoch_length=epoch_length)
    for done, state in enumerate(states, start=1):
        fresh, rest, _ = recording()
        fresh.load_state_dict(state)
        fresh.run(EPOCH, max_epochs=5)
        assert seen[:done] + rest == seen


def test_max_epochs_can_be_extended_in_place_and_after_loading():
    engine, seen, _ = recording()
    engine.run(EPOCH, max_epochs=2)
    fresh, more, _ = recording()
    fresh.load_state_dict(saved_and_loaded(engine))
    for one, own in ((engine, seen), (fresh, more)):
        state = one.run(EPOCH, max_epochs=3)
        assert (state.epoch, state.iteration) == (3, 18)
        assert own[-6:] == EPOCH
    assert len(seen) == 18
    assert len(more) == 6


def test_a_finished_run_asked_for_the_same_goal_does_nothing_and_says_so(caplog):
    engine, seen, fired = recording()
    engine.run(EPOCH, max_epochs=2)
    fresh, more, also_fired = recording()
    fresh.load_state_dict(saved_and_loaded(engine))
    fired.clear()
    for one in (engine, fresh):
        caplog.clear()
        assert one.run(EPOCH, max_epochs=2).epoch == 2
        assert "nothing to do: max_epochs=2 is reached" in caplog.text
    caplog.clear()
    fresh.run(EPOCH)
    assert "nothing to do" in caplog.text
    assert fired == also_fired == more == []
    assert len(seen) == 12


def test_a_single_pass_is_done_anew_each_time_and_whatever_finished_too_where_no_goal_is_given():
    engine, seen, _ = recording()
    for options in ({}, {"max_epochs": 1}, {}):
        state = engine.run(EPOCH, **options)
        assert (state.epoch, state.iteration) == (1, 6)
    assert engine.run([7]).epoch_length == 1
    assert seen == [*(EPOCH * 3), 7]
    engine.run(EPOCH, max_epochs=2)
    assert engine.run(EPOCH).iteration == 6


def test_max_epochs_none_in_the_state_starts_from_nothing():
    engine, seen, _ = recording()
    engine.run(EPOCH, max_epochs=2)
    engine.state.max_epochs = None
    assert engine.run(EPOCH, max_epochs=2).iteration == 12
    assert len(seen) == 24
    for expected in (10, 20):  # by iterations
        engine.state.max_epochs = None
        seen.clear()
        assert engine.run(EPOCH, max_iters=expected).iteration == len(seen) == expected
    engine.state.max_epochs = None
    assert engine.run(EPOCH, max_iters=20).iteration == 20
    assert len(seen) == 40


def test_a_goal_that_lies_behind_is_refused():
    engine, _, _ = recording()
    engine.run(EPOCH, max_epochs=3)
    with pytest.raises(UsageError, match="max_epochs=2 in epoch 3"):
        engine.run(EPOCH, max_epochs=2)
    other, _, _ = recording()
    other.run(EPOCH, max_iters=10)
    with pytest.raises(UsageError, match="max_iters=9 after iteration 10"):
        other.run(EPOCH, max_iters=9)


def test_a_run_by_iterations_can_be_extended_and_resumed():
    engine, seen, fired = recording()
    engine.run(EPOCH, max_iters=8)
    fresh, rest, _ = recording()
    fresh.load_state_dict(saved_and_loaded(engine))
    fresh.run(EPOCH, max_iters=12)
    engine.run(EPOCH, max_iters=12)
    assert seen == EPOCH * 2
    assert rest == EPOCH[2:]
    assert fired.count("EPOCH_COMPLETED") == 2


def test_another_epoch_length_is_taken_between_epochs_and_refused_in_one():
    engine, seen, _ = recording()
    engine.run(EPOCH, max_epochs=1)
    engine.run(range(3), max_epochs=2)
    assert seen == [*EPOCH, 0, 1, 2]
    assert engine.state.epoch_length == 3
    other, _, _ = recording()
    other.add_event_handler(Events.ITERATION_COMPLETED(once=2), lambda e: e.terminate())
    other.run(EPOCH)
    with pytest.raises(UsageError, match="middle of an epoch of 6"):
        other.run(EPOCH, epoch_length=4)


def test_data_that_end_before_the_place_to_go_on_at_are_an_error():
    engine, _, _ = recording()
    engine.add_event_handler(Events.ITERATION_COMPLETED(once=5), lambda e: e.terminate())
    engine.run(Unsized())
    with pytest.raises(DataError, match="after batch 5 of the data, which ended after 3"):
        engine.run(itertools.islice(range(100), 3))


def test_user_keys_travel_with_the_state():
    engine, _, _ = recording()
    engine.state_dict_user_keys.append("best")
    with pytest.raises(UsageError, match="best"):
        engine.state_dict()
    engine.state.best = 0.75
    fresh, _, _ = recording()
    with pytest.raises(UsageError, match="unknown key 'best'"):
        fresh.load_state_dict(engine.state_dict())
    fresh.state_dict_user_keys.append("best")
    fresh.load_state_dict(engine.state_dict())
    assert fresh.state.best == 0.75
    with pytest.raises(UsageError, match=r"lacks the keys \['best'\]"):
        fresh.load_state_dict(recording()[0].state_dict())


def test_a_state_of_few_keys_is_understood():
    for state_dict in (
        {"iteration": 10, "epoch_length": 6, "max_epochs": 2},
        {"iteration": 10, "epoch_length": 6, "max_iters": 12},
    ):
        engine, seen, _ = recording()
        engine.load_state_dict(state_dict)
        assert engine.state.epoch == 2
        engine.run(EPOCH)
        assert seen == [4, 5]
    engine, seen, _ = recording()
    engine.load_state_dict({"epoch": 1, "epoch_length": 6, "max_epochs": 2})
    engine.run(EPOCH)
    assert seen == EPOCH
    assert engine.state.iteration == 12


def test_what_is_no_state_of_an_engine_is_refused():
    for state_dict in (
        {"iteration": 3, "epoch_length": 6},
        {"max_epochs": 3},
        {"epoch": 3, "max_epochs": 3},
        {"iterations": 3, "max_epochs": 3},
        [("iteration", 3)],
    ):
        with pytest.raises(UsageError, match=r"state"):
            recording()[0].load_state_dict(state_dict)


@pytest.mark.parametrize(
    "wrong",
    [
        {"iteration": -1}, {"iteration": 2.0}, {"iteration": "8"}, {"iteration": float("nan")}, {"iteration": True},
        {"iteration": torch.tensor(8)}, {"epoch": -1}, {"epoch_length": 0}, {"max_epochs": "3"}, {"max_iters": 2.5},
        {"epoch_iteration": 9}, {"data_iteration": -1}, {"data_epoch": -2}, {"in_epoch": "yes"}, {"data_ended": 3},
        {"epoch_ending": "later"}, {"epoch_length_from": "somewhere"}, {"event_counts": [1]},
        {"event_counts": {"Phase.DONE": "1"}},
    ],
)  # fmt: skip
def test_a_state_with_a_value_that_no_run_has_is_refused_by_its_name_before_anything_changes(wrong):
    engine, _, _ = recording()
    engine.add_event_handler(Events.ITERATION_COMPLETED(once=8), lambda e: e.terminate())
    engine.run(EPOCH, max_epochs=3)
    state_dict = saved_and_loaded(engine)
    other, seen, _ = recording()
    (key,) = wrong
    with pytest.raises(UsageError, match=f"state has {key}="):
        other.load_state_dict({**state_dict, **wrong})
    assert other.state_dict() == recording()[0].state_dict()
    other.load_state_dict(state_dict)
    other.run(EPOCH)
    assert seen == [2, 3, 4, 5, *EPOCH]


def test_an_engine_that_never_ran_can_be_saved_and_loaded():
    engine, seen, _ = recording()
    engine.load_state_dict(saved_and_loaded(recording()[0]))
    engine.run(EPOCH, max_epochs=2)
    assert seen == EPOCH * 2
    assert engine.state.epoch_length == 6


def test_filters_of_own_events_go_on_counting_in_another_process(caplog):
    def counting():
        engine = Engine(lambda engine, batch: engine.fire_event("plain"))
        engine.register_events("plain")
        calls = []
        engine.add_event_handler(Events.ITERATION_COMPLETED(once=4), lambda e: e.terminate())
        engine.register_events(Phase.DONE)
        engine.add_event_handler(Phase.DONE(every=4), lambda e: calls.append(e.state.iteration))
        engine.add_event_handler("plain", lambda e: e.fire_event(Phase.DONE))
        return engine, calls

    engine, calls = counting()
    engine.run(EPOCH, max_epochs=2)
    fresh, more = counting()
    fresh.load_state_dict(saved_and_loaded(engine))
    fresh.run(EPOCH, max_epochs=2)
    assert calls + more == [4, 8, 12]
    recording()[0].load_state_dict(saved_and_loaded(engine))
    assert "counts plain, Phase.DONE, which this engine doesn't know" in caplog.text


def test_an_iterator_goes_on_after_an_epoch_that_was_cut_short_also_in_another_process():
    engine, seen, _ = recording()
    engine.add_event_handler(Events.ITERATION_COMPLETED(once=2), lambda e: e.terminate_epoch())
    engine.add_event_handler(Events.ITERATION_COMPLETED(once=4), lambda e: e.terminate())
    engine.run(iter(range(20)), max_epochs=2, epoch_length=5)
    fresh, rest, _ = recording()
    fresh.load_state_dict(saved_and_loaded(engine))
    fresh.run(iter(range(20)), max_epochs=2)
    assert seen + rest == list(range(7))


@pytest.mark.parametrize("later", [Events.STARTED, Events.EPOCH_STARTED])
@pytest.mark.parametrize("how", ["terminate", "interrupt"])
def test_a_resumed_run_that_is_left_before_its_first_batch_keeps_its_place(later, how):
    engine, seen, _ = recording()
    engine.add_event_handler(Events.ITERATION_COMPLETED(once=4), lambda e: e.terminate())
    engine.run(EPOCH, max_epochs=2)
    fresh, rest, _ = recording()
    fresh.load_state_dict(saved_and_loaded(engine))
    states = []
    with fresh.add_event_handler(later, lambda e: (states.append(saved_and_loaded(e)), getattr(e, how)())):
        assert fresh.run(EPOCH, max_epochs=2).iteration == 4
    assert states[0]["iteration"] == 4
    fresh.run(EPOCH, max_epochs=2)
    assert seen + rest == EPOCH * 2


def test_a_state_saved_where_an_epoch_begins_after_one_that_was_cut_short_begins_the_data():
    engine, _, _ = recording()
    states = []
    engine.add_event_handler(Events.ITERATION_COMPLETED(once=2), lambda e: e.terminate_epoch())
    engine.add_event_handler(Events.EPOCH_STARTED(once=2), lambda e: states.append(saved_and_loaded(e)))
    engine.run(EPOCH, max_epochs=2)
    fresh, rest, _ = recording()
    fresh.load_state_dict(states[0])
    fresh.run(EPOCH, max_epochs=2)
    assert rest == EPOCH
