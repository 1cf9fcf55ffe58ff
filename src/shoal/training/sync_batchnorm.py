"""Batch normalisation over the global batch, for backends without fused kernels for it.

Ranks exchange count, mean and sum of squared deviations per channel and merge them by the formula of Chan, Golub and
LeVeque ("Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979), in the order of ranks, so
that all of them get the same bits. Ranks may hold unequal numbers of samples, also none.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from shoal import runtime

__all__ = ["GlobalBatchNorm", "has_batch_norm", "synchronise"]


_LOGGER = "shoal.distributed.auto.auto_model"
_STANDARD = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class GlobalBatchNorm(_BatchNorm):
    """Normalises over dimension 0 and all spatial dimensions of the batches of all ranks together.

    Input shape (N, C, *), N may be 0 on some ranks. In evaluation it is ordinary batch normalisation.
    """

    def _check_input_dim(self, input: torch.Tensor) -> None:  # noqa: A002 - the name of the overridden method
        if input.dim() < 2:
            raise ValueError(f"batch normalisation expects an input of shape (N, C, ...), got {tuple(input.shape)}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        """Normalise; every rank must call it in training, also one whose batch is empty."""
        self._check_input_dim(input)
        if not self.training or runtime.current().world_size == 1:
            return super().forward(input)
        mean, var, count = _global_moments(input)
        self._update_running(mean, var, count)
        weight = self.weight if self.affine else torch.ones_like(mean)
        bias = self.bias if self.affine else torch.zeros_like(mean)
        return cast("torch.Tensor", _Normalise.apply(input, weight, bias, mean, var, count, self.eps))

    @torch.no_grad()
    def _update_running(self, mean: torch.Tensor, var: torch.Tensor, count: int) -> None:
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        factor = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
        unbiased = var * (count / max(1, count - 1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), factor)


def has_batch_norm(model: nn.Module) -> bool:
    """Whether some layer normalises over the batch of its own rank alone while training."""
    return any(
        isinstance(module, _BatchNorm) and not isinstance(module, nn.SyncBatchNorm | GlobalBatchNorm)
        for module in model.modules()
    )


def synchronise(model: nn.Module) -> nn.Module:
    """Make torch's batch normalisation layers cover the global batch.

    On a GPU they are replaced by ``torch.nn.SyncBatchNorm``, whose kernels are fused.
    """
    if runtime.current().device.type != "cpu":
        return cast("nn.Module", nn.SyncBatchNorm.convert_sync_batchnorm(model))
    for name, module in model.named_modules():
        if type(module) in _STANDARD:
            # The same attributes and another forward: parameters, hooks and second references stay.
            module.__class__ = GlobalBatchNorm
        elif isinstance(module, _BatchNorm) and not isinstance(module, GlobalBatchNorm):
            runtime.get_logger(_LOGGER).warning(
                "sync_bn=True leaves the layer '%s' alone: a %s may normalise in a way of its own",
                *(name, type(module).__name__),
            )
    return model


@torch.no_grad()
def _global_moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Mean and biased variance per channel over all ranks, in float32 or wider, and the values per channel."""
    dims = [0, *range(2, x.dim())]
    channels = x.shape[1]
    wide = torch.promote_types(x.dtype, torch.float32)
    count = x.numel() // channels
    own = torch.zeros(2 * channels + 1, dtype=torch.float64, device=x.device)
    if count:
        var, mean = torch.var_mean(x.to(wide), dim=dims, correction=0)
        own[:channels] = mean
        own[channels:-1] = var
        own[-1] = count
    parts = torch.stack(runtime.active().backend.all_gather(own, None))
    means, variances, counts = parts[:, :channels], parts[:, channels:-1], parts[:, -1:]
    total = counts.sum()
    mean = (counts * means).sum(0) / total
    var = (counts * (variances + (means - mean) ** 2)).sum(0) / total
    return mean.to(wide), var.to(wide), int(total.item())


class _Normalise(torch.autograd.Function):
    """``(x - mean) / sqrt(var + eps) * weight + bias``, differentiated through mean and variance over all ranks."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        mean: torch.Tensor,
        var: torch.Tensor,
        count: int,
        eps: float,
    ) -> torch.Tensor:
        """With the moments given this is what the native kernel does in evaluation."""
        ctx.save_for_backward(x, weight, mean, var)
        ctx.count, ctx.eps = count, eps
        if x.numel() == 0:
            return x.clone()
        return torch.nn.functional.batch_norm(x, mean, var, weight, bias, False, 0.0, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The native backward with fixed moments, plus what flows through them."""
        x, weight, mean, var = ctx.saved_tensors
        inverse = torch.rsqrt(var + ctx.eps)
        if x.numel():
            fixed, grad_weight, grad_bias = torch.ops.aten.native_batch_norm_backward(
                grad.contiguous(), x, weight, mean, var, None, None, False, ctx.eps, [True, True, True]
            )
        else:
            fixed, grad_weight, grad_bias = grad.clone(), torch.zeros_like(mean), torch.zeros_like(mean)
        sums = torch.cat([grad_bias.double(), grad_weight.double()])
        runtime.active().backend.all_reduce(sums, "SUM", None)
        sum_dy, sum_dy_xhat = sums.chunk(2)
        slope = -(weight * inverse * inverse) * (sum_dy_xhat / ctx.count)
        offset = -(weight * inverse) * (sum_dy / ctx.count) - slope * mean
        shape = [1, -1] + [1] * (x.dim() - 2)
        wide = mean.dtype  # 16 bits are too few for the difference of nearly equal numbers
        through = torch.addcmul(fixed.to(wide), x.to(wide), slope.to(wide).view(shape)).add_(
            offset.to(wide).view(shape)
        )
        return through.to(x.dtype), grad_weight, grad_bias, None, None, None, None
