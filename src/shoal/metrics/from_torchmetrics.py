"""Metrics of torchmetrics, merged exactly over ranks along with Shoal's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from shoal._optional import require
from shoal.errors import NotComputableError, UsageError
from shoal.metrics import _torchmetrics_states as states
from shoal.metrics.base import Metric, State

__all__ = ["TorchMetric", "from_torchmetrics"]


class TorchMetric(Metric):
    """A metric or a collection of torchmetrics that an engine can use; see ``from_torchmetrics``, which makes it."""

    def __init__(
        self,
        metric: Any,
        output_transform: Callable[[Any], Any] | None = None,
        device: torch.device | str | None = None,
        skip_unrolling: bool = False,
    ) -> None:
        library = require("torchmetrics", extra="torchmetrics", purpose="from_torchmetrics")
        if not isinstance(metric, library.Metric | library.MetricCollection):
            raise UsageError(
                f"from_torchmetrics was given a {type(metric).__name__} and takes a torchmetrics.Metric or "
                "MetricCollection"
            )
        self._library = library
        self.metric = metric
        self._holders = states.holders(library, metric)
        for held in self._holders.values():
            held.sync_on_compute = held.dist_sync_on_step = held._to_sync = False
        for module in metric.modules():
            if isinstance(module, library.MetricCollection) and module._enable_compute_groups is True:
                # Groups found by comparing states after one batch depend on that batch, and so on the rank.
                module._enable_compute_groups, module._groups, module._groups_checked = False, {}, False
        super().__init__(output_transform, device, skip_unrolling)

    def reset(self) -> None:
        """Forget all samples."""
        for held in self._holders.values():
            for name, default in held._defaults.items():
                if isinstance(default, list):
                    setattr(held, name, [])  # the old list may be another metric's, too
        self.metric.reset()
        for held in self._holders.values():
            held._update_count = 0  # which wrappers leave as it is

    @torch.no_grad()
    def update(self, output: Any) -> None:
        """Take one batch: a tuple or list of the arguments of the metric's ``update``, or its one argument."""
        by_name = output.arguments if isinstance(output, _ByName) else {}
        args = () if by_name else tuple(output) if isinstance(output, tuple | list) else (output,)
        given = (*args, *by_name.values())
        if any(isinstance(arg, torch.Tensor) and arg.dim() and len(arg) == 0 for arg in given):
            return
        tensors = list(_tensors_in(given))
        self._follow(tensors)
        with states.copying(self._holders, tensors):
            self.metric.update(*args, **by_name)

    def state(self) -> State:
        """All registered states of the metric and of the metrics within it, and how often each was updated."""
        return states.packed(self._holders)

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Be as if the samples of ``state``, and no others, had been seen."""
        self.reset()
        states.put_back(self._holders, state)

    def merge(self, states_by_rank: Sequence[Mapping[str, torch.Tensor]]) -> State:
        """One state from those of all ranks, by the reductions that the metric has registered."""
        return states.merged(self._library, self._holders, states_by_rank)

    def compute_from(self, state: Mapping[str, torch.Tensor]) -> Any:
        """What the metric computes; a number for a tensor without dimensions, other tensors on the CPU.

        Raises:
            NotComputableError: no rank has seen a sample.
        """
        if not any(int(value) for key, value in state.items() if key.endswith("#updates")):
            raise NotComputableError(
                f"{type(self.metric).__name__} was computed before any rank had seen a sample; update it first"
            )
        try:
            with torch.no_grad(), states.with_states(self._holders, state):
                return _plain(self.metric.compute())
        except (AttributeError, AssertionError) as error:
            raise UsageError(
                f"{type(self.metric).__name__} could not be computed ({error!r}); if this rank has seen no sample, the "
                "metric sets attributes in its update besides its registered states: give every rank a sample"
            ) from error

    def _from_mapping(self, output: Mapping[str, Any]) -> Any:
        """``(y_pred, y)`` of a mapping that has them, else its items as arguments by name."""
        if {"y_pred", "y"} <= output.keys():
            return super()._from_mapping(output)
        if isinstance(self.metric, self._library.Metric):
            try:
                self.metric._update_signature.bind(**output)
            except TypeError as error:
                takes = list(self.metric._update_signature.parameters)
                raise UsageError(
                    f"{type(self.metric).__name__} was given an output with keys {list(output)}, and its update takes "
                    f"{takes} ({error}); return y_pred and y, or these, or pick others by output_transform"
                ) from error
        return _ByName(dict(output))

    def _follow(self, tensors: Sequence[torch.Tensor]) -> None:
        """Move the metric to ``device``, or else to where the tensors lie."""
        device = self.device or (tensors[0].device if tensors else None)
        if device is not None and not all(_is_on(held.device, device) for held in self._holders.values()):
            self.metric.to(device)


@dataclass(frozen=True)
class _ByName:
    """Arguments of an update by name."""

    arguments: dict[str, Any]


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping | tuple | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors_in(item)


def _is_on(device: torch.device, wanted: torch.device) -> bool:
    return device.type == wanted.type and wanted.index in (None, device.index)


def from_torchmetrics(
    metric: Any,
    output_transform: Callable[[Any], Any] | None = None,
    device: torch.device | str | None = None,
    skip_unrolling: bool = False,
) -> TorchMetric:
    """Let an engine use a metric of torchmetrics as one of its own: one value over all ranks, in the same collective.

    Args:
        metric: a ``torchmetrics.Metric``, also one made of others, or a ``MetricCollection``, whose value is a dict. It
            is used as it is, not copied, and started anew; its own synchronisation is switched off.
        output_transform: makes of an engine's output a tuple of the arguments of the metric's ``update``, or its one
            argument, or a mapping of these by name; by default ``(y_pred, y)``, which torchmetrics calls preds and
            target.
        device: where the metric lies. None (default): where the outputs lie; it is moved there.
        skip_unrolling: see ``Metric``.

    Returns:
        A metric with ``attach``, ``update``, ``compute`` and so on; ``metric`` is its attribute of that name.

    Raises:
        MissingExtraError: torchmetrics is not installed.
        UsageError: it is no such metric, or is, or has in it, one that cannot be merged: ``MinMaxMetric``,
            ``MetricTracker``, ``Running``, or a metric that keeps others outside its modules.

    Every state that the metric has registered is merged by its reduction, over the ranks that have seen a sample:
    ``sum``, ``max`` and ``min`` are exact; lists, and ``cat``, have the entries of all ranks in the order of ranks, as
    one process would; a tensor without a reduction is stacked, one entry a rank, which the metric combines itself
    (PearsonCorrCoef does); a function of the user's is called with such a stack. ``mean`` is weighted by the ranks'
    numbers of updates, as torchmetrics combines batches: exact where batches have the same size, or where, as in
    PSNR's data_range, the state is the same for all. torchmetrics itself would let ranks without samples take part,
    take the plain mean over ranks, and need a collective for each state.

    What a metric keeps besides its registered states isn't merged. A collection's automatic ``compute_groups`` are
    switched off: torchmetrics lets metrics share one state from then on whose states are equal after the first batch,
    so that two thresholds which agree on that batch give the same value for ever. Groups that you name
    (``compute_groups=[[...]]``) are kept. Updates cost what the metric's own cost; some wait for the device.
    """
    return TorchMetric(metric, output_transform, device, skip_unrolling)


def _plain(value: Any) -> Any:
    """Numbers for tensors without dimensions, CPU tensors for others, in mappings and sequences too."""
    if isinstance(value, torch.Tensor):
        return value.item() if value.dim() == 0 else value.detach().cpu()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_plain(item) for item in value) if not hasattr(value, "_fields") else value
    return value
