"""Requests that come between any two lines of the loop, as those of signal handlers and threads do."""

import itertools
import signal
import sys

import pytest

from shoal.engine import Engine, Events, _loop, _requests

EPOCH = [0, 1]


def run_asking(engine, line, ask, **goal):
    """Run ``engine``, and ``ask`` it before the line of that number that the loop comes to; whether it was asked."""
    lines = itertools.count()
    asked = False

    def trace(frame, event, _):
        nonlocal asked
        if frame.f_code.co_filename not in (_loop.__file__, _requests.__file__):
            return None
        if event == "line" and engine._running and next(lines) == line:
            asked = True
            ask(engine)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        engine.run(EPOCH, **goal)
    finally:
        sys.settrace(before)
    return asked


@pytest.mark.parametrize("how", ["terminate_epoch", "interrupt", None])
def test_terminate_is_never_lost_to_what_else_was_asked_for(how):
    # A signal comes once. Every line of an epoch that is ended, or of a run that is paused, is tried.
    for line in range(250):
        fired = []
        engine = Engine(lambda engine, batch: None)
        for event in Events:
            engine.add_event_handler(event, lambda *_, name, fired=fired: fired.append(name), name=event.name)
        if how is not None:
            engine.add_event_handler(Events.ITERATION_COMPLETED(once=1), lambda engine: getattr(engine, how)())
        assert run_asking(engine, line, lambda engine: engine.terminate(), max_epochs=50) or how == "interrupt", line
        assert engine.state.epoch < 5, line
        assert fired[-1] in ("COMPLETED", "INTERRUPT"), line
        for _ in range(2):  # an interrupt may be still to come
            engine.run(EPOCH, max_epochs=5)
        assert engine.state.epoch == 5, line


def test_the_end_of_an_epoch_is_asked_for_at_any_line_and_ends_one_epoch():
    for line in range(250):
        engine = Engine(lambda engine, batch: None)
        ended = []
        engine.add_event_handler(Events.TERMINATE_SINGLE_EPOCH, lambda engine, ended=ended: ended.append(engine))
        assert run_asking(engine, line, lambda engine: engine.terminate_epoch(), max_epochs=5), line
        assert len(ended) <= 1
        assert engine.state.epoch == 5
        ended.clear()
        engine.state.max_epochs = None
        assert engine.run(EPOCH, max_epochs=2).iteration == 4, line
        assert not ended


def test_a_signal_handler_ends_a_run_after_the_iteration():
    def step(engine, batch):
        if engine.state.iteration == 3:
            signal.raise_signal(signal.SIGTERM)

    engine = Engine(step)
    before = signal.signal(signal.SIGTERM, lambda *_: engine.terminate())
    try:
        assert engine.run(EPOCH, max_epochs=5).iteration == 3
    finally:
        signal.signal(signal.SIGTERM, before)
    assert engine.run(EPOCH, max_epochs=5).iteration == 10
