"""How full and how busy this process's GPU is."""

from __future__ import annotations

from typing import Any

import torch

from shoal import runtime
from shoal.engine import Engine, Events
from shoal.errors import UsageError

__all__ = ["GpuInfo"]


class GpuInfo:
    """Puts ``gpu:<index> mem(%)`` and ``gpu:<index> util(%)`` of this process's GPU into ``engine.state.metrics``.

    Utilization needs the driver's Python library; without it a log line says so, once.

    Raises:
        UsageError: this process does not use a CUDA device.
    """

    def __init__(self) -> None:
        device = runtime.current().device
        if device.type != "cuda":
            raise UsageError(f"asked for GPU statistics, and this process uses the device '{device}'; leave them out")
        self._device = device
        self._has_utilization = True

    def attach(self, engine: Engine, name: str = "gpu", event_name: Any = Events.ITERATION_COMPLETED) -> None:
        """Look at ``event_name`` of ``engine``; the metrics' names start with ``name``."""
        if not isinstance(name, str):
            raise UsageError(f"asked for name={name!r} of GPU statistics; give a text, and the event as event_name")
        engine.add_event_handler(event_name, self, name)

    def __call__(self, engine: Engine, name: str = "gpu") -> None:
        """Look now."""
        index = self._device.index or 0
        free, total = torch.cuda.mem_get_info(self._device)
        engine.state.metrics[f"{name}:{index} mem(%)"] = round(100.0 * (total - free) / total)
        if self._has_utilization:
            try:
                engine.state.metrics[f"{name}:{index} util(%)"] = torch.cuda.utilization(self._device)
            except Exception as error:  # of a class of the driver's library, where a part of a GPU has no such number
                self._has_utilization = False
                engine.logger.info("GPU utilization is not shown: %s", error)
