"""A model's weights and gradients, written to a tracker: one number of each parameter, or its histogram."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from shoal.engine import Engine
from shoal.engine.events import EventKey
from shoal.errors import UsageError
from shoal.handlers._counts import axis_of, count
from shoal.handlers.tracker_logger import TrackerLogger
from shoal.trackers import Histogram
from shoal.training import unwrap_model

__all__ = ["GradsHistHandler", "GradsScalarHandler", "WeightsHistHandler", "WeightsScalarHandler", "Whitelist"]

Whitelist: TypeAlias = Sequence[str] | Callable[[str, nn.Parameter], bool]


class _ModelHandler:
    """Chooses parameters and names them, whether the model is wrapped for data parallelism or compiled, or not."""

    def __init__(self, model: nn.Module, tag: str | None, whitelist: Whitelist | None) -> None:
        if not isinstance(model, nn.Module):
            raise UsageError(f"asked to log the parameters of a {type(model).__qualname__}; give a torch.nn.Module")
        if isinstance(whitelist, str) or not (
            whitelist is None or callable(whitelist) or all(isinstance(name, str) for name in whitelist)
        ):
            raise UsageError(
                f"asked for whitelist={whitelist!r}; give a list of names, or a function (name, parameter)"
            )
        self.model = model
        self.tag = tag or ""
        self.whitelist = whitelist
        if not any(True for _ in self._chosen()):
            names = [name for name, _ in unwrap_model(model).named_parameters()]
            shown = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
            raise UsageError(
                f"whitelist={whitelist!r} chooses none of the model's parameters; it has: {shown or 'none'}"
            )

    def _chosen(self) -> Iterator[tuple[str, nn.Parameter]]:
        for name, parameter in unwrap_model(self.model).named_parameters():
            if not self._accepts(name, parameter):
                continue
            if hasattr(parameter, "full_tensor"):  # bringing it together is a collective, and this is rank 0 alone
                raise UsageError(
                    f"asked to log the parameter '{name}', which is spread over ranks; log it on all ranks yourself, "
                    "after full_tensor(), or leave it out by whitelist"
                )
            yield name, parameter

    def _accepts(self, name: str, parameter: nn.Parameter) -> bool:
        if self.whitelist is None:
            return True
        if callable(self.whitelist):
            return bool(self.whitelist(name, parameter))
        return any(name == chosen or name.startswith(f"{chosen}.") for chosen in self.whitelist)

    def _weights(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self._chosen():
            yield name.replace(".", "/"), parameter.detach()

    def _gradients(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self._chosen():
            gradient = parameter.grad
            if gradient is not None:
                dense = gradient.coalesce().values() if gradient.is_sparse else gradient
                yield name.replace(".", "/"), dense.detach()


class _ScalarHandler(_ModelHandler):
    _kind = ""

    def __init__(
        self,
        model: nn.Module,
        reduction: Callable[[Tensor], float | Tensor] = torch.norm,
        tag: str | None = None,
        whitelist: Whitelist | None = None,
    ) -> None:
        super().__init__(model, tag, whitelist)
        if not callable(reduction):
            raise UsageError(f"asked for reduction={reduction!r}; give a function of a tensor, as torch.norm")
        self.reduction = reduction
        name = getattr(reduction, "__name__", type(reduction).__name__).strip("<>")
        self._prefix = f"{self._kind}_{name}"

    def _write(
        self, engine: Engine, logger: TrackerLogger, event_name: EventKey, tensors: Iterator[tuple[str, Tensor]]
    ) -> None:
        with torch.no_grad():
            values: dict[str, Any] = {f"{self._prefix}/{name}": self.reduction(tensor) for name, tensor in tensors}
            values |= _fetch({name: value for name, value in values.items() if isinstance(value, Tensor)})
        if values:
            step, axis = count(engine, event_name), axis_of(event_name)
            logger.tracker.log_metrics(values, step=step, prefix=self.tag, axis=axis)


class _HistHandler(_ModelHandler):
    def __init__(
        self,
        model: nn.Module,
        tag: str | None = None,
        whitelist: Whitelist | None = None,
        num_bins: int = 64,
    ) -> None:
        super().__init__(model, tag, whitelist)
        if isinstance(num_bins, bool) or not isinstance(num_bins, int) or num_bins < 1:
            raise UsageError(f"asked for num_bins={num_bins!r}; give a whole number from 1")
        self.num_bins = num_bins

    def _write(
        self, engine: Engine, logger: TrackerLogger, event_name: EventKey, tensors: Iterator[tuple[str, Tensor]]
    ) -> None:
        media = {name: Histogram.of(tensor, self.num_bins) for name, tensor in tensors}
        if media:
            step, axis = count(engine, event_name), axis_of(event_name)
            logger.tracker.log_media(media, step=step, prefix=self.tag, axis=axis)


class WeightsScalarHandler(_ScalarHandler):
    """Writes one number of each parameter, as ``tag/weights_norm/layer/weight``. Attach it by ``logger.attach``.

    It waits for the device once, and reads the model on rank 0 only.

    Args:
        model: the model; wrapped for data parallelism or compiled, its parameters keep the names of the bare one
            (in Ignite they then begin with ``module``).
        reduction: takes a parameter and returns a number or a tensor of one; its name is part of the record's.
        tag: put before each name.
        whitelist: names of parameters, or of modules whose parameters are meant, or a function that is given name and
            parameter; None (default) is all.

    Raises:
        UsageError: the whitelist chooses nothing, or a parameter that is spread over ranks.
    """

    _kind = "weights"

    def __call__(self, engine: Engine, logger: TrackerLogger, event_name: EventKey) -> None:
        """Write the numbers of now."""
        self._write(engine, logger, event_name, self._weights())


class GradsScalarHandler(_ScalarHandler):
    """Writes one number of each parameter's gradient, as ``tag/grads_norm/layer/weight``; else as its sister.

    At ``ITERATION_COMPLETED`` of a supervised trainer the gradients are those of the optimizer step that was taken,
    summed over ranks, unscaled and clipped. A parameter without a gradient is left out.

    Args:
        model, reduction, tag, whitelist: as in :class:`WeightsScalarHandler`.

    Raises:
        UsageError: as in :class:`WeightsScalarHandler`.
    """

    _kind = "grads"

    def __call__(self, engine: Engine, logger: TrackerLogger, event_name: EventKey) -> None:
        """Write the numbers of now."""
        self._write(engine, logger, event_name, self._gradients())


class WeightsHistHandler(_HistHandler):
    """Writes a histogram of each parameter, as ``tag/weights/layer/weight``.

    Each parameter is copied to the CPU: do it once an epoch, say.

    Args:
        model, tag, whitelist: as in :class:`WeightsScalarHandler`.
        num_bins: bins of equal width from the smallest to the largest value.

    Raises:
        UsageError: as in :class:`WeightsScalarHandler`.
    """

    def __call__(self, engine: Engine, logger: TrackerLogger, event_name: EventKey) -> None:
        """Write the histograms of now."""
        self._write(engine, logger, event_name, ((f"weights/{name}", tensor) for name, tensor in self._weights()))


class GradsHistHandler(_HistHandler):
    """Writes a histogram of each parameter's gradient, as ``tag/grads/layer/weight``; else as its sister.

    Args:
        model, tag, whitelist, num_bins: as in :class:`WeightsHistHandler`.

    Raises:
        UsageError: as in :class:`WeightsScalarHandler`.
    """

    def __call__(self, engine: Engine, logger: TrackerLogger, event_name: EventKey) -> None:
        """Write the histograms of now."""
        self._write(engine, logger, event_name, ((f"grads/{name}", tensor) for name, tensor in self._gradients()))


def _fetch(values: dict[str, Tensor]) -> dict[str, Any]:
    """Tensors of one number, brought from the device together; others as they are."""
    single = {name: value for name, value in values.items() if value.numel() == 1}
    if len({value.device for value in single.values()}) != 1:
        return dict(values)
    fetched = torch.stack([value.reshape(()).double() for value in single.values()]).tolist()
    return {**values, **dict(zip(single, fetched, strict=True))}
