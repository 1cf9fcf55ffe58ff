import pytest

from shoal.engine import Engine, Events
from shoal.errors import DataError, UsageError


class Broken(Exception):
    pass


def failing(at, error=Broken):
    """An engine whose third batch (counted over all calls) raises once, and the batches that went through."""
    seen = []

    def step(engine, batch):
        if len(seen) == at and not engine.state.raised:
            engine.state.raised = True
            raise error("in the step")
        seen.append(batch)

    engine = Engine(step)
    engine.state.raised = False
    return engine, seen


def test_an_exception_without_handlers_is_raised_with_its_own_traceback(caplog):
    engine, _ = failing(2)
    with pytest.raises(Broken, match="in the step") as caught:
        engine.run(range(5))
    assert caught.traceback[-1].name == "step"
    assert "epoch 1, iteration 3 by Broken: in the step" in caplog.text


def test_all_handlers_run_and_then_the_exception_is_raised_again():
    engine, _ = failing(2)
    calls = []
    engine.add_event_handler(
        Events.EXCEPTION_RAISED, lambda engine, error: calls.append((engine.state.iteration, error))
    )
    engine.add_event_handler(Events.EXCEPTION_RAISED, lambda error: calls.append(error))

    @engine.on(Events.EXCEPTION_RAISED)
    def raises_it_again(engine, error):
        calls.append("again")
        raise error

    @engine.on(Events.EXCEPTION_RAISED, "extra")
    def with_argument(engine, error, text):
        calls.append(text)

    engine.add_event_handler(Events.EXCEPTION_RAISED, lambda: calls.append("alone"))
    with pytest.raises(Broken) as caught:
        engine.run(range(5))
    assert calls == [(3, caught.value), caught.value, "again", "extra", "alone"]
    assert engine.exception is None


def test_a_handler_may_take_the_exception_on():
    engine, _ = failing(2)
    fired = []
    engine.add_event_handler(Events.EXCEPTION_RAISED, lambda engine, error: engine.suppress_exception())
    engine.add_event_handler(Events.EPOCH_COMPLETED | Events.COMPLETED, lambda: fired.append(1))
    state = engine.run(range(5))
    assert (state.iteration, fired) == (2, [])
    with pytest.raises(UsageError, match="no exception is being handled"):
        engine.suppress_exception()


def test_a_handler_that_fails_hides_neither_the_cause_nor_the_other_handlers(caplog):
    engine, _ = failing(2)
    calls = []

    @engine.on(Events.EXCEPTION_RAISED)
    def fails(engine, error):
        engine.suppress_exception()
        raise OSError("disk full")

    engine.add_event_handler(Events.EXCEPTION_RAISED, lambda: calls.append(1))
    with pytest.raises(Broken) as caught:
        engine.run(range(5))
    assert caught.value.__notes__ == ["A handler of EXCEPTION_RAISED failed: OSError: disk full"]
    assert calls == [1]
    assert "disk full" in caplog.text


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_from_the_keyboard_reaches_handlers_and_is_never_swallowed(error, caplog):
    engine, _ = failing(2, error)
    saved = []

    @engine.on(Events.EXCEPTION_RAISED)
    def save(engine, raised):
        saved.append((type(raised), engine.state_dict()["iteration"]))
        engine.suppress_exception()
        engine.terminate()

    with pytest.raises(error):
        engine.run(range(5))
    assert saved == [(error, 2)]
    assert "no effect" in caplog.text


def test_exceptions_of_handlers_and_data_are_treated_alike():
    def broken_data():
        yield 1
        raise Broken("in the data")

    for event in (Events.STARTED, Events.ITERATION_COMPLETED, Events.EPOCH_COMPLETED, Events.COMPLETED, None):
        engine = Engine(lambda engine, batch: None)
        caught = []

        def fail(engine):
            raise Broken("in a handler")

        if event is not None:
            engine.add_event_handler(event, fail)
        engine.add_event_handler(
            Events.EXCEPTION_RAISED, lambda engine, error, caught=caught: caught.append(str(error))
        )
        with pytest.raises(Broken):
            engine.run(broken_data() if event is None else [1, 2])
        assert caught == ["in the data" if event is None else "in a handler"]


@pytest.mark.parametrize("make", [lambda: list(range(5)), lambda: iter(range(5))])
def test_a_run_that_broke_off_goes_on_with_the_batch_that_failed(make):
    engine, seen = failing(2)
    data = make()
    with pytest.raises(Broken):
        engine.run(data, max_epochs=1)
    assert engine.state.iteration == 2
    assert engine.run(data, max_epochs=1).iteration == 5
    assert seen == list(range(5))


def test_an_evaluation_that_broke_off_is_done_anew():
    engine, seen = failing(2)
    with pytest.raises(Broken):
        engine.run(range(5))
    assert engine.run(range(5)).iteration == 5
    assert seen == [0, 1, *range(5)]


def test_a_state_saved_while_an_exception_is_handled_does_not_count_the_step_that_failed():
    engine, _ = failing(7)
    states = []
    engine.add_event_handler(Events.EXCEPTION_RAISED, lambda engine, error: states.append(engine.state_dict()))
    with pytest.raises(Broken):
        engine.run(range(5), max_epochs=2)
    rest = []
    fresh = Engine(lambda engine, batch: rest.append(batch))
    fresh.load_state_dict(states[0])
    fresh.run(range(5))
    assert rest == [2, 3, 4]


def test_an_engine_that_failed_can_be_used_again():
    engine, seen = failing(0)
    for _ in range(2):
        engine.state.raised = False
        seen.clear()
        with pytest.raises(Broken):
            engine.run(range(2))
    assert engine.run(range(2)).iteration == 2


def test_an_exception_that_was_taken_on_hides_none_of_the_next_run():
    def fail(engine, batch):
        raise ValueError

    engine = Engine(fail)
    engine.add_event_handler(Events.EXCEPTION_RAISED, lambda engine, error: engine.suppress_exception())
    engine.run([1, 2])
    engine.state.max_epochs = None
    with pytest.raises(DataError, match="length 0"):
        engine.run([])
    with pytest.raises(UsageError, match="no data"):
        engine.run()
