"""A model and an optimizer made ready for the current world."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shoal import runtime
from shoal.errors import UsageError
from shoal.training.sync_batchnorm import has_batch_norm, synchronise

__all__ = ["auto_model", "auto_optim", "unwrap_model"]

_LOGGER = "shoal.distributed.auto.auto_model"

OptimizerT = TypeVar("OptimizerT", bound=torch.optim.Optimizer)


def auto_model(model: nn.Module, sync_bn: bool = False, **kwargs: Any) -> nn.Module:
    """Move a model to this process's device and, where there are several processes, average its gradients.

    With several processes all of them must call it: DistributedDataParallel then copies rank 0's parameters to the
    others.

    Args:
        model: the model; called with one that is prepared already, this returns it as it is.
        sync_bn: whether batch normalisation covers the global batch rather than each rank's part of it. Off by
            default, as in torch; only with it is a step at any world size the step of one process. A log line says
            where it would matter.
        kwargs: for ``torch.nn.parallel.DistributedDataParallel``.

    Returns:
        The model itself, or the DistributedDataParallel around it. Several visible GPUs and no backend leave it a
        plain model on one GPU.
    """
    logger = runtime.get_logger(_LOGGER)
    if isinstance(model, DistributedDataParallel):
        logger.info("The model is in DistributedDataParallel already and stays as it is")
        return model
    here = runtime.active()
    world = here.world
    model.to(world.device)
    if world.world_size == 1 or not here.backend.capabilities.wraps_model:
        if kwargs:
            logger.info("%s have no effect: they configure DistributedDataParallel, and one process needs none", kwargs)
        return model
    if sync_bn:
        model = synchronise(model)
    elif has_batch_norm(model):
        logger.info(
            "Batch normalisation covers each rank's part of a global batch; sync_bn=True makes it cover the whole"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        logger.info("The model has nothing to train and is not wrapped in DistributedDataParallel")
        return model
    if world.device.index is not None:
        kwargs.setdefault("device_ids", [world.device.index])
        logger.info("Apply torch DistributedDataParallel on model, device id: %d", world.device.index)
    else:
        logger.info("Apply torch DistributedDataParallel on model, device: %s", world.device)
    return DistributedDataParallel(model, **kwargs)


def auto_optim(optimizer: OptimizerT) -> OptimizerT:
    """Make an optimizer ready for the current world.

    The backends that average gradients by wrapping the model leave the optimizer as it is.

    Raises:
        UsageError: ``optimizer`` is no torch optimizer.
    """
    if isinstance(optimizer, torch.optim.Optimizer):
        return optimizer
    raise UsageError(f"auto_optim was given a {type(optimizer).__name__}; give a torch.optim.Optimizer")


def unwrap_model(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel, DataParallel and ``torch.compile``, in whatever order they wrap it."""
    while True:
        if isinstance(model, DistributedDataParallel | nn.DataParallel):
            model = cast("nn.Module", model.module)
        elif hasattr(model, "_orig_mod"):
            model = cast("nn.Module", model._orig_mod)
        else:
            return model
