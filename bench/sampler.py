"""The first index of a shuffled dataset of 100 million samples, and the memory that it costs.

Every measurement is a process of its own. The memory is what the peak of a process with 100 million samples has grown
by, beyond what it grows by with one million: nothing, where no array of that size is made.
"""

from __future__ import annotations

import sys
from functools import partial

from commands import PROGRAMS, run_program
from harness import Target, interleave, make_row, options, write_rows

INDEX_TARGET = Target(10.0, of="ours")
# An array of 32-bit indices would take 400 MB; what is allowed is what a process's peak varies by.
MEMORY_TARGET = Target(4.0, of="ours")
PEER = "DistributedSampler"


def main() -> None:
    given = options(__doc__)
    sides = {
        f"{name} {num_samples}": partial(
            run_program, [sys.executable, str(PROGRAMS / "first_index.py"), name, str(num_samples)]
        )
        for name in ("shoal", "torch")
        for num_samples in (1_000_000, 100_000_000)
    }
    found = interleave(sides, rounds=1 if given.quick else 3)
    ours, theirs = found["shoal 100000000"], found["torch 100000000"]
    time_row = make_row(
        "first index of 100 million",
        quantity="took_s",
        unit="ms",
        scale=1e3,
        ours=ours,
        peer=PEER,
        theirs=theirs,
        target=INDEX_TARGET,
    )
    memory_row = make_row(
        "peak memory, beyond that of 1 million",
        quantity="grown_bytes",
        unit="MB",
        scale=1e-6,
        ours=ours,
        peer=PEER,
        theirs=theirs,
        less=(found["shoal 1000000"], found["torch 1000000"]),
        target=MEMORY_TARGET,
    )
    write_rows([time_row, memory_row], given)


if __name__ == "__main__":
    main()
