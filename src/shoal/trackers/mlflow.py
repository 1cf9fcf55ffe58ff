"""MLflow: what a run records."""

from __future__ import annotations

import dataclasses
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shoal._optional import check_installed, require
from shoal.trackers._names import NameMap
from shoal.trackers._plain import flat_config
from shoal.trackers.base import OnError, RankZeroTracker
from shoal.trackers.media import Figure, Histogram, Image, Text

__all__ = ["MLflowTracker"]

_METRICS_A_CALL = 1000
_PARAMS_A_CALL = 100
_MAX_PARAM_LENGTH = 6000


class MLflowTracker(RankZeroTracker):
    """Writes to an MLflow run.

    The configuration is stored whole in the artifact ``config.json``, and in pairs as parameters, a nested one as
    ``outer.inner``, a list as its JSON. MLflow keeps 6,000 characters of a parameter and never changes one: a longer
    value is cut, and a value that has changed since (a resumed run) stands in ``config.json`` only; both are said.
    Texts, figures and histograms (JSON) are artifacts, ``texts/<name>/<axis>_<step>.txt`` and so on; images are
    MLflow's logged images. What MLflow allows in no name becomes an underscore, which is said. NaN is kept; databases
    store infinity as ±1.8e308.

    The run is the active one of this thread, which is left open, or else one that is started at the first record, on
    rank 0, and is the active one from then on, so that ``mlflow.log_params`` and its like write to it too; ``close``
    ends it, as failed where the ``with`` block ends with an error. MLflow itself repeats a request that a server does
    not answer (``MLFLOW_HTTP_REQUEST_MAX_RETRIES``) before it is an error.

    Args:
        tracking_uri: the server, or ``sqlite:///runs.db``; set for the process, as by ``mlflow.set_tracking_uri``.
            None (default) is what MLflow is set to.
        experiment: name of the experiment, made where there is none.
        run_id: a run to go on in.
        on_error: as in :class:`shoal.trackers.base.RankZeroTracker`.
        options: for ``mlflow.start_run``: run_name, tags, …

    Raises:
        MissingExtraError: MLflow is not installed.
    """

    def __init__(
        self,
        tracking_uri: str | None = None,
        *,
        experiment: str | None = None,
        run_id: str | None = None,
        on_error: OnError = "raise",
        **options: Any,
    ) -> None:
        super().__init__(on_error=on_error)
        check_installed("mlflow", extra="mlflow", purpose="MLflow logging")
        self.tracking_uri = tracking_uri
        self.experiment = experiment
        self._wanted_id = run_id
        self._options = options
        self._run: Any = None
        self._client: Any = None
        self._is_own = False
        self._names = NameMap("MLflow", _name)
        self._image_names = NameMap("MLflow", _image_name, max_length=120)

    @property
    def run(self) -> Any:
        """The run that is written to, started at the first use.

        Raises:
            UsageError: this is not rank 0.
        """
        if self._run is None:
            self._on_rank_zero("run")
            mlflow = _mlflow()
            if self.tracking_uri is not None:
                mlflow.set_tracking_uri(self.tracking_uri)
            if self.experiment is not None:
                mlflow.set_experiment(self.experiment)
            active = mlflow.active_run()
            if active is not None and self._wanted_id in (None, active.info.run_id):
                if self._options:
                    names = ", ".join(self._options)
                    self._say_once("options", "MLflow has an active run; %s had no effect", names)
                self._run = active
            else:
                self._run, self._is_own = mlflow.start_run(run_id=self._wanted_id, **self._options), True
            self._wanted_id = str(self._run.info.run_id)
            self._client = mlflow.MlflowClient()
            self._is_closed = False
        return self._run

    @property
    def _id(self) -> str:
        return str(self.run.info.run_id)

    def _write_metrics(self, values: dict[str, float], step: int, axis: str) -> None:  # noqa: ARG002 - charts are apart
        run_id, now_ms = self._id, int(time.time() * 1000)
        metric = require("mlflow.entities", extra="mlflow", purpose="MLflow logging").Metric
        records = [metric(self._names(name), value, now_ms, step) for name, value in values.items()]
        for part in _parts(records, _METRICS_A_CALL):
            self._client.log_batch(run_id, metrics=part)

    def _write_config(self, config: dict[str, Any]) -> None:
        run_id = self._id
        self._client.log_dict(run_id, config, "config.json")
        known: Mapping[str, str] = self._client.get_run(run_id).data.params
        new, changed, cut = {}, [], []
        for name, whole in flat_config(config).items():
            key, value = self._names(name), whole[:_MAX_PARAM_LENGTH]
            if value != whole:
                cut.append(key)
            if key not in known:
                new[key] = value
            elif known[key] != value:
                changed.append(key)
        param = require("mlflow.entities", extra="mlflow", purpose="MLflow logging").Param
        for part in _parts([param(key, value) for key, value in new.items()], _PARAMS_A_CALL):
            self._client.log_batch(run_id, params=part)
        for keys, why in ((cut, "are cut to 6000 characters"), (changed, "cannot be changed, the run has others")):
            if keys:
                text = "MLflow's parameters %s %s; config.json holds the whole of today"
                self._say_once(why, text, ", ".join(keys), why)

    def _write_text(self, name: str, text: Text, step: int, axis: str) -> None:
        self._client_of_run().log_text(self._id, text.text, self._file("texts", name, axis, step, "txt"))

    def _write_image(self, name: str, image: Image, step: int, axis: str) -> None:  # noqa: ARG002
        if image.caption is not None:
            self._has_no("captions of images", name)
        key = self._image_names(name)
        self._client_of_run().log_image(self._id, image.pixels, key=key, step=step, synchronous=True)

    def _write_figure(self, name: str, figure: Figure, step: int, axis: str) -> None:
        if figure.is_plotly:
            file = self._file("figures", name, axis, step, "html")
            self._client_of_run().log_text(self._id, figure.html(), file)
        else:
            file = self._file("figures", name, axis, step, "png")
            self._client_of_run().log_figure(self._id, figure.figure, file)

    def _write_histogram(self, name: str, histogram: Histogram, step: int, axis: str) -> None:
        file = self._file("histograms", name, axis, step, "json")
        self._client_of_run().log_dict(self._id, dataclasses.asdict(histogram), file)

    def _write_artifact(self, path: Path, name: str) -> None:
        folder, _, file_name = self._names(name).rpartition("/")
        if file_name == path.name:
            self._client_of_run().log_artifact(self._id, str(path), folder or None)
            return
        with tempfile.TemporaryDirectory(prefix="shoal_artifact_") as scratch:  # MLflow takes the name from the file
            copy = shutil.copyfile(path, Path(scratch) / file_name)
            self._client_of_run().log_artifact(self._id, str(copy), folder or None)

    def _file(self, kind: str, name: str, axis: str, step: int, ending: str) -> str:
        return f"{kind}/{self._names(name)}/{axis}_{step}.{ending}"

    def _client_of_run(self) -> Any:
        _ = self.run
        return self._client

    def _close(self) -> None:
        run, self._run = self._run, None
        if run is not None and self._is_own:
            mlflow = _mlflow()
            active = mlflow.active_run()
            status = "FAILED" if self._failed else "FINISHED"
            if active is not None and active.info.run_id == run.info.run_id:
                mlflow.end_run(status)
            elif self._client.get_run(run.info.run_id).info.status == "RUNNING":  # active in another thread
                self._client.set_terminated(run.info.run_id, status)

    def _run_id(self) -> str | None:
        return self._wanted_id

    def _resume(self, run_id: str) -> None:
        self._wanted_id = run_id


def _name(name: str) -> str:
    """Without what MLflow forbids: other characters, and paths that mean another one."""
    parts = [part for part in re.sub(r"[^\w\-. /:]", "_", name).split("/") if part]
    clean = "/".join("_" if part in (".", "..") else part for part in parts) or "_"
    return f"_{clean}" if clean.startswith("..") else clean


def _image_name(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_\-. /]", "_", _name(name))


def _parts(items: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _mlflow() -> Any:
    return require("mlflow", extra="mlflow", purpose="MLflow logging")
