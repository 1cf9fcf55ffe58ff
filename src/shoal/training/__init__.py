"""What one optimisation step is; both ways of writing a training use it."""

from __future__ import annotations

from shoal.training.batches import convert_tensor, map_tensors, prepare_batch
from shoal.training.clipping import GradientLimits
from shoal.training.parallel import auto_model, auto_optim, unwrap_model
from shoal.training.precision import Precision, left_out_by_scaler
from shoal.training.step import StepOptions, StepResult, SupervisedStep, average_gradients, evaluate_batch
from shoal.training.sync_batchnorm import GlobalBatchNorm
from shoal.training.window import ALONE, MicroBatch, Window

__all__ = [
    "ALONE",
    "GlobalBatchNorm",
    "GradientLimits",
    "MicroBatch",
    "Precision",
    "StepOptions",
    "StepResult",
    "SupervisedStep",
    "Window",
    "auto_model",
    "auto_optim",
    "average_gradients",
    "convert_tensor",
    "evaluate_batch",
    "left_out_by_scaler",
    "map_tensors",
    "prepare_batch",
    "unwrap_model",
]
