"""Imported in the server that workers are forked from, as the last of its modules, and nowhere else."""

from __future__ import annotations

import atexit
import gc
import os

_SERVER = os.getpid()


def _end() -> None:
    """Spare the server the half second that torch needs to be taken down: it must not outlive its launcher."""
    if os.getpid() == _SERVER:
        os._exit(0)


atexit.register(_end)
# Workers share what was imported here: their collector need not look through it, nor touch its memory.
gc.freeze()
