"""Weights & Biases handlers, under the path that programs written for Ignite use."""

from __future__ import annotations

from shoal.handlers.wandb_logger import (
    OptimizerParamsHandler,
    OutputHandler,
    WandBLogger,
    global_step_from_engine,
)

__all__ = [
    "OptimizerParamsHandler",
    "OutputHandler",
    "WandBLogger",
    "global_step_from_engine",
]
