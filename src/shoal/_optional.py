"""Optional dependencies: imported where they are used, named with their extra where they are missing."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from shoal.errors import MissingExtraError

__all__ = ["check_installed", "require"]


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


def check_installed(module: str, *, extra: str, purpose: str) -> None:
    """Say which extra brings ``module`` where it is not installed, without the seconds that importing it takes.

    Args:
        module: name of a package, without dots.
        extra: as in :func:`require`.
        purpose: as in :func:`require`.

    Raises:
        MissingExtraError: there is no such package.
    """
    if importlib.util.find_spec(module) is None:
        raise MissingExtraError(
            f"{purpose} needs the module '{module}', which is not installed here; "
            f"install it with: pip install 'shoal[{extra}]'"
        )
