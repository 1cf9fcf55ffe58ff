"""MLflow handlers, under the path that programs written for Ignite use."""

from __future__ import annotations

from shoal.handlers.mlflow_logger import (
    MLflowLogger,
    OptimizerParamsHandler,
    OutputHandler,
    global_step_from_engine,
)

__all__ = [
    "MLflowLogger",
    "OptimizerParamsHandler",
    "OutputHandler",
    "global_step_from_engine",
]
