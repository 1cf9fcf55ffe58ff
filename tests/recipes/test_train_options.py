"""Options of `shoal train cifar10`: defaults, the YAML file over them, the command line over both."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
import sklearn  # noqa: F401 - its import sets environment variables, which no test may do
import yaml

from shoal.cli import train
from shoal.errors import UsageError
from shoal.recipes.cifar10.command import read_options
from shoal.recipes.cifar10.config import Cifar10Config
from shoal.recipes.options import read_yaml

TUTORIAL_DEFAULTS = {
    "seed": 543,
    "data_path": "cifar10",
    "model": "resnet18",
    "batch_size": 512,
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "num_workers": 2,
    "num_epochs": 5,
    "learning_rate": 0.4,
    "num_warmup_epochs": 1,
    "validate_every": 3,
    "checkpoint_every": 200,
    "backend": None,
    "resume_from": None,
    "log_every_iters": 15,
    "nproc_per_node": None,
    "with_clearml": False,
    "with_amp": False,
}


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_the_tutorials_keys_are_options_with_its_defaults() -> None:
    config = Cifar10Config()
    assert {key: getattr(config, key) for key in TUTORIAL_DEFAULTS} == TUTORIAL_DEFAULTS
    assert Path(config.output_path) == Path("output-cifar10/")


def test_a_yaml_file_is_overridden_by_the_command_line(tmp_path: Path) -> None:
    file = write(tmp_path / "o.yaml", "batch_size: 64\nweight_decay: 5e-4\nwith_amp: true\nlearning_rate: 1\n")
    config = read_options(["--config", file, "--batch-size", "32", "--no-with-amp", "--num-epochs", "7"])
    assert (config.batch_size, config.with_amp, config.num_epochs) == (32, False, 7)
    assert (config.weight_decay, config.learning_rate) == (5e-4, 1.0)


def test_the_resolved_options_of_a_run_are_an_options_file(tmp_path: Path) -> None:
    config = Cifar10Config(batch_size=64, subset=100, backend="gloo", nproc_per_node=2)
    file = write(tmp_path / "config.yaml", yaml.safe_dump(config.resolved()))
    assert dataclasses.replace(read_options(["--config", file]), config=None) == config


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("btach_size: 64\n", ["unknown key 'btach_size'", "did you mean 'batch_size'?"]),
        ("batch-size: 64\n", ["unknown key 'batch-size'", "'batch_size'"]),
        ("batch_size: many\n", ["batch_size is 'many'", "an integer"]),
        ("batch_size: 6.5\n", ["batch_size is 6.5", "an integer"]),
        ("batch_size: true\n", ["batch_size is True", "an integer"]),
        ("batch_size: null\n", ["batch_size is None", "an integer"]),
        ("batch_size: -3\n", ["batch_size is -3", "at least 1"]),
        ("learning_rate: fast\n", ["learning_rate is 'fast'", "a number"]),
        ("learning_rate: .nan\n", ["learning_rate is nan", "finite"]),
        ("learning_rate: 0\n", ["learning_rate is 0", "greater than 0"]),
        ("with_amp: 1\n", ["with_amp is 1", "true or false"]),
        ("model: 18\n", ["model is 18", "a text"]),
        ("config: other.yaml\n", ["unknown key 'config'"]),
        ("- batch_size\n", ["holds a list", "batch_size: 512"]),
        ("batch_size: [\n", ["not valid YAML", "line 2"]),
    ],
)
def test_a_mistake_in_the_yaml_file_is_told_with_the_file_and_the_value(
    tmp_path: Path, text: str, expected: list[str]
) -> None:
    file = write(tmp_path / "options.yaml", text)
    with pytest.raises(UsageError) as caught:
        read_options(["--config", file])
    for part in [file, *expected]:
        assert part in str(caught.value)


def test_an_empty_yaml_file_sets_nothing_and_a_missing_one_is_an_error(tmp_path: Path) -> None:
    assert read_yaml(Cifar10Config, Path(write(tmp_path / "empty.yaml", "# nothing\n"))) == {}
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_options(["--config", str(tmp_path / "absent.yaml")])


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--btach-size", "64"], "--batch-size"),
        (["--batch-size", "many"], "--batch-size"),
        (["--batch-size", "-3"], "--batch-size is -3; it must be at least 1"),
        (["--subset", "0"], "--subset is 0; it must be at least 1"),
        (["--momentum", "1.5"], "--momentum is 1.5; it must be less than 1"),
        (["--batch-size", "3", "--nproc-per-node", "4", "--backend", "gloo"], "--batch-size 4 or more"),
        (["--num-epochs", "2", "--num-warmup-epochs", "3"], "--num-warmup-epochs is 3, more than the 2"),
        (["--model", "resnet81"], "did you mean 'resnet18'?"),
        (["--backend", "glo"], "'gloo'"),
        (["--data", "digts"], "did you mean 'digits'?"),
        (["--subset", "5000"], "1,442 training images"),
        (["--batch-size", "2000"], "--batch-size 2000"),
        (["--resume-from", "absent.pt"], "no such file or folder"),
        (["--resume-from", "latest", "--output-path", "nowhere"], "no run in nowhere"),
        (["--backend", "nccl", "--nproc-per-node", "99"], "'nccl'"),
    ],
)
def test_a_mistake_on_the_command_line_ends_with_code_2_before_anything_starts(
    argv: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert train.main(["cifar10", *argv]) == 2
    assert expected in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_recipe_is_told_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main(["cifar"]) == 2
    assert "did you mean 'cifar10'?" in capsys.readouterr().err


def test_help_is_shown_without_importing_torch() -> None:
    program = """
import sys
from shoal.cli import train
codes = [train.main(["--help"]), train.main(["cifar10", "--help"]), train.main(["cifar10", "--batch-size", "x"])]
heavy = {"torch", "torchvision", "sklearn", "matplotlib", "pyarrow"} & set(sys.modules)
print("codes", codes, "heavy", sorted(heavy))
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "codes [0, 0, 2] heavy []" in result.stdout
    assert "--num-epochs INT" in result.stdout
