"""Weights & Biases: what a run records."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

from shoal._optional import check_installed, require
from shoal.trackers._names import NameMap, file_like
from shoal.trackers.base import OnError, RankZeroTracker
from shoal.trackers.media import Figure, Histogram, Image, Text

__all__ = ["WandbTracker"]

_AXES = ("iteration", "epoch")


class WandbTracker(RankZeroTracker):
    """Writes to a run of Weights & Biases.

    W&B has one step a run, which only rises, and drops what comes with a smaller one. Here every name's horizontal axis
    is ``iteration`` or ``epoch``, recorded along with it and made known by ``define_metric``, and W&B's own step is
    left to count the records: an epoch's metric after a later iteration's is kept. A metric that is itself called
    ``iteration`` or ``epoch`` gets an underscore behind its name, and one that is recorded on both axes becomes two,
    ``loss`` and ``loss (by epoch)``. NaN and infinity are kept. A text becomes an HTML
    page.

    The run is the given one or the active one of this process, which are left open, or else one that is started at
    the first record, on rank 0; ``close`` finishes it, with exit code 1 where the ``with`` block ends with an error.
    With ``mode="offline"`` everything is kept in a folder, for ``wandb sync``. W&B sends in the background.

    Args:
        run: a run of ``wandb.init``.
        on_error: as in :class:`shoal.trackers.base.RankZeroTracker`.
        options: for ``wandb.init``: project, name, id, resume, mode, dir, config, …

    Raises:
        MissingExtraError: wandb is not installed.
    """

    def __init__(self, run: Any = None, *, on_error: OnError = "raise", **options: Any) -> None:
        super().__init__(on_error=on_error)
        check_installed("wandb", extra="wandb", purpose="Weights & Biases logging")
        self._run = run
        self._options = options
        self._is_own = False
        self._axis_of: dict[str, str] = {}
        self._names = NameMap("Weights & Biases", _name, max_length=200)  # files of media have more behind it
        self._artifact_names = NameMap("Weights & Biases", file_like, max_length=128)

    @property
    def run(self) -> Any:
        """The run that is written to, started at the first use.

        Raises:
            UsageError: this is not rank 0.
        """
        if self._run is None:
            self._on_rank_zero("run")
            wandb = _wandb()
            if wandb.run is not None:
                self._run = wandb.run
                if self._options:
                    text = "W&B has the active run '%s'; %s had no effect"
                    self._say_once("options", text, wandb.run.id, ", ".join(self._options))
            else:
                self._run, self._is_own = wandb.init(**self._options), True
            self._is_closed = False
        return self._run

    def _write_metrics(self, values: dict[str, float], step: int, axis: str) -> None:
        self._log(dict(values), step, axis)

    def _log(self, values: dict[str, Any], step: int, axis: str) -> None:
        run = self.run
        run.log({**{self._named(name, axis): value for name, value in values.items()}, axis: step})

    def _named(self, name: str, axis: str) -> str:
        """What ``name`` is called in W&B, which knows its axis from here on."""
        known = self._names(name)
        if self._axis_of.get(known, axis) != axis:  # a chart has one axis, and what has no place on it is not shown
            known = f"{known} (by {axis})"
        if known not in self._axis_of:
            self._axis_of[known] = axis
            self.run.define_metric(known, step_metric=axis)
        return known

    def _write_config(self, config: dict[str, Any]) -> None:
        self.run.config.update(config, allow_val_change=True)

    def _write_text(self, name: str, text: Text, step: int, axis: str) -> None:
        _ = self.run
        self._log({name: _wandb().Html(f"<pre>{html.escape(text.text)}</pre>", inject=False)}, step, axis)

    def _write_image(self, name: str, image: Image, step: int, axis: str) -> None:
        _ = self.run
        pixels = image.pixels[:, :, 0] if image.pixels.shape[2] == 1 else image.pixels
        self._log({name: _wandb().Image(pixels, caption=image.caption)}, step, axis)

    def _write_figure(self, name: str, figure: Figure, step: int, axis: str) -> None:
        if figure.is_plotly:
            _ = self.run
            self._log({name: _wandb().Plotly(figure.figure)}, step, axis)
        else:
            self._write_image(name, Image(figure.pixels()), step, axis)

    def _write_histogram(self, name: str, histogram: Histogram, step: int, axis: str) -> None:
        _ = self.run
        pair = (list(histogram.counts), list(histogram.edges))
        self._log({name: _wandb().Histogram(np_histogram=pair)}, step, axis)

    def _write_artifact(self, path: Path, name: str) -> None:
        run = self.run
        artifact = _wandb().Artifact(self._artifact_names(name), type="file")
        artifact.add_file(str(path), name=name)
        run.log_artifact(artifact)

    def _close(self) -> None:
        run = self._run
        if run is not None and self._is_own:
            self._options = {**self._options, "id": run.id, "resume": "allow"}  # a record that still comes
            self._run, self._is_own = None, False
            run.finish(exit_code=1 if self._failed else 0)

    def _run_id(self) -> str | None:
        found = self._options.get("id") if self._run is None else self._run.id
        return None if found is None else str(found)

    def _resume(self, run_id: str) -> None:
        self._options = {**self._options, "id": run_id, "resume": "allow"}


def _name(name: str) -> str:
    return f"{name}_" if name in _AXES else name.replace("*", "_") or "_"  # a star would mean all that begin so


def _wandb() -> Any:
    return require("wandb", extra="wandb", purpose="Weights & Biases logging")
