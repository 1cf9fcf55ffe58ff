"""Handlers that stop, average and save on several ranks: the ranks stop together, whatever each of them sees."""

from __future__ import annotations

import pytest

from shoal.errors import WorkerFailedError
from shoal.testing import run_workers


def test_ranks_stop_together_and_save_where_they_should(tmp_path):
    def work(folder):
        import logging
        import math
        from pathlib import Path

        import torch
        from torch import nn

        from shoal import runtime
        from shoal.engine import Engine, Events
        from shoal.errors import UsageError
        from shoal.handlers import Checkpoint, EarlyStopping, EMAHandler, ModelCheckpoint, TimeLimit
        from shoal.training import auto_model

        rank, folder, seen = runtime.current().rank, Path(folder), {}
        messages = []
        handler = logging.Handler()
        handler.emit = lambda record: messages.append(record.getMessage())
        logging.getLogger("shoal").addHandler(handler)

        def together(engine, batch):
            runtime.all_reduce(1.0)  # what a rank that goes on would wait in

        # The ranks have different scores: all go by that of rank 0, and so stop in the same epoch.
        trainer, evaluator = Engine(together), Engine(together)
        scores = [[1.0, 2.0, 2.0, math.nan, 3.0], [9.0, 8.0, 9.5, 9.9, 10.0]][rank]
        stopping = EarlyStopping(2, lambda engine: scores[trainer.state.epoch - 1], trainer)
        stopping.attach(evaluator, reset_engine=trainer)
        trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda engine: evaluator.run(range(2)))
        trainer.run(range(3), max_epochs=5)
        seen["epoch"] = trainer.state.epoch
        seen["state"] = stopping.state_dict()
        seen["said"] = sum("the ranks have different scores, [1.0, 9.0]" in message for message in messages)

        # One rank's time is over: both stop at the next agreement, and at the end of an epoch at the latest.
        for name, options, data in (("of_20", {}, range(100)), ("of_7", {"agree_every": 7}, range(100)),
                                    ("of_epoch", {"agree_every": 1000}, range(5))):  # fmt: skip
            trainer = Engine(together)
            limit = TimeLimit(1000, **options)
            trainer.add_event_handler(Events.ITERATION_COMPLETED, limit)
            if rank == 1:
                limit.load_state_dict({"used_sec": 2000.0})
            trainer.run(data, max_epochs=3)
            seen[name] = trainer.state.iteration
        trainer.run()  # a run that goes on after that stops at its next agreement
        seen["again"] = trainer.state.iteration

        # Averages of a wrapped model are equal on all ranks, also where the bare ones were not.
        torch.manual_seed(rank)
        bare = nn.Linear(2, 1)
        ema = EMAHandler(bare, 0.5)
        model = auto_model(bare)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def train(engine, batch):
            optimizer.zero_grad()
            model(torch.full((1, 2), float(rank + 1))).sum().backward()
            optimizer.step()

        trainer = Engine(train)
        ema.attach(trainer)

        # Saved by rank 1, with the handler on both; then with it on that rank alone.
        trainer.add_event_handler(Events.COMPLETED, Checkpoint({"ema": ema}, folder / f"of-{rank}", save_on_rank=1))
        if rank == 1:
            alone = ModelCheckpoint(folder / "alone", save_on_rank=1)
            trainer.add_event_handler(Events.COMPLETED, alone, {"model": model})
        trainer.run(range(3))
        seen["averages"] = ema.ema_model.weight.tolist()
        with_no_rank = Checkpoint({"ema": ema}, folder / "never", save_on_rank=2)
        try:
            with_no_rank(trainer)
        except UsageError as error:
            seen["error"] = str(error)
        runtime.barrier()
        seen["files"] = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
        return seen

    first, second = run_workers(work, 2, str(tmp_path))
    assert first.pop("said") == 1 and second.pop("said") == 1
    assert first == second
    assert (first["epoch"], first["state"]["counter"], first["state"]["best_score"]) == (4, 2, 2.0)
    assert (first["of_20"], first["of_7"], first["of_epoch"]) == (20, 7, 5)
    assert first["again"] == 10
    assert "on rank 2, found 2 ranks" in first["error"]
    assert first["files"] == ["alone", "alone/model_1.pt", "of-1", "of-1/ema_1.pt"]


def test_a_save_that_fails_on_one_rank_ends_all(tmp_path):
    # Trap 12: the handler is on all ranks, one of them writes, and its disk has no such folder.
    def work(folder):
        from torch import nn

        from shoal import runtime
        from shoal.engine import Engine, Events
        from shoal.handlers import Checkpoint

        trainer = Engine(lambda engine, batch: runtime.all_reduce(1.0))
        checkpoint = Checkpoint({"m": nn.Linear(1, 1)}, folder + "/file/below")
        trainer.add_event_handler(Events.ITERATION_COMPLETED(once=2), checkpoint)
        trainer.run(range(10))

    (tmp_path / "file").write_text("")
    with pytest.raises(WorkerFailedError, match="asked to save checkpoints in"):
        run_workers(work, 2, str(tmp_path), timeout_s=60)
