"""What Shoal says goes through ``logging``, to be seen without any set-up and on one rank only."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

from shoal.runtime.context import current

__all__ = ["FORMAT", "get_logger", "setup_logger"]

FORMAT = "%(asctime)s %(name)s %(levelname)s: %(message)s"


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to what ``sys.stderr`` is now, not to what it was when the handler was made."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(logging.Formatter(FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def get_logger(name: str) -> logging.Logger:
    """A logger of Shoal's own, below ``"shoal"``.

    Where neither ``"shoal"`` nor the root logger has a handler, one is attached to ``"shoal"`` that writes to standard
    error; a program that configures logging itself gets everything through its own handlers. Rank 0 shows INFO and
    up, other ranks WARNING and up, unless the level of ``"shoal"`` was set by the program.
    """
    library = logging.getLogger("shoal")
    if not library.handlers and not logging.getLogger().handlers:
        library.addHandler(_StderrHandler())
        library.propagate = False
    if library.level == logging.NOTSET or getattr(library, "_shoal_level", None) == library.level:
        level = logging.INFO if current().is_main else logging.WARNING
        library.setLevel(level)
        library._shoal_level = level  # type: ignore[attr-defined]  # marks the level as ours, to be changed later
    # An engine tells of its starts and ends to the logger that the user gives it, and to nobody unasked.
    if (engines := logging.getLogger("shoal.engine")).level == logging.NOTSET:
        engines.setLevel(logging.WARNING)
    return logging.getLogger(name)


def setup_logger(
    name: str | None = "shoal",
    level: int = logging.INFO,
    stream: TextIO | None = None,
    format: str = FORMAT,  # noqa: A002 - the name that logging.basicConfig uses
    filepath: str | None = None,
    distributed_rank: int | None = None,
    reset: bool = False,
) -> logging.Logger:
    """A logger that shows rank 0's lines with time, name and level.

    Args:
        name: its name; None is the root logger.
        level: the least level shown on rank 0. Other ranks show WARNING and up.
        stream: where lines go; None (default) is standard error as it is when a line is written.
        format: as in ``logging.Formatter``.
        filepath: a file that gets rank 0's lines too, appended.
        distributed_rank: the rank of this process; None (default) asks the runtime.
        reset: whether handlers that an earlier call attached are replaced. Off by default: a second call with the
            same name changes the level alone, so that no line is written twice.
    """
    logger = logging.getLogger(name)
    rank = current().rank if distributed_rank is None else distributed_rank
    logger.setLevel(level if rank == 0 else max(level, logging.WARNING))
    if logger.handlers and not reset:
        return logger
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    handlers: list[logging.Handler] = [logging.StreamHandler(stream) if stream is not None else _StderrHandler()]
    if filepath is not None and rank == 0:
        handlers.append(logging.FileHandler(filepath))
    for handler in handlers:
        handler.setFormatter(logging.Formatter(format))
        logger.addHandler(handler)
    logger.propagate = False
    return logger
