"""A worker outlives its launcher by seconds at the most, also when that was killed with SIGKILL."""

from __future__ import annotations

import os
import select
import shutil
import signal
import threading
import time

__all__ = ["die_with"]

_GRACE_S = 3.0
_POLL_S = 1.0


def die_with(launcher_pid: int, folder: str) -> None:
    """Start a thread that ends this process and its children when the launcher has ended.

    Where the process handles SIGTERM it gets that first, and seconds to save what it has. It must lead a process group
    of its own.

    Args:
        launcher_pid: whose end is waited for.
        folder: the launch's folder, which the launcher removes unless it is killed.
    """
    threading.Thread(target=_watch, args=(launcher_pid, folder), name="shoal-launcher-watch", daemon=True).start()


def _watch(launcher_pid: int, folder: str) -> None:
    _wait_for_end(launcher_pid)
    shutil.rmtree(folder, ignore_errors=True)
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_GRACE_S)
    os.killpg(os.getpgid(0), signal.SIGKILL)


def _wait_for_end(pid: int) -> None:
    if hasattr(os, "pidfd_open"):
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        except OSError:  # an old kernel, or a sandbox that forbids the call
            pass
        else:
            with os.fdopen(handle):
                waiter = select.poll()
                waiter.register(handle, select.POLLIN)
                waiter.poll()
            return
    while True:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(_POLL_S)
