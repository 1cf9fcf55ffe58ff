"""`shoal train cifar10 --with-clearml`, offline: what ClearML would have sent lies in its session's folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

OPTIONS = [
    *("--model", "shufflenet_v2_x0_5", "--subset", "120", "--batch-size", "24", "--learning-rate", "0.05"),
    *("--validate-every", "1", "--log-every-iters", "1", "--num-workers", "0", "--with-clearml"),
    *("--backend", "gloo", "--nproc-per-node", "2", "--no-sync-bn"),
]


def train(folder: Path, *options: str) -> None:
    """A run with a home of its own; ClearML reads its variables when it is imported."""
    environment = os.environ | {
        "HOME": str(folder / "home"), "CLEARML_OFFLINE_MODE": "1", "CLEARML_CACHE_DIR": str(folder / "clearml"),
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    (folder / "home").mkdir(exist_ok=True)
    program = "import sys; from shoal.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "train", "cifar10", *OPTIONS, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_run_with_clearml_has_its_scalars_configuration_and_models_in_the_session(tmp_path):
    train(tmp_path, "--num-epochs", "1", "--output-path", "out")
    (session,) = (tmp_path / "clearml").rglob("offline-*.zip")
    with zipfile.ZipFile(session) as file:
        task = json.loads(file.read("task.json"))
        events = [event for line in file.read("metrics.jsonl").splitlines() for event in json.loads(line)]
    (folder,) = (tmp_path / "out").iterdir()
    assert (task["project_name"], task["name"]) == ("CIFAR10-Training", folder.name)
    assert 'model = "shufflenet_v2_x0_5"' in task["configuration"]["General"]["value"]
    assert task["hyperparams"]["General"]["batch_size"]["value"] == "24"
    models = {model["weights"]["target_filename"] for model in task["offline_output_models"]}
    assert models == {path.name for path in folder.glob("*.pt")}
    steps: dict[str, list[int]] = {}
    for event in events:
        if event["type"] == "training_stats_scalar":
            steps.setdefault(f"{event['metric']}/{event['variant']}", []).append(event["iter"])
    assert steps["training/batch loss"] == [1, 2, 3, 4, 5]
    assert steps["lr/group_0"] == [1, 2, 3, 4, 5]
    assert steps["val/Accuracy"] == steps["train/Loss"] == [1]  # Trap 44: an epoch's step after those of iterations
