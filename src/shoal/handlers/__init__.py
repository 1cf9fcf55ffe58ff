"""What happens at an engine's events: one handler a file."""

from __future__ import annotations

from shoal.checkpoint import Store as BaseSaveHandler
from shoal.handlers.checkpoint import Checkpoint, CheckpointEvents
from shoal.handlers.clearml_saver import ClearMLSaver
from shoal.handlers.disk_saver import DiskSaver
from shoal.handlers.global_step import global_step_from_engine
from shoal.handlers.gpu_info import GpuInfo
from shoal.handlers.model_checkpoint import ModelCheckpoint
from shoal.handlers.param_scheduler import ParamScheduler
from shoal.handlers.piecewise_linear import PiecewiseLinear
from shoal.handlers.progress_bar import ProgressBar
from shoal.handlers.tensorboard_logger import TensorboardLogger
from shoal.handlers.terminate_on_nan import TerminateOnNan
from shoal.handlers.tracker_logger import OptimizerParamsHandler, OutputHandler, TrackerLogger

__all__ = [
    "BaseSaveHandler",
    "Checkpoint",
    "CheckpointEvents",
    "ClearMLSaver",
    "DiskSaver",
    "GpuInfo",
    "ModelCheckpoint",
    "OptimizerParamsHandler",
    "OutputHandler",
    "ParamScheduler",
    "PiecewiseLinear",
    "ProgressBar",
    "TensorboardLogger",
    "TerminateOnNan",
    "TrackerLogger",
    "global_step_from_engine",
]
