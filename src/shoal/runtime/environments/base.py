"""What an environment answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from shoal.errors import EnvironmentConflictError

__all__ = ["Environment", "Placement", "read_int"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where somebody placed this process.

    Attributes:
        source: the environment that said so, as in the table (``"torchelastic"``).
        placed: whether a launcher placed it; False for a process on its own.
        rank, local_rank, world_size, local_world_size, node_rank, num_nodes: as in ``World``.
        backend: the backend that the launcher was asked for, or None.
    """

    source: str
    placed: bool
    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    node_rank: int = 0
    num_nodes: int = 1
    backend: str | None = None


class Environment(Protocol):
    """One way in which processes get their ranks."""

    def recognises(self, variables: Mapping[str, str]) -> bool:
        """Whether the variables are those of this environment."""
        ...

    def read(self, variables: Mapping[str, str]) -> Placement:
        """The place that the variables give; called only where ``recognises`` said yes.

        Raises:
            EnvironmentConflictError: variables are missing, malformed or contradict each other.
        """
        ...


def read_int(variables: Mapping[str, str], name: str, default: int | None = None) -> int:
    """A non-negative whole number from the environment.

    Raises:
        EnvironmentConflictError: it is missing without a default, or is no such number.
    """
    text = variables.get(name)
    if text is None:
        if default is None:
            raise EnvironmentConflictError(
                f"a launcher's variables were found, but {name} is not set; set it, or unset the others"
            )
        return default
    if not text.strip().isdecimal():
        raise EnvironmentConflictError(f"{name}={text!r} was found where a whole number from 0 is needed; correct it")
    return int(text)
