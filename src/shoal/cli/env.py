"""``shoal env``: what a bug report needs."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import sys

from shoal._version import __version__

__all__ = ["main"]

_PACKAGES = (
    "torch",
    "torchvision",
    "numpy",
    "cloudpickle",
    "tqdm",
    *("tensorboard", "clearml", "mlflow", "wandb", "trackio"),
    *("torchmetrics", "scikit-learn", "pyarrow"),
    *("matplotlib", "plotly", "pillow", "ipywidgets"),
    *("tyro", "pyyaml"),
)
_VARIABLES = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS"),
    *("CUDA_VISIBLE_DEVICES", "NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TORCH_DISTRIBUTED_DEBUG"),
    *("SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", "SHOAL_BACKEND"),
)


def main(argv: list[str]) -> int:
    """Print versions, devices, backends and the variables that matter, one a line."""
    argparse.ArgumentParser(prog="shoal env", description="Print what a bug report needs.").parse_args(argv)
    for name, value in [*_software(), *_hardware(), *_variables()]:
        print(f"{name}: {value}")
    return 0


def _software() -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = [
        ("shoal", __version__),
        ("python", f"{platform.python_version()} ({sys.executable})"),
        ("platform", platform.platform()),
    ]
    for package in _PACKAGES:
        try:
            rows.append((package, importlib.metadata.version(package)))
        except importlib.metadata.PackageNotFoundError:
            rows.append((package, "not installed"))
    return rows


def _hardware() -> list[tuple[str, object]]:
    import torch

    from shoal import runtime

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    rows: list[tuple[str, object]] = [
        ("cpu cores", cores),
        ("cpu capability", torch.backends.cpu.get_cpu_capability()),
        ("threads of torch", torch.get_num_threads()),
        ("cuda of torch", torch.version.cuda),
        ("gpus", torch.cuda.device_count()),
    ]
    rows += [(f"gpu {index}", torch.cuda.get_device_name(index)) for index in range(torch.cuda.device_count())]
    rows += [
        ("usable backends", ", ".join(runtime.available_backends())),
        ("default backend of several processes", runtime.default_backend()),
        ("placed by", runtime.placement().source),
    ]
    return rows


def _variables() -> list[tuple[str, object]]:
    return [(name, os.environ[name]) for name in _VARIABLES if name in os.environ]
