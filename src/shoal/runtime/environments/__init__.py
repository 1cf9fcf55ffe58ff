"""Who started this process: the only place that reads rank variables from the environment.

Precedence: the first row of the table that recognises the environment decides. ``local``, the last one, always does:
it stands for a process that nobody placed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from shoal._registry import Entry, Registry
from shoal.runtime.environments.base import Environment, Placement

__all__ = ["ENVIRONMENTS", "Environment", "Placement", "detect"]

ENVIRONMENTS = Registry(
    "environment",
    {
        "torchelastic": Entry("shoal.runtime.environments.torchelastic:TorchElastic"),
        "local": Entry("shoal.runtime.environments.local:Local"),
    },
)


def detect(variables: Mapping[str, str]) -> Placement:
    """Read this process's place in the job from environment variables.

    Args:
        variables: the environment, usually ``os.environ``.

    Raises:
        EnvironmentConflictError: the variables of the environment that decides are incomplete or contradictory.
    """
    for name in ENVIRONMENTS:
        environment = cast("Environment", ENVIRONMENTS.load(name)())
        if environment.recognises(variables):
            return environment.read(variables)
    raise AssertionError("the last row of ENVIRONMENTS recognises every environment")
