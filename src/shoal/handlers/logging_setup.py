"""A logger of each service, attached by one call; the façade ``shoal.common`` shows them to users."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

from torch.optim import Optimizer

from shoal.engine import Engine, Events
from shoal.errors import UsageError
from shoal.handlers.clearml_logger import ClearMLLogger
from shoal.handlers.global_step import global_step_from_engine
from shoal.handlers.mlflow_logger import MLflowLogger
from shoal.handlers.tensorboard_logger import TensorboardLogger
from shoal.handlers.tracker_logger import TrackerLogger
from shoal.handlers.trackio_logger import TrackioLogger
from shoal.handlers.wandb_logger import WandBLogger
from shoal.trackers import JsonlTracker

__all__ = [
    "setup_clearml_logging",
    "setup_jsonl_logging",
    "setup_mlflow_logging",
    "setup_tb_logging",
    "setup_trackio_logging",
    "setup_wandb_logging",
]

L = TypeVar("L", bound=TrackerLogger)
Optimizers: TypeAlias = Optimizer | Mapping[Any, Optimizer] | None
Evaluators: TypeAlias = Engine | Mapping[str, Engine] | None
Names: TypeAlias = Sequence[str] | Literal["all"]


def setup_jsonl_logging(
    path: str | os.PathLike[str],
    trainer: Engine,
    optimizers: Optimizers = None,
    evaluators: Evaluators = None,
    log_every_iters: int = 100,
    *,
    trainer_metric_names: Names = "all",
    evaluator_metric_names: Names = "all",
    **kwargs: Any,
) -> TrackerLogger:
    """Append metrics and learning rates to a file of JSON lines.

    Written are the trainer's metrics as ``training/<metric>`` and the learning rates as ``lr/group_<i>`` at iterations,
    and the evaluators' metrics as ``<name>/<metric>`` at the trainer's epoch, after each run of an evaluator. It may be
    called on rank 0 alone, or on every rank: only rank 0 writes.

    Args:
        path: the file.
        trainer: the engine that trains.
        optimizers: an optimizer, or several by name (then ``<name>/lr/group_<i>``).
        evaluators: an engine (then called ``validation``), or several by name.
        log_every_iters: iterations between two records of the trainer's metrics and the learning rates.
        trainer_metric_names: which of the trainer's metrics; all by default.
        evaluator_metric_names: which of the evaluators' metrics; all by default.
        kwargs: for :class:`shoal.trackers.JsonlTracker`.

    Returns:
        The logger; call its ``close()`` after the training.

    Raises:
        UsageError: arguments that cannot work.
    """
    logger = TrackerLogger(JsonlTracker(path, **kwargs))
    names = trainer_metric_names, evaluator_metric_names
    return _attach(logger, trainer, optimizers, evaluators, log_every_iters, names)


def setup_tb_logging(
    output_path: str | os.PathLike[str],
    trainer: Engine,
    optimizers: Optimizers = None,
    evaluators: Evaluators = None,
    log_every_iters: int = 100,
    *,
    trainer_metric_names: Names = "all",
    evaluator_metric_names: Names = "all",
    **kwargs: Any,
) -> TensorboardLogger:
    """Write metrics and learning rates to TensorBoard; see :func:`setup_jsonl_logging` for what.

    Args:
        output_path: the folder of the event files.
        trainer, optimizers, evaluators, log_every_iters: as in :func:`setup_jsonl_logging`.
        trainer_metric_names, evaluator_metric_names: as in :func:`setup_jsonl_logging`.
        kwargs: for :class:`TensorboardLogger`.

    Returns:
        The logger; call its ``close()`` after the training.

    Raises:
        MissingExtraError: TensorBoard is not installed.
        UsageError: arguments that cannot work.
    """
    logger = TensorboardLogger(output_path, **kwargs)
    names = trainer_metric_names, evaluator_metric_names
    return _attach(logger, trainer, optimizers, evaluators, log_every_iters, names)


def setup_clearml_logging(
    trainer: Engine,
    optimizers: Optimizers = None,
    evaluators: Evaluators = None,
    log_every_iters: int = 100,
    *,
    trainer_metric_names: Names = "all",
    evaluator_metric_names: Names = "all",
    **kwargs: Any,
) -> ClearMLLogger:
    """Write metrics and learning rates to ClearML; see :func:`setup_jsonl_logging` for what.

    Args:
        trainer, optimizers, evaluators, log_every_iters: as in :func:`setup_jsonl_logging`.
        trainer_metric_names, evaluator_metric_names: as in :func:`setup_jsonl_logging`.
        kwargs: for :class:`ClearMLLogger`: project_name, task_name, …

    Returns:
        The logger; call its ``close()`` after the training.

    Raises:
        MissingExtraError: ClearML is not installed.
        UsageError: arguments that cannot work.
    """
    names = trainer_metric_names, evaluator_metric_names
    return _attach(ClearMLLogger(**kwargs), trainer, optimizers, evaluators, log_every_iters, names)


def setup_mlflow_logging(
    trainer: Engine,
    optimizers: Optimizers = None,
    evaluators: Evaluators = None,
    log_every_iters: int = 100,
    *,
    trainer_metric_names: Names = "all",
    evaluator_metric_names: Names = "all",
    **kwargs: Any,
) -> MLflowLogger:
    """Write metrics and learning rates to MLflow; see :func:`setup_jsonl_logging` for what.

    Args:
        trainer, optimizers, evaluators, log_every_iters: as in :func:`setup_jsonl_logging`.
        trainer_metric_names, evaluator_metric_names: as in :func:`setup_jsonl_logging`.
        kwargs: for :class:`MLflowLogger`: tracking_uri, experiment, run_name, …

    Returns:
        The logger; call its ``close()`` after the training.

    Raises:
        MissingExtraError: MLflow is not installed.
        UsageError: arguments that cannot work.
    """
    names = trainer_metric_names, evaluator_metric_names
    return _attach(MLflowLogger(**kwargs), trainer, optimizers, evaluators, log_every_iters, names)


def setup_wandb_logging(
    trainer: Engine,
    optimizers: Optimizers = None,
    evaluators: Evaluators = None,
    log_every_iters: int = 100,
    *,
    trainer_metric_names: Names = "all",
    evaluator_metric_names: Names = "all",
    **kwargs: Any,
) -> WandBLogger:
    """Write metrics and learning rates to Weights & Biases; see :func:`setup_jsonl_logging` for what.

    Args:
        trainer, optimizers, evaluators, log_every_iters: as in :func:`setup_jsonl_logging`.
        trainer_metric_names, evaluator_metric_names: as in :func:`setup_jsonl_logging`.
        kwargs: for :class:`WandBLogger`: project, name, mode, …

    Returns:
        The logger; call its ``close()`` after the training.

    Raises:
        MissingExtraError: wandb is not installed.
        UsageError: arguments that cannot work.
    """
    names = trainer_metric_names, evaluator_metric_names
    return _attach(WandBLogger(**kwargs), trainer, optimizers, evaluators, log_every_iters, names)


def setup_trackio_logging(
    project: str,
    trainer: Engine,
    optimizers: Optimizers = None,
    evaluators: Evaluators = None,
    log_every_iters: int = 100,
    *,
    trainer_metric_names: Names = "all",
    evaluator_metric_names: Names = "all",
    **kwargs: Any,
) -> TrackioLogger:
    """Write metrics and learning rates to trackio; see :func:`setup_jsonl_logging` for what.

    Args:
        project: trackio's project.
        trainer, optimizers, evaluators, log_every_iters: as in :func:`setup_jsonl_logging`.
        trainer_metric_names, evaluator_metric_names: as in :func:`setup_jsonl_logging`.
        kwargs: for :class:`TrackioLogger`: name, resume, …

    Returns:
        The logger; call its ``close()`` after the training.

    Raises:
        MissingExtraError: trackio is not installed.
        UsageError: arguments that cannot work.
    """
    names = trainer_metric_names, evaluator_metric_names
    return _attach(TrackioLogger(project, **kwargs), trainer, optimizers, evaluators, log_every_iters, names)


def _attach(
    logger: L,
    trainer: Engine,
    optimizers: Optimizers,
    evaluators: Evaluators,
    log_every_iters: int,
    metric_names: tuple[Names, Names],
) -> L:
    of_trainer, of_evaluators = metric_names
    _refuse_what_is_no_engine("trainer", trainer)
    if evaluators is None:
        evaluators = {}
    by_name = evaluators if isinstance(evaluators, Mapping) else {"validation": evaluators}
    for tag, evaluator in by_name.items():
        _refuse_what_is_no_engine(f"evaluators[{tag!r}]", evaluator)
    event = Events.ITERATION_COMPLETED(every=log_every_iters)
    logger.attach_output_handler(trainer, event, tag="training", metric_names=of_trainer)
    named: Mapping[Any, Any] = optimizers if isinstance(optimizers, Mapping) else {None: optimizers}
    for name, optimizer in named.items():
        if optimizer is not None:
            event = Events.ITERATION_STARTED(every=log_every_iters)
            logger.attach_opt_params_handler(trainer, event, optimizer=optimizer, tag=name)
    step = global_step_from_engine(trainer)
    for tag, evaluator in by_name.items():
        logger.attach_output_handler(
            evaluator, Events.COMPLETED, tag=tag, metric_names=of_evaluators, global_step_transform=step
        )
    return logger


def _refuse_what_is_no_engine(name: str, given: object) -> None:
    if not isinstance(given, Engine):
        raise UsageError(f"{name} is a {type(given).__qualname__}; give engines")
