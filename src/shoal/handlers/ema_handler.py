"""An exponential moving average of a model's weights, in storage of its own."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import nn

from shoal.checkpoint import restore_states
from shoal.engine import Engine, Events
from shoal.engine.events import EventLike
from shoal.errors import CheckpointError, UsageError
from shoal.training import unwrap_model

__all__ = ["EMAHandler"]

_HALF = (torch.float16, torch.bfloat16)
_MODES = ("copy", "update", "ema_train")


class EMAHandler:
    """Keeps ``average = (1 - momentum) * average + momentum * weight`` of each of a model's weights.

    The averaged model is ``ema_model``: of the same kind and dtypes as the model, which may be wrapped for data
    parallelism or compiled, and sharing no memory with it. Averages of half precision weights are kept in float32, of
    which ``ema_model`` has the rounded values: a momentum of 0.0002 would be lost in half precision. The updates of all
    weights are a few fused operations, which never wait for the device.

    The average begins with the weights that the model has when the first run starts, so that it may be made before
    these are loaded, or made equal on all ranks. Each rank averages for itself; the ranks' weights being equal, so are
    their averages.

    It has a state: save the handler, under a name of its own, and a resumed run has the same averages bit for bit::

        ema = EMAHandler(model)
        ema.attach(trainer)
        to_save = {"model": model, "optimizer": optimizer, "ema": ema, "trainer": trainer}

    To save or evaluate the averaged model, take ``ema.ema_model``.

    Args:
        model: the model that is trained.
        momentum: the weight of the new value, above 0 and below 1.
        momentum_warmup: the momentum of the first update, from which it changes linearly.
        warmup_iters: the update that first has ``momentum``, counted from 1. Given together with ``momentum_warmup``.
        handle_buffers: ``"copy"`` (default) gives ``ema_model`` the values of the model's buffers; ``"update"``
            averages those of floating point and copies others; ``"ema_train"`` leaves them alone, for an ``ema_model``
            in training mode that is run on data to make its own. (In Ignite "copy" shares the model's memory.)

    Attributes:
        ema_model: the averaged model, in evaluation mode but for ``"ema_train"``; its weights need no gradient.
        model: the model that is trained, without wrapping.
        num_updates: updates so far.

    Raises:
        UsageError: an argument is out of range, or the model has weights that wait for a first batch.
    """

    def __init__(
        self,
        model: nn.Module,
        momentum: float = 0.0002,
        momentum_warmup: float | None = None,
        warmup_iters: int | None = None,
        handle_buffers: Literal["copy", "update", "ema_train"] = "copy",
    ) -> None:
        if not isinstance(model, nn.Module):
            raise UsageError(f"asked to average a {type(model).__qualname__}; give a torch.nn.Module")
        for label, value in (("momentum", momentum), ("momentum_warmup", momentum_warmup)):
            if value is None and label == "momentum_warmup":
                continue
            if not isinstance(value, (int, float)) or not 0.0 < value < 1.0:
                raise UsageError(f"asked for {label}={value!r}; give a number above 0 and below 1")
        if (momentum_warmup is None) != (warmup_iters is None):
            raise UsageError(
                f"asked for momentum_warmup={momentum_warmup!r} with warmup_iters={warmup_iters!r}; one has no effect "
                "without the other: give both or none"
            )
        whole = isinstance(warmup_iters, int) and not isinstance(warmup_iters, bool)
        if warmup_iters is not None and not (whole and warmup_iters >= 1):
            raise UsageError(f"asked for warmup_iters={warmup_iters!r}; give a whole number of at least 1")
        if handle_buffers not in _MODES:
            raise UsageError(f"asked for handle_buffers={handle_buffers!r}; give one of {', '.join(map(repr, _MODES))}")
        self.model = unwrap_model(model)
        if any(nn.parameter.is_lazy(tensor) for tensor in (*self.model.parameters(), *self.model.buffers())):
            raise UsageError("asked to average a model whose weights wait for a first batch; give it one before")
        self.momentum = momentum
        self.momentum_warmup = momentum_warmup
        self.warmup_iters = warmup_iters
        self.handle_buffers = handle_buffers
        self.num_updates = 0
        self.ema_model = copy.deepcopy(self.model).requires_grad_(False)
        self.ema_model.train(handle_buffers == "ema_train")
        self._exact: dict[str, torch.Tensor] = {}  # averages in float32 of what ema_model has in half precision
        self._written = self._version()
        self._read_exact()

    def attach(
        self,
        engine: Engine,
        name: str = "ema_momentum",
        warn_if_exists: bool = True,
        event: EventLike = Events.ITERATION_COMPLETED,
    ) -> None:
        """Update the average at an event of ``engine``.

        Args:
            engine: the trainer.
            name: the attribute of ``engine.state`` that has the momentum. Without a warm-up each update goes by its
                value, which may be changed there, also by a scheduler. Several handlers need different names.
            warn_if_exists: whether to warn where the state has such an attribute already; its value is kept.
            event: when to update. With accumulation of gradients, choose ``every`` so many iterations as a step takes:
                an update without a step in between moves the average all the same.
        """
        if not hasattr(engine.state, name):
            setattr(engine.state, name, self._momentum_of_update(1))
        elif warn_if_exists:
            engine.logger.warning(
                "EMAHandler: engine.state has an attribute '%s' already, and keeps its value; choose another name if "
                "it is another handler's, or give warn_if_exists=False",
                name,
            )
        engine.add_event_handler(Events.STARTED, self._begin)
        engine.add_event_handler(event, self._update, name)

    def state_dict(self) -> dict[str, Any]:
        """The averages and the number of updates."""
        return {"ema_model": self.ema_model.state_dict(), "exact": dict(self._exact), "num_updates": self.num_updates}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from the averages of an earlier run.

        Raises:
            CheckpointError: it is no such state, or of another model; nothing is changed then.
        """
        try:
            model, exact, number = state_dict["ema_model"], state_dict["exact"], int(state_dict["num_updates"])
            differs = {name: tuple(value.shape) for name, value in exact.items()} != {
                name: tuple(value.shape) for name, value in self._exact.items()
            }
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                "asked to load the state of an EMAHandler, found something else; use what its state_dict() gave, or "
                "load a model's state into ema_model"
            ) from error
        if differs:
            raise CheckpointError(
                f"asked to load averages of {len(exact)} half precision tensors, found {len(self._exact)} in the model "
                "or others; use the model and the precision that were saved"
            )
        restore_states({"ema_model": self.ema_model}, {"ema_model": model})
        for name, value in self._exact.items():
            value.copy_(exact[name])
        self.num_updates = number
        self._written = self._version()

    @torch.no_grad()
    def _begin(self) -> None:
        """Start from the weights of now, unless there is an average already, or someone has put weights there."""
        if self.num_updates > 0 or self._version() != self._written:
            return
        self._follow_device()
        for own, theirs in zip(_tensors(self.ema_model), _tensors(self.model), strict=True):
            own.copy_(theirs)
        self._read_exact()
        self._written = self._version()

    @torch.no_grad()
    def _update(self, engine: Engine, name: str) -> None:
        if self.warmup_iters is not None:
            setattr(engine.state, name, self._momentum_of_update(self.num_updates + 1))
        momentum = float(getattr(engine.state, name))
        self._follow_device()
        if self._exact and self._version() != self._written:  # weights were loaded into ema_model itself
            self._read_exact()
        if self.handle_buffers == "copy":
            _copy(list(self.ema_model.buffers()), list(self.model.buffers()))
        self._average(self._averaged(self.ema_model), self._averaged(self.model), momentum)
        self.num_updates += 1
        if self._exact:
            self._written = self._version()

    def _average(self, own: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor], momentum: float) -> None:
        counted = [name for name, value in own.items() if not (value.is_floating_point() or value.is_complex())]
        halves = [name for name in own if name in self._exact]
        plain = [name for name in own if name not in self._exact and name not in counted]
        if plain:
            values = [theirs[name].to(own[name].dtype) for name in plain]
            torch._foreach_lerp_([own[name] for name in plain], values, momentum)
        if halves:
            exact = [self._exact[name] for name in halves]
            torch._foreach_lerp_(exact, [theirs[name].float() for name in halves], momentum)
            _copy([own[name] for name in halves], exact)
        if counted:
            _copy([own[name] for name in counted], [theirs[name] for name in counted])

    def _momentum_of_update(self, number: int) -> float:
        """Linear from ``momentum_warmup`` at update 1 to ``momentum`` at update ``warmup_iters``."""
        if self.warmup_iters is None or self.momentum_warmup is None:
            return self.momentum
        if number >= max(self.warmup_iters, 2):
            return self.momentum
        return self.momentum_warmup + (self.momentum - self.momentum_warmup) * (number - 1) / (
            self.warmup_iters - 1 or 1
        )

    def _follow_device(self) -> None:
        """Be where the model is, which may have been moved since."""
        for own, theirs in zip(self.ema_model.parameters(), self.model.parameters(), strict=True):
            if own.device != theirs.device:
                self.ema_model.to(theirs.device)
                self._exact = {name: value.to(theirs.device) for name, value in self._exact.items()}
            return

    def _averaged(self, model: nn.Module) -> dict[str, torch.Tensor]:
        tensors: dict[str, torch.Tensor] = dict(model.named_parameters())
        if self.handle_buffers == "update":
            tensors.update(model.named_buffers())
        return tensors

    def _read_exact(self) -> None:
        averaged = self._averaged(self.ema_model)
        self._exact = {name: value.detach().float() for name, value in averaged.items() if value.dtype in _HALF}

    def _version(self) -> int:
        """Changes whenever something is written into ``ema_model``."""
        return sum(tensor._version for tensor in _tensors(self.ema_model))


def _tensors(model: nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


def _copy(to: Sequence[torch.Tensor], source: Sequence[torch.Tensor]) -> None:
    if to:
        torch._foreach_copy_(list(to), list(source))
