"""What happens at an engine's events: one handler a file."""

from __future__ import annotations

from shoal.checkpoint import Store as BaseSaveHandler
from shoal.handlers.basic_time_profiler import BasicTimeProfiler
from shoal.handlers.checkpoint import Checkpoint, CheckpointEvents
from shoal.handlers.clearml_logger import ClearMLLogger
from shoal.handlers.clearml_saver import ClearMLSaver
from shoal.handlers.concat_scheduler import ConcatScheduler
from shoal.handlers.cosine_annealing_scheduler import CosineAnnealingScheduler
from shoal.handlers.cyclical_scheduler import CyclicalScheduler, LinearCyclicalScheduler
from shoal.handlers.disk_saver import DiskSaver
from shoal.handlers.early_stopping import EarlyStopping
from shoal.handlers.ema_handler import EMAHandler
from shoal.handlers.epoch_output_store import EpochOutputStore
from shoal.handlers.global_step import global_step_from_engine
from shoal.handlers.gpu_info import GpuInfo
from shoal.handlers.handlers_time_profiler import HandlersTimeProfiler
from shoal.handlers.lr_finder import FastaiLRFinder
from shoal.handlers.lr_scheduler import LRScheduler
from shoal.handlers.mlflow_logger import MLflowLogger
from shoal.handlers.model_checkpoint import ModelCheckpoint
from shoal.handlers.model_logger import GradsHistHandler, GradsScalarHandler, WeightsHistHandler, WeightsScalarHandler
from shoal.handlers.param_group_scheduler import ParamGroupScheduler
from shoal.handlers.param_scheduler import BaseParamScheduler, ParamScheduler
from shoal.handlers.piecewise_linear import PiecewiseLinear
from shoal.handlers.progress_bar import ProgressBar
from shoal.handlers.reduce_lr_on_plateau import ReduceLROnPlateauScheduler
from shoal.handlers.state_param_scheduler import (
    ExpStateScheduler,
    LambdaStateScheduler,
    MultiStepStateScheduler,
    PiecewiseLinearStateScheduler,
    PwLinearStateScheduler,
    StateParamScheduler,
    StepStateScheduler,
)
from shoal.handlers.tensorboard_logger import TensorboardLogger
from shoal.handlers.terminate_on_nan import TerminateOnNan
from shoal.handlers.time_limit import TimeLimit
from shoal.handlers.timing import Timer
from shoal.handlers.tracker_logger import OptimizerParamsHandler, OutputHandler, TrackerLogger
from shoal.handlers.trackio_logger import TrackioLogger
from shoal.handlers.wandb_logger import WandBLogger
from shoal.handlers.warmup import create_lr_scheduler_with_warmup

__all__ = [
    "BaseParamScheduler",
    "BaseSaveHandler",
    "BasicTimeProfiler",
    "Checkpoint",
    "CheckpointEvents",
    "ClearMLLogger",
    "ClearMLSaver",
    "ConcatScheduler",
    "CosineAnnealingScheduler",
    "CyclicalScheduler",
    "DiskSaver",
    "EMAHandler",
    "EarlyStopping",
    "EpochOutputStore",
    "ExpStateScheduler",
    "FastaiLRFinder",
    "GpuInfo",
    "GradsHistHandler",
    "GradsScalarHandler",
    "HandlersTimeProfiler",
    "LRScheduler",
    "LambdaStateScheduler",
    "LinearCyclicalScheduler",
    "MLflowLogger",
    "ModelCheckpoint",
    "MultiStepStateScheduler",
    "OptimizerParamsHandler",
    "OutputHandler",
    "ParamGroupScheduler",
    "ParamScheduler",
    "PiecewiseLinear",
    "PiecewiseLinearStateScheduler",
    "ProgressBar",
    "PwLinearStateScheduler",
    "ReduceLROnPlateauScheduler",
    "StateParamScheduler",
    "StepStateScheduler",
    "TensorboardLogger",
    "TerminateOnNan",
    "TimeLimit",
    "Timer",
    "TrackerLogger",
    "TrackioLogger",
    "WandBLogger",
    "WeightsHistHandler",
    "WeightsScalarHandler",
    "create_lr_scheduler_with_warmup",
    "global_step_from_engine",
]
