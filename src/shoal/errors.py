"""Every error that Shoal raises on purpose.

    ShoalError
    ├── UsageError            (ValueError)      an argument, option or call that cannot work as asked
    │   └── HandlerSignatureError (TypeError)   a handler that its event could not call
    ├── EnvironmentConflictError (RuntimeError) variables of the environment that contradict each other or the call
    ├── MissingExtraError     (ImportError)     an optional dependency that is not installed
    ├── CollectiveError       (RuntimeError)    ranks that called a collective with arguments that do not fit
    ├── WorkerFailedError     (RuntimeError)    a worker process ended with an error; carries every rank's failure
    ├── WorkerInterruptedError (RuntimeError)   a launch was ended by a signal
    ├── DataError             (ValueError)      a data set, file, row or sample that cannot be used
    ├── CheckpointError       (RuntimeError)    a checkpoint that cannot be written, found, read or applied
    ├── TrackerError          (RuntimeError)    a record that a tracker's service did not take
    └── NotComputableError    (RuntimeError)    a metric that has seen no sample

Texts follow one form: what was asked, what was found, what to do.
"""

from __future__ import annotations

__all__ = [
    "CheckpointError",
    "CollectiveError",
    "DataError",
    "EnvironmentConflictError",
    "HandlerSignatureError",
    "MissingExtraError",
    "NotComputableError",
    "ShoalError",
    "TrackerError",
    "UsageError",
    "WorkerFailedError",
    "WorkerInterruptedError",
]


class ShoalError(Exception):
    """The root of all errors that Shoal raises on purpose."""


class UsageError(ShoalError, ValueError):
    """An argument, an option or a call that cannot work as asked."""


class HandlerSignatureError(UsageError, TypeError):
    """A handler whose parameters do not fit the arguments that its event would call it with."""


class EnvironmentConflictError(ShoalError, RuntimeError):
    """Variables of the environment that contradict each other, or contradict what was asked."""


class MissingExtraError(ShoalError, ImportError):
    """An optional dependency that is not installed; the text names the extra that brings it."""


class CollectiveError(ShoalError, RuntimeError):
    """Ranks called a collective with arguments that do not fit together."""


class WorkerFailedError(ShoalError, RuntimeError):
    """At least one worker process ended with an error.

    The text names the first rank that failed and why; the error's cause carries the whole report, with that rank's own
    traceback and what died of it, and Python shows it first.

    Attributes:
        failures: one record a failed rank, the first cause first (see ``shoal.launch.report.RankFailure``).
    """

    def __init__(self, message: str, failures: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.failures = failures


class WorkerInterruptedError(ShoalError, RuntimeError):
    """The launcher received a signal, passed it on to its workers and ended.

    Attributes:
        signal_number: the signal that was received.
    """

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.signal_number = signal_number


class DataError(ShoalError, ValueError):
    """A data set, a file, a row or a sample that cannot be used; the text says which."""


class CheckpointError(ShoalError, RuntimeError):
    """A checkpoint that cannot be written, found, read or applied."""


class TrackerError(ShoalError, RuntimeError):
    """A record that a tracker's file, library or service did not take; the cause is its own error."""


class NotComputableError(ShoalError, RuntimeError):
    """A metric was computed before any rank had seen a sample."""
