"""The engine: a function, called with each batch of some data, and what happens on the way."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from shoal import runtime
from shoal.engine._feed import length_of
from shoal.engine._goal import Decision, Standing, check_arguments, decide, goal_of, set_goal
from shoal.engine._handlers import describe
from shoal.engine._loop import Loop
from shoal.engine._saving import load_into, saved
from shoal.engine.state import State
from shoal.errors import DataError, HandlerSignatureError, UsageError
from shoal.metrics import Metric
from shoal.metrics.usage import Moment, UsageLike

__all__ = ["Engine"]


class Engine(Loop):
    """Calls a function with each batch of some data, for some epochs, and fires ``Events`` on the way.

    Args:
        process_function: takes the engine and a batch; what it returns is put into ``state.output``.

    Attributes:
        state: where the run is, for handlers to read and add to.
        logger: told of starts and ends at level INFO; ``shoal.engine.Engine`` unless another one is put here.
        exception: while handlers of EXCEPTION_RAISED run, the exception; else None.
        last_event_name: the event whose handlers are being called, or were last; None before the first.
        state_dict_user_keys: names of attributes of ``state`` that ``state_dict`` holds besides its own.

    Raises:
        UsageError: ``process_function`` is not callable.
        HandlerSignatureError: it doesn't take (engine, batch).

    Example::

        trainer = Engine(train_step)


        @trainer.on(Events.ITERATION_COMPLETED(every=100))
        def log(engine):
            print(engine.state.iteration, engine.state.output)


        trainer.run(loader, max_epochs=5)
    """

    def __init__(self, process_function: Callable[[Engine, Any], Any]) -> None:
        _check_process_function(process_function)
        super().__init__(process_function)
        self.state_dict_user_keys: list[str] = []
        self._loaded = False

    # Metrics --------------------------------------------------------------------------------------------------------

    def attach_metric(self, metric: Metric, name: str, usage: UsageLike | None = None) -> None:
        """Feed ``metric`` with the outputs and put its value into ``state.metrics[name]``; see ``Metric.attach``.

        The metrics of an epoch merge over ranks in one collective, before any handler of EPOCH_COMPLETED is called.
        """
        self._metrics.attach(metric, name, usage)
        self.handlers.put_metrics(self._metrics.calls())

    def detach_metric(self, metric: Metric, usage: UsageLike | None = None) -> None:
        """Undo ``attach_metric``, of all usages or of one; raises UsageError where ``metric`` is not so attached."""
        self._metrics.detach(metric, usage)
        self.handlers.put_metrics(self._metrics.calls())

    def is_metric_attached(self, metric: Metric, usage: UsageLike | None = None) -> bool:
        """Whether ``metric`` is attached, with any usage or with the one given."""
        return self._metrics.has(metric, usage)

    # State ----------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where the run is, in primitives: goal, epoch, iterations done, and the place in the data.

        Only what is done counts: taken between a batch's drawing and the end of its step, that batch comes again.
        """
        done = self._completed if self._running and self._in_epoch else self.state.iteration
        waiting = self._num_open if self._in_epoch else 0
        done -= waiting
        own = saved(self.state, self._feed, done, self._in_epoch, self._length_from, self.state_dict_user_keys)
        ending = None if waiting else self._asked_ending()  # it will be asked for again
        return {**own, "epoch_ending": ending, "event_counts": self._counted_firings()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go where ``state_dict`` was taken; the next ``run`` goes on from there.

        Args:
            state_dict: from ``state_dict``. One that holds only ``iteration`` (or ``epoch``), ``epoch_length`` and
                ``max_epochs`` (or ``max_iters``) is taken too.

        Raises:
            UsageError: it is no such thing, or the engine is running.
        """
        if self._running:
            raise UsageError("load_state_dict() was called while the engine runs; call it before run()")
        self._in_epoch, self._length_from = load_into(self.state, self._feed, state_dict, self.state_dict_user_keys)
        self._keep_ending(state_dict.get("epoch_ending"))
        self._num_open = 0
        self._take_firings(state_dict.get("event_counts", {}))
        self._paused = self._failed = False
        self._loaded = self._cut = True
        self._metrics.renew()

    # The run --------------------------------------------------------------------------------------------------------

    def run(
        self,
        data: Any = None,
        max_epochs: int | None = None,
        max_iters: int | None = None,
        epoch_length: int | None = None,
    ) -> State:
        """Run from nothing, or go on where an earlier run stopped.

        A run that was terminated, interrupted or broken off by an exception, or whose state was loaded, goes on with
        the batch that comes next; so does one that reached its goal and is given a farther one. Reached and asked for
        the same goal again, it does nothing and says so, unless it was a single pass over the data, as an evaluation
        is: that is done anew. (In Ignite, every finished run is.) An evaluation that broke off is done anew, too. To
        start from nothing, set ``state.max_epochs = None``.

        Args:
            data: an iterable of batches; its sampler is told the epoch. None: the data of the run that goes on, or
                else None for every batch, for which ``epoch_length`` is needed.
            max_epochs: epochs in all; 1 by default.
            max_iters: iterations in all, instead. Ending in the middle of an epoch it fires no EPOCH_COMPLETED, but
                computes the metrics.
            epoch_length: iterations in an epoch; by default the length of the data, and for data without one however
                many batches they give in each epoch. Longer than the data: these are begun anew within an epoch;
                shorter: an epoch goes on where the last one ended.

        Returns:
            The state, also available as ``engine.state``.

        Raises:
            UsageError: arguments that exclude each other, or that do not fit the run that goes on.
            DataError: the data have no batch.
        """
        if self._running:
            raise UsageError("run() was called by a handler of the same engine; use a second engine")
        check_arguments(max_epochs, max_iters, epoch_length)
        decision = self._decide(max_epochs, max_iters)
        if decision == "nothing":
            return self.state
        moments: list[Moment] = [] if decision == "start" else ["run", "epoch"] if self._in_epoch else ["run"]
        lost = self._metrics.claim(*moments)
        self._suppressed = False
        try:
            if decision == "start":
                self._start(data, epoch_length)
            else:
                self._go_on(data, epoch_length)
            self._completed = self.state.iteration
            set_goal(self.state, max_epochs, max_iters)
            self._log_start(decision)
            if lost:
                self._cut = True
                self.logger.warning(
                    "The metrics %s were used by another engine since this run was left; their values lack the samples "
                    "from before. Give each engine a metric object of its own.", ", ".join(lost),
                )  # fmt: skip
            paused, self._paused, self._failed, self._loaded = self._paused, False, False, False
            self._running, self._exhausted = True, False
            self._run(paused)
        except BaseException as error:
            if self._running:
                self._handle(error)
            if not self._suppressed:
                raise
        finally:
            self._metrics.release()
            self._running, self.exception = False, None
            self._keep_ending(self._asked_ending() if self._in_epoch else None)
        return self.state

    def _decide(self, max_epochs: int | None, max_iters: int | None) -> Decision:
        standing = Standing(
            in_epoch=self._in_epoch,
            ending=self._asked_ending() is not None,
            paused=self._paused,
            failed=self._failed,
            loaded=self._loaded,
        )
        decision = decide(self.state, standing, max_epochs, max_iters)
        if decision == "nothing":
            self.logger.warning(
                "run() has nothing to do: %s is reached. Give a farther goal, or set engine.state.max_epochs = None "
                "to start from nothing.", goal_of(self.state),
            )  # fmt: skip
        return decision

    def _start(self, data: Any, epoch_length: int | None) -> None:
        """Make everything as before the first run."""
        state = self.state
        length = None if data is None else length_of(data)
        if data is None and epoch_length is None:
            raise UsageError("run() was given no data and no epoch_length; give data, or the iterations of an epoch")
        if length == 0 and runtime.current().world_size == 1:
            raise DataError(f"run() was given data of type {type(data).__name__} of length 0; give some batches")
        state.iteration = state.epoch = state.epoch_base = state.data_base = 0
        state.max_epochs = state.max_iters = None
        state.dataloader, self._coming = data, ()
        self._set_length(epoch_length, length)
        self._in_epoch, self._paused, self._num_open = False, False, 0
        self._keep_ending(None)
        self._firings.clear()
        self._feed.reset(data)
        self._metrics.forget(state)
        self._metrics.reset("run")

    def _go_on(self, data: Any, epoch_length: int | None) -> None:
        """Take up the run where it is, with the same data or others."""
        state = self.state
        if data is None:
            data = state.dataloader
        else:
            self._coming = ()
        length = None if data is None else length_of(data)
        asked = epoch_length or (length if self._length_from == "data" else None)
        if state.epoch_length is None and data is None and epoch_length is None:
            raise UsageError("run() goes on and was given no data and no epoch_length; give data")
        if asked is not None and state.epoch_length not in (None, asked):
            if not self._in_epoch:
                self.logger.info("From epoch %d on an epoch has %d iterations.", state.epoch + 1, asked)
                self._set_length(epoch_length, length)
            elif epoch_length is not None:
                raise UsageError(
                    f"run() goes on in the middle of an epoch of {state.epoch_length} iterations and was given "
                    f"epoch_length={epoch_length}; leave it out, or give {state.epoch_length}"
                )
            else:
                self.logger.warning(
                    "run() goes on in the middle of an epoch of %d iterations with data of length %d; the epoch keeps "
                    "its length.", state.epoch_length, asked,
                )  # fmt: skip
        elif state.epoch_length is None:
            self._set_length(epoch_length, length)
        state.dataloader = data
        self._feed.resume(data, state.iteration - state.data_base)

    def _set_length(self, given: int | None, of_data: int | None) -> None:
        self.state.epoch_length = of_data if given is None else given
        self._length_from = "argument" if given is not None else "end_of_data" if of_data is None else "data"

    def _log_start(self, decision: Decision) -> None:
        state = self.state
        if decision == "start":
            self.logger.info("Engine run starting with %s.", goal_of(state))
        else:
            self.logger.info(
                "Engine run resuming from iteration %d, epoch %d until %s.",
                state.iteration,
                state.epoch,
                goal_of(state),
            )


def _check_process_function(process_function: Callable[..., Any]) -> None:
    if not callable(process_function):
        raise UsageError(f"Engine was given {process_function!r}; give a function of (engine, batch)")
    try:
        inspect.signature(process_function).bind(None, None)
    except TypeError as error:
        raise HandlerSignatureError(
            f"the process function {describe(process_function)} takes {inspect.signature(process_function)}, but the "
            f"engine calls it with (engine, batch): {error}"
        ) from error
    except ValueError:  # a builtin that does not tell its parameters
        return
