"""TensorBoard handlers, under the path that programs written for Ignite use."""

from __future__ import annotations

from shoal.handlers.global_step import global_step_from_engine
from shoal.handlers.model_logger import GradsHistHandler, GradsScalarHandler, WeightsHistHandler, WeightsScalarHandler
from shoal.handlers.tensorboard_logger import TensorboardLogger
from shoal.handlers.tracker_logger import OptimizerParamsHandler, OutputHandler

__all__ = [
    "GradsHistHandler",
    "GradsScalarHandler",
    "OptimizerParamsHandler",
    "OutputHandler",
    "TensorboardLogger",
    "WeightsHistHandler",
    "WeightsScalarHandler",
    "global_step_from_engine",
]
