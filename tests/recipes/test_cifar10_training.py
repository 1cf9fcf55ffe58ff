"""`shoal train cifar10` as people run it: what it leaves, and that breaks and processes change nothing."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn  # noqa: F401 - its import sets environment variables, which no test may do
import torch
import yaml
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import shoal.distributed as idist
from shoal import checkpoint
from shoal.cli import train
from shoal.errors import DataError, UsageError
from shoal.recipes.cifar10.config import Cifar10Config
from shoal.recipes.cifar10.data import collate, train_transform
from shoal.recipes.cifar10.run import Run
from shoal.recipes.cifar10.sources import open_data
from shoal.runs import lock_run, read_predictions, summarize
from shoal.testing import run_workers

# Small and quick, with batch norm; 20 steps in 4 epochs.
OPTIONS = [
    *("--model", "shufflenet_v2_x0_5", "--subset", "120", "--batch-size", "24", "--learning-rate", "0.05"),
    *("--num-epochs", "4", "--validate-every", "2", "--checkpoint-every", "3", "--log-every-iters", "1"),
    *("--num-workers", "0"),
]
TWO = ["--backend", "gloo", "--nproc-per-node", "2", "--no-sync-bn"]


def run_folder(output: Path) -> Path:
    (folder,) = output.iterdir()
    return folder


def records(folder: Path, of: str) -> dict[int, dict[str, float]]:
    """The values of a kind of record, by step."""
    found: dict[int, dict[str, float]] = {}
    for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        values: dict[str, Any] = json.loads(line)
        own = {key.removeprefix(f"{of}/"): value for key, value in values.items() if key.startswith(f"{of}/")}
        if own:
            assert values["step"] not in found, "recorded twice"
            found[values["step"]] = own
    return found


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of one process."""
    output = tmp_path_factory.mktemp("one")
    assert train.main(["cifar10", *OPTIONS, "--output-path", str(output)]) == 0
    return run_folder(output)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the same run of two processes."""
    output = tmp_path_factory.mktemp("two")
    assert train.main(["cifar10", *OPTIONS, *TWO, "--output-path", str(output)]) == 0
    return run_folder(output)


def test_a_run_leaves_everything_in_its_folder(one: Path) -> None:
    assert one.name.startswith("shufflenet_v2_x0_5_backend-None-1_")
    names = {path.name for path in one.iterdir()}
    assert {"config.yaml", "environment.json", "metrics.jsonl", "curves.png", "training_checkpoint_20.pt"} <= names
    assert {"state.json", "predictions.json", "report.html"} <= names
    assert (summarize(one).state, summarize(one).epoch) == ("finished", 4)
    assert len([name for name in names if name.startswith("training_checkpoint_")]) == 1
    assert 1 <= len([name for name in names if name.startswith("best_model_")]) <= 2
    config = yaml.safe_load((one / "config.yaml").read_text(encoding="utf-8"))
    assert (config["batch_size"], config["data"], config["momentum"]) == (24, "digits", 0.9)
    with Image.open(one / "curves.png") as curves:
        assert curves.size == (1120, 1190)
    events = EventAccumulator(str(one))
    events.Reload()
    assert {"val/Accuracy", "train/Loss", "training/batch loss"} <= set(events.Tags()["scalars"])


def test_every_step_is_recorded_and_each_evaluation_once(one: Path) -> None:
    steps = records(one, "batch")
    assert list(steps) == list(range(1, 21))
    # Up in the first epoch from 0, down in the others to 0; the first step is taken with the first value.
    rates = [0.05 * min(i / 5, (20 - i) / 15) for i in range(20)]
    assert [steps[i + 1]["learning_rate"] for i in range(20)] == pytest.approx(rates)
    # After epochs 2 and 4; the fourth is also the end.
    assert [(step, values["epoch"]) for step, values in records(one, "val").items()] == [(10, 2), (20, 4)]
    assert list(records(one, "train")) == [10, 20]
    correct = records(one, "val")[20]["accuracy"] * len(open_data("digits", data_path="", num_images=120).val)
    assert correct == pytest.approx(round(correct), abs=1e-6)


def test_the_mistakes_written_down_are_those_of_the_best_evaluation(one: Path) -> None:
    found = read_predictions(one)
    assert found is not None
    scores = {step: values["accuracy"] for step, values in records(one, "val").items()}
    assert found.score == pytest.approx(max(scores.values()))
    assert found.step == max(scores, key=lambda step: (scores[step], -step))
    images = open_data("digits", data_path="", num_images=120)
    assert [sum(row) for row in found.confusion] == [int((images.val.labels == label).sum()) for label in range(10)]
    for wrong in found.most_wrong:
        assert images.val.labels[wrong.index] == wrong.label != wrong.predicted
        with Image.open(io.BytesIO(base64.b64decode(wrong.png))) as image:
            assert torch.equal(torch.from_numpy(np.array(image)).permute(2, 0, 1), images.val.read(wrong.index))


def test_where_the_time_goes_is_recorded(one: Path) -> None:
    seconds = records_of_phases(one)
    assert set(seconds) == {"data", "step", "evaluation", "checkpoint"}
    assert list(records(one, "speed")) == list(range(1, 21))
    begun, ended = (json.loads(line)["time"] for line in lines_of(one)[:: len(lines_of(one)) - 1])
    assert sum(seconds.values()) >= ended - begun  # nothing between the first record and the last is left out


def lines_of(folder: Path) -> list[str]:
    return (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()


def records_of_phases(folder: Path) -> dict[str, float]:
    """Seconds by phase, over the whole run."""
    totals: dict[str, float] = {}
    for line in lines_of(folder):
        for key, value in json.loads(line).items():
            if key.startswith("seconds/"):
                phase = key.removeprefix("seconds/")
                totals[phase] = totals.get(phase, 0.0) + value
    return totals


def test_the_best_model_is_one_of_the_best_validation_accuracy(one: Path) -> None:
    best = max(values["accuracy"] for values in records(one, "val").values())
    epochs = [int(values["epoch"]) for values in records(one, "val").values() if values["accuracy"] == best]
    names = {path.name for path in one.glob("best_model_*.pt")}
    assert names & {f"best_model_{epoch}_val_accuracy={best:.4f}.pt" for epoch in epochs}
    for path in one.glob("*.pt"):
        torch.load(path, weights_only=True)


def test_two_processes_give_the_losses_of_one(tmp_path: Path) -> None:
    # Few and small steps: batch norm over one pixel an image, and ReLU at its kink, soon make much of what float32
    # rounds away, in one process as in two. Gradients are compared in float64 in the tests of `training`.
    options = ["--subset", "96", "--batch-size", "24", "--num-workers", "0", "--learning-rate", "1e-5"]
    options += ["--num-epochs", "1", "--num-warmup-epochs", "0", "--log-every-iters", "1"]
    for name, processes in (("one", []), ("two", ["--backend", "gloo", "--nproc-per-node", "2"])):
        assert train.main(["cifar10", *options, *processes, "--output-path", str(tmp_path / name)]) == 0
    one, two = (run_folder(tmp_path / name) for name in ("one", "two"))
    assert two.name.startswith("resnet18_backend-gloo-2_")
    assert list(records(one, "batch")) == [1, 2, 3, 4]
    for of in ("batch", "train", "val"):
        ours, theirs = records(two, of), records(one, of)
        assert list(ours) == list(theirs)
        for step, values in theirs.items():
            assert ours[step]["loss"] == pytest.approx(values["loss"], rel=5e-5), (of, step)


def start_and_stop(argv: list[str], *, after: str, number: signal.Signals) -> tuple[int, str]:
    """Run the command, send it a signal once it has logged ``after``; its exit code and all that it said."""
    command = [sys.executable, "-m", "shoal.cli.main", "train", "cifar10", *argv]
    said = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if after in line:
                process.send_signal(number)
        # The output ends when the last process that holds it has ended, workers included.
    return process.returncode, "".join(said)


def test_ctrl_c_saves_and_the_resumed_run_is_the_uninterrupted_one(two: Path, tmp_path: Path) -> None:
    argv = [*OPTIONS, *TWO, "--output-path", str(tmp_path)]
    code, said = start_and_stop(argv, after="Epoch[2] Complete", number=signal.SIGINT)
    assert code == 130, said
    folder = run_folder(tmp_path)
    assert f"shoal train cifar10 --resume-from {folder}" in said
    assert "Traceback" not in said
    stopped_at = max(records(folder, "batch"))
    assert 10 <= stopped_at < 20
    assert (folder / f"training_checkpoint_{stopped_at}.pt").exists()
    assert (summarize(folder).state, summarize(folder).reason) == ("stopped", "SIGINT")
    assert f"{folder}/report.html" in said
    assert "stopped" in (folder / "report.html").read_text(encoding="utf-8")

    assert train.main(["cifar10", "--resume-from", "latest", "--output-path", str(tmp_path)]) == 0
    assert run_folder(tmp_path) == folder
    for of in ("batch", "train", "val"):
        assert records(folder, of) == records(two, of)
    assert read_predictions(folder) == read_predictions(two)
    assert summarize(folder).state == "finished"
    assert {p.name for p in folder.glob("*.pt")} == {p.name for p in two.glob("*.pt")}


def test_a_killed_run_goes_on_from_its_last_checkpoint_and_ends_like_the_uninterrupted_one(
    one: Path, tmp_path: Path
) -> None:
    argv = [*OPTIONS, "--output-path", str(tmp_path)]
    code, said = start_and_stop(argv, after="Epoch[3] Complete", number=signal.SIGKILL)
    assert code == -signal.SIGKILL, said
    folder = run_folder(tmp_path)
    assert summarize(folder).state == "killed"
    assert train.main(["cifar10", "--resume-from", str(folder)]) == 0
    for of in ("batch", "train", "val"):
        assert records(folder, of) == records(one, of)
    ours, theirs = (checkpoint.load(path / "training_checkpoint_20.pt")["model"] for path in (folder, one))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    sessions = json.loads((folder / "environment.json").read_text(encoding="utf-8"))["sessions"]
    assert sessions[0]["resumed_from"] is None
    assert "training_checkpoint_15.pt" in sessions[1]["resumed_from"]
    assert read_predictions(folder) == read_predictions(one)
    assert list(records(folder, "speed")) == list(records(one, "speed"))


def test_a_finished_run_can_be_made_longer(one: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["cifar10", "--resume-from", str(one / "training_checkpoint_20.pt")]
    assert train.main(argv) == 0  # to the same end: nothing is left to do
    assert list(records(one, "batch")) == list(range(1, 21))
    # A checkpoint that lies in no run's folder begins a new one.
    alone = tmp_path / "alone.pt"
    alone.write_bytes((one / "training_checkpoint_20.pt").read_bytes())
    options = [*OPTIONS, "--resume-from", str(alone), "--num-epochs", "5", "--output-path", str(tmp_path / "output")]
    assert train.main(["cifar10", *options]) == 0
    assert list(records(run_folder(tmp_path / "output"), "batch")) == list(range(21, 26))


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--batch-size", "12"], "--batch-size 12 was asked for, but the run {run} was started with 24"),
        (["--num-epochs", "3"], "--num-epochs 3 was asked for, but"),
        (["--data", "{other}"], "no images found"),
    ],
)
def test_a_resume_that_cannot_work_is_refused_at_the_door(
    argv: list[str], expected: str, one: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [part.format(other=tmp_path) for part in argv]
    assert train.main(["cifar10", "--resume-from", str(one), *argv]) == 2
    assert expected.format(run=one) in capsys.readouterr().err


def test_weights_alone_are_no_checkpoint_to_resume_from(one: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = next(one.glob("best_model_*.pt"))
    assert train.main(["cifar10", "--resume-from", str(weights)]) == 2
    assert "give a training_checkpoint_*.pt" in capsys.readouterr().err


def test_a_loss_that_is_no_number_ends_the_run_with_a_word_on_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [*OPTIONS, "--learning-rate", "1e30", "--output-path", str(tmp_path)]
    assert train.main(["cifar10", *options]) == 1
    assert "lower --learning-rate" in capsys.readouterr().err
    summary = summarize(run_folder(tmp_path))
    assert (summary.state, summary.resume) == ("failed", None)
    assert summary.reason.startswith("UsageError: the loss became ")


def test_a_corrupt_image_met_in_training_is_told_with_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for split in ("train", "val"):
        for number in range(24):
            path = tmp_path / "data" / split / f"class{number % 3}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (32, 32), (number, 0, 0)).save(path)
    broken = tmp_path / "data" / "train" / "class1" / "7.png"
    broken.write_bytes(broken.read_bytes()[:50])
    argv = [*OPTIONS, "--data", str(tmp_path / "data"), "--subset", "24", "--num-workers", "1"]
    assert train.main(["cifar10", *argv, "--output-path", str(tmp_path / "output")]) == 1
    assert f"{broken}: the image cannot be decoded (50 bytes" in capsys.readouterr().err.splitlines()[-1]


def test_the_steps_are_saved_before_a_validation_image_that_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = Image.new("RGB", (32, 32))
    for split, count in (("train", 4), ("val", 2)):
        for name in ("a", "b"):
            (tmp_path / "data" / split / name).mkdir(parents=True)
            for number in range(count):
                image.save(tmp_path / "data" / split / name / f"{number}.png")
    (tmp_path / "data" / "val" / "b" / "1.png").write_bytes(b"no image")
    argv = ["cifar10", *OPTIONS[:2], "--data", str(tmp_path / "data"), "--batch-size", "4", "--num-epochs", "1"]
    assert train.main([*argv, "--num-workers", "0", "--output-path", str(tmp_path / "out")]) == 1
    assert "1.png" in capsys.readouterr().err
    assert (run_folder(tmp_path / "out") / "training_checkpoint_2.pt").exists()


def test_a_report_that_cannot_be_written_loses_no_run(
    one: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / one.name
    shutil.copytree(one, run)
    (run / "report.html").unlink()
    (run / "report.html").mkdir()
    assert train.main(["cifar10", "--resume-from", str(run), "--num-epochs", "5"]) == 0
    captured = capsys.readouterr()
    assert f"try again: shoal report {run}" in captured.err
    assert "Trained shufflenet_v2_x0_5 on digits" in captured.out
    assert summarize(run).state == "finished"


def test_a_resumed_run_keeps_its_data_and_its_folder_to_itself(
    one: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / one.name
    shutil.copytree(one, run)
    state = checkpoint.load(run / "training_checkpoint_20.pt")
    state["data"]["fingerprint"] = "of other images"
    checkpoint.save(state, run / "training_checkpoint_20.pt")
    assert train.main(["cifar10", "--resume-from", str(run), "--num-epochs", "5"]) == 2
    assert "was trained on other images" in capsys.readouterr().err
    with lock_run(one), pytest.raises(UsageError, match=f"is in use by process {os.getpid()} on"):
        lock_run(one)


def test_digits_are_shifted_but_never_mirrored() -> None:
    image = torch.zeros(3, 32, 32, dtype=torch.uint8)
    image[:, 10:20, 8] = 255  # a line left of the middle
    columns = {int(train_transform(mirrored=False)(image)[0].sum(0).argmax()) for _ in range(200)}
    assert columns == set(range(4, 13))
    mirrored = {int(train_transform(mirrored=True)(image)[0].sum(0).argmax()) for _ in range(400)}
    assert mirrored == set(range(4, 13)) | set(range(19, 28))


def test_a_batch_is_normalised_as_a_whole_like_its_images_one_by_one() -> None:
    from torchvision.transforms import v2

    images = torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8)
    single = v2.Compose(
        [v2.ToDtype(torch.float32, scale=True), v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
    )
    batch, labels = collate([(image, label) for label, image in enumerate(images)])
    assert torch.allclose(batch, torch.stack([single(image) for image in images]), atol=1e-6)
    assert labels.tolist() == [0, 1, 2, 3, 4]


def failing_on_rank_1(output: str) -> str:
    """Rank 1 fails first, and rank 0 in consequence."""
    config = Cifar10Config(output_path=output)
    run = Run.open(config, data_name="digits", steps_per_epoch=5)
    try:
        with run:
            idist.barrier()
            if idist.get_rank() == 1:
                raise DataError("7.png cannot be decoded")
            idist.barrier()
            raise RuntimeError("connection closed by peer")
    except (DataError, RuntimeError):
        if idist.get_rank() == 1:
            idist.barrier()
    return str(run.folder)


def test_the_error_of_the_rank_that_failed_first_is_the_one_that_is_written_down(tmp_path: Path) -> None:
    folder, _ = run_workers(failing_on_rank_1, 2, str(tmp_path))
    summary = summarize(Path(folder))
    assert (summary.state, summary.reason) == ("failed", "rank 1: DataError: 7.png cannot be decoded")


def test_images_of_one_class_are_refused_before_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for split in ("train", "val"):
        (tmp_path / split / "a").mkdir(parents=True)
        Image.new("RGB", (32, 32)).save(tmp_path / split / "a" / "0.png")
    argv = ["cifar10", "--data", str(tmp_path), "--batch-size", "1", "--output-path", str(tmp_path / "out")]
    assert train.main(argv) == 2
    assert "are all of one class" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
