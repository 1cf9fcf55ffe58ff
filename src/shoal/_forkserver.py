"""The process that workers are forked from: it imports torch once, for all of them.

Kept apart from ``launch/``, whose other modules import torch, so that a command can have the server import torch while
it imports torch itself.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Sequence
from multiprocessing import forkserver

__all__ = ["start"]

# What creating an optimizer imports; as slow as half of torch.
_FOR_TRAINING = ["torch._dynamo"]
_ALWAYS = ["shoal.launch.worker", "shoal.distributed"]
_LAST = "shoal.launch.server"  # ends the server at once when its time has come
_IF_IN_USE = ["torchvision", "shoal.engine", "shoal.handlers", "shoal.metrics"]


def start(*, for_training: bool = False, also: Sequence[str] = ()) -> None:
    """Start the server, if none runs, without waiting for its imports.

    Args:
        for_training: whether the workers will hardly do without an optimizer. A command that runs any script leaves
            it off: a script that creates none shall not wait for what one imports.
        also: modules that the workers of this launch will import, too.

    It imports what every worker needs and, of a few modules that are slow to import, those that this process uses. A
    server that runs already (of an earlier launch, or of the program's own) stays as it is.
    """
    in_use = [name for name in _IF_IN_USE if name in sys.modules]
    multiprocessing.set_forkserver_preload([*_ALWAYS, *in_use, *(_FOR_TRAINING if for_training else []), *also, _LAST])
    # A Ctrl-C while the server imports is the launcher's to answer; each worker takes the signal again for itself.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
