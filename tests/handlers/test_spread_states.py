"""States of which each rank holds a part: gathered from all, or refused; never a part for the whole."""

from __future__ import annotations

import pytest
import torch

from shoal.errors import WorkerFailedError
from shoal.testing import run_workers


def _train(folder, num_epochs, resume=None):
    """Train by a ZeroRedundancyOptimizer, best scores by rank differing; returns what there is in the end."""
    from contextlib import suppress

    import torch
    from torch import nn
    from torch.distributed.optim import ZeroRedundancyOptimizer

    from shoal import runtime
    from shoal.engine import Engine, Events
    from shoal.errors import CheckpointError
    from shoal.handlers import Checkpoint
    from shoal.training import auto_model

    rank = runtime.current().rank
    torch.manual_seed(0)
    model = auto_model(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.5 if resume else 0.1)

    def step(engine, batch):
        optimizer.zero_grad()
        model(torch.full((2, 3), float(batch))).sum().backward()  # the same on all, at any number of them
        optimizer.step()

    trainer = Engine(step)
    to_save = {"model": model, "optimizer": optimizer, "trainer": trainer}
    newest = Checkpoint(to_save, folder, n_saved=None)
    # Rank 1 alone would not find the second good enough, and not come to where the others wait.
    scores = [[1.0, 2.0, 3.0, 4.0], [9.0, 8.0, 7.0, 6.0], [0.0] * 4][rank]
    best = Checkpoint(to_save, folder, "best", lambda engine: scores[engine.state.epoch - 1])
    trainer.add_event_handler(Events.EPOCH_COMPLETED, newest)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, best)
    if resume:
        Checkpoint.load_objects(to_save, resume)
    trainer.run(range(3), max_epochs=num_epochs)
    kept = best.state_dict()

    @trainer.on(Events.EPOCH_STARTED)
    def fail(engine):
        raise KeyError

    failing = Checkpoint(to_save, folder, "failing")
    texts = []

    @trainer.on(Events.EXCEPTION_RAISED)
    def take(engine, error):
        if runtime.current().world_size > 1:
            try:
                failing(engine)
            except CheckpointError as refused:
                texts.append(str(refused))

    with suppress(KeyError):
        trainer.run(range(3), max_epochs=num_epochs + 1)
    return kept, texts, optimizer.param_groups[0]["lr"], [parameter.tolist() for parameter in model.parameters()]


def test_an_optimizer_spread_over_ranks_is_saved_whole_and_loaded_by_any_number(tmp_path):
    whole, part = tmp_path / "whole", tmp_path / "part"
    first, second = run_workers(_train, 2, str(whole), 4)
    assert first == second
    kept, texts, lr, weights = first
    assert [item["score"] for item in kept["saved"]] == [4.0] and lr == 0.1
    assert "'optimizer', whose state is spread over the ranks, while an exception" in texts[0]
    state = torch.load(whole / "checkpoint_4.pt", weights_only=True)["optimizer"]  # Trap 40
    assert sorted(state["state"]) == [0, 1, 2, 3]

    run_workers(_train, 2, str(part), 2)
    for nprocs in (1, 2, 3):
        results = run_workers(_train, nprocs, str(tmp_path / str(nprocs)), 4, str(part / "checkpoint_2.pt"))
        for _, _, resumed_lr, resumed in results:
            assert resumed_lr == 0.1
            for one, other in zip(resumed, weights, strict=True):
                torch.testing.assert_close(torch.tensor(one), torch.tensor(other))


def test_a_part_of_a_model_is_never_saved_for_the_whole(tmp_path):
    def work(folder):
        from torch import nn
        from torch.distributed.fsdp import fully_shard

        from shoal import runtime
        from shoal.engine import Engine
        from shoal.handlers import Checkpoint

        runtime.barrier()
        model = nn.Linear(4, 4)
        fully_shard(model)
        Checkpoint({"model": model}, folder)(Engine(lambda engine, batch: None))
        runtime.barrier()

    with pytest.raises(WorkerFailedError, match="DTensor there, of which this rank holds a part"):
        run_workers(work, 2, str(tmp_path / "never"), timeout_s=60)
    assert list((tmp_path / "never").iterdir()) == []
