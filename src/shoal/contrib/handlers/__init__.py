"""Import paths of handlers that programs written for Ignite use; the code is in ``shoal.handlers``."""

from __future__ import annotations

from shoal.handlers.clearml_logger import ClearMLLogger
from shoal.handlers.global_step import global_step_from_engine
from shoal.handlers.mlflow_logger import MLflowLogger
from shoal.handlers.progress_bar import ProgressBar
from shoal.handlers.tensorboard_logger import TensorboardLogger
from shoal.handlers.wandb_logger import WandBLogger

__all__ = [
    "ClearMLLogger",
    "MLflowLogger",
    "ProgressBar",
    "TensorboardLogger",
    "WandBLogger",
    "global_step_from_engine",
]
