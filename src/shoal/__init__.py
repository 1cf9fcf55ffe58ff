"""Shoal trains a PyTorch model on whatever hardware is there, from one unchanged Python function.

Importing it imports nothing heavy: ``shoal.distributed``, ``shoal.engine``, … are imported when they are named.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from shoal._version import __version__

__all__ = ["__version__"]

_MODULES = ("common", "distributed", "engine", "errors", "handlers", "metrics", "testing", "trackers", "utils")


def __getattr__(name: str) -> ModuleType:
    if name in _MODULES:
        return importlib.import_module(f"shoal.{name}")
    raise AttributeError(f"module 'shoal' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
