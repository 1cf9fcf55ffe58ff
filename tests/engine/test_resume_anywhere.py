"""A state that is saved at any event of any run goes on, in another engine, as the run that nobody stopped."""

import contextlib
import io
from dataclasses import dataclass

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.engine import Engine, EventEnum, Events


class InStep(EventEnum):
    BEFORE = "before"


class Stop(Exception):
    pass


class Unsized:
    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(list(self.batches))


class Seekable(Unsized):
    start = 0

    def __len__(self):
        return len(self.batches)

    def seek(self, step):
        self.start = step

    def __iter__(self):
        start, self.start = self.start, 0
        return iter(list(self.batches[start:]))


KINDS = {
    "list": lambda batches: batches,
    "unsized": Unsized,
    "seekable": Seekable,
    "iterator": lambda batches: iter(batches * 30),
}
WHO_BRINGS_IT = {  # how an iteration's handler gets the engine to an event at which a run is left anyway
    Events.COMPLETED: None,
    Events.TERMINATE: "terminate",
    Events.INTERRUPT: "interrupt",
    Events.EXCEPTION_RAISED: "raise",
}


@dataclass(frozen=True)
class Case:
    """A run, and how and where it is left.

    Attributes:
        kind, length: what the data are, and their number of batches.
        options: of ``run``.
        cut_at: the iteration after which ``terminate_epoch`` ends the epoch, or None.
        skips: whether EPOCH_COMPLETED is left out then.
        swap: the event and its occurrence at which ``set_data`` brings other data, or None.
        leaves: by run, the event and its occurrence at which the state is saved, if there is one, and how that run is
            left there (None: it runs on). The next run goes on from that state.
    """

    kind: str
    length: int
    options: dict
    cut_at: int | None
    skips: bool
    swap: tuple | None
    leaves: list


@st.composite
def cases(draw):
    kind = draw(st.sampled_from(sorted(KINDS)))
    length = draw(st.integers(1, 5))
    epoch_length = draw(st.integers(1, 7) if kind == "iterator" else st.none() | st.integers(1, 7))
    goal = draw(st.sampled_from(["max_epochs", "max_iters"]))
    options = {goal: draw(st.integers(1, 4) if goal == "max_epochs" else st.integers(1, 14))}
    swaps = (Events.GET_BATCH_STARTED, Events.GET_BATCH_COMPLETED, Events.ITERATION_STARTED, InStep.BEFORE,
             Events.ITERATION_COMPLETED, Events.EPOCH_STARTED, Events.EPOCH_COMPLETED)  # fmt: skip
    events = st.sampled_from([*Events, InStep.BEFORE])
    stops = st.sampled_from([None, "terminate", "interrupt", "raise"])
    return Case(
        kind=kind,
        length=length,
        options=options if epoch_length is None else {**options, "epoch_length": epoch_length},
        cut_at=draw(st.none() | st.integers(1, 8)),
        skips=draw(st.booleans()),
        swap=draw(st.none() | st.tuples(st.sampled_from(swaps), st.integers(1, 8))),
        leaves=draw(st.lists(st.tuples(events, st.integers(1, 10), stops), min_size=1, max_size=3)),
    )


class Run:
    """An engine that notes its batches and ends of epochs."""

    def __init__(self, case, state=None, swapped=False):
        self.case, self.swapped = case, swapped
        self.notes, self.saved, self.other = [], None, None
        self.options = dict(case.options)
        self.engine = Engine(self.step)
        self.engine.register_events(InStep.BEFORE)
        self.engine.state_dict_user_keys.append("num_steps")
        self.engine.state.num_steps = 0
        self.engine.add_event_handler(Events.EPOCH_COMPLETED, self.note_end)
        if case.cut_at is not None:
            self.engine.add_event_handler(Events.ITERATION_COMPLETED(once=case.cut_at), self.cut)
        if case.swap is not None and not swapped:
            event, number = case.swap
            if event is InStep.BEFORE:  # whose count isn't that of iterations where one is done again
                event = event(lambda engine, _: engine.state.iteration == number)
            else:
                event = event(once=number)
            self.engine.add_event_handler(event, self.swap)
        if state is not None:
            self.engine.load_state_dict(state)
            if state["epoch_length"] is not None:
                self.options.pop("epoch_length", None)

    def step(self, engine, batch):
        engine.fire_event(InStep.BEFORE)
        state = engine.state
        state.num_steps += 1
        self.notes.append(("batch", state.epoch, state.epoch_iteration, state.batch_index, state.num_steps, batch))

    def note_end(self, engine):
        self.notes.append(("end", engine.state.epoch, engine.state.iteration, engine.state.epoch_length))

    def cut(self, engine):
        engine.terminate_epoch(skip_epoch_completed=self.case.skips)

    def swap(self, engine):
        self.swapped = True
        self.other = self.other_data()
        engine.set_data(self.other)

    def other_data(self):
        return KINDS[self.case.kind]([100 + number for number in range(self.case.length)])

    def leave_at(self, event, number, stop):
        """Save the state there, once, and stop."""
        count = 0

        def save(engine, *_):
            nonlocal count
            count += 1
            if self.saved is not None or (count != number and event not in WHO_BRINGS_IT):
                return
            file = io.BytesIO()
            torch.save(engine.state_dict(), file)
            file.seek(0)
            comes = self.other is not None and engine.state.dataloader is not self.other
            self.saved = torch.load(file, weights_only=True), list(self.notes), self.swapped, comes
            if event not in WHO_BRINGS_IT:
                ask(engine, stop)

        def ask(engine, how):
            if how == "raise":
                raise Stop
            if how is not None:
                getattr(engine, how)()

        self.engine.add_event_handler(event, save)
        if event in WHO_BRINGS_IT:
            self.engine.add_event_handler(Events.ITERATION_COMPLETED(once=number), ask, WHO_BRINGS_IT[event])

    def run(self):
        """Run to the end of it, or to where it is left."""
        data = self.other_data() if self.swapped else KINDS[self.case.kind](list(range(self.case.length)))
        with contextlib.suppress(Stop):
            self.engine.run(data, **self.options)
        return self.notes


@settings(max_examples=400, deadline=None, derandomize=True)
@given(cases())
def test_a_state_saved_at_any_event_goes_on_as_the_run_that_nobody_stopped(case):
    whole, notes, state, swapped = Run(case).run(), [], None, False
    for leave in [*case.leaves, None]:
        run = Run(case, state, swapped)
        if leave is not None:
            run.leave_at(*leave)
        run.run()
        if leave is None or run.saved is None:  # to the end: there is no such place in this run
            notes += run.notes
            break
        state, before, swapped, comes = run.saved
        if comes:  # other data were to come after the current batch, of which the state doesn't know
            return
        notes += before
    assert notes == whole
