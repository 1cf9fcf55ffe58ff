"""A training with everything attached is stopped in mid-epoch on 2 processes, gone on with, and leaves the same log."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from shoal.trackers import read_jsonl

_PROGRAM = Path(__file__).with_name("everything_program.py")
_STOP_AT = 44  # in the middle of epoch 5, with early stopping's counter at 1 of 3


def _run(folder, *arguments):
    command = [sys.executable, str(_PROGRAM), str(folder), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders of a run, and of one that was stopped and gone on with."""
    whole, stopped = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("stopped")
    assert _run(whole) == "[(6, 60), (6, 60)]"  # early stopping, 3 epochs after the best
    assert _run(stopped, _STOP_AT) == f"[(5, {_STOP_AT}), (5, {_STOP_AT})]"
    assert _run(stopped) == "[(6, 60), (6, 60)]"
    return whole, stopped


def _json_lines(folder):
    return [{**record, "time": 0} for record in read_jsonl(folder / "metrics.jsonl")]


def _event_files(folder):
    found = {}
    for path in sorted((folder / "tb").glob("events*")):
        events = EventAccumulator(str(path), size_guidance={"scalars": 0}).Reload()
        for tag in events.Tags()["scalars"]:
            found.setdefault(tag, []).extend((event.step, event.value) for event in events.Scalars(tag))
    return found


def _database(folder):
    with sqlite3.connect(folder / "mlflow.db") as database:
        assert database.execute("select count(*) from runs").fetchone() == (1,)
        return sorted(database.execute("select key, step, value from metrics"))


@pytest.mark.parametrize("read", [_json_lines, _event_files, _database])
def test_a_run_that_was_stopped_leaves_the_log_of_one_that_was_not(runs, read):
    whole, stopped = runs
    assert read(whole) == read(stopped)
    assert len(read(whole)) > 30


def test_the_best_models_are_the_same(runs):
    names = [sorted(path.name for path in (folder / "best").iterdir()) for folder in runs]
    assert names[0] == names[1]
    assert len(names[0]) == 2


def test_what_is_logged_is_what_was_attached(runs):
    records = list(_json_lines(runs[0]))
    keys = set().union(*records)
    assert {"training/running loss", "training/sharpness", "training/grad_norm", "ema/accuracy", "lr/group_0"} <= keys
    assert {
        "validation/accuracy",
        "validation/loss",
        "validation/f1",
        "validation/miou",
        "validation/matrix/9/9",
    } <= keys
    assert [record["step"] for record in records if "validation/f1" in record] == [1, 2, 3, 4, 5, 6]
    losses = [record["training/running loss"] for record in records if "training/running loss" in record]
    assert losses[-1] < losses[0] / 2
