"""ClearML handlers, under the path that programs written for Ignite use."""

from __future__ import annotations

from shoal.handlers.clearml_logger import (
    ClearMLLogger,
    ClearMLSaver,
    GradsHistHandler,
    GradsScalarHandler,
    OptimizerParamsHandler,
    OutputHandler,
    WeightsHistHandler,
    WeightsScalarHandler,
    global_step_from_engine,
)

__all__ = [
    "ClearMLLogger",
    "ClearMLSaver",
    "GradsHistHandler",
    "GradsScalarHandler",
    "OptimizerParamsHandler",
    "OutputHandler",
    "WeightsHistHandler",
    "WeightsScalarHandler",
    "global_step_from_engine",
]
