"""Whole commands, timed from the outside: from before they are started until they have ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

__all__ = ["BIN", "PROGRAMS", "CommandFailedError", "LivingProgram", "run_command", "time_command"]

BIN = Path(sys.executable).parent
PROGRAMS = Path(__file__).resolve().parent / "programs"
_ANSWER_S = 120.0
_MEASURED = "measured: "


class CommandFailedError(RuntimeError):
    """A command that ended with an error, said something else than expected, or did not end in time."""


def run_command(command: Sequence[str], *, expect: str = "", timeout_s: float = 180.0) -> tuple[str, float]:
    """Run a command; return the end of what it printed and how long it took, in seconds.

    The time ends when the command itself does, as a shell sees it; what it leaves running is killed then, so that it
    doesn't run while the next command is timed.

    Args:
        command: the program and its arguments.
        expect: a text that must be in what it prints: a command that started fewer processes than asked has failed.
        timeout_s: after this long it is killed, with all that it started in its process group.

    Raises:
        CommandFailedError: see there; the text holds the end of its output.
    """
    with tempfile.TemporaryFile() as said:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            process.wait(timeout=timeout_s)
            took_s = time.perf_counter() - started
        except subprocess.TimeoutExpired as error:
            output = _end_of(said)
            raise CommandFailedError(f"{_shown(command)} had not ended after {timeout_s:g} s:\n{output}") from error
        finally:
            _kill_group(process)
        output = _end_of(said)
    if process.returncode != 0:
        raise CommandFailedError(f"{_shown(command)} ended with exit code {process.returncode}:\n{output}")
    if expect not in output:
        raise CommandFailedError(f"{_shown(command)} did not print '{expect}' but:\n{output}")
    return output, took_s


def time_command(command: Sequence[str], *, expect: str = "", timeout_s: float = 180.0) -> dict[str, float]:
    """`run_command` as a side of a comparison: ``{"took_s": …}``."""
    return {"took_s": run_command(command, expect=expect, timeout_s=timeout_s)[1]}


def run_program(command: Sequence[str], *, timeout_s: float = 600.0) -> dict[str, float]:
    """Run a program that measures itself and prints one line ``measured: {…}``; return that mapping."""
    output, _ = run_command(command, expect=_MEASURED, timeout_s=timeout_s)
    return _read_measured(next(line for line in output.splitlines() if line.startswith(_MEASURED)))


class LivingProgram:
    """A program that stays alive between measurements: one line in starts one, one line out ends it.

    It is started by the first measurement, whose own result is the warm-up and is thrown away.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is None:
            return
        with contextlib.suppress(BrokenPipeError), self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                _kill_group(self._process)

    def measure(self) -> dict[str, float]:
        """Ask for one measurement and wait for it.

        Raises:
            CommandFailedError: the program ended instead of answering; the text holds what it said.
        """
        if self._process is None:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            self._ask(self._process)
        return self._ask(self._process)

    def _ask(self, process: subprocess.Popen[str]) -> dict[str, float]:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write("measure\n")
            process.stdin.flush()
        said: list[str] = []
        overdue = threading.Timer(_ANSWER_S, _kill_group, [process])  # a launcher that hangs must not hang the rest
        overdue.start()
        try:
            for line in process.stdout:
                if line.startswith(_MEASURED):
                    return _read_measured(line)
                said.append(line)
            process.wait(timeout=30)
        finally:
            overdue.cancel()
        text = "".join(said)[-2000:]
        raise CommandFailedError(f"{_shown(self._command)} ended with exit code {process.returncode}:\n{text}")


def _read_measured(line: str) -> dict[str, float]:
    measured: dict[str, float] = json.loads(line.removeprefix(_MEASURED))
    return measured


def _end_of(said: IO[bytes]) -> str:
    said.seek(max(0, said.seek(0, os.SEEK_END) - 4000))
    return said.read().decode(errors="replace")


def _kill_group(process: subprocess.Popen[Any]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _shown(command: Sequence[str]) -> str:
    return " ".join([Path(command[0]).name, *command[1:]])
