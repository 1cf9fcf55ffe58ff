"""Parameter schedules, under the path that programs written for Ignite use."""

from __future__ import annotations

from shoal.handlers import (
    ConcatScheduler,
    CosineAnnealingScheduler,
    CyclicalScheduler,
    LinearCyclicalScheduler,
    LRScheduler,
    ParamGroupScheduler,
    ParamScheduler,
    PiecewiseLinear,
    create_lr_scheduler_with_warmup,
)

__all__ = [
    "ConcatScheduler",
    "CosineAnnealingScheduler",
    "CyclicalScheduler",
    "LRScheduler",
    "LinearCyclicalScheduler",
    "ParamGroupScheduler",
    "ParamScheduler",
    "PiecewiseLinear",
    "create_lr_scheduler_with_warmup",
]
