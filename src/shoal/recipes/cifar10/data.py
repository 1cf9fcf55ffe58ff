"""From the images of a source to batches on which the model trains and is evaluated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms import v2

import shoal.distributed as idist
from shoal.data import ShardedDataLoader
from shoal.recipes.cifar10.config import Cifar10Config
from shoal.recipes.cifar10.sources import ImageData, ImageSplit
from shoal.recipes.cifar10.sources.base import IMAGE_SIZE

__all__ = [
    "Dataflow",
    "LabelledImages",
    "NumberedImages",
    "collate",
    "collate_numbered",
    "get_dataflow",
    "train_transform",
]

_PADDING = 4

# Means and standard deviations of the three colours, as the networks of torchvision are trained with.
_MEAN = torch.tensor((0.485, 0.456, 0.406)).view(3, 1, 1)
_STD = torch.tensor((0.229, 0.224, 0.225)).view(3, 1, 1)


class LabelledImages(Dataset[tuple[Tensor, int]]):
    """A split as torch's loaders want it: ``(image, label)``, the image ``(3, 32, 32)`` uint8.

    Args:
        split: the images.
        transform: applied to each image; it may draw from the global random state.
        name: shown in logs.
    """

    def __init__(self, split: ImageSplit, transform: Callable[[Tensor], Tensor] | None = None, name: str = "") -> None:
        self.split = split
        self.transform = transform
        self.name = name

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.split.read(index)
        if self.transform is not None:
            image = self.transform(image)
        return image, int(self.split.labels[index])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"


class NumberedImages(Dataset[tuple[Tensor, int, int]]):
    """Images that know their places: ``(image, label, index)``, so that a prediction can be traced to its image."""

    def __init__(self, images: LabelledImages) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int, int]:
        return (*self.images[index], index)

    def __repr__(self) -> str:
        return repr(self.images)


class Dataflow(NamedTuple):
    """The three loaders of a run.

    Attributes:
        train: shuffled and augmented, whole batches only.
        train_eval: all training images as they are, each once.
        val: all validation images as they are, each once, with their places.
    """

    train: ShardedDataLoader
    train_eval: ShardedDataLoader
    val: ShardedDataLoader


def train_transform(*, mirrored: bool) -> v2.Compose:
    """Shift by up to 4 pixels, and flip every second image from left to right where that keeps its class."""
    shift: list[torch.nn.Module] = [v2.Pad(_PADDING), v2.RandomCrop(IMAGE_SIZE)]
    return v2.Compose([*shift, v2.RandomHorizontalFlip()] if mirrored else shift)


def collate(samples: Sequence[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    """A batch: images ``(N, 3, 32, 32)`` float32, normalised; labels ``(N,)`` int64.

    Images stay bytes until here: one conversion a batch takes a quarter of the time of one an image.
    """
    images, labels = zip(*samples, strict=True)
    batch = torch.stack(images).to(torch.float32).div_(255)
    return batch.sub_(_MEAN).div_(_STD), torch.tensor(labels, dtype=torch.int64)


def collate_numbered(samples: Sequence[tuple[Tensor, int, int]]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """A batch of :class:`NumberedImages`: images as by :func:`collate`; ``(labels, places)``, each ``(N,)`` int64."""
    images, labels = collate([(image, label) for image, label, _ in samples])
    return images, (labels, torch.tensor([index for _, _, index in samples], dtype=torch.int64))


def get_dataflow(config: Cifar10Config, images: ImageData) -> Dataflow:
    """The loaders, each of which gives every process its part of the global batches."""
    common: dict[str, Any] = {"num_workers": config.num_workers}
    train = idist.auto_dataloader(
        LabelledImages(images.train, train_transform(mirrored=images.mirrored), f"{images.name}, train"),
        batch_size=config.batch_size,
        shuffle=True,
        drop_last=True,
        seed=config.seed,
        collate_fn=collate,
        **common,
    )
    train_eval = idist.auto_dataloader(
        LabelledImages(images.train, name=f"{images.name}, train as is"),
        batch_size=2 * config.batch_size,
        collate_fn=collate,
        **common,
    )
    val = idist.auto_dataloader(
        NumberedImages(LabelledImages(images.val, name=f"{images.name}, val")),
        batch_size=2 * config.batch_size,
        collate_fn=collate_numbered,
        **common,
    )
    return Dataflow(train, train_eval, val)
