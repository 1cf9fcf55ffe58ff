"""The handlers of one call, under the path that programs written for Ignite use; see ``shoal.common``."""

from __future__ import annotations

from shoal.handlers.by_score import (
    add_early_stopping_by_val_score,
    gen_save_best_models_by_val_score,
    get_default_score_fn,
    save_best_model_by_val_score,
)
from shoal.handlers.common import setup_common_training_handlers
from shoal.handlers.logging_setup import (
    setup_clearml_logging,
    setup_jsonl_logging,
    setup_mlflow_logging,
    setup_tb_logging,
    setup_trackio_logging,
    setup_wandb_logging,
)

__all__ = [
    "add_early_stopping_by_val_score",
    "gen_save_best_models_by_val_score",
    "get_default_score_fn",
    "save_best_model_by_val_score",
    "setup_clearml_logging",
    "setup_common_training_handlers",
    "setup_jsonl_logging",
    "setup_mlflow_logging",
    "setup_tb_logging",
    "setup_trackio_logging",
    "setup_wandb_logging",
]
