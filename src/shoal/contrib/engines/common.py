"""The handlers of one call, under the path that programs written for Ignite use; see ``shoal.common``."""

from __future__ import annotations

from shoal.common import *  # noqa: F403 - the same names, listed once
from shoal.common import __all__  # noqa: F401 - as above
