"""Options of a recipe: one keyword-only dataclass, filled from defaults, then a YAML file, then the command line.

The command line is tyro's part (``docs/decisions/0007-option-parsing.md``). This module adds what tyro leaves to its
caller: the YAML file, bounds that a field declares with :class:`Bounds`, and errors that name where a value came from.
Neither torch nor a data library is imported, so that help and mistakes are shown at once.
"""

from __future__ import annotations

import math
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

from shoal._optional import require
from shoal._registry import nearest
from shoal.errors import UsageError

__all__ = ["Bounds", "check_options", "parse_command_line", "read_yaml"]


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


OptionsT = TypeVar("OptionsT", bound=_Dataclass)


@dataclass(frozen=True)
class Bounds:
    """What a number may be; put beside a field's type: ``batch_size: Annotated[int, Bounds(1)] = 512``.

    Attributes:
        minimum: the least value that is allowed.
        above: a value that must be exceeded, or None.
        maximum: the greatest value that is allowed.
    """

    minimum: float = -math.inf
    above: float | None = None
    maximum: float = math.inf

    def complaint(self, value: float) -> str | None:
        """What is wrong with ``value``, or None."""
        if not math.isfinite(value):
            return "it must be a finite number"
        if self.above is not None and value <= self.above:
            return f"it must be greater than {self.above:g}"
        if value < self.minimum:
            return f"it must be at least {self.minimum:g}"
        if value > self.maximum:
            return f"it must be at most {self.maximum:g}"
        return None


def parse_command_line(options: type[OptionsT], argv: Sequence[str], *, prog: str, base: OptionsT) -> OptionsT:
    """``base`` with what ``argv`` says put over it.

    Args:
        options: the dataclass.
        argv: the arguments after the command's own name.
        prog: the command's name, for the help.
        base: the values of the options that ``argv`` leaves out.

    Raises:
        SystemExit: ``--help`` was asked for (code 0), or an option or a value does not parse (code 2); tyro has
            printed the help, or the mistake with the nearest options.
    """
    tyro = require("tyro", extra="recipes", purpose="`shoal train`")
    # `--backend None` would be a second way to leave an option out, and makes every such option's help hard to read.
    parsed: OptionsT = tyro.cli(options, args=list(argv), prog=prog, default=base, config=(tyro.conf.DisallowNone,))
    return parsed


def read_yaml(options: type[_Dataclass], path: Path, *, without: Iterable[str] = ()) -> dict[str, Any]:
    """The options that a YAML file sets, each checked.

    Args:
        options: the dataclass whose field names the file may use as keys.
        path: the file; one mapping from names to values.
        without: fields that a file may not set.

    Raises:
        UsageError: no such file, not YAML, no mapping, an unknown key (the nearest is named), or a bad value.
    """
    yaml = require("yaml", extra="recipes", purpose="--config")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"the options file {path} cannot be read: {error.strerror}; check the path") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"the options file {path} is not valid YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, Mapping):
        raise UsageError(
            f"the options file {path} holds a {type(content).__name__}; "
            "write one option a line, as in `batch_size: 512`"
        )
    hints = _hints(options)
    for name in without:
        hints.pop(name, None)
    values = {}
    for key, value in content.items():
        if key not in hints:
            raise UsageError(f"{path}: unknown key {key!r}{nearest(str(key), hints)}; known keys: {', '.join(hints)}")
        try:
            values[key] = _convert(hints[key], value)
        except ValueError as error:
            raise UsageError(f"{path}: {key} is {value!r}; {error}") from None
    return values


def check_options(values: _Dataclass) -> None:
    """Check each field of ``values`` against the :class:`Bounds` that it declares.

    Raises:
        UsageError: a value is out of bounds; the text names its option.
    """
    for name, hint in _hints(type(values)).items():
        value = getattr(values, name)
        try:
            _convert(hint, value)
        except ValueError as error:
            raise UsageError(f"--{name.replace('_', '-')} is {value!r}; {error}") from None


def _hints(options: type[_Dataclass]) -> dict[str, Any]:
    hints = get_type_hints(options, include_extras=True)
    return {field.name: hints[field.name] for field in fields(options)}


def _convert(hint: Any, value: object) -> Any:
    """``value`` as the type that ``hint`` says, or a ValueError that says what it must be."""
    if get_origin(hint) is Annotated:
        kind, *extras = get_args(hint)
        converted = _convert(kind, value)
        for bounds in extras:
            if isinstance(bounds, Bounds) and converted is not None and (text := bounds.complaint(converted)):
                raise ValueError(text)
        return converted
    if get_origin(hint) in (Union, types.UnionType):
        if value is None and type(None) in get_args(hint):
            return None
        (hint,) = (kind for kind in get_args(hint) if kind is not type(None))
        return _convert(hint, value)
    if hint is float and not isinstance(value, bool):
        return _float(value)
    if hint is int and isinstance(value, bool):
        raise ValueError("it must be an integer")
    if not isinstance(value, hint):
        raise ValueError(f"it must be {_KINDS[hint]}")  # noqa: TRY004 - it becomes part of a UsageError
    return value


def _float(value: object) -> float:
    # YAML 1.1 reads `1e-4`, which has no dot, as a string.
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ValueError("it must be a number") from None


_KINDS = {int: "an integer", bool: "true or false", str: "a text"}
