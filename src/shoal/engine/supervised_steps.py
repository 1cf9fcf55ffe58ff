"""Process functions for supervised training and evaluation, for engines that are put together by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from shoal import runtime
from shoal._types import HasShares
from shoal.engine.engine import Engine
from shoal.engine.events import Events
from shoal.training import (
    ALONE,
    GradientLimits,
    MicroBatch,
    Precision,
    StepOptions,
    SupervisedStep,
    Window,
    evaluate_batch,
    prepare_batch,
)
from shoal.training.step import call_model, identity

__all__ = [
    "EvaluationStep",
    "TrainingStep",
    "supervised_evaluation_step",
    "supervised_evaluation_step_amp",
    "supervised_training_step",
    "supervised_training_step_amp",
]


def loss_of(_x: Any, _y: Any, _y_pred: Any, loss: torch.Tensor) -> Any:
    """The output of a training by default: the loss, a detached tensor."""
    return loss


def predictions_of(_x: Any, y: Any, y_pred: Any) -> Any:
    """The output of an evaluation by default, which metrics expect."""
    return y_pred, y


def device_of(model: nn.Module) -> torch.device | None:
    """Where the model's parameters lie: what mixed precision means depends on it."""
    return next((parameter.device for parameter in model.parameters()), None)


def supervised_training_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_fn: Callable[[Any, Any], torch.Tensor],
    device: torch.device | str | None = None,
    non_blocking: bool = False,
    prepare_batch: Callable[..., tuple[Any, Any]] = prepare_batch,
    model_transform: Callable[[Any], Any] = identity,
    output_transform: Callable[[Any, Any, Any, torch.Tensor], Any] = loss_of,
    gradient_accumulation_steps: int = 1,
    model_fn: Callable[[nn.Module, Any], Any] = call_model,
    *,
    amp_mode: str | None = None,
    scaler: bool | torch.amp.GradScaler = False,
    max_grad_norm: float | None = None,
    max_grad_value: float | None = None,
    log_grad_norm: bool = False,
    loss_weight: Callable[[Any, Any], Any] | None = None,
) -> TrainingStep:
    """The process function of ``create_supervised_trainer``, for an ``Engine`` of one's own.

    Args:
        model, optimizer, loss_fn, device, non_blocking, prepare_batch, model_transform, output_transform,
            gradient_accumulation_steps, model_fn, amp_mode, scaler, max_grad_norm, max_grad_value, log_grad_norm,
            loss_weight: as in ``create_supervised_trainer``.

    Returns:
        A callable of (engine, batch). Its ``attach(engine)`` has the optimizer step on a window of accumulated
        gradients that the end of an epoch cuts short before other handlers are told of that end; otherwise it does so
        after those that were attached before the run.

    Raises:
        UsageError: as ``create_supervised_trainer``.
    """
    measures = log_grad_norm or max_grad_norm is not None or max_grad_value is not None
    options = StepOptions(
        device=device,
        non_blocking=non_blocking,
        prepare_batch=prepare_batch,
        model_fn=model_fn,
        model_transform=model_transform,
        precision=Precision.resolve(amp_mode, device if device is not None else device_of(model), scaler),
        accumulation=gradient_accumulation_steps,
        limits=GradientLimits(max_norm=max_grad_norm, max_value=max_grad_value) if measures else None,
        loss_weight=loss_weight,
    )
    return TrainingStep(SupervisedStep(model, optimizer, loss_fn, options), options, output_transform)


def supervised_training_step_amp(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_fn: Callable[[Any, Any], torch.Tensor],
    *args: Any,
    scaler: bool | torch.amp.GradScaler | None = None,
    **kwargs: Any,
) -> TrainingStep:
    """``supervised_training_step(..., amp_mode="amp")``: half precision on a GPU, bfloat16 on a CPU.

    Args:
        model, optimizer, loss_fn, args, kwargs: of ``supervised_training_step``.
        scaler: scales the loss against vanishing fp16 gradients; None: nothing does.
    """
    return supervised_training_step(model, optimizer, loss_fn, *args, amp_mode="amp", scaler=scaler or False, **kwargs)


def supervised_evaluation_step(
    model: nn.Module,
    device: torch.device | str | None = None,
    non_blocking: bool = False,
    prepare_batch: Callable[..., tuple[Any, Any]] = prepare_batch,
    model_transform: Callable[[Any], Any] = identity,
    output_transform: Callable[[Any, Any, Any], Any] = predictions_of,
    model_fn: Callable[[nn.Module, Any], Any] = call_model,
    *,
    amp_mode: str | None = None,
) -> EvaluationStep:
    """The process function of ``create_supervised_evaluator``, for an ``Engine`` of one's own.

    Args:
        model, device, non_blocking, prepare_batch, model_transform, output_transform, model_fn, amp_mode: as in
            ``create_supervised_evaluator``.

    Returns:
        A callable of (engine, batch).

    Raises:
        UsageError: an unknown ``amp_mode``.
    """
    options = StepOptions(
        device=device,
        non_blocking=non_blocking,
        prepare_batch=prepare_batch,
        model_fn=model_fn,
        model_transform=model_transform,
        precision=Precision.resolve(amp_mode, device if device is not None else device_of(model)),
    )
    return EvaluationStep(model, options, output_transform)


def supervised_evaluation_step_amp(model: nn.Module, *args: Any, **kwargs: Any) -> EvaluationStep:
    """``supervised_evaluation_step(..., amp_mode="amp")``."""
    return supervised_evaluation_step(model, *args, amp_mode="amp", **kwargs)


class TrainingStep:
    """Trains by one batch a call; made by ``supervised_training_step``."""

    def __init__(
        self,
        step: SupervisedStep,
        options: StepOptions,
        output_transform: Callable[[Any, Any, Any, torch.Tensor], Any],
    ) -> None:
        self._step = step
        self._accumulation = options.accumulation
        self._scaler = options.precision.scaler
        self._output_transform = output_transform
        self._tells = options.limits is not None or self._scaler is not None
        self._window: Window | None = None
        self._began: tuple[Any, ...] = (None, -1, None)

    def attach(self, engine: Engine) -> None:
        """Put what it tells on ``engine.state``, and finish the window that the end of an epoch cuts short."""
        state = engine.state
        state.scaler = self._scaler
        self._tell(engine)
        if self._accumulation > 1 and not engine.has_event_handler(self._end_epoch):
            engine.add_event_handler(Events.TERMINATE_SINGLE_EPOCH | Events.EPOCH_COMPLETED, self._end_epoch)

    def __call__(self, engine: Engine, batch: Any) -> Any:
        """One iteration."""
        state = engine.state
        data, epoch, length = self._began
        if state.dataloader is not data or state.epoch != epoch or state.epoch_length != length:
            self._begin(engine)
        micro = ALONE if self._window is None else self._place(engine)
        before = 0 if micro.is_first else self._step.num_open
        try:
            x, y, y_pred, loss = self._step(batch, micro)
            if self._tells:
                self._tell(engine)
            output = self._output_transform(x, y, y_pred, loss)
        except BaseException:  # gradients may hold a part of this batch, which comes again: the window is done anew
            engine._num_open = engine._num_torn = before if self._step.num_open else 0
            raise
        if self._accumulation > 1:
            engine._num_open = self._step.num_open
        return output

    def _place(self, engine: Engine) -> MicroBatch:
        assert self._window is not None
        return self._window.at(engine.state.epoch_iteration - 1, engine.state.batch_index)

    def _begin(self, engine: Engine) -> None:
        """Settle how the iterations of this epoch, over these data, fall into windows."""
        state, world_size = engine.state, runtime.current().world_size
        data = state.dataloader
        self._began = (data, state.epoch, state.epoch_length)
        shares = data if isinstance(data, HasShares) else None
        needed = self._accumulation > 1 or (world_size > 1 and shares is not None)
        # Where the data have no length, a later epoch needn't have that of the first.
        length = None if engine._length_from == "end_of_data" else state.epoch_length
        self._window = Window(self._accumulation, length, shares, world_size) if needed else None
        self.attach(engine)

    def _end_epoch(self, engine: Engine) -> None:
        self._step.finish_window()
        engine._num_open = 0
        self._tell(engine)

    def _tell(self, engine: Engine) -> None:
        state, step = engine.state, self._step
        state.grad_norm = step.grad_norm
        state.step_skipped = step.step_skipped
        state.num_skipped_steps = step.num_steps_skipped


class EvaluationStep:
    """Evaluates one batch a call; made by ``supervised_evaluation_step``. None where this rank has none of it."""

    def __init__(
        self, model: nn.Module, options: StepOptions, output_transform: Callable[[Any, Any, Any], Any]
    ) -> None:
        self._model = model
        self._options = options
        self._output_transform = output_transform
        self._data: Any = None
        self._shares: HasShares | None = None

    def __call__(self, engine: Engine, batch: Any) -> Any:
        """One iteration."""
        data = engine.state.dataloader
        if data is not self._data:
            self._data = data
            self._shares = data if runtime.current().world_size > 1 and isinstance(data, HasShares) else None
        if self._shares is not None and self._shares.share(engine.state.batch_index).local == 0:
            return None
        return self._output_transform(*evaluate_batch(self._model, batch, self._options))
