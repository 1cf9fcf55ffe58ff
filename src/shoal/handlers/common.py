"""The handlers that most trainings have, attached by one call; the façade ``shoal.common`` shows them to users."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from numbers import Number
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from shoal.engine import Engine, Events
from shoal.errors import UsageError
from shoal.handlers.checkpoint import Checkpoint
from shoal.handlers.gpu_info import GpuInfo
from shoal.handlers.lr_scheduler import TorchSteps
from shoal.handlers.progress_bar import ProgressBar
from shoal.handlers.reduce_lr_on_plateau import ReduceLROnPlateauScheduler
from shoal.handlers.terminate_on_nan import TerminateOnNan
from shoal.metrics import RunningAverage

__all__ = ["setup_common_training_handlers"]


def setup_common_training_handlers(
    trainer: Engine,
    train_sampler: Any = None,
    to_save: Mapping[str, Any] | None = None,
    save_every_iters: int = 1000,
    output_path: str | os.PathLike[str] | None = None,
    lr_scheduler: Any = None,
    with_gpu_stats: bool = False,
    output_names: Sequence[str] | None = None,
    with_pbars: bool = True,
    with_pbar_on_iters: bool = True,
    log_every_iters: int = 100,
    stop_on_nan: bool = True,
    clear_cuda_cache: bool = True,
    save_handler: str | os.PathLike[str] | Callable[..., None] | None = None,
    **kwargs: Any,
) -> Checkpoint | None:
    """Attach to a trainer what most trainings need. Call it on every rank.

    In an iteration the learning rate comes first; after it, in this order: the look for NaN, a torch scheduler's
    step, statistics, progress, and the checkpoint, which so holds all that the next iteration needs. A checkpoint of
    an iteration whose output is NaN or infinite is not saved: it would take the place of a good one.

    Args:
        trainer: the engine.
        train_sampler: a sampler whose ``set_epoch`` is called, with the epoch counted from 0, before each epoch.
        to_save: objects with ``state_dict()`` by name; None saves nothing.
        save_every_iters: iterations between two checkpoints, ``training_checkpoint_<iteration>.pt``.
        output_path: the folder of the checkpoints.
        lr_scheduler: one of Shoal's, set before each iteration, or one of torch's, stepped after each step that the
            optimizer took: not in an iteration that accumulates gradients, nor where a gradient scaler left the step
            out. (Ignite steps it in every iteration.) For one of Shoal's that is sized for optimizer steps, set its
            ``per_optimizer_step``.
        with_gpu_stats: whether to put memory and utilization of the GPU into ``state.metrics``.
        output_names: names of the parts of the trainer's output (keys of a dict, places of a sequence, or the output
            itself) whose running averages are put into ``state.metrics``.
        with_pbars: whether to show progress bars, on rank 0.
        with_pbar_on_iters: whether there is a bar of an epoch's iterations beside that of the epochs.
        log_every_iters: iterations between two updates of it, and of the statistics.
        stop_on_nan: whether the training stops where its output is NaN or infinite; see :class:`TerminateOnNan`.
        clear_cuda_cache: whether to empty CUDA's cache after each epoch, where CUDA is in use.
        save_handler: as in :class:`Checkpoint`, instead of ``output_path``.
        kwargs: for :class:`Checkpoint`: n_saved (1 by default), filename_prefix, include_self, …

    Returns:
        The checkpoint handler, or None without ``to_save``. Its step is the iteration, at whatever event it is called.

    Raises:
        UsageError: arguments that cannot work or do not fit together.
    """
    store = _store_of(to_save, output_path, save_handler, kwargs)
    _attach_sampler(trainer, train_sampler)
    guard = TerminateOnNan() if stop_on_nan else None
    if guard is not None:
        trainer.add_event_handler(Events.ITERATION_COMPLETED, guard)
    _attach_scheduler(trainer, lr_scheduler)
    if clear_cuda_cache:
        trainer.add_event_handler(Events.EPOCH_COMPLETED, _empty_cuda_cache)
    for index, name in enumerate(output_names or ()):
        RunningAverage(output_transform=_Part(index, name), epoch_bound=False).attach(trainer, name)
    if with_gpu_stats:
        GpuInfo().attach(trainer, event_name=Events.ITERATION_COMPLETED(every=log_every_iters))
    if with_pbars:
        _attach_bars(trainer, log_every_iters if with_pbar_on_iters else None)
    if to_save is None or store is None:
        return None
    options: dict[str, Any] = {"filename_prefix": "training", "global_step_transform": _iteration} | kwargs
    checkpoint = Checkpoint(to_save, store, **options)
    trainer.add_event_handler(Events.ITERATION_COMPLETED(every=save_every_iters), _save_if_finite, checkpoint, guard)
    return checkpoint


def _store_of(to_save: object, output_path: Any, save_handler: Any, options: Mapping[str, Any]) -> Any:
    if to_save is None:
        unused = {"output_path": output_path, "save_handler": save_handler, **options}
        given = [name for name, value in unused.items() if value is not None]
        if given:
            raise UsageError(f"{', '.join(given)} was given without to_save, and would have no effect; give to_save")
        return None
    if (output_path is None) == (save_handler is None):
        found = "neither" if output_path is None else "both"
        raise UsageError(f"to_save needs output_path or save_handler, found {found}; give one of them")
    return output_path if save_handler is None else save_handler


def _attach_sampler(trainer: Engine, sampler: Any) -> None:
    if hasattr(sampler, "set_epoch"):
        trainer.add_event_handler(Events.EPOCH_STARTED, _set_epoch, sampler)


def _set_epoch(engine: Engine, sampler: Any) -> None:
    sampler.set_epoch(engine.state.epoch - 1)


def _attach_scheduler(trainer: Engine, scheduler: Any) -> None:
    if scheduler is None:
        return
    if isinstance(scheduler, ReduceLROnPlateau | ReduceLROnPlateauScheduler):
        raise UsageError(
            f"lr_scheduler is a {type(scheduler).__name__}, which needs a score, once an evaluation; attach it to the "
            "evaluator: evaluator.add_event_handler(Events.COMPLETED, ReduceLROnPlateauScheduler(optimizer, "
            "metric_name='...'))"
        )
    if isinstance(scheduler, LRScheduler):
        TorchSteps(scheduler).attach(trainer)
    elif callable(scheduler):
        trainer.add_event_handler(Events.ITERATION_STARTED, scheduler)
    else:
        raise UsageError(f"lr_scheduler is a {type(scheduler).__qualname__}; give one of shoal.handlers or of torch")


def _empty_cuda_cache(_: Engine) -> None:
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _attach_bars(trainer: Engine, update_every: int | None) -> None:
    if update_every is not None:
        event = Events.ITERATION_COMPLETED(every=update_every)
        ProgressBar(persist=False).attach(trainer, metric_names="all", event_name=event)
    ProgressBar(persist=True).attach(trainer, event_name=Events.EPOCH_COMPLETED, closing_event_name=Events.COMPLETED)


def _iteration(engine: Engine, _: Any) -> int:
    return engine.state.iteration


def _save_if_finite(engine: Engine, checkpoint: Checkpoint, guard: TerminateOnNan | None) -> None:
    if guard is not None and guard.agree(engine):
        engine.logger.warning("No checkpoint is saved in iteration %d", engine.state.iteration)
        return
    checkpoint(engine)


class _Part:
    """One part of a trainer's output, by name or by place."""

    def __init__(self, index: int, name: str) -> None:
        self.index = index
        self.name = name

    def __call__(self, output: Any) -> Any:
        if isinstance(output, Mapping):
            return output[self.name]
        if isinstance(output, Sequence):
            return output[self.index]
        if isinstance(output, (torch.Tensor, Number)):
            return output
        raise UsageError(
            f"output_names has {self.name!r}, and the trainer's output is a {type(output).__qualname__}; let it return "
            "a dict, a sequence, a tensor or a number"
        )
