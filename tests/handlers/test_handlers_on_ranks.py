"""Handlers with several processes: nothing hangs, one rank writes, all stop together."""

from __future__ import annotations

import pytest
import torch

from shoal.errors import WorkerFailedError
from shoal.testing import run_workers


def test_what_handlers_do_on_two_ranks(tmp_path):
    def work(folder):
        from pathlib import Path

        import torch
        from torch import nn

        from shoal import common, runtime
        from shoal.engine import Engine, Events
        from shoal.handlers import Checkpoint, DiskSaver, ProgressBar, TensorboardLogger, TerminateOnNan
        from shoal.trackers import JsonlTracker
        from shoal.training import auto_model

        rank = runtime.current().rank
        folder = Path(folder)
        seen = {}

        # Trap 13: constructors on one rank alone don't communicate.
        if rank == 0:
            DiskSaver(folder / "alone")
            TensorboardLogger(folder / "alone-tb").close()
            ProgressBar()
            JsonlTracker(folder / "alone.jsonl").close()

        # The same folder name on both ranks, attached on both; then on rank 0 alone.
        torch.manual_seed(0)
        model = auto_model(nn.Linear(2, 1))
        trainer = Engine(lambda engine, batch: {"loss": 1.0 / engine.state.iteration})
        to_save = {"trainer": trainer, "model": model}
        checkpoint = common.setup_common_training_handlers(
            trainer, to_save=to_save, save_every_iters=2, output_path=folder / f"run-of-rank-{rank}",
            output_names=["loss"], with_pbars=True, log_every_iters=1, n_saved=2,
        )  # fmt: skip
        if rank == 0:
            alone = Checkpoint({"model": model}, folder / "alone")
            trainer.add_event_handler(Events.EPOCH_COMPLETED, alone)
        logger = common.setup_tb_logging(folder / f"tb-of-rank-{rank}", trainer, log_every_iters=1)
        trainer.run(range(3), max_epochs=2)
        logger.close()
        runtime.barrier()
        seen["bookkeeping"] = checkpoint.state_dict()
        seen["files"] = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.pt"))
        seen["folders"] = sorted(path.name for path in folder.iterdir())

        # A file of a wrapped model goes into a bare one and back.
        other = nn.Linear(2, 1)
        Checkpoint.load_objects({"model": other}, folder / "alone" / "model_2.pt")
        Checkpoint.load_objects({"model": model}, folder / "alone" / "model_2.pt")
        seen["same"] = torch.equal(other.weight, model.module.weight)

        # NaN on rank 1 only, between two agreements: both stop at the same iteration, before anything is saved.
        def train(engine, batch):
            runtime.all_reduce(1.0)  # what the next step would wait for
            return float("nan") if rank == 1 and engine.state.iteration == 5 else 1.0

        for name, agree_every, epoch_length in (("twenty", 20, 100), ("epoch", 1000, 7)):
            diverging = Engine(train)
            diverging.add_event_handler(Events.ITERATION_COMPLETED, TerminateOnNan(agree_every=agree_every))
            diverging.run(range(epoch_length), max_epochs=2)
            seen[name] = diverging.state.iteration
        guarded = Engine(train)
        common.setup_common_training_handlers(
            guarded, to_save={"trainer": guarded}, save_every_iters=3, output_path=folder / "guarded", with_pbars=False
        )
        guarded.run(range(100))
        seen["guarded"] = guarded.state.iteration
        runtime.barrier()
        seen["guarded files"] = sorted(path.name for path in (folder / "guarded").iterdir())
        return seen

    first, second = run_workers(work, 2, str(tmp_path))
    assert first == second
    kept = ["training_checkpoint_4.pt", "training_checkpoint_6.pt"]
    steps = {name: int(name.removesuffix(".pt").rpartition("_")[2]) for name in kept}
    saved = [{"filename": name, "score": None, "step": steps[name]} for name in kept]
    assert first["bookkeeping"] == {"saved": saved, "last": kept[1]}
    assert first["files"] == ["alone/model_2.pt", *(f"run-of-rank-0/{name}" for name in kept)]
    assert first["folders"] == ["alone", "run-of-rank-0", "tb-of-rank-0"]
    assert first["same"]
    assert (first["twenty"], first["epoch"]) == (20, 7)
    assert first["guarded"] == 6
    assert first["guarded files"] == ["training_trainer_3.pt"]
    state = torch.load(tmp_path / "run-of-rank-0" / kept[1])
    assert list(state["model"]) == ["weight", "bias"]


def test_a_handler_on_rank_0_alone_that_raises_ends_all_ranks():
    def work():
        from shoal import runtime
        from shoal.engine import Engine, Events

        trainer = Engine(lambda engine, batch: runtime.all_reduce(1.0))
        if runtime.current().rank == 0:

            @trainer.on(Events.ITERATION_COMPLETED(once=3))
            def track(engine):
                raise OSError("the tracker's disk is full")

        trainer.run(range(10))

    with pytest.raises(WorkerFailedError, match="the tracker's disk is full"):
        run_workers(work, 2, timeout_s=60)
