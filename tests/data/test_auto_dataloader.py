from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Subset,
    WeightedRandomSampler,
)

from shoal import runtime
from shoal.data import ShardedSampler, SplitSampler, auto_dataloader
from shoal.errors import DataError, UsageError
from shoal.testing import run_workers

LOGGER = "shoal.distributed.auto.auto_dataloader"


class Images(Dataset[Any]):
    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.zeros(1, 2, 2), index

    def __repr__(self) -> str:
        return f"Dataset Images\n    Number of datapoints: {self.num_samples}"


class Stream(IterableDataset[Any]):
    def __init__(self, samples: Any, **says: int) -> None:
        self.samples = samples
        vars(self).update(says)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.samples)


class BadSampler:
    def __iter__(self) -> Iterator[int]:
        yield 0
        raise OSError("the list of indices is gone")

    def __len__(self) -> int:
        return 5


class Shown(logging.Handler):
    """Collects what the loader says."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.levelname, record.getMessage()))


@pytest.fixture
def shown() -> Iterator[Shown]:
    handler, logger = Shown(), logging.getLogger(LOGGER)
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def labels(loader: Any) -> list[list[int]]:
    return [(batch[1] if isinstance(batch, list) else batch).tolist() for batch in loader]


def failure(make: Any) -> str:
    try:
        list(make())
    except (UsageError, DataError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


# --- One process -----------------------------------------------------------------------------------------------------


def test_it_logs_the_arguments_that_it_uses(shown: Shown) -> None:
    loader = auto_dataloader(Images(100), batch_size=32, num_workers=2, shuffle=True, drop_last=True)
    auto_dataloader(Images(100), batch_size=64)
    auto_dataloader([1, 2])
    assert [level for level, _ in shown.lines] == ["INFO"] * 3
    first, second, third = (line for _, line in shown.lines)
    assert first.startswith(
        "Use data loader kwargs for dataset 'Dataset Images': \n\t{'batch_size': 32, 'num_workers': 2"
    )
    assert "'drop_last': True, 'sampler': ShardedSampler(" in first
    assert first.endswith("'pin_memory': False}")
    assert "'drop_last'" not in second
    assert "'Dataset list'" in third
    assert isinstance(loader.sampler, ShardedSampler)


def test_the_order_depends_on_the_seed_and_not_on_the_global_state() -> None:
    torch.manual_seed(1)
    first = labels(auto_dataloader(Images(30), batch_size=7, shuffle=True))
    torch.manual_seed(2)
    assert labels(auto_dataloader(Images(30), batch_size=7, shuffle=True)) == first
    assert labels(auto_dataloader(Images(30), batch_size=7, shuffle=True, seed=1)) != first
    assert labels(auto_dataloader(Images(5), batch_size=2)) == [[0, 1], [2, 3], [4]]
    assert labels(auto_dataloader(Images(5), batch_size=2, shuffle=False)) == [[0, 1], [2, 3], [4]]


def test_a_generator_that_has_no_effect_on_the_order_is_said(shown: Shown) -> None:
    auto_dataloader(Images(4), shuffle=True, generator=torch.Generator())
    assert any(level == "WARNING" and "generator=" in line for level, line in shown.lines)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": -3}, "batch_size=-3"),
        ({"batch_size": "8"}, "batch_size='8'"),
        ({"batch_size": 2.0}, "batch_size=2.0"),
        ({"batch_size": None}, "batch_size=None"),
        ({"batch_size": True}, "batch_size=True"),
        ({"num_workers": -1}, "num_workers=-1"),
        ({"sampler": range(4), "shuffle": True}, "sampler= makes the order"),
        ({"batch_sampler": [[0]], "batch_size": 4}, "batch_sampler= makes the batches, and batch_size="),
        ({"batch_sampler": [[0]], "sampler": range(4)}, "batch_sampler= makes the batches, and sampler="),
        ({"batch_sampler": [[0]], "shuffle": True}, "batch_sampler= makes the batches, and shuffle="),
        ({"batch_sampler": [[0]], "drop_last": True}, "batch_sampler= makes the batches, and drop_last="),
        ({"persistent_workers": True}, "needs worker processes"),
        ({"seed": "1"}, "seed='1'"),
        ({"num_worker": 2}, "no option 'num_worker' .did you mean 'num_workers'"),
        ({"sampler": ShardedSampler(4, batch_size=2), "batch_size": 4}, "give them to the sampler alone"),
    ],
)
def test_arguments_that_cannot_be_used_together_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        auto_dataloader(Images(4), **options)


@pytest.mark.parametrize("options", [{"shuffle": True}, {"sampler": range(4)}, {"batch_sampler": [[0]]}])
def test_a_stream_takes_no_order(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="iterable data set"):
        auto_dataloader(Stream(range(4)), **options)


def test_own_samplers_batch_samplers_and_streams_work_alone() -> None:
    assert labels(auto_dataloader(Images(9), sampler=range(1, 8), batch_size=4)) == [[1, 2, 3, 4], [5, 6, 7]]
    assert labels(auto_dataloader(Images(9), batch_sampler=[[1, 2], [8]])) == [[1, 2], [8]]
    assert labels(auto_dataloader(Stream(range(5)), batch_size=2)) == [[0, 1], [2, 3], [4]]
    assert labels(auto_dataloader(Images(9), sampler=ShardedSampler(9, batch_size=5))) == [
        [0, 1, 2, 3, 4],
        [5, 6, 7, 8],
    ]
    sampler = DistributedSampler(Images(4), num_replicas=1, rank=0, shuffle=False)
    assert labels(auto_dataloader(Images(4), sampler=sampler, batch_size=3)) == [[0, 1, 2], [3]]


def test_what_is_made_for_another_world_is_refused() -> None:
    sampler = DistributedSampler(Images(8), num_replicas=2, rank=1)
    with pytest.raises(UsageError, match="part 1 of 2, and this is rank 0 of 1"):
        auto_dataloader(Images(8), sampler=sampler)
    with pytest.raises(UsageError, match="part 1 of 2"):
        auto_dataloader(Images(8), batch_sampler=BatchSampler(sampler, 2, drop_last=False))
    with pytest.raises(UsageError, match="part 3 of 4"):
        auto_dataloader(Stream([], rank=3, world_size=4))


def test_every_worker_would_read_a_whole_stream_so_one_is_used_and_said(shown: Shown) -> None:
    loader = auto_dataloader(Stream(range(4)), batch_size=2, num_workers=3, sharded=False)
    assert loader.num_workers == 1
    assert any(level == "WARNING" and "num_workers=3" in line for level, line in shown.lines)


# --- Several ranks ---------------------------------------------------------------------------------------------------


def test_two_ranks_share_every_kind_of_data_exactly() -> None:
    def job() -> dict[str, Any]:
        rank = runtime.current().rank
        torch.manual_seed(100 + rank)
        random.seed(100 + rank)
        np.random.seed(100 + rank)
        found: dict[str, Any] = {}
        shown = Shown()
        logging.getLogger(LOGGER).addHandler(shown)

        def load(name: str, dataset: Any, **options: Any) -> None:
            loader = auto_dataloader(dataset, **options)
            found[name] = labels(loader)
            found[name + " shares"] = [tuple(loader.share(step)) for step in range(len(found[name]))]

        load("shuffled", Images(23), batch_size=5, shuffle=True)
        found["workers"] = auto_dataloader(Images(3), num_workers=3, batch_size=3).num_workers
        load("in workers", Images(23), batch_size=5, shuffle=True, num_workers=3, persistent_workers=True)
        load("plain", Images(7), batch_size=5)
        load("one", Images(3), batch_size=1)
        load("none", Images(0), batch_size=4)
        load("weighted", Images(23), batch_size=5, sampler=WeightedRandomSampler([1.0] * 23, 11))
        own = torch.Generator().manual_seed(100 + rank)
        load("own generator", Images(23), batch_size=5, sampler=RandomSampler(Images(23), generator=own))
        load("endless", Images(23), batch_size=5, sampler=range(23))
        load("batches", Images(23), batch_sampler=BatchSampler(RandomSampler(Images(23)), 5, drop_last=False))
        distributed = DistributedSampler(Images(7), shuffle=False)
        load("distributed", Images(7), batch_size=4, sampler=distributed)
        load("declared", Subset(Images(7), range(rank, 7, 2)), batch_size=4, sharded=True)
        load("one empty shard", Subset(Images(7), range(3 * rank, 3)), batch_size=2, sharded=True)
        load("whole stream", Stream(range(7)), batch_size=5, sharded=False)
        load("shards", Stream(range(10 * rank, 10 * rank + 3 + 4 * rank)), batch_size=4, sharded=True)
        load("shards in workers", Stream(range(3 + 4 * rank)), batch_size=4, sharded=True, num_workers=2)
        load("detected", Stream(range(rank * 10, rank * 10 + 2), rank=rank, world_size=2), batch_size=2)
        load("full steps", Stream(range(3 + 4 * rank)), batch_size=4, sharded=True, drop_last=True)
        load("an empty stream", Stream([(torch.ones(3), 1)] * 2 * rank), batch_size=2, sharded=True)
        load("own batches", Images(9), batch_sampler=[[0, 1], [2]][: 2 - rank], sharded=True)
        broken = itertools.chain(range(3), map(int, ["x"])) if rank else range(3)
        found["error"] = failure(lambda: auto_dataloader(Stream(broken), batch_size=2, sharded=True))
        found["sampler error"] = failure(lambda: auto_dataloader(Images(5), sampler=BadSampler(), batch_size=2))
        found["undeclared"] = failure(lambda: auto_dataloader(Stream(range(3))))
        found["other rank"] = failure(
            lambda: auto_dataloader(Images(3), sampler=DistributedSampler(Images(3), 2, 0), batch_size=2)
        )
        found["contradiction"] = failure(lambda: auto_dataloader(Images(3), sampler=distributed, sharded=False))
        found["draws"] = (float(torch.rand(())), random.random(), float(np.random.rand()))
        found["said"] = shown.lines
        return found

    ranks = run_workers(job, 2)

    def whole(name: str) -> list[list[int]]:
        return [a + b for a, b in zip(ranks[0][name], ranks[1][name], strict=True)]

    alone = labels(auto_dataloader(Images(23), batch_size=5, shuffle=True))
    assert whole("shuffled") == whole("in workers") == alone
    assert ranks[0]["shuffled shares"] == [(3, 5, 2)] * 4 + [(2, 3, 1)]
    assert ranks[1]["shuffled shares"] == [(2, 5, 2)] * 4 + [(1, 3, 1)]
    assert ranks[0]["workers"] == ranks[1]["workers"] == 2  # three a node, rounded up for two ranks
    assert whole("plain") == [[0, 1, 2, 3, 4], [5, 6]]
    assert [ranks[r]["one"] for r in (0, 1)] == [[[0], [1], [2]], [[], [], []]]
    assert whole("none") == []
    assert whole("weighted") == labels(
        auto_dataloader(Images(23), batch_size=5, sampler=WeightedRandomSampler([1.0] * 23, 11))
    )
    assert sorted(itertools.chain(*whole("own generator"))) == list(range(23))
    assert [len(batch) for batch in whole("own generator")] == [5, 5, 5, 5, 3]
    assert sorted(itertools.chain(*whole("batches"))) == list(range(23))
    assert ranks[1]["batches shares"] == [(2, 5, 2)] * 4 + [(1, 3, 1)]
    assert [ranks[r]["distributed"] for r in (0, 1)] == [[[0, 2], [4, 6]], [[1, 3], [5, 0]]]
    assert [ranks[r]["declared"] for r in (0, 1)] == [[[0, 2], [4, 6]], [[1, 3], [5]]]
    assert ranks[0]["declared shares"] == [(2, 4, 2), (2, 3, 1)]
    assert [ranks[r]["one empty shard"] for r in (0, 1)] == [[[0], [1], [2]], [[], [], []]]
    assert ranks[1]["one empty shard shares"] == [(0, 1, 0)] * 3
    assert whole("whole stream") == [[0, 1, 2, 3, 4], [5, 6]]
    assert ranks[0]["whole stream shares"] == [(3, 5, 2), (1, 2, 1)]
    assert [ranks[r]["shards"] for r in (0, 1)] == [[[0, 1], [2], [], []], [[10, 11], [12, 13], [14, 15], [16]]]
    assert ranks[0]["shards shares"] == [(2, 4, 2), (1, 3, 1), (0, 2, 0), (0, 1, 0)]
    assert whole("shards in workers") == [[0, 1, 0, 1], [2, 2, 3], [4, 5], [6]]
    assert whole("detected") == [[0, 10], [1, 11]]
    assert whole("full steps") == [[0, 1, 0, 1]]
    assert [ranks[r]["an empty stream"] for r in (0, 1)] == [[[], []], [[1], [1]]]
    assert [ranks[r]["own batches"] for r in (0, 1)] == [[[0, 1], [2]], [[0, 1], []]]
    assert ranks[0]["error"].startswith("DataError: rank 1's data failed")
    assert "after 3 samples" in ranks[1]["error"]
    assert "the sampler BadSampler raised OSError: the list of indices is gone" in ranks[0]["sampler error"]
    assert "rank 0, which draws for all ranks, failed: the sampler BadSampler" in ranks[1]["sampler error"]
    assert all("sharded=True" in found["undeclared"] for found in ranks)
    assert [found["other rank"] == "no error" for found in ranks] == [True, False]
    assert all("sharded=False was given" in found["contradiction"] for found in ranks)
    assert ranks[0]["draws"] != ranks[1]["draws"]
    for rank, found in enumerate(ranks):
        torch.manual_seed(100 + rank)
        random.seed(100 + rank)
        np.random.seed(100 + rank)
        assert found["draws"] == (float(torch.rand(())), random.random(), float(np.random.rand()))
    said = [line for level, line in ranks[0]["said"] if level == "WARNING"]
    assert any("repeats 1 samples" in line for line in said)
    assert any("leaves 1 of them without a sample" in line for line in said)
    assert not any(level in ("INFO", "WARNING") for level, _ in ranks[1]["said"])


def test_unpadded_shards_are_told_from_padded_ones() -> None:
    loader = auto_dataloader(Images(4), sampler=range(4), sharded=True, batch_size=3)
    assert isinstance(loader.sampler, SplitSampler)
    assert labels(loader) == [[0, 1, 2], [3]]
