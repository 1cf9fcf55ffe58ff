"""A logger that also answers to the names of the service behind it."""

from __future__ import annotations

from typing import Any

from shoal import runtime
from shoal.handlers.tracker_logger import TrackerLogger

__all__ = ["PassingLogger"]


class PassingLogger(TrackerLogger):
    """What the logger itself doesn't have is the service's: ``logger.add_graph(model)``, ``logger.log_params({…})``.

    Only a name that the service has opens it, and only on rank 0.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "tracker":
            raise AttributeError(name)
        if not runtime.current().is_main:
            raise AttributeError(f"{type(self).__name__} has '{name}' at most on rank 0; ask for it there only")
        return self._of_service(name)

    def _of_service(self, name: str) -> Any:
        """The service's attribute; raises AttributeError, before it opens anything, where there is none."""
        raise NotImplementedError

    def _refuse(self, name: str) -> AttributeError:
        return AttributeError(f"neither {type(self).__name__} nor the service behind it has '{name}'")
