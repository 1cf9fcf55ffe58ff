"""Trackers write what they are given, whatever it is, and read back as it was."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from shoal.errors import MissingExtraError, UsageError
from shoal.trackers import TRACKERS, JsonlTracker, Tracker, plain_config, read_jsonl, scalars
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


def test_without_its_extra_a_tracker_names_it():
    code = """
import sys
sys.modules["tensorboard"] = None
from shoal.errors import MissingExtraError
from shoal.trackers import TRACKERS
try:
    TRACKERS.load("tensorboard")(".")
except MissingExtraError as error:
    assert "shoal[tensorboard]" in str(error), error
else:
    raise SystemExit("no error")
assert "clearml" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert issubclass(MissingExtraError, ImportError)
