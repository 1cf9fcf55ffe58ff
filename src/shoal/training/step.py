"""One supervised training step: forward, loss, backward, and the optimizer where a window of micro-batches closes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shoal import runtime
from shoal.errors import UsageError
from shoal.training.batches import map_tensors, prepare_batch
from shoal.training.clipping import GradientLimits
from shoal.training.parallel import unwrap_model
from shoal.training.precision import Precision, left_out_by_scaler
from shoal.training.sync_batchnorm import GlobalBatchNorm
from shoal.training.window import ALONE, MicroBatch

__all__ = [
    "StepOptions",
    "StepResult",
    "SupervisedStep",
    "average_gradients",
    "call_model",
    "evaluate_batch",
    "identity",
]


def identity(value: Any) -> Any:
    """The value itself: the default transform."""
    return value


def call_model(model: nn.Module, x: Any) -> Any:
    """``model(x)``: the default way of calling a model."""
    return model(x)


class StepResult(NamedTuple):
    """What a step has seen and made.

    Attributes:
        x, y: the batch, on the device.
        y_pred: the model's output; None on a rank that has no sample in this micro-batch.
        loss: the mean loss over this rank's samples, detached, neither weighted nor divided for accumulation; on a
            rank without samples, the mean over the other ranks'.
    """

    x: Any
    y: Any
    y_pred: Any
    loss: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """What a step does beyond the plain one.

    Attributes:
        device: where batches are moved; None leaves them.
        non_blocking: copy from pinned memory without waiting.
        prepare_batch: ``(batch, device, non_blocking) -> (x, y)``.
        model_fn: ``(model, x) -> output``.
        model_transform: ``output -> y_pred``, before the loss.
        precision: what the forward pass computes in.
        accumulation: micro-batches an optimizer step.
        limits: what the gradients are measured by and clipped to before a step; None: neither.
        loss_weight: ``(x, y) -> how many items the loss of a micro-batch is the mean of``, e.g. tokens; a number or a
            tensor. None: micro-batches weigh as ``MicroBatch.weight`` says.
    """

    device: torch.device | str | None = None
    non_blocking: bool = False
    prepare_batch: Callable[..., tuple[Any, Any]] = prepare_batch
    model_fn: Callable[[nn.Module, Any], Any] = call_model
    model_transform: Callable[[Any], Any] = identity
    precision: Precision = Precision("cpu")  # noqa: RUF009 - frozen
    accumulation: int = 1
    limits: GradientLimits | None = None
    loss_weight: Callable[[Any, Any], Any] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.accumulation, bool) or not isinstance(self.accumulation, int) or self.accumulation < 1:
            raise UsageError(f"gradient_accumulation_steps={self.accumulation!r} was given; give a whole number from 1")
        if self.device is not None:
            object.__setattr__(self, "device", torch.device(self.device))


class SupervisedStep:
    """Trains a model by one micro-batch a call.

    Args:
        model: as it is or in DistributedDataParallel.
        optimizer: of its parameters.
        loss_fn: ``(y_pred, y) -> mean loss over the batch``.
        options: what else to do.

    Attributes:
        num_steps_taken: optimizer steps so far; one that a gradient scaler skipped doesn't count.
        num_steps_skipped: those that it skipped.
        step_skipped: whether it skipped the last one. Of a fused optimizer, which doesn't tell without a wait for the
            device, these three are tensors.
        grad_norm: with ``limits``, the norm of the last step's whole gradient before clipping, averaged over ranks and
            not scaled; a tensor without dimensions. None before the first.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss_fn: Callable[[Any, Any], torch.Tensor],
        options: StepOptions,
    ) -> None:
        self.num_steps_taken: int | torch.Tensor = 0
        self.num_steps_skipped: int | torch.Tensor = 0
        self.step_skipped: bool | torch.Tensor = False
        self.grad_norm: torch.Tensor | None = None
        self._model = model
        self._module = unwrap_model(model)
        self._optimizer = optimizer
        self._loss_fn = loss_fn
        self._options = options
        self._open: list[MicroBatch] = []
        self._items: torch.Tensor | None = None  # of the open window, on this rank
        self._is_wrapped = isinstance(model, DistributedDataParallel)
        weighs_alike = options.limits is None and options.loss_weight is None
        self._is_plain = options.precision.dtype is None and options.precision.scaler is None and weighs_alike
        self._steps = _StepsOf()
        if options.precision.scaler is not None:  # the only one that skips steps; the hook knows no step, so no cycle
            optimizer.register_step_post_hook(self._steps)
        clears_as_torch = type(optimizer).zero_grad is torch.optim.Optimizer.zero_grad
        self._clears_directly = clears_as_torch and "zero_grad" not in vars(optimizer)
        self._syncs_statistics = any(
            isinstance(module, nn.SyncBatchNorm | GlobalBatchNorm) for module in self._module.modules()
        )

    def __call__(self, batch: Any, micro: MicroBatch = ALONE) -> StepResult:
        """Forward and backward; with the last micro-batch of its window, the optimizer too."""
        options = self._options
        x, y = options.prepare_batch(batch, options.device, options.non_blocking)
        if not self._model.training:
            self._model.train()
        if micro is ALONE and self._is_plain:
            return self._whole(x, y)
        if micro.is_first or not self._open:  # the latter where a batch comes again after the optimizer has stepped
            self._clear_gradients()
            self._open.clear()
            self._items = None
        if micro.share is not None and micro.is_sparse:
            y_pred, loss = self._sparse(x, y, micro)
        else:
            y_pred, loss = self._dense(x, y, micro)
        if micro.is_last:
            if micro.is_sparse:
                average_gradients(self._module)
            self._step()
        else:
            self._open.append(micro)
        return StepResult(x, y, y_pred, loss)

    def finish_window(self) -> None:
        """Step on a window that its epoch ended early, weighed by the micro-batches that it got.

        Needed only where the length of the epoch was not known; else a no-op.
        """
        if not self._open:
            return
        if self._options.loss_weight is None:  # by the same factor on each rank, however few samples it had
            self._grow_gradients(1.0 / (sum(micro.part for micro in self._open) or 1.0))
        if self._is_wrapped:
            average_gradients(self._module)
        self._step()

    @property
    def num_open(self) -> int:
        """Micro-batches of the window that has no step yet."""
        return len(self._open)

    def _whole(self, x: Any, y: Any) -> StepResult:
        """A window of one micro-batch in full precision, as most steps are: nothing but what a bare loop does."""
        options = self._options
        self._clear_gradients()
        y_pred = options.model_transform(options.model_fn(self._model, x))
        loss = self._loss_fn(y_pred, y)
        loss.backward()
        self._optimizer.step()
        self.num_steps_taken += 1
        return StepResult(x, y, y_pred, loss.detach())

    def _clear_gradients(self) -> None:
        """What ``optimizer.zero_grad()`` does, without the profiler record that costs more than the clearing."""
        if not self._clears_directly:
            self._optimizer.zero_grad()
            return
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def _dense(self, x: Any, y: Any, micro: MicroBatch) -> tuple[Any, torch.Tensor]:
        """Every rank has samples: DistributedDataParallel averages while the last backward runs."""
        waits = self._is_wrapped and not micro.is_last
        with self._model.no_sync() if waits else contextlib.nullcontext():  # type: ignore[operator]
            y_pred, loss = self._forward(self._model, x, y)
            self._backward(self._weighed(loss, x, y, micro))
        return y_pred, loss.detach()

    def _sparse(self, x: Any, y: Any, micro: MicroBatch) -> tuple[Any, torch.Tensor]:
        """Some rank has no sample: each works on the module inside, and gradients are averaged by hand afterwards."""
        assert micro.share is not None
        y_pred: Any = None
        loss = torch.zeros((), device=runtime.current().device)
        if micro.share.local:
            y_pred, loss = self._forward(self._module, x, y)
            self._backward(self._weighed(loss, x, y, micro))
        elif self._syncs_statistics:  # the other ranks' layers wait for this one's (empty) part
            with self._options.precision.autocast():
                self._backward(_sum_of(self._options.model_fn(self._module, x)) * 0.0)
        total = runtime.all_reduce(loss.detach().double() * micro.share.local) / max(1, micro.share.total)
        return y_pred, loss.detach() if micro.share.local else total.float()

    def _forward(self, model: nn.Module, x: Any, y: Any) -> tuple[Any, torch.Tensor]:
        options = self._options
        if options.precision.dtype is None:
            y_pred = options.model_transform(options.model_fn(model, x))
            return y_pred, self._loss_fn(y_pred, y)
        with options.precision.autocast():
            y_pred = options.model_transform(options.model_fn(model, x))
            loss = self._loss_fn(y_pred, y)
        return options.precision.full(y_pred), loss

    def _weighed(self, loss: torch.Tensor, x: Any, y: Any, micro: MicroBatch) -> torch.Tensor:
        """The part of this micro-batch in its window's loss; where items weigh, times all items of the window."""
        count = self._options.loss_weight
        if count is None:
            return loss if micro.weight == 1.0 else loss * micro.weight
        items = torch.as_tensor(count(x, y), device=loss.device).detach().to(_exact_dtype(loss.device))
        self._items = items if self._items is None else self._items + items
        # The mean over no item is none: it must not reach the sum.
        return torch.where(items > 0, loss, torch.zeros_like(loss)) * items.to(loss.dtype)

    def _divide_by_items(self) -> None:
        """Make the gradient of the window that of the mean over all items in it, on all ranks."""
        items = self._items
        if items is None:
            device = runtime.current().device
            items = torch.zeros((), dtype=_exact_dtype(device), device=device)
        world_size = runtime.current().world_size
        if world_size > 1:
            items = runtime.all_reduce(items)
        self._items = None
        self._grow_gradients(world_size / torch.where(items > 0, items, torch.ones_like(items)))

    def _backward(self, loss: torch.Tensor) -> None:
        scaler = self._options.precision.scaler
        (loss if scaler is None else scaler.scale(loss)).backward()

    def _step(self) -> None:
        """The optimizer's step on the gradient of the window, which is whole and averaged over ranks here."""
        self._open.clear()
        if self._options.loss_weight is not None:
            self._divide_by_items()
        scaler, limits = self._options.precision.scaler, self._options.limits
        if limits is not None:
            if scaler is not None:
                scaler.unscale_(self._optimizer)
            self.grad_norm = limits.apply(self._optimizer)
        if scaler is None:
            self._optimizer.step()
            self.num_steps_taken += 1
            return
        self._steps.skipped = True
        scaler.step(self._optimizer)
        scaler.update()
        skipped = self._steps.skipped
        self.step_skipped = skipped if isinstance(skipped, bool) else skipped > 0
        self.num_steps_skipped = self.num_steps_skipped + skipped
        self.num_steps_taken = self.num_steps_taken + (1 - skipped)

    def _grow_gradients(self, factor: float | torch.Tensor) -> None:
        for parameter in self._module.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)


class _StepsOf:
    """Sees whether a gradient scaler lets an optimizer step, without asking the device for anything.

    Attributes:
        skipped: set to True before; False once the optimizer has stepped. A fused optimizer is always called and told
            by the scaler to do nothing: then 0 or 1, on the device.
    """

    def __init__(self) -> None:
        self.skipped: bool | torch.Tensor = False

    def __call__(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        left_out = left_out_by_scaler(optimizer)
        self.skipped = False if left_out is None else left_out


def _exact_dtype(device: torch.device) -> torch.dtype:
    """What counts are added up in; MPS has no doubles."""
    return torch.float32 if device.type == "mps" else torch.float64


def _sum_of(output: Any) -> torch.Tensor:
    """One number that depends on every tensor in a model's output."""
    parts: list[torch.Tensor] = []
    map_tensors(lambda tensor: parts.append(tensor.sum()) if tensor.requires_grad else None, output)
    return torch.stack([part.float() for part in parts]).sum()


@torch.no_grad()
def average_gradients(model: nn.Module) -> None:
    """Average gradients over all ranks in one collective a dtype; a rank without a gradient counts as zero.

    A parameter that has no gradient on any rank keeps none.
    """
    backend = runtime.active().backend
    world_size = runtime.current().world_size
    groups: dict[torch.dtype, list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            groups.setdefault(parameter.dtype, []).append(parameter)
    for parameters in groups.values():
        parts = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
        present = parts[0].new_tensor([float(p.grad is not None) for p in parameters])
        flat = torch.cat([*(part.reshape(-1) for part in parts), present]).to(backend.transport_device)
        backend.all_reduce(flat, "SUM", None)
        flat = flat.to(parts[0].device)
        has_gradient = flat[-len(parameters) :].tolist()
        start = 0
        for parameter, part, anywhere in zip(parameters, parts, has_gradient, strict=True):
            if anywhere:
                mean = flat[start : start + part.numel()].div_(world_size).view_as(part)
                parameter.grad = mean if parameter.grad is None else parameter.grad.copy_(mean)
            start += part.numel()


@torch.no_grad()
def evaluate_batch(model: nn.Module, batch: Any, options: StepOptions) -> tuple[Any, Any, Any]:
    """Forward in evaluation mode on the module inside DistributedDataParallel, which would talk to other ranks.

    Returns:
        ``(x, y, y_pred)``.
    """
    module = unwrap_model(model)
    if module.training:
        model.eval()
    x, y = options.prepare_batch(batch, options.device, options.non_blocking)
    with options.precision.autocast():
        y_pred = options.model_transform(options.model_fn(module, x))
    return x, y, options.precision.full(y_pred)
