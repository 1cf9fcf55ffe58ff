"""Weights & Biases handlers, under the path that programs written for Ignite use."""

from __future__ import annotations

from shoal.handlers.global_step import global_step_from_engine
from shoal.handlers.tracker_logger import OptimizerParamsHandler, OutputHandler
from shoal.handlers.wandb_logger import WandBLogger

__all__ = [
    "OptimizerParamsHandler",
    "OutputHandler",
    "WandBLogger",
    "global_step_from_engine",
]
