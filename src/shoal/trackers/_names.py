"""Names that a service forbids, turned into ones that it takes."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

__all__ = ["NameMap", "file_like", "readable", "relative"]

_log = logging.getLogger(__name__)


def file_like(name: str) -> str:
    """``name`` with nothing but ASCII letters, digits, dots, dashes and underscores, as names of artifacts are."""
    return re.sub(r"[^a-zA-Z0-9_\-.]", "_", name)


def readable(name: object) -> str:
    """``name`` as a text that every encoding and every file system has: no half of a character, no NUL."""
    return str(name).encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def relative(name: str) -> str:
    """``name`` as a path that stays where it is put."""
    parts = [part for part in name.split("/") if part]
    return "/".join("_" if part in (".", "..") else part for part in parts) or "_"


def _cut(name: str, num_bytes: int) -> str:
    return name.encode()[:num_bytes].decode(errors="ignore")


class NameMap:
    """Turns names into ones that a service takes, never two into the same; a change is said once.

    Args:
        service: the service, for the log.
        clean: returns a name that the service takes; the same for the same.
        max_length: how long one may be, in bytes of UTF-8: many become names of files.
    """

    def __init__(self, service: str, clean: Callable[[str], str], max_length: int = 250) -> None:
        self._service = service
        self._clean = clean
        self._max_length = max_length
        self._by_name: dict[str, str] = {}
        self._taken: set[str] = set()

    def __call__(self, name: str) -> str:
        """What ``name`` is called in the service."""
        if name not in self._by_name:
            clean = found = _cut(self._clean(name), self._max_length)
            number = 2
            while found in self._taken:
                found = f"{_cut(clean, self._max_length - 8)}_{number}"
                number += 1
            self._taken.add(found)
            self._by_name[name] = found
            if found != name:
                _log.warning("%s takes no name like '%s'; it is recorded as '%s'", self._service, name, found)
        return self._by_name[name]
