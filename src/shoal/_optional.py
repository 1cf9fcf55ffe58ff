"""Optional dependencies: imported where they are used, named with their extra where they are missing."""

from __future__ import annotations

import importlib
from types import ModuleType

from shoal.errors import MissingExtraError

__all__ = ["require"]


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import ``module``, or say which extra brings it.

    Args:
        module: dotted name of the module, as in an import statement.
        extra: the extra of Shoal that installs it, as in ``pip install 'shoal[extra]'``.
        purpose: what needs it, as the subject of a sentence (``"TensorBoard logging"``).

    Raises:
        MissingExtraError: the module, or one that it needs, is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{purpose} needs the module '{module}', which cannot be imported here ({error}); "
            f"install it with: pip install 'shoal[{extra}]'"
        ) from error
