"""The benchmark's own environment: Shoal from this checkout beside the libraries that it is measured against."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

__all__ = ["PEERS", "clean_environment", "ensure_environment", "versions"]

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv-bench"
PEERS = ("pytorch-ignite", "accelerate", "lightning")
_STAMP = ENVIRONMENT / "installed.json"
_VERSIONS = """
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        found[name] = None
print(json.dumps(found))
"""


def ensure_environment() -> Path:
    """Make ``.venv-bench`` unless it is there and up to date; return its Python.

    All sides run on one torch, the release that ``.venv`` has where there is such an environment.

    Raises:
        SystemExit: pip failed; its output is on the terminal.
    """
    python = ENVIRONMENT / "bin" / "python"
    torch = _torch_requirement()
    recipe = _recipe(torch)
    made_from = json.loads(_STAMP.read_text(encoding="utf-8")) if _STAMP.exists() else {}
    if made_from == recipe and python.exists():
        return python
    print(f"bench: installing shoal, {', '.join(PEERS)} into {ENVIRONMENT.name}", file=sys.stderr, flush=True)
    if made_from.get("python") != recipe["python"] or not python.exists():
        venv.EnvBuilder(with_pip=True, clear=True).create(ENVIRONMENT)
    (ENVIRONMENT / ".gitignore").write_text("*\n", encoding="utf-8")
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    finished = subprocess.run([*command, torch, "--editable", str(ROOT), *PEERS], check=False)
    if finished.returncode != 0:
        raise SystemExit(f"bench: pip ended with exit code {finished.returncode}; its output is above")
    _STAMP.write_text(json.dumps(recipe, indent=1) + "\n", encoding="utf-8")
    return python


def versions(python: Path, names: tuple[str, ...]) -> dict[str, str | None]:
    """The installed releases by distribution name; None for what that Python has not."""
    finished = subprocess.run([str(python), "-c", _VERSIONS, *names], check=True, capture_output=True, text=True)
    found: dict[str, str | None] = json.loads(finished.stdout)
    return found


def clean_environment(home: Path) -> dict[str, str]:
    """The variables for a timed command: this process's, less those of another launch or a user's configuration.

    Args:
        home: an empty folder in which the peers look for their settings.
    """
    dropped = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in dropped and not name.startswith(("TORCHELASTIC_", "ACCELERATE_", "SHOAL_", "SLURM_"))
    }
    kept.pop("OMP_NUM_THREADS", None)
    kept["PATH"] = os.pathsep.join([str(ENVIRONMENT / "bin"), kept.get("PATH", "")])
    kept["HF_HOME"] = str(home)
    return kept


def _torch_requirement() -> str:
    """``torch==X`` for the release in ``.venv``, else plain ``torch``."""
    python = ROOT / ".venv" / "bin" / "python"
    release = versions(python, ("torch",))["torch"] if python.exists() else None
    return f"torch=={release.partition('+')[0]}" if release else "torch"


def _recipe(torch: str) -> dict[str, str]:
    """What the environment was made from; a change of it means: install again."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {
        "torch": torch,
        "peers": " ".join(PEERS),
        "dependencies": " ".join(project["dependencies"]),
        "scripts": " ".join(f"{name}={target}" for name, target in project["scripts"].items()),
        "python": sys.version.split()[0],
    }
