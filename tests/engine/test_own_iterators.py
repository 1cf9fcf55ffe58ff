import pytest

from shoal.engine import Engine, Events

QUIET = (Events.EXCEPTION_RAISED,)


def recording():
    """An engine, its batches, and the names of the events that it fires."""
    seen, fired = [], []
    engine = Engine(lambda engine, batch: seen.append(batch))
    for event in Events:
        if event not in QUIET:
            engine.add_event_handler(event, lambda engine, name: fired.append(name), event.name)
    return engine, seen, fired


class OwnIterator:
    """A loader that is its own iterator and begins anew whenever it is iterated, as some prefetching ones do."""

    def __iter__(self):
        self.next = 0
        return self

    def __next__(self):
        self.next += 1
        if self.next > 3:
            raise StopIteration
        return self.next


class SizedOwnIterator(OwnIterator):
    def __len__(self):
        return 3


@pytest.mark.parametrize("make", [OwnIterator, SizedOwnIterator])
@pytest.mark.parametrize("options", [{}, {"epoch_length": 3}])
def test_a_loader_that_is_its_own_iterator_begins_anew_in_each_epoch(make, options):
    engine, seen, _ = recording()
    engine.run(make(), max_epochs=3, **options)
    assert seen == [1, 2, 3] * 3


EARLY = (Events.GET_BATCH_STARTED, Events.GET_BATCH_COMPLETED)


@pytest.mark.parametrize("event", [*EARLY, Events.ITERATION_STARTED, "in the step"])
def test_data_that_are_set_while_a_batch_is_worked_on_come_after_it(event):
    seen = []

    def step(engine, batch):
        engine.fire_event("in the step")
        seen.append((batch, engine.state.batch_index, len(engine.state.dataloader)))

    def swap(engine):
        if engine.state.epoch_iteration + (event in EARLY) == 2:
            engine.set_data(range(100, 108))

    engine = Engine(step)
    engine.register_events("in the step")
    engine.add_event_handler(event, swap)
    engine.run(range(5))
    at_once = event is Events.GET_BATCH_STARTED
    new = [(100 + place, place, 8) for place in range(4 if at_once else 3)]
    assert seen == [(0, 0, 5), *([] if at_once else [(1, 1, 5)]), *new]
