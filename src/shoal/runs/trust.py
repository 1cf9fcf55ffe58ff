"""How far a file of a run is believed: it may be cut off, tampered with, or somebody else's under the same name."""

from __future__ import annotations

__all__ = ["MOST", "UNREADABLE", "count_of"]

UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""What reading a file raises that is not there, cut off, or not ours: JSON may hold any type, and ``1e999``."""

MOST = 2**53
"""More steps, epochs or images than this are no count: a float, which charts are made of, tells no more apart."""


def count_of(value: object) -> int:
    """``value`` as a number of things.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= MOST or value != int(value):
        raise ValueError(f"{value!r:.40} is no count")
    return int(value)
