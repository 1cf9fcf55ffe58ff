"""Metrics as one JSON object a line: needs nothing, survives a kill, is read by everything."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
import shutil
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from shoal import runtime
from shoal.trackers.base import OnError, RankZeroTracker
from shoal.trackers.media import Figure, Histogram, Image, Text

__all__ = ["JsonlTracker", "read_jsonl"]

_log = logging.getLogger(__name__)
_OWN_KEYS = ("time", "axis", "step", "config", "media", "artifact")
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class JsonlTracker(RankZeroTracker):
    """Appends a line for every record, written through to the operating system at once.

    A line of metrics is ``{"time": 1760000000.0, "axis": "iteration", "step": 200, "train/loss": 0.31}``; ``time`` is
    in seconds since 1970. A line of configuration is ``{"time": …, "config": {…}}``. JSON has no NaN and no infinity:
    they are written as the strings ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``, and :func:`read_jsonl` turns them
    back. A metric that is called like one of the line's own keys gets an underscore behind its name.

    A line of media is ``{"time": …, "axis": …, "step": …, "media": {"val/worst": {"kind": "image", …}}}``: a text is in
    the line (``text``), a histogram too (its attributes), an image or a figure in a ``file`` of the folder
    ``<name>_media`` beside, named from there; plotly's as its JSON. A line of an artifact is ``{"time": …, "artifact":
    {"name": …, "file": …, "size_bytes": …}}``; it is copied to ``<name>_files``, unless it lies in the folder already.

    Args:
        path: the file; its folder is made, and what it holds already is kept.
        on_error: as in :class:`shoal.trackers.base.RankZeroTracker`.
    """

    def __init__(self, path: str | os.PathLike[str], *, on_error: OnError = "raise") -> None:
        super().__init__(on_error=on_error)
        self.path = Path(path)
        self._descriptor: int | None = None
        self._is_in_mid_line = False

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a record of one's own, as it is, on rank 0.

        Raises:
            TypeError: it holds what JSON has no form for.
        """
        if not runtime.current().is_main:
            return
        line = json.dumps(_finite(record), allow_nan=False, separators=(", ", ": ")) + "\n"
        if self._descriptor is None:
            self._descriptor = self._open()
            self._is_in_mid_line = self._ends_in_mid_line()
        data = memoryview(("\n" + line if self._is_in_mid_line else line).encode())
        self._is_in_mid_line = True  # a line that a kill or a full disk has cut stays apart from the next
        while data:
            data = data[os.write(self._descriptor, data) :]
        self._is_in_mid_line = False

    def _write_metrics(self, values: dict[str, float], step: int, axis: str) -> None:
        named = {f"{key}_" if key in _OWN_KEYS else key: value for key, value in values.items()}
        self.write({"time": time.time(), "axis": axis, "step": step, **named})

    def _write_config(self, config: dict[str, Any]) -> None:
        self.write({"time": time.time(), "config": config})

    def _write_text(self, name: str, text: Text, step: int, axis: str) -> None:
        self._write_entry(name, {"kind": "text", "text": text.text}, step, axis)

    def _write_image(self, name: str, image: Image, step: int, axis: str) -> None:
        caption = {} if image.caption is None else {"caption": image.caption}
        file = self._write_file(f"{name}_{axis}_{step}.png", image.png())
        self._write_entry(name, {"kind": "image", "file": file, **caption}, step, axis)

    def _write_figure(self, name: str, figure: Figure, step: int, axis: str) -> None:
        ending, content = ("plotly.json", figure.json().encode()) if figure.is_plotly else ("png", figure.png())
        file = self._write_file(f"{name}_{axis}_{step}.{ending}", content)
        self._write_entry(name, {"kind": "figure", "file": file}, step, axis)

    def _write_histogram(self, name: str, histogram: Histogram, step: int, axis: str) -> None:
        self._write_entry(name, {"kind": "histogram", **dataclasses.asdict(histogram)}, step, axis)

    def _write_entry(self, name: str, entry: dict[str, Any], step: int, axis: str) -> None:
        self.write({"time": time.time(), "axis": axis, "step": step, "media": {name: entry}})

    def _write_file(self, name: str, content: bytes) -> str:
        folder = self.path.with_name(f"{self.path.stem}_media")
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / _file_name(name)
        partial = file.with_name(f"{file.name}.{os.getpid()}.part")  # another job may write here, too
        partial.write_bytes(content)
        partial.replace(file)
        return f"{folder.name}/{file.name}"

    def _write_artifact(self, path: Path, name: str) -> None:
        folder = self.path.parent.resolve()
        file = path.resolve()
        if not file.is_relative_to(folder):
            file = folder / f"{self.path.stem}_files" / _file_name(name)
            file.parent.mkdir(parents=True, exist_ok=True)
            partial = file.with_name(f"{file.name}.{os.getpid()}.part")  # another job may write here, too
            shutil.copyfile(path, partial)
            partial.replace(file)
        entry = {"name": name, "file": file.relative_to(folder).as_posix(), "size_bytes": file.stat().st_size}
        self.write({"time": time.time(), "artifact": entry})

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> int:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._is_closed = False  # a record after close() opens the file again
        return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)

    def _ends_in_mid_line(self) -> bool:
        with self.path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            return file.read() not in (b"", b"\n")


def read_jsonl(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """The records of a file of :class:`JsonlTracker`, in order; a line that a kill has cut is skipped with a warning.

    Args:
        path: the file.
    """
    with Path(path).open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                if line.strip():
                    _log.warning("%s, line %d is cut off and skipped", path, number)
                continue
            yield {
                key: _NOT_FINITE.get(value, value) if isinstance(value, str) else value for key, value in record.items()
            }


def _file_name(name: str) -> str:
    """A file's name for any name; never the same for two."""
    safe = quote(name, safe=" ,=()[]")
    return safe if len(safe) <= 180 else f"{zlib.crc32(safe.encode()):08x}-{safe[-160:]}"


def _finite(value: Any) -> Any:
    """``value`` with numbers that JSON cannot write as strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
