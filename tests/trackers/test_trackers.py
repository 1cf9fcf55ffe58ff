"""Trackers write what they are given, whatever it is, and read back as it was."""

from __future__ import annotations

import dataclasses
import enum
import io
import json
import math
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import PIL.Image
import plotly
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from shoal.errors import MissingExtraError, TrackerError, UsageError
from shoal.testing import check_tracker
from shoal.trackers import (
    TRACKERS,
    Figure,
    Histogram,
    Image,
    JsonlTracker,
    Text,
    Tracker,
    plain_config,
    read_jsonl,
    scalars,
)
from shoal.trackers._names import NameMap, file_like
from shoal.trackers.base import RankZeroTracker
from shoal.trackers.tensorboard import TensorBoardTracker

fork = multiprocessing.get_context("fork")


class Mode(enum.Enum):
    FAST = 1


@dataclasses.dataclass
class Options:
    path: Path
    mode: Mode


# Trap 43
CONFIG = {
    "model": "resnet18",
    "lr": 0.4,
    "resume_from": None,
    "betas": (0.9, 0.99),
    "output": Path("out") / "run",
    "nested": {"a": {"b": [1, {"c": None}]}, 3: {"set", "of"}},
    "options": Options(Path("x"), Mode.FAST),
    "loss": torch.nn.CrossEntropyLoss,
    "weights": torch.tensor([1.0, 2.0]),
    "nan": math.nan,
    "np": np.float32(0.5),
    "dtype": torch.bfloat16,
}


def test_every_tracker_in_the_table_can_be_made_and_is_one(tmp_path):
    assert isinstance(TRACKERS.load("jsonl")(tmp_path / "m.jsonl"), Tracker)
    assert isinstance(TRACKERS.load("tensorboard")(tmp_path), Tracker)
    assert isinstance(TRACKERS.load("clearml")(), Tracker)
    assert isinstance(TRACKERS.load("mlflow")(), Tracker)
    assert isinstance(TRACKERS.load("wandb")(), Tracker)
    assert isinstance(TRACKERS.load("trackio")("p"), Tracker)
    assert list(tmp_path.iterdir()) == []  # trap 45: nothing is opened before there is something to write
    with pytest.raises(UsageError, match=r"did you mean 'tensorboard'"):
        TRACKERS.load("tensorbord")


def test_jsonl_keeps_every_number_and_stays_strict_json(tmp_path):
    path = tmp_path / "new" / "metrics.jsonl"
    with JsonlTracker(path) as tracker:
        tracker.log_metrics({"loss": torch.tensor(0.25), "acc": 1, "time": 9}, step=100, prefix="")
        tracker.log_metrics({"loss": math.nan, "a": math.inf, "b": -math.inf}, step=1, prefix="val", axis="epoch")
        tracker.log_metrics({"per class": np.array([0.5, 1.0])}, step=2, axis="epoch")
        tracker.log_config(CONFIG)

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=refuse)
    first, second, third, config = read_jsonl(path)
    assert first | {"time": 0} == {"time": 0, "axis": "iteration", "step": 100, "loss": 0.25, "acc": 1.0, "time_": 9.0}
    assert math.isnan(second["val/loss"]) and second["val/a"] == math.inf and second["val/b"] == -math.inf
    assert (second["axis"], second["step"]) == ("epoch", 1)  # trap 44
    assert (third["per class/0"], third["per class/1"]) == (0.5, 1.0)
    assert config["config"]["options"] == {"path": "x", "mode": "FAST"}


def test_a_config_of_any_types_is_stored():
    plain = plain_config(CONFIG)
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["resume_from"] is None
    assert plain["output"] == "out/run"
    assert plain["nested"] == {"a": {"b": [1, {"c": None}]}, "3": ["of", "set"]}
    assert plain["weights"] == [1.0, 2.0]
    assert plain["np"] == 0.5
    endless = {}
    endless["self"] = endless
    json.dumps(plain_config(endless))


def test_what_is_no_number_is_said_once_and_skipped(tmp_path, caplog):
    with JsonlTracker(tmp_path / "m.jsonl") as tracker:
        for step in range(3):
            tracker.log_metrics({"note": "text", "n": step}, step=step)
    assert [record["n"] for record in read_jsonl(tmp_path / "m.jsonl")] == [0.0, 1.0, 2.0]
    assert caplog.text.count("'note' is a str") == 1
    assert dict(scalars("x", {"a": [1, {"b": 2}]})) == {"x/a/0": 1.0, "x/a/1/b": 2.0}


def _write_and_die(path):
    tracker = JsonlTracker(path)
    for step in range(100):
        tracker.log_metrics({"n": step}, step=step)
    os.kill(os.getpid(), signal.SIGKILL)


def test_every_line_survives_a_kill_and_a_cut_line_does_not_spoil_the_next(tmp_path, caplog):
    path = tmp_path / "m.jsonl"
    process = fork.Process(target=_write_and_die, args=(path,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert [record["step"] for record in read_jsonl(path)] == list(range(100))
    with path.open("a") as file:
        file.write('{"step": 100, "n')
    with JsonlTracker(path) as tracker:
        tracker.log_metrics({"n": 1}, step=101)
    assert [record["step"] for record in read_jsonl(path)] == [*range(100), 101]
    assert "line 101 is cut off" in caplog.text


def test_tensorboard_files_hold_every_scalar_and_the_config(tmp_path):
    with TensorBoardTracker(tmp_path) as tracker:
        for step in (100, 200):
            tracker.log_metrics({"batch loss": step / 100}, step=step, prefix="training")
        tracker.log_metrics({"Accuracy": 0.5}, step=1, prefix="val", axis="epoch")  # trap 44
        tracker.log_metrics({"batch loss": 3.0}, step=300, prefix="training")
        tracker.log_metrics({"Accuracy": math.nan}, step=2, prefix="val", axis="epoch")
        tracker.log_config(CONFIG)
    tracker.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("training/batch loss")] == [(100, 1.0), (200, 2.0), (300, 3.0)]
    accuracy = events.Scalars("val/Accuracy")
    assert [e.step for e in accuracy] == [1, 2]
    assert accuracy[0].value == 0.5 and math.isnan(accuracy[1].value)
    assert b"resnet18" in events.Tensors("config/text_summary")[0].tensor_proto.string_val[0]


def test_a_resumed_run_adds_to_the_same_folder_without_losing_the_first_part(tmp_path):
    for steps in ((1, 2, 3), (3, 4)):
        with TensorBoardTracker(tmp_path) as tracker:
            for step in steps:
                tracker.log_metrics({"loss": step}, step=step)
    steps = [event.step for event in EventAccumulator(str(tmp_path)).Reload().Scalars("loss")]
    assert sorted(set(steps)) == [1, 2, 3, 4]


EXTRAS = {name: entry.extra for name, entry in TRACKERS.items() if entry.extra}


def test_without_its_extra_a_tracker_and_a_logger_name_it():
    code = f"""
import sys
extras = {EXTRAS}
sys.modules.update(dict.fromkeys(extras.values()))
from shoal import handlers
from shoal.errors import MissingExtraError
from shoal.trackers import TRACKERS
loggers = dict(tensorboard="TensorboardLogger", clearml="ClearMLLogger", mlflow="MLflowLogger", wandb="WandBLogger",
               trackio="TrackioLogger")
assert loggers.keys() == extras.keys()
for name, extra in extras.items():
    for make in (TRACKERS.load(name), getattr(handlers, loggers[name])):
        try:
            make(*(["x"] if name in ("tensorboard", "trackio") else []))
        except MissingExtraError as error:
            assert f"shoal[{{extra}}]" in str(error), error
        else:
            raise SystemExit(f"no error for {{name}}")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert issubclass(MissingExtraError, ImportError)


def test_making_a_tracker_imports_no_service():
    code = f"""
import sys
import shoal.handlers
from shoal.trackers import TRACKERS
for name in {list(EXTRAS)}:
    TRACKERS.load(name)(*(["x"] if name in ("tensorboard", "trackio") else []))
assert not set({list(EXTRAS.values())}) & set(sys.modules), sorted(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_jsonl_takes_all_that_a_tracker_must_take(tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"

    def read(name):
        return [(record["step"], record[name]) for record in read_jsonl(path) if name in record]

    check_tracker(lambda: JsonlTracker(path), read=read)
    media = {}
    for record in read_jsonl(path):
        media.update({(name, record["axis"], record["step"]): entry for name, entry in record.get("media", {}).items()})
    assert media["check/text", "iteration", 7] == {"kind": "text", "text": "a <b> & ü"}
    assert media["check/text", "epoch", 1]["text"] == "the next"
    image = media["check/image", "iteration", 7]
    assert image["caption"] == "three channels"
    assert PIL.Image.open(path.parent / image["file"]).size == (6, 8)
    assert PIL.Image.open(path.parent / media["check/figure", "iteration", 7]["file"]).format == "PNG"
    histogram = media["check/histogram", "iteration", 7]
    assert (sum(histogram["counts"]), histogram["num_not_finite"], len(histogram["edges"])) == (3, 1, 65)
    artifacts = [record["artifact"] for record in read_jsonl(path) if "artifact" in record]
    assert [entry["name"] for entry in artifacts][:3] == ["check file.txt", "check/renamed.txt", "_/up.txt"]
    for entry in artifacts:
        assert (path.parent / entry["file"]).read_text() == "stored"
        assert entry["size_bytes"] == 6
    own = path.parent / "model.pt"
    own.write_bytes(b"12")
    with JsonlTracker(path) as tracker:
        tracker.log_artifact(own)  # in the run's folder already: not copied
    assert list(read_jsonl(path))[-1]["artifact"] == {"name": "model.pt", "file": "model.pt", "size_bytes": 2}


def test_jsonl_stores_a_plotly_figure_as_its_json(tmp_path):
    figure = plotly.graph_objects.Figure(plotly.graph_objects.Bar(y=[1, 2]))
    with JsonlTracker(tmp_path / "m.jsonl") as tracker:
        tracker.log_media({"bars": figure, "said": "a plain text"}, step=1)
    first, second = (record["media"] for record in read_jsonl(tmp_path / "m.jsonl"))
    assert list(plotly.io.read_json(tmp_path / first["bars"]["file"]).data[0].y) == [1, 2]
    assert second == {"said": {"kind": "text", "text": "a plain text"}}


def test_tensorboard_takes_all_that_a_tracker_must_take(tmp_path, caplog):
    def read(name):
        return [(event.step, event.value) for event in EventAccumulator(str(tmp_path)).Reload().Scalars(name)]

    check_tracker(lambda: TensorBoardTracker(tmp_path), read=read)
    events = EventAccumulator(str(tmp_path), size_guidance={"tensors": 0, "images": 0}).Reload()
    assert {"check/image", "check/grey", "check/figure", f"check/{'ß' * 300}"} <= set(events.Tags()["images"])
    image = events.Images("check/image")[0]
    assert (image.step, image.width, image.height) == (7, 6, 8)
    histogram = events.Histograms("check/histogram")[0].histogram_value
    assert (histogram.num, histogram.sum, histogram.min, histogram.max) == (3, 2.0, 0.0, 1.0)
    texts = events.Tensors("check/text/text_summary")
    assert [(text.step, text.tensor_proto.string_val[0].decode()) for text in texts] == [
        (7, "a <b> & ü"), (1, "the next")
    ]  # fmt: skip
    assert caplog.text.count("TensorBoardTracker has no place for files; 'check file.txt' and others") == 1
    assert caplog.text.count("no place for captions of images") == 1


class Refusing(RankZeroTracker):
    """A service that takes the configuration and nothing else."""

    def __init__(self, error, **options):
        super().__init__(**options)
        self.error = error
        self.failed_at_close = None

    def _write_metrics(self, values, step, axis):
        raise self.error

    def _write_config(self, config):
        pass

    def _close(self):
        self.failed_at_close = self._failed
        raise self.error


def test_a_record_that_is_refused_is_an_error_that_says_which_and_why():
    tracker = Refusing(ConnectionError("the server is gone"))
    with pytest.raises(TrackerError, match=r"metrics of step 3: ConnectionError: the server is gone.*on_error='warn'"):
        tracker.log_metrics({"a": 1}, step=3)
    with pytest.raises(KeyError, match="the training's own"), tracker:
        raise KeyError("the training's own")  # comes first; what close says then is logged
    assert tracker.failed_at_close
    with pytest.raises(TrackerError, match="what was left"), Refusing(OSError("full")):
        pass
    with pytest.raises(UsageError, match="'raise' or 'warn'"):
        Refusing(OSError(), on_error="ignore")


def test_with_on_error_warn_the_training_goes_on_and_what_is_lost_is_counted(caplog):
    tracker = Refusing(ConnectionError("the server is gone"), on_error="warn")
    for step in range(5):
        tracker.log_metrics({"a": 1}, step=step)
    assert caplog.text.count("the server is gone") == 1
    tracker.close()
    assert "Refusing has lost 6 records" in caplog.text


def test_media_are_refused_at_the_door_when_it_is_unclear_what_they_are(tmp_path):
    tracker = JsonlTracker(tmp_path / "m.jsonl")
    with pytest.raises(UsageError, match=r"a Tensor as 'x'; say what it is: Image\(value\)"):
        tracker.log_media({"x": torch.zeros(3)}, step=0)
    with pytest.raises(UsageError, match="which is not there"):
        tracker.log_artifact(tmp_path / "none.pt")
    with pytest.raises(UsageError, match=r"shape \(2, 3, 4, 4\).*one image, \(C, H, W\)"):
        Image(torch.zeros(2, 3, 4, 4))
    with pytest.raises(UsageError, match=r"shape \(5, 4, 4\)"):
        Image(torch.zeros(5, 4, 4))
    with pytest.raises(UsageError, match="type complex64"):
        Image(np.zeros((2, 2), np.complex64))
    with pytest.raises(UsageError, match="matplotlib or of plotly"):
        Figure("no figure")
    with pytest.raises(UsageError, match="one edge more"):
        Histogram((1, 2), (0.0, 1.0))
    tracker.close()
    assert not (tmp_path / "m.jsonl").exists()


@pytest.mark.parametrize(
    ("given", "pixels"),
    [
        (torch.tensor([[0.0, 0.5, 1.0]]), [[[0], [128], [255]]]),
        (torch.tensor([[-1.0, math.nan, 2.0]], dtype=torch.bfloat16), [[[0], [0], [255]]]),
        (torch.tensor([[0, 300, -5]]), [[[0], [255], [0]]]),
        (torch.tensor([[[1.0]], [[0.0]], [[1.0]]]), [[[255, 0, 255]]]),
        (np.array([[[1, 2, 3, 4]]], np.uint8), [[[1, 2, 3, 4]]]),
        (np.array([[True, False]]), [[[255], [0]]]),
        (PIL.Image.new("RGB", (1, 2), (9, 8, 7)), [[[9, 8, 7]], [[9, 8, 7]]]),
        (PIL.Image.new("RGB", (1, 1), (255, 0, 0)).convert("P"), [[[255, 0, 0]]]),  # a palette's numbers are no grey
        (PIL.Image.new("CMYK", (1, 1), (0, 255, 255, 0)), [[[255, 0, 0]]]),
        (PIL.Image.new("HSV", (1, 1), (0, 255, 255)), [[[255, 0, 0]]]),
        (PIL.Image.new("LA", (1, 1), (5, 6)), [[[5, 5, 5, 6]]]),
    ],
)
def test_images_of_all_kinds_become_bytes_and_a_png_that_others_read(given, pixels):
    image = Image(given)
    assert image.pixels.tolist() == pixels
    again = np.asarray(PIL.Image.open(io.BytesIO(image.png())))
    assert np.array_equal(again.reshape(image.pixels.shape), image.pixels)


@given(
    st.lists(st.floats(-1e6, 1e6, width=32) | st.sampled_from([math.nan, math.inf, -math.inf]), max_size=50),
    st.integers(1, 20),
)
def test_a_histogram_counts_every_value_once(values, num_bins):
    histogram = Histogram.of(torch.tensor(values), num_bins)
    finite = [value for value in values if math.isfinite(value)]
    assert sum(histogram.counts) == len(finite)
    assert histogram.num_not_finite == len(values) - len(finite)
    assert len(histogram.edges) == num_bins + 1
    assert list(histogram.edges) == sorted(set(histogram.edges))
    assert all(histogram.edges[0] <= value <= histogram.edges[-1] for value in finite)
    assert histogram.total == pytest.approx(math.fsum(finite), abs=1e-6)


@pytest.mark.parametrize(
    "values", [[1e308, -1e308], [1.7e308], [1.0, 1.0 + 2.0**-52], [5e-324, 0.0], [2**62, 2**62 + 1], [True, False]]
)
def test_a_histogram_of_extreme_values_counts_them_in_bins_that_rise(values):
    for kind in (torch.tensor(values, dtype=None if isinstance(values[0], int) else torch.float64), np.array(values)):
        histogram = Histogram.of(kind)
        assert sum(histogram.counts) == len(values)
        assert np.isfinite(histogram.edges).all()
        assert (np.diff(histogram.edges) > 0).all()


def test_a_histogram_takes_any_layout_and_refuses_what_has_no_order():
    assert Histogram.of(np.arange(4)[::-1], 4).counts == (1, 1, 1, 1)
    assert Histogram.of(torch.eye(2).to_sparse(), 2).counts == (2, 2)
    for refused in (torch.ones(2, dtype=torch.complex64), np.array(["a"]), None, torch.zeros(2, device="meta")):
        with pytest.raises(UsageError, match=r"Histogram\.of was given"):
            Histogram.of(refused)
    with pytest.raises(UsageError, match="num_bins=0"):
        Histogram.of(torch.ones(2), 0)
    with pytest.raises(UsageError, match="Text was given a int"):
        Text(5)


def test_numbers_of_any_kind_are_recorded_or_skipped_and_a_step_is_one(tmp_path, caplog):
    tracker = JsonlTracker(tmp_path / "m.jsonl")
    odd = {"meta": torch.zeros(2, device="meta"), "big": -(10**400), "sparse": torch.eye(2).to_sparse()}
    tracker.log_metrics(odd, step=1)
    for step in (math.nan, None, "first"):
        with pytest.raises(UsageError, match="asked to log at step="):
            tracker.log_metrics({"a": 1}, step=step)
        with pytest.raises(UsageError, match="asked to log at step="):
            tracker.log_media({"a": "text"}, step=step)
    (line,) = read_jsonl(tmp_path / "m.jsonl")
    assert line["big"] == -math.inf
    assert line["sparse/1/1"] == 1.0
    assert "meta/0" not in line
    assert "'meta' is a Tensor and not recorded" in caplog.text


def test_a_line_that_a_full_disk_has_cut_does_not_spoil_the_next(tmp_path):
    tracker = JsonlTracker(tmp_path / "m.jsonl", on_error="warn")
    tracker.log_metrics({"a": 1}, step=1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "m.jsonl").stat().st_size + 5, hard))
    try:
        tracker.log_metrics({"a": 2}, step=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    tracker.log_metrics({"a": 3}, step=3)
    tracker.close()
    assert [line["step"] for line in read_jsonl(tmp_path / "m.jsonl")] == [1, 3]


def test_a_server_that_answers_late_is_not_asked_for_every_record(caplog):
    class Late(Refusing):
        num_asked = 0

        def _write_metrics(self, values, step, axis):
            self.num_asked += 1
            time.sleep(1.01)  # the timeout of a service's client
            super()._write_metrics(values, step, axis)

    tracker = Late(ConnectionError("the server is gone"), on_error="warn")
    for step in range(4):
        tracker.log_metrics({"a": 1}, step=step)
    tracker.close()
    assert tracker.num_asked == 1
    assert "Late has lost 5 records" in caplog.text


def test_names_that_a_service_forbids_never_meet(caplog):
    names = NameMap("The service", file_like, max_length=20)
    assert [names(name) for name in ("a#b", "a b", "a#b", "a_b", "ok", "x" * 30, "x" * 31)] == [
        "a_b", "a_b_2", "a_b", "a_b_3", "ok", "x" * 20, f"{'x' * 12}_2"
    ]  # fmt: skip
    assert caplog.text.count("'a#b'") == 1
