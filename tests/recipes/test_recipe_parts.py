"""The parts of a recipe that need no training: progress line, curves, run folder, the wish to stop."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from shoal import checkpoint
from shoal.errors import UsageError
from shoal.recipes.curves import Curves, draw_curves
from shoal.recipes.progress import Progress, format_duration
from shoal.recipes.stopping import GracefulStop
from shoal.runs import find_checkpoint, new_run_folder, trim_metrics, write_environment


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def progress(stream: io.StringIO, clock: Clock) -> Progress:
    line = Progress(num_steps=100, num_epochs=5, batch_size=64, stream=stream, clock=clock)
    line.start(0)
    return line


def test_progress_off_a_terminal_is_a_plain_line_every_ten_seconds_and_at_the_end() -> None:
    stream, clock = io.StringIO(), Clock()
    line = progress(stream, clock)
    for step in range(1, 101):
        clock.now += 0.5
        line.update(step, loss=2.0, accuracy=0.25, learning_rate=0.1)
    line.close()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 5
    assert "\r" not in stream.getvalue()
    expected = "loss 2.000  accuracy 0.250  lr 0.1000  128 images/s  0:40 left"
    assert lines[0] == f"Epoch 1/5, step 20/100: {expected}"
    assert lines[-1].startswith("Epoch 5/5, step 100/100: ")
    assert lines[-1].endswith(" 0:00 left")


def test_progress_on_a_terminal_is_one_line_that_logged_lines_do_not_run_into() -> None:
    stream, clock = Terminal(), Clock()
    line = progress(stream, clock)
    logger = logging.getLogger("tests.progress")
    logger.addHandler(logging.StreamHandler(stream))
    line.update(30, loss=2.0, accuracy=0.25, learning_rate=0.1)
    with line.above_logs("tests.progress"):
        logger.warning("a line of the log")
    line.update(31, loss=2.0, accuracy=0.25, learning_rate=0.1)
    line.close()
    before, after = stream.getvalue().split("a line of the log\n")
    assert before.endswith("\r")
    assert "Epoch 2/5" in after
    assert stream.getvalue().count("\n") == 2  # the logged line, and the end


def test_time_left_counts_evaluations_to_come_and_leaves_them_out_of_the_speed() -> None:
    clock = Clock()
    line = progress(io.StringIO(), clock)
    clock.now += 10
    line.update(20, loss=1, accuracy=0, learning_rate=0)
    with line.aside("evaluating", num_left=2):
        clock.now += 7
    line.start(20)
    clock.now += 10
    line.update(40, loss=1, accuracy=0, learning_rate=0)
    assert line.seconds_left() == pytest.approx(60 * 0.5 + 2 * 7)


def test_a_resumed_run_starts_its_progress_where_it_was() -> None:
    stream, clock = io.StringIO(), Clock()
    line = Progress(num_steps=100, num_epochs=5, batch_size=64, stream=stream, clock=clock)
    line.start(60)
    clock.now += 10
    line.update(61, loss=1, accuracy=0, learning_rate=0)
    assert stream.getvalue().startswith("Epoch 4/5, step 61/100")
    assert line.seconds_left() == pytest.approx(390)


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (754, "12:34"), (3723, "1:02:03")])
def test_durations_read_like_a_clock(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(("num_steps", "outlier"), [(0, 1.0), (1, 1.0), (7, 1e6), (500, 1.0)])
def test_curves_are_drawn_for_a_run_of_any_length(num_steps: int, outlier: float, tmp_path: Path) -> None:
    curves = Curves(title="a model on data", steps_per_epoch=5)
    curves.train_loss.add(1, outlier)
    for step in range(1, num_steps + 1):
        curves.batch_loss.add(step, 1 / step)
        curves.batch_accuracy.add(step, 1 - 1 / step)
        curves.learning_rate.add(step, 0.1)
        if step % 5 == 0:
            curves.val_loss.add(step, 1 / step)
            curves.val_accuracy.add(step, 0.5)
    draw_curves(tmp_path / "curves.png", curves)
    with Image.open(tmp_path / "curves.png") as image:
        assert image.size == (1120, 1190)
        assert len(image.convert("RGB").getcolors(1 << 20) or []) > 10
    assert [path.name for path in tmp_path.iterdir()] == ["curves.png"]


def test_two_runs_that_start_in_one_second_get_two_folders(tmp_path: Path) -> None:
    folders = [new_run_folder(tmp_path / "output", "net_backend-gloo-2") for _ in range(3)]
    assert len(set(folders)) == 3
    assert all(folder.is_dir() and folder.name.startswith("net_backend-gloo-2_") for folder in folders)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"file cannot be written"):
        new_run_folder(tmp_path / "file", "net")


def make_run(output: Path, time: str, steps: list[int]) -> Path:
    run = output / f"resnet18_backend-None-1_{time}"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("seed: 1\n", encoding="utf-8")
    for step in steps:
        checkpoint.save({"step": step}, run / f"training_checkpoint_{step}.pt")
    return run


def test_latest_is_the_newest_checkpoint_of_the_newest_run(tmp_path: Path) -> None:
    new = make_run(tmp_path, "20250102-000000", [200, 1000, 400])
    make_run(tmp_path, "20250101-235959", [9000])
    assert find_checkpoint("latest", tmp_path) == new / "training_checkpoint_1000.pt"
    assert find_checkpoint(str(new), Path("elsewhere")) == new / "training_checkpoint_1000.pt"
    file = new / "training_checkpoint_200.pt"
    assert find_checkpoint(str(file), tmp_path) == file


def test_what_cannot_be_resumed_is_told_with_what_can(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no run in"):
        find_checkpoint("latest", tmp_path / "absent")
    old = make_run(tmp_path, "20250101-000000", [10])
    new = make_run(tmp_path, "20250102-000000", [])
    with pytest.raises(UsageError, match=rf"the newest run {new} has no checkpoint .* {old}"):
        find_checkpoint("latest", tmp_path)
    with pytest.raises(UsageError, match=rf"no such file or folder; the newest run in {tmp_path} is {new.name}"):
        find_checkpoint(str(tmp_path / "absent.pt"), tmp_path)
    with pytest.raises(UsageError, match=rf"has no checkpoint .*{old}"):
        find_checkpoint(str(tmp_path), tmp_path)


def test_a_resumed_run_takes_back_the_records_that_it_will_make_again(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    lines = [json.dumps({"step": step, "loss": 1.0}) for step in (5, 10, 15)]
    file.write_text("\n".join([*lines, '{"step": 20, "lo']), encoding="utf-8")
    trim_metrics(tmp_path, 10)
    assert file.read_text(encoding="utf-8").splitlines() == lines[:2]
    trim_metrics(tmp_path / "absent", 10)


def test_each_session_of_a_run_adds_its_environment(tmp_path: Path) -> None:
    write_environment(tmp_path)
    write_environment(tmp_path)
    sessions = json.loads((tmp_path / "environment.json").read_text(encoding="utf-8"))["sessions"]
    assert [session["torch"] for session in sessions] == [torch.__version__] * 2
    assert sessions[0]["world_size"] == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_a_wish_and_the_second_has_its_usual_effect(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    class UsualEffectError(Exception):
        pass

    def usual(_number: int, _frame: object) -> None:
        raise UsualEffectError

    previous = signal.signal(number, usual)
    try:
        with GracefulStop("finishing the step") as stop:
            assert stop.requested is None
            os.kill(os.getpid(), number)
            assert stop.requested == number
            with pytest.raises(UsualEffectError):
                os.kill(os.getpid(), number)
        assert signal.getsignal(number) is usual
    finally:
        signal.signal(number, previous)
    assert "finishing the step" in capfd.readouterr().err


def test_signals_stay_with_the_process_that_takes_them() -> None:
    program = """
import multiprocessing, os, signal, sys
from shoal.recipes.stopping import GracefulStop
def work(pipe):
    pipe.send(1)
    pipe.recv()
fork = multiprocessing.get_context("fork")
with GracefulStop("a wish") as stop:
    here, there = fork.Pipe()
    process = fork.Process(target=work, args=(there,), daemon=True)
    process.start()
    here.recv()
    os.kill(process.pid, signal.SIGINT)
    os.kill(process.pid, signal.SIGTERM)
    process.join(20)
    print(process.exitcode, stop.requested)
    process.kill()
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (result.stdout, result.stderr) == (f"{-signal.SIGTERM} None\n", "")
