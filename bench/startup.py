"""From the call, or from the shell, to the first all-reduce of 2 and of 8 processes.

Cold: a whole command, whose script joins the group, adds one number up and ends. Warm: a process that has launched
before launches again.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from functools import partial

from commands import BIN, PROGRAMS, LivingProgram, time_command
from harness import Outcome, Row, Side, Target, interleave, make_row, options, write_rows

COLD_TARGET = {2: Target(0.6), 8: Target(0.3)}
WARM_TARGET = Target(1.0, of="ours")
IMPORT = "import torch alone"
DEBUG = "Accelerate debug_launcher"
NOTEBOOK = "Accelerate notebook_launcher"
FORKED = "Accelerate's two fork their parent: nothing is imported, and the workers fail once the parent has used a GPU"


def cold(num_processes: int, *, rounds: int, warmup_rounds: int) -> list[Row]:
    """Commands typed into a shell."""
    script, count = str(PROGRAMS / "all_reduce.py"), str(num_processes)
    # Without --multi_gpu this release starts one process only; with it, it starts gloo workers where no GPU is.
    accelerate = ["launch", "--multi_gpu", "--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no"]
    commands = {
        "shoal launch": [str(BIN / "shoal"), "launch", "--nproc", count, script],
        "torchrun": [str(BIN / "torchrun"), "--nproc-per-node", count, script],
        "accelerate launch": [str(BIN / "accelerate"), *accelerate, "--num_processes", count, script],
        "Parallel": [sys.executable, str(PROGRAMS / "parallel_shoal.py"), count],
        "Ignite Parallel": [sys.executable, str(PROGRAMS / "parallel_ignite.py"), count],
    }
    sides: dict[str, Side] = {
        name: partial(time_command, command, expect=f"world size {count}") for name, command in commands.items()
    }
    sides[IMPORT] = partial(time_command, [sys.executable, "-c", "import torch"])
    found = interleave(sides, rounds=rounds, warmup_rounds=warmup_rounds)
    pairs = (
        ("shoal launch", "torchrun", COLD_TARGET[num_processes]),
        ("shoal launch", "accelerate launch", None),
        ("shoal launch", IMPORT, None),
        ("Parallel", "torchrun", None),
        ("Parallel", "Ignite Parallel", None),
    )
    return [
        make_row(
            f"{num_processes} cold, {ours}",
            quantity="took_s",
            unit="s",
            ours=found[ours],
            peer=peer,
            theirs=found[peer],
            target=target,
        )
        for ours, peer, target in pairs
    ]


def warm(num_processes: int, *, rounds: int) -> list[Row]:
    """Calls from a process that lives on. It has launched once before; that first launch isn't counted."""
    programs = {
        "Parallel": ["warm_shoal.py", str(num_processes)],
        "Ignite Parallel": ["warm_ignite.py", str(num_processes)],
        DEBUG: ["warm_accelerate.py", str(num_processes), "debug"],
        NOTEBOOK: ["warm_accelerate.py", str(num_processes), "notebook"],
    }
    with ExitStack() as living:
        sides: dict[str, Side] = {}
        for name, (program, *arguments) in programs.items():
            command = [sys.executable, str(PROGRAMS / program), *arguments]
            sides[name] = living.enter_context(LivingProgram(command)).measure
        found = interleave(sides, rounds=rounds)
    return _warm_rows(num_processes, found)


def _warm_rows(num_processes: int, found: dict[str, Outcome]) -> list[Row]:
    peers = [name for name in found if name != "Parallel"]
    quantities = (("reduced_s", "to all-reduce", WARM_TARGET), ("call_s", "whole call", None))
    return [
        make_row(
            f"{num_processes} warm, Parallel, {said}",
            quantity=quantity,
            unit="s",
            ours=found["Parallel"],
            peer=peer,
            theirs=found[peer],
            target=target if peer == peers[0] else None,
            note=FORKED if peer in (DEBUG, NOTEBOOK) else "",
        )
        for quantity, said, target in quantities
        for peer in peers
    ]


def main() -> None:
    given = options(__doc__)
    rows: list[Row] = []
    for num_processes in (2, 8):
        warmup_rounds = 1 if num_processes == 2 and not given.quick else 0
        rows += cold(num_processes, rounds=1 if given.quick else 3, warmup_rounds=warmup_rounds)
    for num_processes in (2, 8):
        rows += warm(num_processes, rounds=1 if given.quick else 5)
    write_rows(rows, given)


if __name__ == "__main__":
    main()
