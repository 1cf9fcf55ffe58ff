"""Code for one rank alone, or for one rank before the others."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from shoal.errors import UsageError
from shoal.runtime.collectives import barrier
from shoal.runtime.context import current

__all__ = ["one_rank_first", "one_rank_only"]

P = ParamSpec("P")
R = TypeVar("R")


def one_rank_only(rank: int = 0, with_barrier: bool = False) -> Callable[[Callable[P, R]], Callable[P, R | None]]:
    """Decorate a function so that one rank runs it and the others skip it.

    Args:
        rank: the rank that runs it; 0 by default.
        with_barrier: whether the others wait until it has run, or has raised; off by default.

    Returns:
        The decorator. The function's value is returned on that rank and None on the others.

    Raises:
        UsageError: in the call, there is no such rank.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R | None]:
        @functools.wraps(function)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> R | None:
            if not 0 <= rank < current().world_size:
                raise UsageError(
                    f"one_rank_only was asked for rank {rank}, but ranks are 0 to {current().world_size - 1} here; "
                    "choose one"
                )
            try:
                return function(*args, **kwargs) if current().rank == rank else None
            finally:
                if with_barrier:
                    barrier()

        return wrapped

    return decorate


@contextmanager
def one_rank_first(rank: int = 0, local: bool = False) -> Iterator[None]:
    """Let one rank run a block before the others, which then run it too; to download once, for example.

    Args:
        rank: the rank that goes first; 0 by default.
        local: whether it is a local rank, so that one process on every node goes first. Off by default.

    Raises:
        UsageError: there is no such rank.
    """
    world = current()
    size = world.local_world_size if local else world.world_size
    if not 0 <= rank < size:
        raise UsageError(f"one_rank_first was asked for rank {rank}, but ranks are 0 to {size - 1} here; choose one")
    is_first = (world.local_rank if local else world.rank) == rank
    if not is_first:
        barrier()
    try:
        yield
    finally:
        if is_first:
            barrier()
