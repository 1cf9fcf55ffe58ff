"""The best models of a training, and its end, by a metric of its evaluator: attached by one call."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from shoal.checkpoint import Store
from shoal.engine import Engine, Events
from shoal.handlers.checkpoint import Checkpoint
from shoal.handlers.early_stopping import EarlyStopping
from shoal.handlers.global_step import global_step_from_engine

__all__ = [
    "add_early_stopping_by_val_score",
    "gen_save_best_models_by_val_score",
    "get_default_score_fn",
    "save_best_model_by_val_score",
]

get_default_score_fn = Checkpoint.get_default_score_fn


def gen_save_best_models_by_val_score(
    save_handler: str | os.PathLike[str] | Store | Callable[..., None],
    evaluator: Engine,
    models: nn.Module | Mapping[str, Any],
    metric_name: str,
    n_saved: int = 3,
    trainer: Engine | None = None,
    tag: str = "val",
    score_sign: float = 1.0,
    **kwargs: Any,
) -> Checkpoint:
    """Save the models at each run of the evaluator whose metric is among the ``n_saved`` best.

    Files are ``best_model_<epoch>_val_accuracy=0.6588.pt``; without ``trainer`` they have no epoch.

    Args:
        save_handler: a folder, or as in :class:`Checkpoint`.
        evaluator: the engine that has the metric, and whose COMPLETED saves.
        models: a model, saved as ``model``, or objects with ``state_dict()`` by name.
        metric_name: the metric in ``evaluator.state.metrics``.
        n_saved: how many stay.
        trainer: the engine whose epoch is in the file's name.
        tag: put before the metric's name in the file's name.
        score_sign: 1.0 where higher is better, -1.0 where lower is.
        kwargs: for :class:`Checkpoint`.

    Returns:
        The handler; put it into what the training saves, so that a resumed run knows which are kept.

    Raises:
        UsageError: an argument cannot work.
    """
    options: dict[str, Any] = {
        "filename_prefix": "best",
        "global_step_transform": None if trainer is None else global_step_from_engine(trainer),
        "score_name": f"{tag}_{metric_name.lower()}",
        "score_function": get_default_score_fn(metric_name, score_sign),
    }
    to_save = {"model": models} if isinstance(models, nn.Module) else models
    handler = Checkpoint(to_save, save_handler, n_saved=n_saved, **(options | kwargs))
    evaluator.add_event_handler(Events.COMPLETED, handler)
    return handler


def save_best_model_by_val_score(
    output_path: str | os.PathLike[str],
    evaluator: Engine,
    model: nn.Module,
    metric_name: str,
    n_saved: int = 3,
    trainer: Engine | None = None,
    tag: str = "val",
    score_sign: float = 1.0,
    **kwargs: Any,
) -> Checkpoint:
    """Save the ``n_saved`` best models into a folder; see :func:`gen_save_best_models_by_val_score`.

    Args:
        output_path: the folder, which may hold other files.
        evaluator, model, metric_name, n_saved, trainer, tag, score_sign, kwargs: as there.

    Returns:
        The handler.
    """
    return gen_save_best_models_by_val_score(
        output_path, evaluator, model, metric_name, n_saved, trainer, tag, score_sign, **kwargs
    )


def add_early_stopping_by_val_score(
    patience: int,
    evaluator: Engine,
    trainer: Engine,
    metric_name: str,
    score_sign: float = 1.0,
    **kwargs: Any,
) -> EarlyStopping:
    """Stop the trainer after ``patience`` runs of the evaluator in which a metric did not get better.

    Args:
        patience: evaluations.
        evaluator: the engine that has the metric.
        trainer: the engine to stop.
        metric_name: the metric in ``evaluator.state.metrics``.
        score_sign: 1.0 where higher is better, -1.0 where lower is.
        kwargs: for :class:`EarlyStopping`: grace_period, min_delta, …

    Returns:
        The handler; put it into what the training saves, so that a resumed run goes on counting.

    Raises:
        UsageError: an argument cannot work.
    """
    handler = EarlyStopping(patience, get_default_score_fn(metric_name, score_sign), trainer, **kwargs)
    evaluator.add_event_handler(Events.COMPLETED, handler)
    return handler
