import logging
import pickle

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from shoal.engine import Engine, Events
from shoal.errors import DataError, UsageError

QUIET = (Events.EXCEPTION_RAISED,)


def recording():
    """An engine, its batches, and the names of the events that it fires."""
    seen, fired = [], []
    engine = Engine(lambda engine, batch: seen.append(batch))
    for event in Events:
        if event not in QUIET:
            engine.add_event_handler(event, lambda engine, name: fired.append(name), event.name)
    return engine, seen, fired


ITERATION = ["GET_BATCH_STARTED", "GET_BATCH_COMPLETED", "ITERATION_STARTED", "ITERATION_COMPLETED"]


def test_events_fire_in_the_documented_order():
    engine, seen, fired = recording()
    state = engine.run([10, 11], max_epochs=2)
    epoch = ["EPOCH_STARTED", *ITERATION, *ITERATION, "EPOCH_COMPLETED"]
    assert fired == ["STARTED", *epoch, *epoch, "COMPLETED"]
    assert seen == [10, 11, 10, 11]
    assert (state.epoch, state.iteration, state.epoch_length, state.max_epochs) == (2, 4, 2, 2)
    assert state is engine.state


def test_the_state_is_right_at_each_event():
    engine = Engine(lambda engine, batch: batch * 2)
    places = []
    for event in (Events.GET_BATCH_STARTED, Events.ITERATION_STARTED, Events.ITERATION_COMPLETED):
        engine.add_event_handler(
            event,
            lambda e, name: places.append(
                (name, e.state.epoch, e.state.iteration, e.state.epoch_iteration, e.state.batch, e.state.output)
            ),
            event.name,
        )
    engine.run([5, 6], max_epochs=2)
    assert places[:3] == [
        ("GET_BATCH_STARTED", 1, 0, 0, None, None),
        ("ITERATION_STARTED", 1, 1, 1, 5, None),
        ("ITERATION_COMPLETED", 1, 1, 1, 5, 10),
    ]
    assert places[-1] == ("ITERATION_COMPLETED", 2, 4, 2, 6, 12)


def test_a_handler_may_replace_the_batch():
    engine, seen, _ = recording()

    @engine.on(Events.GET_BATCH_COMPLETED)
    def shift(engine):
        engine.state.batch += 100

    @engine.on(Events.ITERATION_STARTED)
    def double(engine):
        engine.state.batch *= 2

    engine.run(range(3))
    assert seen == [200, 202, 204]


def test_without_data_each_batch_is_none_for_the_length_of_an_epoch():
    engine, seen, _ = recording()
    state = engine.run(epoch_length=3, max_epochs=2)
    assert seen == [None] * 6
    assert state.iteration == 6
    with pytest.raises(UsageError, match="epoch_length"):
        recording()[0].run()


def test_an_epoch_longer_than_the_data_begins_them_anew_and_says_so():
    engine, seen, fired = recording()
    engine.run(range(3), max_epochs=2, epoch_length=5)
    assert seen == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
    assert fired.count("DATALOADER_STOP_ITERATION") == 3
    assert fired.count("GET_BATCH_STARTED") == fired.count("GET_BATCH_COMPLETED") == 10


def test_an_epoch_shorter_than_the_data_goes_on_where_the_last_one_ended():
    engine, seen, fired = recording()
    places = []
    engine.add_event_handler(Events.ITERATION_COMPLETED, lambda e: places.append(e.state.batch_index))
    engine.run(range(5), max_epochs=4, epoch_length=2)
    assert seen == places == [0, 1, 2, 3, 4, 0, 1, 2]
    assert fired.count("EPOCH_COMPLETED") == 4


class Unsized:
    """Data without a length; each pass may give another number of batches."""

    def __init__(self, *lengths):
        self.lengths = lengths
        self.passes = 0

    def __iter__(self):
        length = self.lengths[self.passes % len(self.lengths)]
        self.passes += 1
        return iter(range(length))


def test_data_without_a_length_give_an_epoch_a_pass_whatever_their_number():
    engine, seen, fired = recording()
    lengths = []
    engine.add_event_handler(Events.EPOCH_COMPLETED, lambda e: lengths.append(e.state.epoch_length))
    engine.run(Unsized(3, 2, 4), max_epochs=3)
    assert seen == [0, 1, 2, 0, 1, 0, 1, 2, 3]
    assert lengths == [3, 2, 4]
    assert "DATALOADER_STOP_ITERATION" not in fired


def test_a_generator_is_an_epoch_and_then_has_no_more(caplog):
    engine, seen, fired = recording()
    state = engine.run((i for i in range(3)), max_epochs=2)
    assert seen == [0, 1, 2]
    assert fired.count("EPOCH_COMPLETED") == 1
    assert fired[-1] == "COMPLETED"
    assert state.epoch_length == 3
    assert "cannot be iterated anew" in caplog.text


def test_a_generator_can_be_replaced_when_it_has_no_more():
    for how in ("set_data", "dataloader"):
        engine, seen, fired = recording()

        @engine.on(Events.DATALOADER_STOP_ITERATION)
        def renew(engine, how=how):
            fresh = (i for i in range(10, 13))
            if how == "set_data":
                engine.set_data(fresh)
            else:
                engine.state.dataloader = fresh

        engine.run((i for i in range(3)), max_epochs=3)
        assert seen == [0, 1, 2, 10, 11, 12, 10, 11, 12]
        assert fired.count("DATALOADER_STOP_ITERATION") == 2


def test_an_endless_iterator_with_an_epoch_length_is_never_restarted():
    engine, seen, _ = recording()
    counter = iter(range(10**9))
    engine.run(counter, max_epochs=3, epoch_length=4)
    assert seen == list(range(12))


def test_set_data_takes_the_next_batch_from_the_new_data():
    engine, seen, _ = recording()

    @engine.on(Events.ITERATION_COMPLETED(once=2))
    def change(engine):
        engine.set_data([100, 101])

    engine.run(range(5))
    assert seen == [0, 1, 100, 101, 100]


@pytest.mark.parametrize("data", [[], range(0), Unsized(0), (i for i in ())])
def test_data_without_a_batch_are_an_error(data):
    for options in ({}, {"max_iters": 5}, {"max_epochs": 3}):
        with pytest.raises(DataError, match=r"no batch|length 0"):
            recording()[0].run(data, **options)


def test_data_without_a_batch_are_an_error_also_when_an_epoch_length_is_given():
    for data in ([], Unsized(0)):
        with pytest.raises(DataError, match=r"no batch|length 0"):
            recording()[0].run(data, epoch_length=3)


def test_data_that_cannot_be_iterated_are_refused():
    with pytest.raises(UsageError, match="int"):
        recording()[0].run(3, epoch_length=2)


@pytest.mark.parametrize(
    "options",
    [
        {"max_epochs": 2, "max_iters": 3},
        {"max_epochs": -1},
        {"max_epochs": 1.5},
        {"max_iters": "3"},
        {"epoch_length": 0},
        {"max_epochs": True},
    ],
)
def test_numbers_that_no_run_can_have_are_refused(options):
    with pytest.raises(UsageError, match="run\\(\\) was given"):
        recording()[0].run(range(3), **options)


def test_max_iters_ends_in_mid_epoch_without_completing_it():
    engine, seen, fired = recording()
    state = engine.run(range(4), max_iters=6)
    assert seen == [0, 1, 2, 3, 0, 1]
    assert fired.count("EPOCH_COMPLETED") == 1
    assert fired[-1] == "COMPLETED"
    assert "TERMINATE" not in fired
    assert (state.iteration, state.epoch, state.max_iters, state.max_epochs) == (6, 2, 6, 2)


def test_max_iters_that_fall_on_the_end_of_an_epoch_complete_it():
    engine, _, fired = recording()
    engine.run(range(4), max_iters=8)
    assert fired.count("EPOCH_COMPLETED") == 2


def test_max_iters_below_an_epoch_and_without_a_length():
    engine, seen, fired = recording()
    engine.run(Unsized(5), max_iters=2)
    assert seen == [0, 1]
    assert "EPOCH_COMPLETED" not in fired


def test_zero_epochs_are_a_run_without_one():
    engine, seen, fired = recording()
    engine.run(range(3), max_epochs=0)
    assert (seen, fired) == ([], ["STARTED", "COMPLETED"])


class CountedSampler:
    def __init__(self):
        self.epochs = []

    def set_epoch(self, epoch):
        self.epochs.append(epoch)


class Loader(list):
    """A list of batches with the parts of a loader that are told the epoch."""

    def __init__(self, batches, **parts):
        super().__init__(batches)
        self.__dict__.update(parts)


def test_the_sampler_is_told_each_epoch_before_handlers_of_its_start():
    sampler = CountedSampler()
    batch_sampler = CountedSampler()
    batch_sampler.sampler = sampler
    loader = Loader([1, 2], sampler=sampler, batch_sampler=batch_sampler)
    engine, _, _ = recording()
    known = []
    engine.add_event_handler(Events.EPOCH_STARTED, lambda: known.append(list(sampler.epochs)))
    engine.run(loader, max_epochs=3)
    assert sampler.epochs == batch_sampler.epochs == [0, 1, 2]
    assert known == [[0], [0, 1], [0, 1, 2]]


def test_each_pass_in_a_long_epoch_has_a_number_of_its_own():
    sampler = CountedSampler()
    recording()[0].run(Loader([1, 2], sampler=sampler), max_epochs=2, epoch_length=5)
    assert sampler.epochs == [0, 1, 2, 3, 4]


def test_torch_loaders_and_their_samplers_work():
    sampler = DistributedSampler(range(8), num_replicas=2, rank=0, shuffle=True, seed=1)
    loader = DataLoader(list(range(8)), batch_size=2, sampler=sampler)
    engine = Engine(lambda engine, batch: batch.tolist())
    orders = []
    engine.add_event_handler(Events.ITERATION_COMPLETED, lambda e: orders.append(e.state.output))
    engine.run(loader, max_epochs=2)
    expected = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        expected += [batch.tolist() for batch in loader]
    assert orders == expected


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(5))


def test_an_iterable_dataset_whose_loader_has_no_length_works():
    engine, seen, _ = recording()
    engine.run(DataLoader(Stream(), batch_size=2), max_epochs=2)
    assert [batch.tolist() for batch in seen] == [[0, 1], [2, 3], [4]] * 2


def test_the_workers_of_a_loader_are_let_go_before_the_epoch_is_completed():
    loader = DataLoader(torch.arange(4), batch_size=2, num_workers=1, multiprocessing_context="fork")
    engine, seen, _ = recording()
    open_iterators = []
    engine.add_event_handler(Events.EPOCH_COMPLETED, lambda e: open_iterators.append(e._feed.iterator))
    engine.run(loader, max_epochs=2)
    assert open_iterators == [None, None]
    assert len(seen) == 4


def test_times_are_there_for_handlers_and_after_the_run_include_these():
    engine, _, _ = recording()
    times = []
    engine.add_event_handler(Events.COMPLETED, lambda e: times.append(dict(e.state.times)))
    state = engine.run(range(3))
    assert 0 < times[0]["EPOCH_COMPLETED"] <= state.times["EPOCH_COMPLETED"]
    assert times[0]["COMPLETED"] <= state.times["COMPLETED"]
    assert state.times["EPOCH_COMPLETED"] <= state.times["COMPLETED"]


def test_the_log_is_the_one_that_the_tutorial_shows(caplog):
    engine, _, _ = recording()
    engine.logger = logging.getLogger("CIFAR10-Training")
    with caplog.at_level(logging.INFO, logger="CIFAR10-Training"):
        engine.run(range(2), max_epochs=2)
    assert [record.getMessage() for record in caplog.records] == [
        "Engine run starting with max_epochs=2.",
        "Epoch[1] Complete. Time taken: 00:00:00",
        "Epoch[2] Complete. Time taken: 00:00:00",
        "Engine run complete. Time taken: 00:00:00",
    ]
    assert not logging.getLogger("shoal.engine.Engine").isEnabledFor(logging.INFO)


def test_an_engine_cannot_run_inside_itself():
    engine, _, _ = recording()
    engine.add_event_handler(Events.EPOCH_COMPLETED, lambda e: e.run(range(2)))
    with pytest.raises(UsageError, match="second engine"):
        engine.run(range(2))


def test_attributes_of_the_state_are_free_for_handlers():
    engine, _, _ = recording()
    engine.state.best = 0.5
    engine.run(range(2))
    assert engine.state.best == 0.5
    assert "best=0.5" in repr(engine.state)


def test_a_state_can_be_pickled():
    engine, _, _ = recording()
    engine.state.best = 0.5
    engine.run(range(3), max_epochs=2)
    copied = pickle.loads(pickle.dumps(engine.state))
    assert vars(copied) == vars(engine.state)
    assert copied.epoch_iteration == engine.state.epoch_iteration == 3


def test_evaluators_run_inside_handlers_of_every_event_and_leave_the_run_as_it_is():
    whole, seen, fired = recording()
    whole.run(range(3), max_epochs=2)
    trainer, own_seen, own_fired = recording()
    evaluator = Engine(lambda engine, batch: batch)
    inner = Engine(lambda engine, batch: batch)
    evaluator.add_event_handler(Events.ITERATION_COMPLETED, lambda: inner.run(range(2)))
    for event in Events:
        if event not in QUIET:
            trainer.add_event_handler(event, lambda: evaluator.run(range(2)))
    trainer.run(range(3), max_epochs=2)
    assert (own_seen, own_fired) == (seen, fired)
    assert inner.state.iteration == evaluator.state.iteration == 2
