"""A process that nobody placed."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.runtime.environments.base import Placement

__all__ = ["Local"]


class Local:
    """One process on its own: rank 0 of 1."""

    def recognises(self, variables: Mapping[str, str]) -> bool:  # noqa: ARG002
        """Always."""
        return True

    def read(self, variables: Mapping[str, str]) -> Placement:  # noqa: ARG002
        """Rank 0 of 1."""
        return Placement(source="local", placed=False)
