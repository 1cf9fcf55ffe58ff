"""Imported in the server that workers are forked from, as the last of its modules, and nowhere else."""

from __future__ import annotations

import atexit
import gc
import os
import signal

_SERVER = os.getpid()
_NOT_FOR_IT = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def _end() -> None:
    """Spare the server the half second that torch needs to be taken down: it must not outlive its launcher."""
    if os.getpid() == _SERVER:
        os._exit(0)


def _hear_again() -> None:
    if os.getppid() == _SERVER:  # not a process that one of its children forks later, which may have handlers
        for number in _NOT_FOR_IT:
            signal.signal(number, signal.SIG_DFL)


atexit.register(_end)
# A scheduler or a service manager signals all processes of a job. The server has to outlive that by as much as its
# launcher does, which would else take the workers, whose ends it tells, for dead; it ends with the launcher anyhow.
for _number in _NOT_FOR_IT:
    signal.signal(_number, signal.SIG_IGN)
os.register_at_fork(after_in_child=_hear_again)
# Workers share what was imported here: their collector need not look through it, nor touch its memory.
gc.freeze()
