"""MLflow handlers, under the path that programs written for Ignite use."""

from __future__ import annotations

from shoal.handlers.global_step import global_step_from_engine
from shoal.handlers.mlflow_logger import MLflowLogger
from shoal.handlers.tracker_logger import OptimizerParamsHandler, OutputHandler

__all__ = [
    "MLflowLogger",
    "OptimizerParamsHandler",
    "OutputHandler",
    "global_step_from_engine",
]
