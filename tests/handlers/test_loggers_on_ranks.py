"""Trackers of which only rank 0 has one, or only rank 0 writes: nobody hangs, nothing is written twice."""

from __future__ import annotations

import pytest

from shoal.errors import WorkerFailedError
from shoal.testing import run_workers


def _train(folder, on_error):
    """A training on two ranks whose tracker, on rank 0 alone, loses its place in the middle."""
    from pathlib import Path

    import torch
    from torch import nn, optim
    from torch.nn.functional import mse_loss

    from shoal import runtime
    from shoal.engine import Events, create_supervised_trainer
    from shoal.handlers import GradsHistHandler, TrackerLogger, WeightsScalarHandler
    from shoal.trackers import JsonlTracker
    from shoal.training import auto_model

    model = auto_model(nn.Linear(3, 1))
    trainer = create_supervised_trainer(model, optim.SGD(model.parameters(), lr=0.1), mse_loss)
    path = Path(folder) / "run" / "metrics.jsonl"
    if runtime.current().is_main:
        logger = TrackerLogger(JsonlTracker(path, on_error=on_error))
        logger.attach_output_handler(trainer, Events.ITERATION_COMPLETED, tag="t", output_transform=float)
        logger.attach(trainer, WeightsScalarHandler(model), Events.ITERATION_COMPLETED)
        logger.attach(trainer, GradsHistHandler(model), Events.EPOCH_COMPLETED)

        @trainer.on(Events.ITERATION_COMPLETED(once=4))
        def lose_the_disk():
            logger.tracker._close()
            path.rename(path.with_name("before.jsonl"))
            path.mkdir()  # the next record cannot open its file

    data = [(torch.randn(4, 3), torch.randn(4, 1)) for _ in range(5)]
    trainer.run(data, max_epochs=2)
    return trainer.state.iteration, (Path(folder) / "run" / "before.jsonl").read_text().count('"t/output"')


def test_a_tracker_on_rank_0_alone_that_fails_in_mid_training_ends_all_ranks_with_what_it_said(tmp_path):
    # Trap 12
    with pytest.raises(WorkerFailedError, match=r"(?s)TrackerError: JsonlTracker could not record.*IsADirectoryError"):
        run_workers(_train, 2, str(tmp_path), "raise", timeout_s=60)


def test_with_on_error_warn_all_ranks_train_to_the_end(tmp_path):
    # Trap 12
    first, second = run_workers(_train, 2, str(tmp_path), "warn", timeout_s=60)
    assert first == second == (10, 4)


def test_one_rank_writes_what_all_ranks_attach(tmp_path):
    def work(folder):
        from pathlib import Path

        from shoal import common, runtime
        from shoal.engine import Engine
        from shoal.errors import UsageError
        from shoal.handlers import TensorboardLogger
        from shoal.trackers import JsonlTracker, Text

        folder, rank = Path(folder), runtime.current().rank
        trainer = Engine(lambda engine, batch: None)
        logger = common.setup_jsonl_logging(folder / f"of-{rank}.jsonl", trainer, log_every_iters=1)
        trainer.state.metrics["a"] = 1
        trainer.run(range(3))
        logger.tracker.log_media({"x": Text("y")}, step=1)
        logger.tracker.log_artifact(folder / "not there") if rank else None
        logger.close()
        refused = ""
        if rank:
            board = TensorboardLogger(folder / "board")
            assert not hasattr(board, "add_scalar")
            try:
                _ = board.writer
            except UsageError as error:
                refused = str(error)
        # Every rank loads the state of the run; none communicates.
        JsonlTracker(folder / "x.jsonl").load_state_dict({"run_id": "r"})
        runtime.barrier()
        return sorted(path.name for path in folder.iterdir()), refused

    (names, _), (_, refused) = run_workers(work, 2, str(tmp_path))
    assert names == ["of-0.jsonl"]
    assert "on rank 1, and only rank 0 has one" in refused


def test_logging_before_there_is_a_process_group_works(tmp_path):
    # Trap 45
    def work(folder):
        from pathlib import Path

        import torch.distributed as dist

        from shoal import runtime
        from shoal.trackers import JsonlTracker

        runtime.finalize()
        assert not dist.is_initialized()
        tracker = JsonlTracker(Path(folder) / "early.jsonl")
        tracker.log_metrics({"a": 1}, step=1)
        tracker.close()
        return (Path(folder) / "early.jsonl").exists()

    assert run_workers(work, 1, str(tmp_path)) == [True]
