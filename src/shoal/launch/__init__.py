"""How processes come to be, and how their failures are told."""

from __future__ import annotations

from shoal.launch.local import launch
from shoal.launch.parallel import Parallel, spawn
from shoal.launch.report import RankFailure, RankTraceback
from shoal.launch.spec import LaunchSpec, resolve

__all__ = ["LaunchSpec", "Parallel", "RankFailure", "RankTraceback", "launch", "resolve", "spawn"]
