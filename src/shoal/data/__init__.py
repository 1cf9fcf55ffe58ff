"""Which sample goes to which rank at which step, and the loaders that bring it."""

from __future__ import annotations

from shoal.data.auto import auto_dataloader
from shoal.data.loader import ShardedDataLoader
from shoal.data.order import Order, UnknownLengthError
from shoal.data.own import ReplicatedBatchSampler, ReplicatedSampler
from shoal.data.permutation import permute
from shoal.data.plan import BatchPlan, ShardPlan
from shoal.data.sampler import ShardedSampler
from shoal.data.split import SplitBatchSampler, SplitSampler
from shoal.data.stream import StreamOrder

__all__ = [
    "BatchPlan",
    "Order",
    "ReplicatedBatchSampler",
    "ReplicatedSampler",
    "ShardPlan",
    "ShardedDataLoader",
    "ShardedSampler",
    "SplitBatchSampler",
    "SplitSampler",
    "StreamOrder",
    "UnknownLengthError",
    "auto_dataloader",
    "permute",
]
