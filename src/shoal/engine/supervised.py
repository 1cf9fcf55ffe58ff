"""Engines for supervised training and evaluation, on the step of ``shoal.training``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from shoal import runtime
from shoal._types import HasShares
from shoal.engine.engine import Engine
from shoal.engine.events import Events
from shoal.metrics import Metric
from shoal.training import (
    ALONE,
    Precision,
    StepOptions,
    SupervisedStep,
    Window,
    evaluate_batch,
    prepare_batch,
)
from shoal.training.step import call_model, identity

__all__ = ["create_supervised_evaluator", "create_supervised_trainer"]


def _loss_of(_x: Any, _y: Any, _y_pred: Any, loss: torch.Tensor) -> Any:
    return loss


def _predictions_of(_x: Any, y: Any, y_pred: Any) -> Any:
    return y_pred, y


def _device_of(model: nn.Module) -> torch.device | None:
    """Where the model's parameters lie: what mixed precision means depends on it."""
    return next((parameter.device for parameter in model.parameters()), None)


def create_supervised_trainer(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_fn: Callable[[Any, Any], torch.Tensor],
    device: torch.device | str | None = None,
    non_blocking: bool = False,
    prepare_batch: Callable[..., tuple[Any, Any]] = prepare_batch,
    output_transform: Callable[[Any, Any, Any, torch.Tensor], Any] = _loss_of,
    amp_mode: str | None = None,
    scaler: bool | torch.amp.GradScaler = False,
    gradient_accumulation_steps: int = 1,
    model_transform: Callable[[Any], Any] = identity,
    model_fn: Callable[[nn.Module, Any], Any] = call_model,
) -> Engine:
    """An engine that trains ``model`` by one batch an iteration.

    On several ranks the gradient is that of the mean loss over the global batch, however unequally a loader of
    ``auto_dataloader`` had to split it; a rank without a share of the last batch takes part without one. Batch
    normalisation is exact in the same way only with ``auto_model(..., sync_bn=True)``.

    Args:
        model: as ``auto_model`` returns it, or a plain one.
        optimizer: of its parameters.
        loss_fn: ``(y_pred, y) -> loss``, the mean over the batch, a tensor without dimensions.
        device: where batches are moved; None (default) leaves them where the loader puts them.
        non_blocking: copy from pinned memory without waiting; off by default.
        prepare_batch: ``(batch, device, non_blocking) -> (x, y)``; by default the batch is a pair.
        output_transform: ``(x, y, y_pred, loss) -> engine.state.output``. By default the loss, as a detached tensor
            without dimensions: reading it as a number waits for the device, so that is left to who needs it.
            ``y_pred`` is None on a rank that has no share of the last global batch.
        amp_mode: None: full precision. ``"amp"``: fp16 on CUDA, bf16 on a CPU. ``"bf16"``, ``"fp16"``. ``y_pred`` is
            float32 in every mode.
        scaler: True: a gradient scaler where fp16 needs one; or one of your own, then kept in
            ``engine.state.scaler``.
        gradient_accumulation_steps: iterations an optimizer step. The last step of an epoch may have fewer and is
            weighed by what it has; the loss that is reported is the iteration's own.
        model_transform: ``output of the model -> y_pred``.
        model_fn: ``(model, x) -> output``.

    Returns:
        The engine; ``state.scaler`` is the scaler in use, or None.

    Raises:
        UsageError: an unknown ``amp_mode``, a scaler without one, or no whole number of accumulation steps.
    """
    options = StepOptions(
        device=device,
        non_blocking=non_blocking,
        prepare_batch=prepare_batch,
        model_fn=model_fn,
        model_transform=model_transform,
        precision=Precision.resolve(amp_mode, device if device is not None else _device_of(model), scaler),
        accumulation=gradient_accumulation_steps,
    )
    step = SupervisedStep(model, optimizer, loss_fn, options)
    places = _Places(step, gradient_accumulation_steps)

    def update(engine: Engine, batch: Any) -> Any:
        window = places.window
        if window is None:
            x, y, y_pred, loss = step(batch, ALONE)
        else:
            state = engine.state
            x, y, y_pred, loss = step(batch, window.at(state.epoch_iteration - 1, state.batch_index))
        return output_transform(x, y, y_pred, loss)

    trainer = Engine(update)
    trainer.state.scaler = options.precision.scaler
    trainer.add_event_handler(Events.EPOCH_STARTED, places.begin_epoch)
    if gradient_accumulation_steps > 1:
        trainer.add_event_handler(Events.EPOCH_COMPLETED, places.end_epoch)
    return trainer


def create_supervised_evaluator(
    model: nn.Module,
    metrics: Mapping[str, Metric] | None = None,
    device: torch.device | str | None = None,
    non_blocking: bool = False,
    prepare_batch: Callable[..., tuple[Any, Any]] = prepare_batch,
    output_transform: Callable[[Any, Any, Any], Any] = _predictions_of,
    amp_mode: str | None = None,
    model_transform: Callable[[Any], Any] = identity,
    model_fn: Callable[[nn.Module, Any], Any] = call_model,
) -> Engine:
    """An engine that runs ``model`` in evaluation mode, without gradients, and computes ``metrics``.

    Ranks may hold unequal numbers of batches: nothing communicates before the metrics of the run are merged, all of
    them in one collective, and every sample counts once.

    Args:
        model: as ``auto_model`` returns it; the module inside is called, which talks to nobody.
        metrics: by the name that they get in ``engine.state.metrics``.
        device, non_blocking, prepare_batch, amp_mode, model_transform, model_fn: as in ``create_supervised_trainer``.
        output_transform: ``(x, y, y_pred) -> engine.state.output``; by default ``(y_pred, y)``, which metrics expect.

    Returns:
        The engine. Its output is None where this rank has no share of a global batch.
    """
    options = StepOptions(
        device=device,
        non_blocking=non_blocking,
        prepare_batch=prepare_batch,
        model_fn=model_fn,
        model_transform=model_transform,
        precision=Precision.resolve(amp_mode, device if device is not None else _device_of(model)),
    )
    own_share = _OwnShare()

    def inference(engine: Engine, batch: Any) -> Any:
        if own_share.is_empty(engine):
            return None
        return output_transform(*evaluate_batch(model, batch, options))

    evaluator = Engine(inference)
    evaluator.add_event_handler(Events.STARTED, own_share.bind)
    for name, metric in (metrics or {}).items():
        metric.attach(evaluator, name)
    return evaluator


class _Places:
    """Where the iterations of a trainer are in their windows; settled once an epoch."""

    def __init__(self, step: SupervisedStep, accumulation: int) -> None:
        self.window: Window | None = None
        self._step = step
        self._accumulation = accumulation

    def begin_epoch(self, engine: Engine) -> None:
        world_size = runtime.current().world_size
        data = engine.state.dataloader
        needed = self._accumulation > 1 or (world_size > 1 and isinstance(data, HasShares))
        loader = data if needed and isinstance(data, HasShares) else None
        self.window = Window(self._accumulation, engine.state.epoch_length, loader, world_size) if needed else None

    def end_epoch(self) -> None:
        self._step.finish_window()


class _OwnShare:
    """Whether this rank has a part of the current global batch."""

    def __init__(self) -> None:
        self._loader: HasShares | None = None

    def bind(self, engine: Engine) -> None:
        data = engine.state.dataloader
        self._loader = data if runtime.current().world_size > 1 and isinstance(data, HasShares) else None

    def is_empty(self, engine: Engine) -> bool:
        if self._loader is None:
            return False
        return self._loader.share(engine.state.batch_index).local == 0
