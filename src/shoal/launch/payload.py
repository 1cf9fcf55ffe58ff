"""How a function reaches a worker: as cloudpickle bytes in a file, whatever it closes over.

Functions and classes of the main script, of a notebook cell and of modules that a worker could not import travel by
value; all others are imported again by name.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CellType, CodeType, ModuleType
from typing import Any

import cloudpickle

from shoal.errors import UsageError

__all__ = ["Call", "dump_call", "dump_result", "load_call", "load_result"]


@dataclass(frozen=True, slots=True)
class Call:
    """What a worker does: ``function(*args, **kwargs)``, in this environment.

    Attributes:
        environment: the launcher's environment variables, to be the worker's.
        num_threads: for torch's operators.
    """

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    environment: Mapping[str, str]
    num_threads: int


def dump_call(call: Call, path: Path) -> None:
    """Write ``call`` for the workers.

    Raises:
        UsageError: something in it cannot be pickled; the text names it where that can be found.
    """
    with _by_value(call.function):
        try:
            data = _dumps(call)
        except Exception as error:
            raise UsageError(
                f"{_name(call.function)} cannot be sent to worker processes: {_culprit(call)} ({error}); create it "
                "inside the function instead"
            ) from error
    path.write_bytes(data)


def load_call(path: Path) -> Call:
    """Read what ``dump_call`` wrote."""
    call: Call = cloudpickle.loads(path.read_bytes())
    _publish(call)
    return call


def dump_result(value: Any, path: Path) -> None:
    """Write a worker's return value, whole or not at all.

    Raises:
        UsageError: it cannot be pickled.
    """
    try:
        data = cloudpickle.dumps(value)
    except Exception as error:
        raise UsageError(
            f"the function returned a {type(value).__name__} that cannot be sent back to the launcher ({error}); "
            "return numbers, tensors, or containers of them"
        ) from error
    partial = path.with_suffix(".tmp")
    partial.write_bytes(data)
    partial.replace(path)


def load_result(path: Path, rank: int) -> Any:
    """Read what ``dump_result`` wrote on that rank.

    Raises:
        UsageError: the value cannot be rebuilt in this process.
    """
    try:
        return cloudpickle.loads(path.read_bytes())
    except Exception as error:
        raise UsageError(
            f"rank {rank} returned a value that cannot be rebuilt in the launcher ({type(error).__name__}: {error}); "
            "return numbers, tensors, or containers of them"
        ) from error


class _Pickler(cloudpickle.CloudPickler):
    """Keeps the file names of code, which cloudpickle drops: a traceback must show where a line of the user's is.

    Modules of a class of their own travel by name as others do. cloudpickle sends along submodules whose names occur in
    a function that uses their package, and ``torch.classes`` is such a module: ``data.classes`` would be enough.
    """

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, ModuleType) and type(obj) is not ModuleType:
            name = next((name for name, module in list(sys.modules.items()) if module is obj), None)
            if name is not None:
                return importlib.import_module, (name,)
        return super().reducer_override(obj)


def _reduce_code(code: CodeType) -> tuple[Any, ...]:
    rebuild, arguments = cloudpickle.CloudPickler.dispatch_table[CodeType](code)
    return _code_from, (rebuild, arguments, code.co_filename)


def _code_from(rebuild: Callable[..., CodeType], arguments: tuple[Any, ...], filename: str) -> CodeType:
    return rebuild(*arguments).replace(co_filename=filename)


_Pickler.dispatch_table = ChainMap({CodeType: _reduce_code}, cloudpickle.CloudPickler.dispatch_table)


def _dumps(value: Any) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return buffer.getvalue()


def _name(function: Callable[..., Any]) -> str:
    inner = getattr(function, "function", function)
    return f"the function {getattr(inner, '__qualname__', repr(inner))!r}"


def _culprit(call: Call) -> str:
    """Which part of the call is to blame."""
    parts = {f"its argument {index}": value for index, value in enumerate(call.args)}
    parts |= {f"its argument {name!r}": value for name, value in call.kwargs.items()}
    function = getattr(call.function, "function", call.function)
    code = getattr(function, "__code__", None)
    closure = zip(getattr(code, "co_freevars", ()), getattr(function, "__closure__", None) or (), strict=False)
    parts |= {f"the variable {name!r} that it uses": cell.cell_contents for name, cell in closure if cell != _EMPTY}
    space = getattr(function, "__globals__", {})
    parts |= {
        f"the global {name!r} that it uses": space[name] for name in getattr(code, "co_names", ()) if name in space
    }
    for what, value in parts.items():
        try:
            cloudpickle.dumps(value)
        except Exception:  # whatever keeps it from being pickled is what is looked for
            return f"{what} is a {type(value).__name__}"
    return "something that it uses is not picklable"


_EMPTY = CellType()


def _publish(call: Call) -> None:
    """Put classes and functions that came by value where their names say they are, as in the process they came from.

    Else nothing that holds one could be pickled again: sent to another rank, handed over by a loading worker, saved.
    """
    tracked = getattr(cloudpickle.cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_ID", {})
    function = getattr(call.function, "function", call.function)
    found: list[Any] = [*list(tracked.values()), function, *getattr(function, "__globals__", {}).values()]
    stand_ins = {"__main__"}
    for thing in found:
        module_name, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
        if not isinstance(module_name, str) or not isinstance(name, str) or "." in name:
            continue
        module = sys.modules.get(module_name)
        if module is None:  # one that no import would find here
            module = sys.modules[module_name] = ModuleType(module_name)
            cloudpickle.register_pickle_by_value(module)
            stand_ins.add(module_name)
        if module_name in stand_ins and not hasattr(module, name):
            setattr(module, name, thing)


@contextmanager
def _by_value(function: Callable[..., Any]) -> Iterator[None]:
    """Have the function's module travel by value where a worker could not import it."""
    inner = getattr(function, "function", function)  # a callable that adds something around the user's function
    module = sys.modules.get(getattr(inner, "__module__", None) or "")
    if module is None or module.__name__ == "__main__" or _importable(module):
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _importable(module: ModuleType) -> bool:
    """Whether a new process with this one's ``sys.path`` would find the same file under the module's name."""
    known = sys.modules.pop(module.__name__)
    try:
        spec = importlib.util.find_spec(module.__name__)
    except (ImportError, ValueError):
        return False
    finally:
        sys.modules[module.__name__] = known
    return spec is not None and spec.origin == getattr(module, "__file__", None)
