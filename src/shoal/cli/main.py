"""``shoal``: choose a subcommand and hand over to it. Imports nothing heavy."""

from __future__ import annotations

import importlib
import io
import os
import sys
from typing import cast

from shoal._registry import nearest
from shoal._version import __version__

__all__ = ["main"]

# Name: module with ``main(argv) -> exit code``, and what it does. Listed here so that --help imports none of them.
COMMANDS = {
    "launch": ("shoal.cli.launch", "run a script or a module on several processes"),
    "train": ("shoal.cli.train", "run a complete training that comes with Shoal"),
    "runs": ("shoal.cli.runs", "list the runs in a folder: how they stand, how to go on with them"),
    "report": ("shoal.cli.report", "show a run, or several beside each other, as one HTML page"),
    "env": ("shoal.cli.env", "print what a bug report needs"),
}

_SHOWS = ("runs", "report", "env")
"""Commands that do nothing but print: whoever reads them may stop at any line."""


def main(argv: list[str] | None = None) -> int:
    """The entry point of the ``shoal`` command.

    Args:
        argv: the arguments after the command's name; None takes those of the process.

    Returns:
        The exit code: 0 for success, 1 for a failed job, 2 for a command line that cannot work.
    """
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_help())
        return 0
    if arguments[0] in ("-V", "--version"):
        print(f"shoal {__version__}")
        return 0
    name, rest = arguments[0], arguments[1:]
    if name not in COMMANDS:
        print(
            f"shoal: there is no command {name!r}{nearest(name, COMMANDS)}; commands: {', '.join(COMMANDS)}",
            file=sys.stderr,
        )
        return 2
    if isinstance(sys.stdout, io.TextIOWrapper):  # a path may hold what the terminal's encoding has no character for
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = cast("int", importlib.import_module(COMMANDS[name][0]).main(rest))
        sys.stdout.flush()
    except KeyboardInterrupt:  # before there was anything to save
        return 130
    except BrokenPipeError:  # as with `| head`; Python would fail once more when it flushes at its end
        if name not in _SHOWS:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _help() -> str:
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items())
    return (
        "usage: shoal COMMAND [options]\n\n"
        "Train a PyTorch model on whatever hardware is there, from one unchanged Python function.\n\n"
        f"commands:\n{rows}\n\n"
        "'shoal COMMAND --help' tells a command's options; 'shoal --version' the version."
    )


if __name__ == "__main__":
    sys.exit(main())
