"""Collectives for tensors, numbers, strings and objects, of the same type at every world size.

Everything that is no large tensor travels as bytes in one ``all_gather`` of fixed slots; only what does not fit its
slot needs a second one. So a metric's numbers, a string or a small object cost one collective.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist

from shoal.errors import CollectiveError, UsageError
from shoal.runtime.backends import Group
from shoal.runtime.context import active, new_group

__all__ = ["REDUCTIONS", "all_gather", "all_reduce", "barrier", "broadcast", "gather_states"]

T = TypeVar("T")

REDUCTIONS = ("SUM", "PRODUCT", "MIN", "MAX")

_SLOT_BYTES = 4096
_NUMBER_SLOT_BYTES = 256
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class _TensorHeader:
    """What ranks must know of each other's tensor before they exchange it."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class _Unpicklable:
    """Sent in place of an object that cannot be pickled, so that every rank raises and none waits."""

    kind: str
    reason: str

    def error(self, what: str, rank: int) -> CollectiveError:
        return CollectiveError(
            f"{what} was given a {self.kind} on rank {rank} that cannot be pickled ({self.reason}); give tensors, "
            "numbers, strings or objects that can"
        )


def all_reduce(value: T, op: str = "SUM", group: Group | Sequence[int] | None = None) -> T:
    """Combine a tensor or a number over ranks.

    Args:
        value: a tensor of the same shape and dtype on every rank, an int or a float. It is not changed.
        op: ``"SUM"`` (default), ``"PRODUCT"``, ``"MIN"`` or ``"MAX"``. Ints are combined exactly, whatever their size.
        group: a group of ``new_group``, or a list of global ranks, for which every rank must make the call. None
            (default): all ranks. A rank outside the group gets its own value back.

    Returns:
        The combination, of the type, dtype and device of ``value``.

    Raises:
        UsageError: another type of value, or an unknown ``op``.
        CollectiveError: the ranks gave different kinds of numbers, or, where they talk over CPUs, tensors of different
            shape or dtype. (Over GPUs the check would wait for the device, and is left out.)
    """
    if op not in REDUCTIONS:
        raise UsageError(f"all_reduce was asked for op={op!r}; choose one of {', '.join(REDUCTIONS)}")
    if isinstance(value, torch.Tensor):
        return cast("T", _reduce_tensor(value, op, group))
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"all_reduce was given a {type(value).__name__}; it takes a tensor, an int or a float")
    return cast("T", _reduce_number(value, op, group))


def all_gather(value: Any, group: Group | Sequence[int] | None = None) -> Any:
    """Collect a value of every rank on every rank.

    Args:
        value: a tensor, a number, a string or any object that can be pickled.
        group: as in ``all_reduce``. A rank outside the group gets the gathering of its own value alone.

    Returns:
        For tensors, one tensor on the device of ``value``: the ranks' tensors, joined along dimension 0 in the order
        of ranks; their sizes in dimension 0 may differ, also be 0, and tensors without dimension give shape
        ``(world size,)``. For all else the list of values by rank.

    Raises:
        CollectiveError: the ranks' tensors differ in dtype or in a dimension other than 0, some rank gave no tensor, or
            an object that cannot be pickled. It is raised on every rank.
    """
    handle, member = _resolve(group)
    if not isinstance(value, torch.Tensor):
        gathered = _gather_objects(value, handle, "all_gather") if member else [value]
        if any(isinstance(other, _TensorHeader) for other in gathered):
            raise CollectiveError(
                f"all_gather was given a {type(value).__name__} on this rank and a tensor on another; "
                "give the same kind of value on every rank"
            )
        return gathered
    tensor = value.detach() if value.dim() else value.detach().reshape(1)
    if not member or len(active().backend.group_ranks(handle)) == 1:
        return tensor.clone()
    return _gather_tensor(tensor, handle)


def broadcast(value: Any = None, src: int = 0, group: Group | Sequence[int] | None = None) -> Any:
    """Give every rank the value of one.

    Args:
        value: on ``src``, a tensor, a number, a string or any object that can be pickled. Other ranks may give
            anything, or nothing: it is not looked at.
        src: the global rank whose value is sent; 0 by default.
        group: as in ``all_reduce``. A rank outside the group gets its own value back.

    Returns:
        The value of ``src``. A tensor arrives on the device of the receiving rank where it lay on a GPU, else on the
        CPU; on ``src`` itself ``value`` is returned as it is.

    Raises:
        UsageError: ``src`` is no rank of the group.
        CollectiveError: the object cannot be pickled; raised on every rank.
    """
    handle, member = _resolve(group)
    here = active()
    ranks = here.backend.group_ranks(handle) if member else [here.world.rank]
    if not member:
        return value
    if src not in ranks:
        raise UsageError(f"broadcast was asked for src={src}, which is not among the ranks {ranks}; name one of them")
    if len(ranks) == 1:
        return value
    is_src = here.world.rank == src
    payload = b""
    if is_src:
        header = _TensorHeader(tuple(value.shape), _name(value.dtype)) if isinstance(value, torch.Tensor) else None
        on_gpu = isinstance(value, torch.Tensor) and value.device.type != "cpu"
        payload = _pickled((header, on_gpu, None if header else value), about=value)
    received_object = pickle.loads(_broadcast_bytes(payload, src, handle))
    if isinstance(received_object, _Unpicklable):
        raise received_object.error("broadcast", src)
    header, on_gpu, other = received_object
    if header is None:
        return value if is_src else other
    transport = here.backend.transport_device
    if is_src:
        here.backend.broadcast(value.detach().to(transport).contiguous(), src, handle)
        return value
    received = torch.empty(header.shape, dtype=getattr(torch, header.dtype), device=transport)
    here.backend.broadcast(received, src, handle)
    return received.to(here.world.device if on_gpu else "cpu")


def barrier(group: Group | Sequence[int] | None = None) -> None:
    """Wait until every rank of ``group`` (None: all) has called this."""
    handle, member = _resolve(group)
    if member:
        active().backend.barrier(handle)


def gather_states(states: Sequence[Mapping[str, torch.Tensor]]) -> list[list[dict[str, torch.Tensor]]]:
    """Collect several dicts of tensors from every rank at once, bit for bit.

    Args:
        states: any number of dicts of tensors, of any shape and dtype; shapes may differ between ranks.

    Returns:
        By rank, the dicts in the order given, with CPU tensors. In a world of one the tensors are shared with
        ``states`` where they lie on the CPU already.

    One collective while a rank's states fit some kilobytes, else two.
    """
    own = [{key: tensor.detach().cpu() for key, tensor in state.items()} for state in states]
    here = active()
    if here.world.world_size == 1:
        return [own]
    packed = pickle.dumps([{key: _pack(tensor) for key, tensor in state.items()} for state in own])
    return [
        [{key: _unpack(*parts) for key, parts in state.items()} for state in pickle.loads(data)]
        for data in _gather_bytes(packed, None)
    ]


def _resolve(group: Group | Sequence[int] | None) -> tuple[Group, bool]:
    """A backend's handle for ``group`` and whether this rank is in it."""
    if group is None:
        return None, True
    here = active()
    if isinstance(group, list | tuple | range):
        return new_group(group), here.world.rank in group
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        return None, False
    if isinstance(group, str | bytes | int | float | set | frozenset | dict) or hasattr(group, "__array__"):
        raise UsageError(f"group={group!r} was given; give a list of ranks, or what new_group returned")
    return group, here.world.rank in here.backend.group_ranks(group)


def _reduce_tensor(tensor: torch.Tensor, op: str, group: Group | Sequence[int] | None) -> torch.Tensor:
    handle, member = _resolve(group)
    here = active()
    result = tensor.detach().clone(memory_format=torch.contiguous_format)
    if not member or here.world.world_size == 1:
        return result
    carrier = result.to(here.backend.transport_device)
    if carrier.device.type == "cpu":
        _check_same_kind(_TensorHeader(tuple(tensor.shape), _name(tensor.dtype)), handle)
    if carrier.dtype == torch.bool:
        carrier = carrier.to(torch.uint8)
        op = {"SUM": "MAX", "PRODUCT": "MIN"}.get(op, op)
    here.backend.all_reduce(carrier, op, handle)
    return carrier.to(device=tensor.device, dtype=tensor.dtype)


def _reduce_number(value: float, op: str, group: Group | Sequence[int] | None) -> float:
    handle, member = _resolve(group)
    if not member or active().world.world_size == 1:
        return value
    numbers = [pickle.loads(data) for data in _gather_bytes(pickle.dumps(value), handle, _NUMBER_SLOT_BYTES)]
    for rank, number in zip(active().backend.group_ranks(handle), numbers, strict=True):
        if type(number) is not type(value):
            raise CollectiveError(
                f"all_reduce was given a {type(value).__name__} on rank {active().world.rank} and a "
                f"{type(number).__name__} on rank {rank}; give the same kind of value on every rank"
            )
    combine = {"SUM": sum, "PRODUCT": math.prod, "MIN": min, "MAX": max}[op]
    return cast("float", combine(numbers))  # type: ignore[operator]


def _check_same_kind(own: _TensorHeader, handle: Group) -> None:
    here = active()
    headers = [pickle.loads(data) for data in _gather_bytes(pickle.dumps(own), handle, _NUMBER_SLOT_BYTES)]
    for rank, header in zip(here.backend.group_ranks(handle), headers, strict=True):
        if header != own:
            found = (
                f"a {header.dtype} tensor of shape {header.shape}"
                if isinstance(header, _TensorHeader)
                else f"a {type(header).__name__}"
            )
            raise CollectiveError(
                f"all_reduce was given a {own.dtype} tensor of shape {own.shape} on rank {here.world.rank} and {found} "
                f"on rank {rank}; give the same shape and dtype on every rank"
            )


def _gather_objects(value: Any, handle: Group, what: str) -> list[Any]:
    gathered = [pickle.loads(data) for data in _gather_bytes(_pickled(value, about=value), handle)]
    for rank, other in zip(active().backend.group_ranks(handle), gathered, strict=True):
        if isinstance(other, _Unpicklable):
            raise other.error(what, rank)
    return gathered


def _pickled(message: Any, about: Any) -> bytes:
    """The bytes of ``message``, or of a note about its value that there are none: other ranks wait for either."""
    try:
        return pickle.dumps(message)
    except Exception as error:
        return pickle.dumps(_Unpicklable(type(about).__name__, f"{type(error).__name__}: {error}"))


def _gather_tensor(tensor: torch.Tensor, handle: Group) -> torch.Tensor:
    here = active()
    own = _TensorHeader(tuple(tensor.shape), _name(tensor.dtype))
    headers = [pickle.loads(data) for data in _gather_bytes(pickle.dumps(own), handle)]
    ranks = here.backend.group_ranks(handle)
    for rank, header in zip(ranks, headers, strict=True):
        if not isinstance(header, _TensorHeader):
            raise CollectiveError(
                f"all_gather was given a tensor on rank {here.world.rank} and a {type(header).__name__} on rank "
                f"{rank}; give the same kind of value on every rank"
            )
        if header.dtype != own.dtype or header.shape[1:] != own.shape[1:]:
            raise CollectiveError(
                f"all_gather was given a {own.dtype} tensor of shape {own.shape} on rank {here.world.rank} and a "
                f"{header.dtype} tensor of shape {header.shape} on rank {rank}; only dimension 0 may differ"
            )
    sizes = [header.shape[0] for header in headers]
    longest = max(sizes)
    carrier = tensor.to(here.backend.transport_device)
    if carrier.dtype == torch.bool:
        carrier = carrier.to(torch.uint8)
    if tensor.shape[0] < longest:
        padding = carrier.new_zeros((longest - tensor.shape[0], *tensor.shape[1:]))
        carrier = torch.cat([carrier, padding])
    parts = here.backend.all_gather(carrier.contiguous(), handle) if longest else [carrier] * len(sizes)
    joined = torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])
    return joined.to(device=tensor.device, dtype=tensor.dtype)


def _gather_bytes(data: bytes, handle: Group, slot_bytes: int = _SLOT_BYTES) -> list[bytes]:
    """Every rank's bytes, in the order of ranks."""
    here = active()
    if here.world.world_size == 1:
        return [data]
    room = slot_bytes - _LENGTH_BYTES
    first = _exchange(len(data).to_bytes(_LENGTH_BYTES, "little") + data[:room], slot_bytes, handle)
    lengths = [int.from_bytes(part[:_LENGTH_BYTES], "little") for part in first]
    heads = [part[_LENGTH_BYTES:] for part in first]
    rest = max(lengths) - room
    tails = _exchange(data[room:], rest, handle) if rest > 0 else [b""] * len(heads)
    return [(head + tail)[:length] for head, tail, length in zip(heads, tails, lengths, strict=True)]


def _exchange(data: bytes, size: int, handle: Group) -> list[bytes]:
    backend = active().backend
    sent = torch.from_numpy(np.frombuffer(data.ljust(size, b"\0"), dtype=np.uint8).copy())
    return [part.cpu().numpy().tobytes() for part in backend.all_gather(sent.to(backend.transport_device), handle)]


def _broadcast_bytes(data: bytes, src: int, handle: Group) -> bytes:
    here = active()
    is_src = here.world.rank == src
    transport = here.backend.transport_device
    length = torch.tensor([len(data)], dtype=torch.int64, device=transport)
    here.backend.broadcast(length, src, handle)
    buffer = torch.empty(int(length.item()), dtype=torch.uint8, device=transport)
    if is_src:
        buffer.copy_(torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy()))
    here.backend.broadcast(buffer, src, handle)
    return data if is_src else buffer.cpu().numpy().tobytes()


def _pack(tensor: torch.Tensor) -> tuple[bytes, str, tuple[int, ...]]:
    raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return raw, _name(tensor.dtype), tuple(tensor.shape)


def _unpack(raw: bytes, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    if not raw:
        return torch.empty(shape, dtype=getattr(torch, dtype))
    flat = torch.from_numpy(np.frombuffer(raw, dtype=np.uint8).copy())
    return flat.view(getattr(torch, dtype)).reshape(shape)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
