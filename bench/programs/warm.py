"""The frame of the programs that launch from a living process: one line in, one launch, one line out."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["serve", "stamp"]


def stamp(folder: str, *, rank: int, total: int) -> None:
    """In a worker: write down when its first all-reduce was done. The clock is the same in all processes of a machine.

    Args:
        folder: where the parent looks.
        rank: of this worker.
        total: what the all-reduce of ones gave, which is the number of processes that took part.
    """
    done_at = time.monotonic()
    Path(folder, str(rank)).write_text(json.dumps([done_at, total]), encoding="utf-8")


def serve(launch: Callable[[int, str], None], *, num_processes: int) -> None:
    """For every line that comes in, launch once and print what was measured, until no more come.

    Printed are ``reduced_s``, from the call until the slowest worker had its first all-reduce, and ``call_s``, until
    the call returned.

    Raises:
        RuntimeError: fewer processes took part than asked.
    """
    for _ in sys.stdin:
        with tempfile.TemporaryDirectory() as folder:
            started = time.monotonic()
            launch(num_processes, folder)
            returned = time.monotonic()
            stamps = [json.loads(path.read_text(encoding="utf-8")) for path in Path(folder).iterdir()]
        totals = [total for _, total in stamps]
        if totals != [num_processes] * num_processes:
            raise RuntimeError(f"asked for {num_processes} processes; the all-reduce saw {totals} of them")
        reduced = max(done_at for done_at, _ in stamps)
        measured = {"reduced_s": reduced - started, "call_s": returned - started}
        print("measured: " + json.dumps(measured), flush=True)
