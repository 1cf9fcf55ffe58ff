"""Import paths of handlers that programs written for Ignite use; the code is in ``shoal.handlers``."""

from __future__ import annotations

from shoal.handlers import (
    BasicTimeProfiler,
    ClearMLLogger,
    ConcatScheduler,
    CosineAnnealingScheduler,
    EpochOutputStore,
    FastaiLRFinder,
    HandlersTimeProfiler,
    LinearCyclicalScheduler,
    LRScheduler,
    MLflowLogger,
    ParamGroupScheduler,
    PiecewiseLinear,
    ProgressBar,
    TensorboardLogger,
    WandBLogger,
    create_lr_scheduler_with_warmup,
    global_step_from_engine,
)

__all__ = [
    "BasicTimeProfiler",
    "ClearMLLogger",
    "ConcatScheduler",
    "CosineAnnealingScheduler",
    "EpochOutputStore",
    "FastaiLRFinder",
    "HandlersTimeProfiler",
    "LRScheduler",
    "LinearCyclicalScheduler",
    "MLflowLogger",
    "ParamGroupScheduler",
    "PiecewiseLinear",
    "ProgressBar",
    "TensorboardLogger",
    "WandBLogger",
    "create_lr_scheduler_with_warmup",
    "global_step_from_engine",
]
