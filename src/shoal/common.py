"""The handlers that most trainings have, attached by one call each."""

from __future__ import annotations

from shoal.handlers.common import setup_common_training_handlers, setup_jsonl_logging, setup_tb_logging

__all__ = ["setup_common_training_handlers", "setup_jsonl_logging", "setup_tb_logging"]
