"""The process that workers are forked from: it imports torch once, for all of them.

Kept apart from ``launch/``, whose other modules import torch, so that a command can have the server import torch while
it imports torch itself.
"""

from __future__ import annotations

import multiprocessing
import sys
from multiprocessing import forkserver

__all__ = ["start"]

_ALWAYS = ["shoal.launch.worker", "shoal.distributed"]
_IF_IN_USE = ["torchvision", "shoal.engine", "shoal.handlers", "shoal.metrics"]


def start() -> None:
    """Start the server, if none runs, without waiting for its imports.

    It imports what every worker needs and, of a few modules that are slow to import, those that this process uses. A
    server that runs already (of an earlier launch, or of the program's own) stays as it is.
    """
    multiprocessing.set_forkserver_preload([*_ALWAYS, *(name for name in _IF_IN_USE if name in sys.modules)])
    forkserver.ensure_running()
