"""The global random states of a process."""

from __future__ import annotations

import random

import numpy as np
import torch

__all__ = ["manual_seed"]

_NUMPY_SEEDS = 2**32


def manual_seed(seed: int) -> None:
    """Seed Python's, NumPy's and torch's global generators, on every device.

    The order of a loader made by ``auto_dataloader`` doesn't depend on it (see its ``seed``), so ranks may be seeded
    differently.

    Args:
        seed: any whole number; NumPy gets it modulo 2**32.
    """
    random.seed(seed)
    np.random.seed(seed % _NUMPY_SEEDS)
    torch.manual_seed(seed)
