"""What a tracker is, and the loose values that people hand to one made plain."""

from __future__ import annotations

import dataclasses
import enum
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from numbers import Number
from pathlib import PurePath
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

import torch

from shoal import runtime

__all__ = ["RankZeroTracker", "Tracker", "plain_config", "scalars"]

_log = logging.getLogger(__name__)
_MAX_DEPTH = 20


@runtime_checkable
class Tracker(Protocol):
    """Somewhere that the numbers of a training go. Only rank 0 writes; on other ranks every call does nothing."""

    def log_metrics(self, metrics: Mapping[str, Any], *, step: int, prefix: str = "", axis: str = "iteration") -> None:
        """Record numbers.

        Args:
            metrics: numbers or tensors by name; a tensor of several values is recorded as ``name/0``, ``name/1``, …
            step: where on the axis.
            prefix: put before each name, as ``prefix/name``.
            axis: what ``step`` counts: ``"iteration"`` or ``"epoch"``. Axes are independent: an epoch's step may
                follow a larger iteration's.
        """
        ...

    def log_config(self, config: Mapping[str, Any]) -> None:
        """Record how the run was configured; values of any type are stored, unusual ones as text."""
        ...

    def close(self) -> None:
        """Write out what is left. A second call does nothing."""
        ...


class RankZeroTracker:
    """What trackers share: nothing is opened before the first record, and then on rank 0 alone.

    A constructor can therefore run before any process group exists, and on every rank. Subclasses implement
    ``_write_metrics``, ``_write_config`` and ``_close``.
    """

    _is_closed = False
    _warned: frozenset[str] = frozenset()

    def log_metrics(self, metrics: Mapping[str, Any], *, step: int, prefix: str = "", axis: str = "iteration") -> None:
        """Record numbers; see :class:`Tracker`."""
        if not runtime.current().is_main:
            return
        values = {}
        for name, value in metrics.items():
            found = dict(scalars(name, value))
            if not found and name not in self._warned:
                self._warned |= {name}
                _log.warning("The metric '%s' is a %s and not recorded: it has no number", name, type(value).__name__)
            values.update({f"{prefix}/{key}" if prefix else key: number for key, number in found.items()})
        if values:
            self._write_metrics(values, int(step), axis)

    def log_config(self, config: Mapping[str, Any]) -> None:
        """Record how the run was configured; see :class:`Tracker`."""
        if runtime.current().is_main:
            self._write_config({str(key): plain_config(value) for key, value in config.items()})

    def close(self) -> None:
        """Write out what is left; see :class:`Tracker`."""
        if not self._is_closed:
            self._is_closed = True
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write_metrics(self, values: dict[str, float], step: int, axis: str) -> None:
        raise NotImplementedError

    def _write_config(self, config: dict[str, Any]) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError


def scalars(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """The numbers in a metric's value: one, or several as ``name/0``, ``name/1``, … or ``name/key``; none of a text."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().tolist()
    elif hasattr(value, "tolist") and not isinstance(value, Number):
        value = value.tolist()  # a NumPy array
    if isinstance(value, (bool, int, float)):
        yield name, float(value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from scalars(f"{name}/{key}", item)
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        for index, item in enumerate(value):
            yield from scalars(f"{name}/{index}", item)
    elif isinstance(value, Number) and not isinstance(value, complex):
        yield name, float(value)  # type: ignore[arg-type]  # NumPy's and the standard library's numbers convert


def plain_config(value: Any, depth: int = 0) -> Any:
    """A configuration's value in dicts, lists, strings, numbers, booleans and None; what is unusual becomes text."""
    if value is None or (isinstance(value, (bool, int, str)) and not isinstance(value, enum.Enum)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if depth >= _MAX_DEPTH:
        return str(value)
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, PurePath):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain_config(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_config(item, depth + 1) for item in value]
    if isinstance(value, AbstractSet):
        return sorted((plain_config(item, depth + 1) for item in value), key=str)
    if isinstance(value, torch.Tensor) and value.numel() <= 16:
        return plain_config(value.detach().cpu().tolist(), depth + 1)
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return plain_config(value.item(), depth + 1)  # a NumPy number
    return str(value)
