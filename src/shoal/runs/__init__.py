"""The folder of a run: what is in it, who has it, how it is found again. Nothing here imports torch to read one."""

from __future__ import annotations

from shoal.runs.find import find_checkpoint, find_runs, is_run, latest_run
from shoal.runs.folder import (
    CONFIG_FILE,
    ENVIRONMENT_FILE,
    METRICS_FILE,
    PREDICTIONS_FILE,
    REPORT_FILE,
    STATE_FILE,
    is_locked,
    lock_run,
    new_run_folder,
    read_sessions,
    write_config,
    write_environment,
)
from shoal.runs.predictions import (
    ClassifiedImages,
    WrongImage,
    png_base64,
    read_predictions,
    write_predictions,
)
from shoal.runs.records import Records, read_records
from shoal.runs.state import Plan, RunState, Word, read_state, write_state
from shoal.runs.summary import RunSummary, format_duration, summarize
from shoal.runs.trim import trim_metrics, trim_run

__all__ = [
    "CONFIG_FILE",
    "ENVIRONMENT_FILE",
    "METRICS_FILE",
    "PREDICTIONS_FILE",
    "REPORT_FILE",
    "STATE_FILE",
    "ClassifiedImages",
    "Plan",
    "Records",
    "RunState",
    "RunSummary",
    "Word",
    "WrongImage",
    "find_checkpoint",
    "find_runs",
    "format_duration",
    "is_locked",
    "is_run",
    "latest_run",
    "lock_run",
    "new_run_folder",
    "png_base64",
    "read_predictions",
    "read_records",
    "read_sessions",
    "read_state",
    "summarize",
    "trim_metrics",
    "trim_run",
    "write_config",
    "write_environment",
    "write_predictions",
    "write_state",
]
