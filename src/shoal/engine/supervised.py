"""Engines for supervised training and evaluation, on the step of ``shoal.training``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from shoal.engine.engine import Engine
from shoal.engine.supervised_steps import (
    loss_of,
    predictions_of,
    supervised_evaluation_step,
    supervised_training_step,
)
from shoal.metrics import Metric
from shoal.training import prepare_batch
from shoal.training.step import call_model, identity

__all__ = ["create_supervised_evaluator", "create_supervised_trainer"]


def create_supervised_trainer(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_fn: Callable[[Any, Any], torch.Tensor],
    device: torch.device | str | None = None,
    non_blocking: bool = False,
    prepare_batch: Callable[..., tuple[Any, Any]] = prepare_batch,
    model_transform: Callable[[Any], Any] = identity,
    output_transform: Callable[[Any, Any, Any, torch.Tensor], Any] = loss_of,
    deterministic: bool = False,
    amp_mode: str | None = None,
    scaler: bool | torch.amp.GradScaler = False,
    gradient_accumulation_steps: int = 1,
    model_fn: Callable[[nn.Module, Any], Any] = call_model,
    *,
    max_grad_norm: float | None = None,
    max_grad_value: float | None = None,
    log_grad_norm: bool = False,
    loss_weight: Callable[[Any, Any], Any] | None = None,
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
        model_transform: ``output of the model -> y_pred``.
        output_transform: ``(x, y, y_pred, loss) -> engine.state.output``. By default the loss, as a detached tensor
            without dimensions: reading it as a number waits for the device, so that is left to who needs it.
            ``y_pred`` is None on a rank that has no share of the last global batch.
        deterministic: has no effect, and a log line says so: every engine goes on with the batch that comes next, which
            is what Ignite has a second engine for.
        amp_mode: None: full precision. ``"amp"``: fp16 on CUDA, bf16 on a CPU. ``"bf16"``, ``"fp16"``. ``y_pred`` is
            float32 in every mode.
        scaler: True: a gradient scaler where fp16 needs one; or one of your own, then kept in
            ``engine.state.scaler``.
        gradient_accumulation_steps: iterations an optimizer step. The last step of an epoch may have fewer and is
            weighed by what it has; the loss that is reported is the iteration's own.
        model_fn: ``(model, x) -> output``.
        max_grad_norm: before each optimizer step, the gradients of the optimizer's parameters together are scaled down
            to this Euclidean norm where theirs is greater. With accumulation that is the whole window's gradient, with
            a scaler the unscaled one, on several ranks the average. None (default): no clipping.
        max_grad_value: instead, clamps each element to [-max_grad_value, max_grad_value].
        log_grad_norm: measure the norm also where nothing is clipped.
        loss_weight: ``(x, y) ->`` how many items the loss of a batch is the mean of, a number or a tensor. Iterations
            of one optimizer step, and ranks, then weigh by it: ``lambda x, y: (y != -100).sum()`` gives the gradient
            of the mean over all tokens, however they are spread, at the cost of one all-reduce of a number an
            optimizer step. None (default): by samples, where the loader is one of ``auto_dataloader``, else alike.

    Returns:
        The engine. On its state: ``scaler``, the scaler in use or None; ``grad_norm``, the norm of the last optimizer
        step's gradient before clipping, a tensor that nobody has waited for (None where it isn't measured, or before
        the first step; infinite or NaN where a scaler skipped the step); ``step_skipped``, whether a scaler skipped the
        last one, and ``num_skipped_steps``, how many it has (tensors where the optimizer is fused).

        With accumulation, a ``state_dict`` in the middle of a window is that of its beginning: gradients aren't saved,
        so that a resumed run does the window anew. So does a run that goes on after a step which raised in a window
        (not with an iterator, which cannot go back: a warning says so). Handlers that count iterations by themselves,
        as a schedule that goes by iterations instead of optimizer steps, are ahead by those that are done again.

    Raises:
        UsageError: an unknown ``amp_mode``, a scaler without one, no whole number of accumulation steps, or bounds of
            gradients that are no numbers above 0 or exclude each other.
    """
    step = supervised_training_step(
        model,
        optimizer,
        loss_fn,
        device,
        non_blocking,
        prepare_batch,
        model_transform,
        output_transform,
        gradient_accumulation_steps,
        model_fn,
        amp_mode=amp_mode,
        scaler=scaler,
        max_grad_norm=max_grad_norm,
        max_grad_value=max_grad_value,
        log_grad_norm=log_grad_norm,
        loss_weight=loss_weight,
    )
    trainer = Engine(step)
    if deterministic:
        trainer.logger.warning("deterministic=True has no effect: every engine goes on with the batch that comes next.")
    step.attach(trainer)
    return trainer


def create_supervised_evaluator(
    model: nn.Module,
    metrics: Mapping[str, Metric] | None = None,
    device: torch.device | str | None = None,
    non_blocking: bool = False,
    prepare_batch: Callable[..., tuple[Any, Any]] = prepare_batch,
    model_transform: Callable[[Any], Any] = identity,
    output_transform: Callable[[Any, Any, Any], Any] = predictions_of,
    amp_mode: str | None = None,
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
    step = supervised_evaluation_step(
        model, device, non_blocking, prepare_batch, model_transform, output_transform, model_fn, amp_mode=amp_mode
    )
    evaluator = Engine(step)
    for name, metric in (metrics or {}).items():
        metric.attach(evaluator, name)
    return evaluator
