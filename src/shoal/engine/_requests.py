"""What a run is asked to do, by its handlers, signal handlers and other threads: to end, to pause, to end an epoch."""

from __future__ import annotations

from enum import Enum

from shoal.engine._emitter import Emitter
from shoal.engine._saving import Ending

__all__ = ["Askable", "Request"]


class Request(Enum):
    """What the loop is asked to do after the current event. Of several, the last one here is served first."""

    END_EPOCH = "terminate_epoch"
    PAUSE = "interrupt"
    END_RUN = "terminate"


class Askable(Emitter):
    """An emitter whose run can be asked for something; the loop serves it between two events."""

    def __init__(self) -> None:
        super().__init__()
        # What was asked for and isn't served, and whether without COMPLETED, or EPOCH_COMPLETED. Signals and threads
        # ask at any time: each request is put in and taken out by itself, so that none is lost to another.
        self._requests: dict[Request, bool] = {}
        self._running = False
        self._in_epoch = False
        self._ending: Ending | None = None  # this epoch is being ended by terminate_epoch()

    def terminate(self, skip_completed: bool = False) -> None:
        """End the run after the current event: TERMINATE and then COMPLETED are fired, no EPOCH_COMPLETED.

        A later ``run`` goes on with the batch that comes next. May be called from a signal handler.

        Args:
            skip_completed: don't fire COMPLETED.
        """
        self._ask(Request.END_RUN, skip_completed)

    def terminate_epoch(self, skip_epoch_completed: bool = False) -> None:
        """End the epoch after the current event: TERMINATE_SINGLE_EPOCH and EPOCH_COMPLETED are fired.

        The next epoch begins the data anew.

        Args:
            skip_epoch_completed: don't fire EPOCH_COMPLETED, nor compute the epoch's metrics.
        """
        if self._running and (self._ending or not self._in_epoch):
            self.logger.warning("terminate_epoch() was called where no epoch goes on; it has no effect.")
            return
        self._ask(Request.END_EPOCH, skip_epoch_completed)

    def interrupt(self) -> None:
        """Pause the run after the current iteration: INTERRUPT is fired, and ``run`` returns.

        A later ``run`` goes on as if nothing had been: no event is fired twice, metrics keep their samples. Given other
        data, it draws the batches that come next from these.
        """
        self._ask(Request.PAUSE, False)

    @property
    def should_terminate(self) -> bool:
        """Whether ``terminate()`` was called and the run is about to end."""
        return Request.END_RUN in self._requests

    @property
    def should_terminate_single_epoch(self) -> bool:
        """Whether ``terminate_epoch()`` was called and the epoch is about to end."""
        return self._running and self._asked_ending() is not None

    @property
    def should_interrupt(self) -> bool:
        """Whether ``interrupt()`` was called and the run is about to pause."""
        return Request.PAUSE in self._requests and not self.should_terminate

    def _ask(self, request: Request, skip_completed: bool) -> None:
        if not self._running:
            self.logger.warning("%s() was called while the engine is not running; it has no effect.", request.value)
            return
        self._requests[request] = skip_completed

    def _asked_ending(self) -> Ending | None:
        """How this epoch is about to end before its time, if it is."""
        skips = self._requests.get(Request.END_EPOCH)
        if skips is None:
            return self._ending
        return "skip" if skips else "fire"

    def _keep_ending(self, ending: Ending | None) -> None:
        """Forget all that was asked for but how the epoch ends: the next run, which enters it, serves that."""
        self._requests.clear()
        self._ending = None
        if ending is not None:
            self._requests[Request.END_EPOCH] = ending == "skip"

    def _is_stopping(self) -> bool:
        return Request.END_RUN in self._requests or Request.PAUSE in self._requests
