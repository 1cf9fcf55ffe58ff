"""The options of ``shoal train cifar10``. Imports neither torch nor torchvision: help must be quick."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from shoal.errors import UsageError
from shoal.recipes.options import Bounds, check_options

__all__ = ["Cifar10Config"]


@dataclass(kw_only=True)
class Cifar10Config:
    """Train an image classifier on CIFAR-10, on handwritten digits, or on a folder of your own images.

    Each run leaves a folder with its configuration, metrics, checkpoints, best models and curves.
    """

    data: str = "digits"
    """`digits` (offline), `cifar10` (downloaded), or a folder of cifar-10-batches-py, class folders or parquet."""

    data_path: str = "cifar10"
    """Folder that --data cifar10 is downloaded to, or found in."""

    subset: Annotated[int | None, Bounds(1)] = None
    """Use only so many training images, evenly from all classes, and as large a part of the validation images."""

    output_path: str = "output-cifar10"
    """Folder that the run's own folder is made in."""

    model: str = "resnet18"
    """A classification model of torchvision, by name; it is not pretrained."""

    batch_size: Annotated[int, Bounds(1)] = 512
    """Images of one training step, over all processes together; evaluation takes twice as many."""

    num_epochs: Annotated[int, Bounds(1)] = 5
    """Passes over the training images."""

    learning_rate: Annotated[float, Bounds(above=0)] = 0.4
    """Highest learning rate: reached at the end of the warm-up, from where it falls to 0."""

    num_warmup_epochs: Annotated[int, Bounds(0)] = 1
    """Epochs in which the learning rate rises from 0."""

    momentum: Annotated[float, Bounds(above=0)] = 0.9
    """Nesterov momentum of SGD."""

    weight_decay: Annotated[float, Bounds(0)] = 1e-4
    """Weight decay (L2 penalty) of SGD."""

    validate_every: Annotated[int, Bounds(1)] = 3
    """Evaluate after every so many epochs, and at the end."""

    checkpoint_every: Annotated[int, Bounds(1)] = 200
    """Save a checkpoint to resume from after every so many steps, and at the end."""

    log_every_iters: Annotated[int, Bounds(1)] = 15
    """Record loss, accuracy and learning rate after every so many steps."""

    resume_from: str | None = None
    """Go on with a run, in its folder and with its options: a checkpoint file, a run folder, or `latest`."""

    seed: Annotated[int, Bounds(0, maximum=2**62)] = 543
    """Fixes the initial weights, the order of the images and the augmentation."""

    backend: str | None = None
    """How processes talk: gloo, nccl, ... Left out: one process, or with --nproc-per-node what the hardware has."""

    nproc_per_node: Annotated[int | None, Bounds(1)] = None
    """Processes to start on this machine."""

    num_workers: Annotated[int, Bounds(0)] = 2
    """Data loading processes on this machine, over all processes together."""

    sync_bn: bool = True
    """Batch norm over the global batch instead of each process's part, so that more processes change nothing."""

    with_amp: bool = False
    """Automatic mixed precision."""

    with_clearml: bool = False
    """Keep the run and its checkpoints on a ClearML server."""

    config: str | None = None
    """A YAML file of options (batch_size: 256, one a line). The command line overrides it."""

    def check(self) -> None:
        """Check what can be checked without torch and without looking at the data.

        Raises:
            UsageError: the first option that cannot work, with its value.
        """
        check_options(self)
        if self.num_warmup_epochs > self.num_epochs:
            raise UsageError(
                f"--num-warmup-epochs is {self.num_warmup_epochs}, more than the {self.num_epochs} of --num-epochs; "
                "lower the one or raise the other"
            )
        if self.momentum >= 1:
            raise UsageError(f"--momentum is {self.momentum}; it must be less than 1")
        processes = self.nproc_per_node or 1
        if self.batch_size < processes:
            raise UsageError(
                f"--batch-size {self.batch_size} is the batch of all {processes} processes together; "
                f"give each at least one image: --batch-size {processes} or more"
            )

    def resolved(self) -> dict[str, Any]:
        """The options as a run folder's ``config.yaml`` holds them, which ``--config`` reads again for another run."""
        values = asdict(self)
        del values["config"]
        values["resume_from"] = None
        for name in ("data", "data_path"):  # the run may go on from another folder
            path = Path(values[name]).expanduser()
            if path.is_dir():
                values[name] = str(path.resolve())
        return values
