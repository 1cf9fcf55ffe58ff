"""A parameter that falls along half a cosine, and starts anew."""

from __future__ import annotations

import math

from shoal.handlers.cyclical_scheduler import CyclicalScheduler

__all__ = ["CosineAnnealingScheduler"]


class CosineAnnealingScheduler(CyclicalScheduler):
    """From the start value to the end value along half a cosine; then the next cycle begins.

    I. Loshchilov and F. Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", 2017::

        scheduler = CosineAnnealingScheduler(optimizer, "lr", 1e-1, 1e-3, len(loader))
        trainer.add_event_handler(Events.ITERATION_STARTED, scheduler)

    The last event of a cycle is one before its end: over n events, the last value is that at progress (n - 1) / n.

    Args and errors are those of :class:`CyclicalScheduler`.
    """

    def value_in_cycle(self, start_value: float, end_value: float, progress: float) -> float:
        """See :class:`CyclicalScheduler`."""
        return start_value + (end_value - start_value) * (1 - math.cos(math.pi * progress)) / 2
