"""Tables of named choices (backends, trackers, metrics, …): a name, where its code is, the extra that it needs."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shoal._optional import require
from shoal.errors import UsageError

__all__ = ["Entry", "Registry", "nearest"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of a table.

    Attributes:
        target: ``"module:attribute"``, imported when it is first asked for.
        extra: the extra of Shoal that the module needs, or None.
    """

    target: str
    extra: str | None = None


class Registry(Mapping[str, Entry]):
    """A read-only table from names to code that is imported only when it is asked for.

    Args:
        kind: what the names name, in the singular (``"backend"``); used in errors.
        rows: the table.
    """

    def __init__(self, kind: str, rows: Mapping[str, Entry]) -> None:
        self.kind = kind
        self._rows = dict(rows)

    def __getitem__(self, name: str) -> Entry:
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def load(self, name: str) -> Any:
        """Import and return what ``name`` stands for.

        Raises:
            UsageError: there is no such name; the text gives the nearest one and all names.
            MissingExtraError: its module needs an extra that is not installed.
        """
        if name not in self._rows:
            raise UsageError(
                f"unknown {self.kind} {name!r}{nearest(name, self)}; choose one of: {', '.join(sorted(self))}"
            )
        entry = self._rows[name]
        module, _, attribute = entry.target.partition(":")
        return getattr(require(module, extra=entry.extra or "all", purpose=f"the {self.kind} {name!r}"), attribute)


def nearest(name: str, choices: Mapping[str, object] | list[str]) -> str:
    """``" (did you mean 'x'?)"`` for the choice that is most like ``name``, or an empty string."""
    close = difflib.get_close_matches(name, list(choices), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
