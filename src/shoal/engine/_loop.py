"""The loop: epochs, iterations, and where they are left and taken up again."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from shoal import runtime
from shoal.engine._feed import END, Feed
from shoal.engine._goal import finished, goal_of, set_goal
from shoal.engine._handlers import Call
from shoal.engine._metrics import MetricTable
from shoal.engine._requests import Askable, Request
from shoal.engine._saving import LengthFrom
from shoal.engine.events import Events
from shoal.errors import DataError, UsageError

__all__ = ["Loop"]


class _Leave(Exception):  # noqa: N818 - it is no error; it takes the loop to where a request is served
    pass


class Loop(Askable):
    """The run of an engine, once it is known where it starts."""

    def __init__(self, process: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self._process = process
        self._feed = Feed()
        self._metrics = MetricTable()
        self._cut = False  # this epoch's metrics may lack samples: it was loaded in its middle, cut short, or failed
        self._paused = self._failed = False
        self._suppressed = False
        self._exhausted = False
        self._length_from: LengthFrom = "data"
        self._completed = 0  # iterations whose process function has returned
        self._num_open = 0  # the last of them, whose work a process function completes later: they don't count as saved
        self._num_torn = 0  # those of them that are to be done again, since the process function failed among them
        self._num_ahead = 0  # batches drawn of which ``state.iteration`` doesn't know yet
        self._coming: tuple[()] | tuple[Any] = ()  # the data after the current batch, where they are others

    def suppress_exception(self) -> None:
        """Called by a handler of EXCEPTION_RAISED, take the exception on: ``run`` returns instead of raising it.

        Without it the exception is raised again after all handlers have run. KeyboardInterrupt and SystemExit
        always are.

        Raises:
            UsageError: no exception is being handled.
        """
        if self.exception is None:
            raise UsageError(
                "suppress_exception() was called while no exception is being handled; "
                "call it from a handler of Events.EXCEPTION_RAISED"
            )
        if isinstance(self.exception, Exception):
            self._suppressed = True
        else:
            self.logger.warning("suppress_exception() has no effect on %s.", type(self.exception).__name__)

    def set_data(self, data: Any) -> None:
        """Draw the batches that follow from ``data``, from its first one. ``state.epoch_length`` stays as it is.

        A batch that is drawn and not done is still one of the data before, where it has its place: called then,
        ``state.dataloader`` changes after the process function, and a state that is saved before knows nothing of it.
        """
        if self._running and self.state.iteration + self._num_ahead > self._completed:
            self._coming = (data,)
        else:
            self._change_data(data)

    def _change_data(self, data: Any) -> None:
        self.state.dataloader, self._coming = data, ()
        if self._in_epoch:
            self._new_pass()
            if self._running:
                self._open_feed()
        else:
            self._feed.ended = True

    def _run(self, paused: bool) -> None:
        started = time.perf_counter()
        state = self.state
        try:
            if not paused:
                self._fire_all(Events.STARTED)
                self._stop_if_asked()
            while self._in_epoch or not finished(state, in_epoch=False):
                if not self._run_epoch(paused):
                    break
                paused = False
        except _Leave:
            self._settle()
            if not self.should_terminate:
                self._paused = True
                self._fire_all(Events.INTERRUPT)
                if not self.should_terminate:
                    self.logger.info("Engine run interrupted in epoch %d, iteration %d.", state.epoch, state.iteration)
                    return
                self._paused = False  # a handler of INTERRUPT called terminate()
                self._settle()
            self._fire_all(Events.TERMINATE)
            self.logger.info("Engine run terminated in epoch %d, iteration %d.", state.epoch, state.iteration)
            if self._requests[Request.END_RUN]:
                return
        state.times["COMPLETED"] = time.perf_counter() - started
        self._fire_all(Events.COMPLETED)
        state.times["COMPLETED"] = time.perf_counter() - started
        self.logger.info("Engine run complete. Time taken: %s", _clock(state.times["COMPLETED"]))

    def _run_epoch(self, paused: bool) -> bool:
        """One epoch, or what is left of it; whether the run goes on."""
        started = time.perf_counter()
        state = self.state
        try:
            enters = not (self._in_epoch and paused)
            if not self._in_epoch:
                self._begin_epoch()
            if enters:
                self._fire_all(Events.EPOCH_STARTED)
            if self._requests:
                raise _Leave
            if not self._iterate():
                self._feed.close(state.iteration - state.data_base)
                self._metrics.publish(state, "epoch", lenient=True)
                return False
        except _Leave:
            if self._is_stopping():
                raise
            self._settle()
            self._ending = self._asked_ending()
            self._requests.pop(Request.END_EPOCH)
            self._fire_all(Events.TERMINATE_SINGLE_EPOCH)
            self._feed.cut()
            self._cut = True
        skips_completed = self._ending == "skip"
        self._end_epoch()
        if not skips_completed:
            self._metrics.publish(state, "epoch", lenient=self._cut)
            state.times["EPOCH_COMPLETED"] = time.perf_counter() - started
            self._fire_all(Events.EPOCH_COMPLETED)
            state.times["EPOCH_COMPLETED"] = time.perf_counter() - started
            self.logger.info("Epoch[%d] Complete. Time taken: %s", state.epoch, _clock(state.times["EPOCH_COMPLETED"]))
        self._stop_if_asked()
        return not self._exhausted

    def _iterate(self) -> bool:
        """The iterations of an epoch; whether it is complete. Between two events this is all that runs."""
        state, feed, calls, process, requests = self.state, self._feed, self.handlers, self._process, self._requests
        iteration = self._completed = state.iteration
        last = self._last_iteration()
        if iteration < last:
            self._open_feed()
        batch = END
        try:
            while iteration < last:
                if calls.get_batch_started:
                    self._call(Events.GET_BATCH_STARTED, calls.get_batch_started)
                batch = next(feed.iterator, END)  # type: ignore[arg-type]
                if batch is END and (batch := self._next_pass()) is END:
                    return self._data_ended()
                state.batch = batch
                if calls.get_batch_completed:
                    self._num_ahead = 1
                    self._call(Events.GET_BATCH_COMPLETED, calls.get_batch_completed)
                    self._num_ahead = 0
                iteration += 1
                state.iteration = iteration
                if calls.iteration_started:
                    self._call(Events.ITERATION_STARTED, calls.iteration_started)
                state.output = process(self, state.batch)
                self._completed = iteration
                batch = END
                if self._coming:
                    self._change_data(*self._coming)
                self.last_event_name = Events.ITERATION_COMPLETED
                for call in calls.iteration_completed:
                    call(self)
                if requests:
                    raise _Leave
            if state.epoch_length == 0:  # on one rank of several, which stays in step with the others
                self._exhausted = state.max_iters is not None
        except BaseException:
            if batch is not END:
                feed.push_back(batch)  # it was drawn and not used
            raise
        return self._length_from != "end_of_data" and state.epoch_iteration == state.epoch_length

    def _call(self, event: Events, calls: tuple[Call, ...]) -> None:
        """Handlers in the middle of an iteration: a pause waits for its end."""
        self.last_event_name = event
        for call in calls:
            call(self)
        if self._requests and not self.should_interrupt:
            raise _Leave

    def _stop_if_asked(self) -> None:
        """Between epochs, where the end of one is nothing to ask for."""
        if self._is_stopping():
            raise _Leave

    def _last_iteration(self) -> int:
        """The iteration at which the epoch or the run ends, as far as that is known before the data end."""
        state = self.state
        known = self._length_from != "end_of_data" and state.epoch_length is not None
        ends = sys.maxsize if not known else state.epoch_base + (state.epoch_length or 0)
        return ends if state.max_iters is None else min(ends, state.max_iters)

    def _begin_epoch(self) -> None:
        state, feed = self.state, self._feed
        state.epoch += 1
        state.epoch_base = self._completed = state.iteration
        self._in_epoch, self._cut, self._num_open = True, False, 0
        self._metrics.reset("epoch")
        stale = state.dataloader is not feed.data or self._length_from == "end_of_data"
        if stale or feed.at_end(state.iteration - state.data_base):
            self._new_pass()

    def _end_epoch(self) -> None:
        self._in_epoch, self._ending = False, None
        if self._feed.at_end(self.state.iteration - self.state.data_base):
            self._feed.ended = True
            self._feed.close(0)  # a loader's workers needn't wait through the evaluation that may come now

    def _new_pass(self) -> None:
        state, feed = self.state, self._feed
        feed.new_pass(state.dataloader, state.epoch)
        if feed.iterator is None:
            state.data_base = state.iteration - feed.skip

    def _open_feed(self) -> None:
        position = self._feed.open(self.logger)
        if position is not None:
            self.state.data_base = self.state.iteration - position

    def _next_pass(self) -> Any:
        """The first batch of the next pass over the data, where the epoch needs one and there is one; else END."""
        state, feed = self.state, self._feed
        if self._length_from == "end_of_data" and state.epoch_iteration > 0:
            return END
        over = feed.iterator
        self._call(Events.DATALOADER_STOP_ITERATION, self._calls_of(Events.DATALOADER_STOP_ITERATION))
        if feed.iterator is over:
            feed.ended = True
            self._new_pass()
            self._open_feed()
        return next(feed.iterator, END)  # type: ignore[arg-type]

    def _data_ended(self) -> bool:
        """The data gave their last batch, for this epoch or for good; whether the epoch counts as complete."""
        state, alone = self.state, runtime.current().world_size == 1
        self._feed.ended = True
        if self._length_from == "end_of_data" and state.epoch_iteration > 0:
            state.epoch_length = state.epoch_iteration
            set_goal(state, None, None)
            return True
        if alone and state.iteration == 0:
            raise DataError(f"run() was given data of type {type(state.dataloader).__name__} that gave no batch")
        # A rank without a batch stays with the others, which merge their metrics at the end of the epoch.
        self._exhausted = alone or state.max_iters is not None
        self.logger.warning(
            "The data ended after %d batches of epoch %d and cannot be iterated anew; the goal was %s. "
            "Give data that can be, or new ones by set_data() at DATALOADER_STOP_ITERATION.",
            state.epoch_iteration, state.epoch, goal_of(state),
        )  # fmt: skip
        return state.epoch_iteration > 0 or not alone

    def _settle(self) -> None:
        """Leave the run in a place from which it can go on: an iteration that was begun and not done is not counted."""
        self._num_ahead = 0
        if self._in_epoch:
            self.state.iteration = self._completed
            if not self.should_interrupt:
                self._feed.close(max(self._completed - self.state.data_base, 0))

    def _handle(self, error: BaseException) -> None:
        """Fire EXCEPTION_RAISED: all its handlers run, also when one of them fails."""
        state = self.state
        self.exception, self._failed = error, True
        self._cut = self._cut or self._in_epoch  # a metric that raised lacks what it was given
        self.logger.error(
            "Engine run stopped in epoch %d, iteration %d by %s: %s",
            state.epoch, state.iteration, type(error).__name__, str(error),
        )  # fmt: skip
        try:
            calls, self.last_event_name = self._calls_of(Events.EXCEPTION_RAISED), Events.EXCEPTION_RAISED
            for call in calls:
                try:
                    call(self)
                except Exception as raised:  # the first cause must not be lost
                    if raised is not error:
                        error.add_note(f"A handler of EXCEPTION_RAISED failed: {type(raised).__name__}: {raised}")
                        self.logger.exception("A handler of EXCEPTION_RAISED failed.")
                    self._suppressed = False
        finally:
            self._keep_ending(self._asked_ending())
            self._go_back()
            self._settle()

    def _go_back(self) -> None:
        """To the first of the iterations that are to be done again, where the data can go back."""
        state, num_torn, self._num_torn = self.state, self._num_torn, 0
        if num_torn == 0:
            return
        position = self._feed.go_back(self._completed - num_torn - state.data_base)
        if position is None:
            self.logger.warning(
                "The step broke off in the middle of a window of accumulated gradients, and data of type %s cannot go "
                "back to its beginning: its gradient may hold a part of that batch twice.",
                type(state.dataloader).__name__,
            )
            return
        self._completed -= num_torn
        self._num_open = 0
        state.data_base = self._completed - position


def _clock(seconds: float) -> str:
    minutes, second = divmod(round(seconds), 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour:02d}:{minute:02d}:{second:02d}"
