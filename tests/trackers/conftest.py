"""Programs that use a service's library, each in a process of its own: they leave threads and variables behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def run_program(tmp_path) -> Callable[..., Any]:
    """Run a program in ``tmp_path``, without a network, and return what it gave to ``result(...)``."""

    def run(program: str, *arguments: str, fails: bool = False, **environment: str) -> Any:
        home = tmp_path / "home"
        home.mkdir(exist_ok=True)
        beginning = "import json\ndef result(value): print('RESULT' + json.dumps(value))\n"
        done = subprocess.run(
            [sys.executable, "-c", beginning + textwrap.dedent(program), *arguments],
            capture_output=True, text=True, timeout=150, cwd=tmp_path,
            env=os.environ | {
                "HOME": str(home), "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg", "MPLCONFIGDIR": str(home),
                "WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": str(tmp_path),
                "TRACKIO_DIR": str(tmp_path / "trackio"), "CLEARML_OFFLINE_MODE": "1",
                "CLEARML_CACHE_DIR": str(tmp_path / "clearml"), "MLFLOW_DISABLE_TELEMETRY": "true",
                "HF_HUB_OFFLINE": "1", **environment,
            },
        )  # fmt: skip
        if fails:
            assert done.returncode != 0
            return done.stderr
        assert done.returncode == 0, done.stdout + done.stderr
        return {
            "log": done.stderr,
            "out": done.stdout,
            **json.loads(done.stdout.rpartition("RESULT")[2].splitlines()[0]),
        }

    return run
