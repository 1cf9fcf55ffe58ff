"""The program of the first tutorial's kind, run as its users run it: what it prints and leaves."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

_PROGRAM = Path(__file__).with_name("cifar_program.py")
_DEADLINE_S = 240


def _run(tmp_path, *command, **environment):
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        cwd=tmp_path,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


_TRAINING = [
    r"CIFAR10-Training INFO: Train on colours",
    r"CIFAR10-Training INFO: Output path: output-cifar10/resnet18_backend-{backend}-{world}_\d{{8}}-\d{{6}}",
    r"shoal.distributed.auto.auto_dataloader INFO: Use data loader kwargs for dataset '.+': \n\t"
    r"\{{'batch_size': {batch}, 'num_workers': {workers}, 'drop_last': True, 'sampler': .+, 'pin_memory': False",
    r"CIFAR10-Training INFO: Engine run starting with max_epochs=3\.",
    r"CIFAR10-Training INFO: Epoch\[1\] Complete\. Time taken: 00:\d\d:\d\d",
    r"Epoch 3 - Evaluation time \(seconds\): \d+\.\d\d - train metrics:\n \tAccuracy: [\d.]+\n\tLoss: [\d.]+",
    r"Epoch 3 - Evaluation time \(seconds\): \d+\.\d\d - val metrics:\n \tAccuracy: [\d.]+\n\tLoss: [\d.]+",
    r"CIFAR10-Training INFO: Epoch\[3\] Complete\. Time taken: 00:\d\d:\d\d",
    r"CIFAR10-Training INFO: Engine run complete\. Time taken: 00:\d\d:\d\d",
    r"shoal.distributed.launcher.Parallel INFO: End of run",
]


def _assert_log(log, patterns, **values):
    """Every line is there, in this order, and none of a second rank."""
    start = 0
    for pattern in patterns:
        found = re.compile(pattern.format(**values)).search(log, start)
        assert found, f"no {pattern.format(**values)!r} after:\n{log[:start][-2000:]}\nin:\n{log}"
        start = found.end()
    assert log.count("Train on colours") == 1


def _assert_files(tmp_path, backend, world):
    (folder,) = (tmp_path / "output-cifar10").glob(f"resnet18_backend-{backend}-{world}_*")
    names = sorted(path.name for path in folder.iterdir())
    assert any(name.startswith("events.out.tfevents") for name in names)
    assert sum(bool(re.fullmatch(r"best_model_3_val_accuracy=[\d.]+\.pt", name)) for name in names) == 1
    assert "training_checkpoint_8.pt" in names
    checkpoint = torch.load(folder / "training_checkpoint_8.pt", weights_only=True)
    assert set(checkpoint) >= {"trainer", "model", "optimizer", "lr_scheduler"}
    assert not any(key.startswith("module.") for key in checkpoint["model"])
    return folder


def test_alone(tmp_path):
    log = _run(tmp_path, _PROGRAM, "run")
    _assert_log(log, _TRAINING, backend="None", world=1, batch=32, workers=2)
    _assert_files(tmp_path, "None", 1)


def test_by_own_spawning(tmp_path):
    log = _run(tmp_path, _PROGRAM, "run", "--backend=gloo", "--nproc_per_node=2")
    launcher = [
        r"Parallel INFO: Initialized distributed launcher with backend: 'gloo'",
        r"Parallel INFO: - Parameters to spawn processes: \n\tnproc_per_node: 2\n\tnnodes: 1\n\tnode_rank: 0",
        r"Parallel INFO: Spawn function '<function training at 0x[0-9a-f]+>' in 2 processes",
    ]
    auto_model = r"shoal.distributed.auto.auto_model INFO: Apply torch DistributedDataParallel on model"
    middle = [*_TRAINING[:3], auto_model, *_TRAINING[3:]]
    _assert_log(log, [*launcher, *middle], backend="gloo", world=2, batch=16, workers=1)
    _assert_files(tmp_path, "gloo", 2)


@pytest.mark.parametrize("module", ["torch.distributed.run", "torch.distributed.launch"])
def test_under_torchrun(tmp_path, module):
    options = ["--nproc_per_node=2", *(["--use_env"] if module.endswith("launch") else [])]
    log = _run(
        tmp_path, "-u", "-m", module, *options, _PROGRAM, "run", "--backend=gloo", OMP_NUM_THREADS="1",
        PYTHONWARNINGS="ignore",
    )  # fmt: skip
    _assert_log(
        log,
        [r"Parallel INFO: Initialized processing group with backend: 'gloo'", *_TRAINING],
        backend="gloo",
        world=2,
        batch=16,
        workers=1,
    )
    _assert_files(tmp_path, "gloo", 2)


def test_resumed_with_mixed_precision(tmp_path):
    _run(tmp_path, _PROGRAM, "run")
    folder = _assert_files(tmp_path, "None", 1)
    log = _run(tmp_path, _PROGRAM, "run", "--with_amp", f"--resume_from={folder / 'training_checkpoint_8.pt'}")
    assert "Engine run resuming" in log or "Engine run starting" in log
    assert "Epoch[3] Complete" in log
    assert "Epoch[1] Complete" not in log
