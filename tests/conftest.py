"""What every test is watched for: nothing of it may stay behind."""

import os
import signal
import threading
from pathlib import Path

import pytest
import torch.distributed as dist

# A shell starts background jobs with SIGINT ignored, and programs that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Started once and kept on purpose: the server that workers are forked from, and what Python starts along with it.
_KEPT = ("multiprocessing.forkserver", "multiprocessing.resource_tracker")

_SET_BY_OTHERS = {"PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK"}


def _children() -> set[tuple[int, str]]:
    """Processes whose parent is this one, by id and command."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text(errors="replace")
            command = (path.parent / "cmdline").read_text(errors="replace").replace("\0", " ")
        except OSError:
            continue
        state, parent = text.rpartition(")")[2].split()[:2]
        if int(parent) == os.getpid() and state != "Z" and not any(kept in command for kept in _KEPT):
            found.add((int(path.parent.name), command))
    return found


@pytest.fixture(autouse=True)
def _leaves_nothing_behind():
    environment = dict(os.environ)
    processes = _children()
    threads = set(threading.enumerate())
    yield
    assert not (dist.is_available() and dist.is_initialized()), "the test leaves a process group"
    changed = {k: v for k, v in os.environ.items() if environment.get(k) != v and k not in _SET_BY_OTHERS}
    assert not changed, f"the test changes environment variables: {changed}"
    assert set(environment) - set(os.environ) <= _SET_BY_OTHERS, "the test removes environment variables"
    left = _children() - processes
    assert not left, f"the test leaves processes: {left}"
    alive = [t for t in set(threading.enumerate()) - threads if t.is_alive() and not t.daemon]
    assert not alive, f"the test leaves threads: {alive}"
