"""``shoal train cifar10``: from the command line to the processes. User mistakes are found before any is started."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal import _forkserver, errors
from shoal._registry import nearest
from shoal.errors import ShoalError, UsageError, WorkerFailedError
from shoal.recipes.cifar10.config import Cifar10Config
from shoal.recipes.options import parse_command_line, read_yaml
from shoal.runs import CONFIG_FILE, find_checkpoint

if TYPE_CHECKING:
    from shoal.launch import Parallel
    from shoal.recipes.cifar10.sources import ImageData

__all__ = ["main", "prepare", "read_options"]

_PROG = "shoal train cifar10"

_FIXED_BY_THE_RUN = ("model", "subset", "batch_size", "seed")
"""Options that say which images are in which step, or what the weights are: a run that is resumed keeps them."""


def main(argv: Sequence[str]) -> int:
    """Run the command.

    Args:
        argv: the arguments after ``cifar10``.

    Returns:
        The exit code: 0, 1 for a failure in training, 2 for a mistake found before it, 128 and the signal's number
        after a signal.
    """
    try:
        config = read_options(argv)
        if config.nproc_per_node is not None:
            # The options are right as far as can be told without torch: two processes now import it at the same time.
            _forkserver.start(for_training=True, also=["shoal.recipes.cifar10.training"])
        parallel = prepare(config)
    except SystemExit as shown:  # tyro has printed the help or the mistake
        return shown.code if isinstance(shown.code, int) else 2
    except (ShoalError, OSError) as error:  # a path that may not be looked at, or is too long for one
        print(f"{_PROG}: {error}", file=sys.stderr)
        return 2
    return _run(config, parallel)


def read_options(argv: Sequence[str]) -> Cifar10Config:
    """The options from the command line, over those of ``--config``, over those of the run to resume, over defaults.

    ``resume_from``, where it is set, is the checkpoint's path.

    Raises:
        SystemExit: tyro has printed the help or a mistake.
        UsageError: another mistake in an option.
    """
    first = parse_command_line(Cifar10Config, argv, prog=_PROG, base=Cifar10Config())
    from_file = read_yaml(Cifar10Config, Path(first.config), without=["config"]) if first.config else {}
    second = parse_command_line(Cifar10Config, argv, prog=_PROG, base=Cifar10Config(**from_file))
    if second.resume_from is None:
        second.check()
        return second
    checkpoint = find_checkpoint(second.resume_from, Path(second.output_path))
    run = checkpoint.parent
    from_run = read_yaml(Cifar10Config, run / CONFIG_FILE) if (run / CONFIG_FILE).is_file() else {}
    config = parse_command_line(Cifar10Config, argv, prog=_PROG, base=Cifar10Config(**(from_run | from_file)))
    for name in _FIXED_BY_THE_RUN:
        asked, found = getattr(config, name), from_run.get(name, getattr(config, name))
        if asked != found:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{option} {asked} was asked for, but the run {run} was started with {found}; leave {option} out to "
                "go on with that run, or start a new one without --resume-from"
            )
    config = dataclasses.replace(config, resume_from=str(checkpoint))
    config.check()
    return config


def prepare(config: Cifar10Config) -> Parallel:
    """Check what needs torch and the data, download what has to be, and return what will start the processes.

    Raises:
        ShoalError: a mistake; the text says which.
    """
    import shoal.distributed as idist
    from shoal.recipes.cifar10.sources import open_data

    _check_model_name(config.model)
    _check_output(Path(config.output_path))
    parallel = idist.Parallel(backend=config.backend, nproc_per_node=config.nproc_per_node)
    images = open_data(config.data, data_path=config.data_path, num_images=config.subset)
    num_train = len(images.train)
    if config.batch_size > num_train:
        raise UsageError(
            f"--batch-size {config.batch_size} is more than the {num_train:,} training images of {images.name}, so "
            f"there is not one whole batch; give --batch-size {num_train} or less"
        )
    processes = 1 if config.sync_bn else config.nproc_per_node or 1
    _check_model(config.model, images, min(2, config.batch_size // processes))
    if config.resume_from is not None:
        _check_checkpoint(config, images, num_train // config.batch_size)
    return parallel


def _check_output(path: Path) -> None:
    """Whether the run's folder can be made there, as far as can be told without making it."""
    first = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not first.is_dir() or not os.access(first, os.W_OK | os.X_OK):
        found = "cannot be written" if first.is_dir() else "is a file"
        raise UsageError(f"--output-path {path} cannot be made: {first} {found}; name another folder")


def _check_model_name(name: str) -> None:
    from torchvision import models

    names = models.list_models(module=models)
    if name not in names:
        raise UsageError(
            f"--model {name!r} is no classification model of torchvision{nearest(name, names)}; "
            f"there are: {', '.join(names)}"
        )


def _check_model(name: str, images: ImageData, num_images: int) -> None:
    """Pass one batch through the model's shapes, on torch's meta device, where nothing is computed."""
    import torch
    from torchvision import models

    from shoal.recipes.cifar10.sources.base import IMAGE_SIZE

    try:
        with torch.device("meta"):
            output: Any = models.get_model(name, num_classes=len(images.classes))(
                torch.empty(num_images, 3, IMAGE_SIZE, IMAGE_SIZE)
            )
    except ValueError as error:
        raise UsageError(
            f"--model {name} cannot train on {num_images} images at a time ({error}); give a larger --batch-size"
        ) from error
    except Exception as error:
        raise UsageError(
            f"--model {name} does not take images of {IMAGE_SIZE}x{IMAGE_SIZE} pixels ({error}); choose another model"
        ) from error
    if not isinstance(output, torch.Tensor):
        raise UsageError(
            f"--model {name} returns {type(output).__name__} in training, not the scores of the classes alone; "
            "choose another model"
        )


def _check_checkpoint(config: Cifar10Config, images: ImageData, steps_per_epoch: int) -> None:
    from shoal.recipes.cifar10.sources import fingerprint
    from shoal.recipes.cifar10.training import load_checkpoint

    assert config.resume_from is not None
    content = load_checkpoint(config.resume_from)
    trainer = content["trainer"]
    if content.get("data", {}).get("fingerprint") not in (None, fingerprint(images)):
        raise UsageError(
            f"--resume-from {config.resume_from}: that run was trained on other images than --data {config.data} has "
            "now (their number, classes or labels differ); give the same data, or start a new run"
        )
    if trainer["epoch_length"] != steps_per_epoch:
        raise UsageError(
            f"--resume-from {config.resume_from}: that run has {trainer['epoch_length']} steps in an epoch, but with "
            f"--data {config.data} and --batch-size {config.batch_size} there are {steps_per_epoch}; give the same "
            "data and batch size"
        )
    if trainer["iteration"] > config.num_epochs * steps_per_epoch:
        raise UsageError(
            f"--num-epochs {config.num_epochs} was asked for, but {config.resume_from} is of epoch "
            f"{-(-trainer['iteration'] // steps_per_epoch)}; give --num-epochs that number or more"
        )


def _run(config: Cifar10Config, parallel: Parallel) -> int:
    from shoal.recipes.cifar10.training import training

    try:
        with parallel:
            outcomes = parallel.run(training, config)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except WorkerFailedError as error:
        first: Any = error.failures[0] if error.failures else None
        if first is not None and first.kind in errors.__all__:
            # Data or options that cannot be used: the text says all, and a traceback would only hide it.
            print(f"{_PROG}: rank {first.rank}: {_last_line(first.message)}", file=sys.stderr)
        else:
            print(f"{error.__cause__ or ''}\n{_PROG}: {error}", file=sys.stderr)
        return 1
    except ShoalError as error:
        print(f"{_PROG}: {_last_line(str(error))}", file=sys.stderr)
        return 1
    outcome = outcomes[0] if isinstance(outcomes, list) else outcomes
    return 0 if outcome.stopped_by is None else 128 + outcome.stopped_by


def _last_line(message: str) -> str:
    """What an error says; of one from a data loading process, which carries a whole traceback as its text, the end."""
    if "Original Traceback" not in message:
        return message
    *_, line = message.strip().splitlines()
    return line.removeprefix("shoal.errors.")
