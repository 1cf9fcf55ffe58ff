"""The registered states of torchmetrics' metrics: packed into tensors, merged over ranks, put back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from shoal.errors import CollectiveError, UsageError

__all__ = ["copying", "holders", "merged", "packed", "put_back", "with_states"]

TensorOrList = torch.Tensor | list[torch.Tensor]

_DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.complex128,
)  # fmt: skip


def holders(torchmetrics: ModuleType, metric: torch.nn.Module) -> dict[str, Any]:
    """The metric and all metrics within it, by their path.

    Raises:
        UsageError: one of them keeps what belongs to its value where it cannot be merged.
    """
    wrappers = torchmetrics.wrappers
    refused = {
        wrappers.MinMaxMetric: "its value depends on how often it was computed",
        wrappers.MetricTracker: "it keeps a history of values; track state.metrics by a handler instead",
        wrappers.Running: "its window is the last updates of one process; attach with another usage instead",
    }
    found = {}
    for path, module in metric.named_modules():
        for kind, why in refused.items():
            if isinstance(module, kind):
                raise UsageError(f"a torchmetrics {kind.__name__} cannot be merged over ranks: {why}")
        if not isinstance(module, torchmetrics.Metric):
            continue
        for name, value in vars(module).items():
            hidden = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
            if name != "_modules" and any(isinstance(item, torchmetrics.Metric) for item in hidden):
                raise UsageError(
                    f"{type(module).__name__} keeps metrics in its attribute {name!r}, which torch does not see as "
                    "modules, so that they cannot be merged over ranks; keep them in a torch.nn.ModuleList"
                )
        found[path] = module
    return found


def packed(found: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The states as CPU tensors, two for each, and how often each metric was updated; the keys are always the same.

    What metrics share (the compute groups of a collection) is packed once; the others name the place of its key.
    """
    state: dict[str, torch.Tensor] = {}
    places: dict[int, int] = {}
    for path, metric in found.items():
        state[f"{path}#updates"] = torch.tensor(metric._update_count)
        for name in metric._defaults:
            value = getattr(metric, name)
            if id(value) in places:
                value = _Shared(places[id(value)])
            else:
                places[id(value)] = len(state)
            _pack(state, metric, path, name, value)
    return state


def merged(
    torchmetrics: ModuleType, found: Mapping[str, Any], states: Sequence[Mapping[str, torch.Tensor]]
) -> dict[str, torch.Tensor]:
    """The packed states as one process would have them that had seen the samples of all ranks, in their order.

    Only ranks that have updated a metric count for it: what a metric starts with (a minimum of infinity, a mean of 0
    over no sample) isn't a sample.

    Raises:
        CollectiveError: shapes differ between ranks, where they may not.
    """
    merged: dict[str, torch.Tensor] = {}
    for path, metric in found.items():
        counts = [int(state[f"{path}#updates"]) for state in states]
        ranks = [rank for rank, count in enumerate(counts) if count] or [0]
        merged[f"{path}#updates"] = torch.tensor(sum(counts))
        for name in metric._defaults:
            parts = [_unpacked(states[rank], f"{path}.{name}") for rank in ranks]
            value = _merged(torchmetrics, metric, name, parts, [counts[rank] for rank in ranks])
            _pack(merged, metric, path, name, value)
    return merged


def put_back(found: Mapping[str, Any], state: Mapping[str, torch.Tensor]) -> None:
    """Give the metrics the states that ``packed`` or ``merged`` returned."""
    for path, metric in found.items():
        metric._update_count = int(state[f"{path}#updates"])
        metric._computed = None
        device = metric.device
        for name in metric._defaults:
            value = _unpacked(state, f"{path}.{name}")
            if isinstance(value, torch.Tensor):
                setattr(metric, name, value.to(device, copy=True))
            else:
                setattr(metric, name, [item.to(device, copy=True) for item in value])


@contextmanager
def with_states(found: Mapping[str, Any], state: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Give the metrics other states for a while; afterwards every attribute of theirs is what it was."""
    before = {path: (dict(vars(metric)), dict(metric._buffers)) for path, metric in found.items()}
    try:
        put_back(found, state)
        yield
    finally:
        for path, metric in found.items():
            attributes, buffers = before[path]
            vars(metric).clear()
            vars(metric).update(attributes)
            metric._buffers.clear()
            metric._buffers.update(buffers)


@contextmanager
def copying(found: Mapping[str, Any], given: Sequence[torch.Tensor]) -> Iterator[None]:
    """Let no state be one of the ``given`` tensors after an update, or a view of one: the caller may fill it anew."""
    before = {id(value): len(value) for value in _values(found) if isinstance(value, list)}
    yield
    storages = {tensor.untyped_storage().data_ptr() for tensor in given}
    for metric in found.values():
        for name in metric._defaults:
            value = getattr(metric, name)
            if isinstance(value, torch.Tensor):
                if value.untyped_storage().data_ptr() in storages:
                    setattr(metric, name, value.clone())
                continue
            for place in range(before.get(id(value), 0), len(value)):
                item = value[place]
                if isinstance(item, torch.Tensor) and item.untyped_storage().data_ptr() in storages:
                    value[place] = item.clone()


def _values(found: Mapping[str, Any]) -> Iterator[Any]:
    return (getattr(metric, name) for metric in found.values() for name in metric._defaults)


def _merged(
    torchmetrics: ModuleType, metric: Any, name: str, parts: list[TensorOrList], counts: list[int]
) -> TensorOrList:
    if len(parts) == 1:
        return parts[0]
    if any(isinstance(part, list) for part in parts):
        # One process has every batch's entry in its list; reductions of lists only make one tensor of these.
        return [item for part in parts for item in (part if isinstance(part, list) else [part])]
    tensors = [part for part in parts if isinstance(part, torch.Tensor)]
    data = torchmetrics.utilities.data
    reduction = metric._reductions[name]
    if reduction == data.dim_zero_cat:
        return torch.cat([tensor.reshape(1) if tensor.dim() == 0 else tensor for tensor in tensors])
    if len({tensor.shape for tensor in tensors}) > 1:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
        raise CollectiveError(
            f"{type(metric).__name__} has states {name!r} of shapes {shapes} on different ranks, which cannot be "
            "merged; give every rank samples of the same number of classes or outputs"
        )
    stack = torch.stack(tensors)
    if reduction == data.dim_zero_sum:
        return _sum(stack, metric._defaults[name])
    if reduction == data.dim_zero_mean:
        return _weighted_mean(stack, counts)
    if reduction == data.dim_zero_max:
        return stack.amax(dim=0)
    if reduction == data.dim_zero_min:
        return stack.amin(dim=0)
    if reduction is None:
        return stack  # as torchmetrics does: the metric itself combines the processes' results
    return reduction(stack)  # type: ignore[no-any-return]


def _sum(stack: torch.Tensor, start: Any) -> torch.Tensor:
    """The sum over ranks, in which what every rank started with counts once."""
    wide = torch.float64 if stack.is_floating_point() else stack.dtype
    total = stack.to(wide).sum(dim=0)
    if isinstance(start, torch.Tensor) and start.numel() and bool((start != 0).any()):
        total = total - start.cpu().to(wide) * (len(stack) - 1)
    return total.to(stack.dtype)


def _weighted_mean(stack: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    """The mean over ranks weighted by their numbers of updates, as torchmetrics combines batches; exact for equals."""
    if bool((stack == stack[0]).all()):
        return stack[0]
    weights = torch.tensor(counts, dtype=torch.float64).view(-1, *[1] * (stack.dim() - 1))
    mean = (stack.double() * weights).sum(dim=0) / sum(counts)
    return mean.to(stack.dtype) if stack.is_floating_point() else mean.float()


@dataclass(frozen=True)
class _Shared:
    """A state that is the one whose values stand at this place among the keys."""

    place: int


def _pack(state: dict[str, torch.Tensor], metric: Any, path: str, name: str, value: TensorOrList | _Shared) -> None:
    """Add two tensors to ``state``: the values, and how they lie.

    The layout begins with 0 for a tensor, 1 for a list (its width, then a row an item: dtype, number of dimensions,
    shape), 2 for what is shared (its place).
    """
    key = f"{path}.{name}"
    if isinstance(value, torch.Tensor):
        state[key], layout = value.detach().cpu().clone(), [0]
    elif isinstance(value, _Shared):
        state[key], layout = torch.zeros(0), [2, value.place]
    else:
        state[key], layout = _packed_list(metric, name, value)
    state[f"{key}#layout"] = torch.tensor(layout)


def _unpacked(state: Mapping[str, torch.Tensor], key: str) -> TensorOrList:
    """One state of those that ``packed`` and ``merged`` gave."""
    kind, *rest = state[f"{key}#layout"].tolist()
    if kind == 2:
        return _unpacked(state, list(state)[rest[0]])
    return _unpacked_list(state[key], rest) if kind == 1 else state[key]


def _packed_list(metric: Any, name: str, items: Any) -> tuple[torch.Tensor, list[int]]:
    """The bytes of all items, and their layout."""
    strange = {type(item).__name__ for item in items if not isinstance(item, torch.Tensor)}
    if strange:
        raise UsageError(
            f"{type(metric).__name__} keeps {', '.join(sorted(strange))} in its state {name!r}, and only tensors can "
            "be merged over ranks"
        )
    width = 2 + max((item.dim() for item in items), default=0)
    layout = [1, width]
    for item in items:
        layout += [_DTYPES.index(item.dtype), item.dim(), *item.shape, *[0] * (width - 2 - item.dim())]
    if len({item.dtype for item in items}) == 1:  # as is usual: one copy from the device
        return torch.cat([item.detach().reshape(-1) for item in items]).cpu().view(torch.uint8), layout
    flat = [item.detach().cpu().reshape(-1).view(torch.uint8) for item in items]
    return torch.cat(flat) if flat else torch.zeros(0, dtype=torch.uint8), layout


def _unpacked_list(values: torch.Tensor, layout: list[int]) -> list[torch.Tensor]:
    items: list[torch.Tensor] = []
    width, rows, start = layout[0], layout[1:], 0
    for at in range(0, len(rows), width):
        code, num_dims, *sizes = rows[at : at + width]
        dtype, shape = _DTYPES[code], sizes[:num_dims]
        stop = start + dtype.itemsize * torch.Size(shape).numel()
        items.append(values[start:stop].clone().view(dtype).reshape(shape))
        start = stop
    return items
