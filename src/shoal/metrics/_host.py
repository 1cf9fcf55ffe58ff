"""What a metric needs of an engine, which it never imports."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from shoal.metrics.usage import UsageLike

if TYPE_CHECKING:
    from shoal.metrics.base import Metric

__all__ = ["Host"]


class Host(Protocol):
    """An engine, as far as metrics know it."""

    def attach_metric(self, metric: Metric, name: str, usage: UsageLike | None = None) -> None:
        """Feed ``metric`` and put its value into ``state.metrics[name]``."""

    def detach_metric(self, metric: Metric, usage: UsageLike | None = None) -> None:
        """Undo ``attach_metric``."""

    def is_metric_attached(self, metric: Metric, usage: UsageLike | None = None) -> bool:
        """Whether ``metric`` is attached."""
        ...

    def add_event_handler(self, event_name: Any, handler: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call ``handler`` at an event; returns what undoes that by ``remove()``."""
