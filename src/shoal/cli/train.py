"""``shoal train RECIPE …``: complete trainings, one recipe each."""

from __future__ import annotations

import sys
from collections.abc import Callable

from shoal._registry import Entry, Registry
from shoal.errors import ShoalError

__all__ = ["RECIPES", "main"]

RECIPES = Registry("recipe", {"cifar10": Entry("shoal.recipes.cifar10.command:main", extra="recipes")})

_HELP = """usage: shoal train RECIPE [OPTIONS]

Train a model by a complete recipe. Recipes:
  cifar10    classify small images: CIFAR-10, handwritten digits, or a folder of your own

See the options of one with: shoal train RECIPE --help
"""


def main(argv: list[str]) -> int:
    """Run the recipe that ``argv`` starts with.

    Args:
        argv: the arguments after ``train``.

    Returns:
        The exit code: 2 for a mistake in the arguments, else the recipe's.
    """
    if not argv or argv[0] in ("-h", "--help"):
        print(_HELP, end="", file=sys.stdout if argv else sys.stderr)
        return 0 if argv else 2
    try:
        run: Callable[[list[str]], int] = RECIPES.load(argv[0])
    except ShoalError as error:
        print(f"shoal train: {error}", file=sys.stderr)
        return 2
    return run(argv[1:])
