"""``--data digits``: the handwritten digits that scikit-learn ships. Real, small, and there without a network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from shoal.recipes.cifar10.sources.base import IMAGE_SIZE, ImageData, array_split

__all__ = ["load"]

_EVERY = 5
"""Every fifth image of each class is for validation: a fixed, stratified split without a random generator."""

_BRIGHTEST = 16
"""The digits' pixels count the dots that are set in a 4x4 block: 0 to 16."""


def load(_data_path: Path) -> ImageData:
    """1,797 digits of 8x8 pixels, enlarged to 32x32 and repeated over the three colours.

    From the "Optical Recognition of Handwritten Digits" set of E. Alpaydin and C. Kaynak (UCI, 1998).

    Args:
        _data_path: not used; the digits are part of scikit-learn.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    labels = np.asarray(digits.target, dtype=np.int64)
    small = torch.from_numpy(np.asarray(digits.images, dtype=np.float32))[:, None] / _BRIGHTEST
    large = torch.nn.functional.interpolate(small, size=IMAGE_SIZE, mode="bilinear", align_corners=False)
    images = (large * 255).round().to(torch.uint8).expand(-1, 3, -1, -1).contiguous().numpy()

    is_val = np.zeros(len(labels), dtype=bool)
    for label in range(10):
        is_val[np.flatnonzero(labels == label)[_EVERY - 1 :: _EVERY]] = True
    return ImageData(
        name="digits",
        train=array_split(images[~is_val], labels[~is_val]),
        val=array_split(images[is_val], labels[is_val]),
        classes=tuple("0123456789"),
        mirrored=False,
    )
