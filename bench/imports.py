"""What an import adds to ``import torch``, and how long a command takes to say its help.

Whole processes are timed. What an import adds is the difference to ``import torch`` alone in the same round.
"""

from __future__ import annotations

import sys
from functools import partial

from commands import BIN, time_command
from harness import Row, Target, interleave, make_row, options, write_rows

IMPORT_TARGET = Target(0.3, of="ours")
HELP_TARGET = Target(0.5, of="ours")
# The imports of a whole training program, the same names from both libraries.
PROGRAM = """
import torch
import {0}
import {0}.distributed as idist
from {0}.{1} import common
from {0}.handlers import PiecewiseLinear, Checkpoint, global_step_from_engine
from {0}.engine import Events, create_supervised_trainer, create_supervised_evaluator
from {0}.metrics import Accuracy, Loss
from {0}.utils import manual_seed, setup_logger
"""
STATEMENTS = {
    "torch": "import torch",
    "import shoal": "import torch, shoal",
    "import ignite": "import torch, ignite",
    "import accelerate": "import torch, accelerate",
    "import lightning": "import torch, lightning",
    "a program's imports": PROGRAM.format("shoal", "_").replace("from shoal._ import", "from shoal import"),
    "Ignite, the same": PROGRAM.format("ignite", "contrib.engines"),
}
COMMANDS = ("shoal", "torchrun", "accelerate", "fabric")


def main() -> None:
    given = options(__doc__)
    rounds, warmup_rounds = (1, 1) if given.quick else (7, 1)
    sides = {name: partial(time_command, [sys.executable, "-c", statement]) for name, statement in STATEMENTS.items()}
    sides |= {f"{name} --help": partial(time_command, [str(BIN / name), "--help"]) for name in COMMANDS}
    found = interleave(sides, rounds=rounds, warmup_rounds=warmup_rounds)

    pairs = [("import shoal", peer) for peer in ("import ignite", "import accelerate", "import lightning")]
    pairs.append(("a program's imports", "Ignite, the same"))
    rows: list[Row] = []
    for number, (ours, peer) in enumerate(pairs):
        rows.append(
            make_row(
                f"{ours}, over torch",
                quantity="took_s",
                unit="s",
                ours=found[ours],
                peer=peer,
                theirs=found[peer],
                less=(found["torch"], found["torch"]),
                target=IMPORT_TARGET if number == 0 else None,
            )
        )
    for number, name in enumerate(COMMANDS[1:]):
        rows.append(
            make_row(
                "shoal --help",
                quantity="took_s",
                unit="s",
                ours=found["shoal --help"],
                peer=f"{name} --help",
                theirs=found[f"{name} --help"],
                target=HELP_TARGET if number == 0 else None,
            )
        )
    write_rows(rows, given)


if __name__ == "__main__":
    main()
