"""trackio: what a run records, in a local database or on a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shoal._optional import check_installed, require
from shoal.trackers._names import NameMap, file_like
from shoal.trackers.base import OnError, RankZeroTracker
from shoal.trackers.media import Figure, Histogram, Image, Text

__all__ = ["TrackioTracker"]

_RESERVED = ("project", "run", "timestamp", "step", "time", "metrics")


class TrackioTracker(RankZeroTracker):
    """Writes to a run of trackio, which keeps it in ``TRACKIO_DIR`` on this machine, or on a server.

    Every record has its own step, so an epoch's may follow a larger iteration's. NaN and infinity are kept. A name that
    trackio reserves (``step``, ``time``, …) gets an underscore behind it, and one that begins with two underscores
    another letter before it. trackio takes a configuration only while it starts the run: give it before anything else;
    later ones become a text ``config``. trackio never raises while it records: what it cannot store, it says in a
    warning of its own, and ``on_error`` sees nothing of that.

    The run is started at the first record, on rank 0, and ``close`` finishes it. trackio knows a run by its name: with
    ``name="…", resume="allow"`` the run of that name goes on.

    Args:
        project: the project.
        on_error: as in :class:`shoal.trackers.base.RankZeroTracker`.
        options: for ``trackio.init``: name, group, config, resume, space_id, …

    Raises:
        MissingExtraError: trackio is not installed.
    """

    def __init__(self, project: str, *, on_error: OnError = "raise", **options: Any) -> None:
        super().__init__(on_error=on_error)
        check_installed("trackio", extra="trackio", purpose="trackio logging")
        self.project = project
        self._options = options
        self._run: Any = None
        self._names = NameMap("trackio", _name)
        self._artifact_names = NameMap("trackio", file_like, max_length=128)

    @property
    def run(self) -> Any:
        """The run that is written to, started at the first use.

        Raises:
            UsageError: this is not rank 0.
        """
        if self._run is None:
            self._on_rank_zero("run")
            self._run = _trackio().init(self.project, **self._options)
            self._is_closed = False
        return self._run

    def _write_metrics(self, values: dict[str, float], step: int, axis: str) -> None:  # noqa: ARG002 - charts are apart
        self.run.log({self._names(name): value for name, value in values.items()}, step=step)

    def _write_config(self, config: dict[str, Any]) -> None:
        if self._run is not None:
            text = json.dumps(config, indent=2, ensure_ascii=False)
            self.run.log({"config": _trackio().Markdown(f"```json\n{text}\n```")}, step=0)
            return
        given = self._options.get("config") or {}
        named = {self._names(name): value for name, value in config.items()}
        self._options = {**self._options, "config": {**given, **named}}
        _ = self.run

    def _write_text(self, name: str, text: Text, step: int, axis: str) -> None:  # noqa: ARG002
        self.run.log({self._names(name): _trackio().Markdown(text.text)}, step=step)

    def _write_image(self, name: str, image: Image, step: int, axis: str) -> None:  # noqa: ARG002
        pixels = image.pixels[:, :, 0] if image.pixels.shape[2] == 1 else image.pixels
        run = self.run
        run.log({self._names(name): _trackio().Image(pixels, caption=image.caption)}, step=step)

    def _write_figure(self, name: str, figure: Figure, step: int, axis: str) -> None:
        if figure.is_plotly:
            self.run.log({self._names(name): figure.figure}, step=step)
        else:
            self._write_image(name, Image(figure.pixels()), step, axis)

    def _write_histogram(self, name: str, histogram: Histogram, step: int, axis: str) -> None:  # noqa: ARG002
        pair = (list(histogram.counts), list(histogram.edges))
        self.run.log({self._names(name): _trackio().Histogram(np_histogram=pair)}, step=step)

    def _write_artifact(self, path: Path, name: str) -> None:
        self.run.log_artifact(str(path), name=self._artifact_names(name))

    def _close(self) -> None:
        run, self._run = self._run, None
        if run is None:
            return
        self._options = {**self._options, "name": run.name, "resume": "allow"}  # a record that still comes
        trackio = _trackio()
        if trackio.context_vars.current_run.get() is run:
            trackio.finish()  # the run of the process, too, is none then
        else:
            run.finish()

    def _run_id(self) -> str | None:
        found = self._options.get("name") if self._run is None else self._run.name
        return None if found is None else str(found)

    def _resume(self, run_id: str) -> None:
        self._options = {**self._options, "name": run_id, "resume": "allow"}


def _name(name: str) -> str:
    if name.startswith("__"):
        return f"x{name}"
    return f"{name}_" if name in _RESERVED else name


def _trackio() -> Any:
    return require("trackio", extra="trackio", purpose="trackio logging")
