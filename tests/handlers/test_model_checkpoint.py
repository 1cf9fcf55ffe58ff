"""ModelCheckpoint, and what of Checkpoint its users reach for beside saving."""

from __future__ import annotations

import gc
import multiprocessing
import resource
import weakref

import pytest
import torch
from torch import nn

from shoal import common
from shoal.engine import Engine, Events
from shoal.errors import CheckpointError, UsageError
from shoal.handlers import Checkpoint, CheckpointEvents, DiskSaver, ModelCheckpoint


def _engine():
    return Engine(lambda engine, batch: None)


def _names(folder):
    return sorted(path.name for path in folder.glob("*.pt"))


def test_it_is_told_what_to_save_when_it_is_attached(tmp_path):
    trainer, model = _engine(), nn.Linear(1, 1)
    handler = ModelCheckpoint(tmp_path / "models", "run", n_saved=2)
    assert handler.last_checkpoint is None
    trainer.add_event_handler(Events.ITERATION_COMPLETED(every=2), handler, {"mine": model})
    trainer.run(range(6))
    assert _names(tmp_path / "models") == ["run_mine_4.pt", "run_mine_6.pt"]
    assert handler.last_checkpoint == tmp_path / "models" / "run_mine_6.pt"
    handler(trainer, {"model": model, "trainer": trainer})
    assert _names(tmp_path / "models") == ["run_checkpoint_6.pt", "run_mine_6.pt"]


def test_its_arguments_are_those_of_checkpoint_and_disk_saver(tmp_path):
    trainer, model = _engine(), nn.Linear(1, 1)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "a.pt").write_text("")
    with pytest.raises(UsageError, match=r"holds 1 \.pt files"):
        ModelCheckpoint(tmp_path / "used")
    with pytest.raises(UsageError, match="create_dir"):
        ModelCheckpoint(tmp_path / "missing", create_dir=False)
    with pytest.raises(UsageError, match="archived"):
        ModelCheckpoint(tmp_path / "new", archived=True)
    handler = ModelCheckpoint(
        tmp_path / "used", "best", score_name="acc", n_saved=1, require_empty=False, atomic=False, include_self=True,
        greater_or_equal=True, global_step_transform=lambda *_: 7, filename_pattern="{global_step}-{score}.{ext}",
    )  # fmt: skip
    trainer.state.metrics["acc"] = 0.5
    handler(trainer, {"model": model})
    assert _names(tmp_path / "used") == ["7-0.5000.pt", "a.pt"]
    assert list(torch.load(tmp_path / "used" / "7-0.5000.pt")) == ["model", "checkpointer"]
    for bad, text in (((), "without what to save"), (({},), "without what to save"), (({"a": 3},), "state_dict"),
                      (({"checkpointer": model},), "rename")):  # fmt: skip
        with pytest.raises(UsageError, match=text):
            handler(trainer, *bad)


@pytest.mark.parametrize("told_at_call", [False, True])
def test_at_an_exception_the_place_is_the_iteration(tmp_path, told_at_call):
    def step(engine, batch):
        if engine.state.iteration == 3:
            raise KeyError("lost")

    trainer, model = Engine(step), nn.Linear(1, 1)
    arguments = ({"model": model},) if told_at_call else ()
    handler = ModelCheckpoint(tmp_path) if told_at_call else Checkpoint({"model": model}, tmp_path)
    trainer.add_event_handler(Events.EXCEPTION_RAISED | Events.INTERRUPT, handler, *arguments)
    with pytest.raises(KeyError, match="lost") as caught:
        trainer.run(range(5))
    assert not hasattr(caught.value, "__notes__")
    assert _names(tmp_path) == ["model_3.pt"]


def test_an_event_tells_of_each_save(tmp_path):
    engine, seen = _engine(), []
    engine.register_events(*CheckpointEvents)
    handler = Checkpoint({"m": nn.Linear(1, 1)}, tmp_path, score_name="acc")
    engine.add_event_handler(Checkpoint.SAVED_CHECKPOINT, lambda e: seen.append(handler.last_checkpoint.name))
    for score in (0.5, 0.4, 0.6):
        engine.state.metrics["acc"] = score
        handler(engine)
    assert seen == ["m_acc=0.5000.pt", "m_acc=0.6000.pt"]
    other = _engine()
    Checkpoint({"m": nn.Linear(1, 1)}, tmp_path)(other)
    assert not other.has_registered_events(CheckpointEvents.SAVED_CHECKPOINT)


def test_files_are_reloaded_by_the_parts_of_their_names(tmp_path):
    model, engine = nn.Linear(1, 1, bias=False), _engine()
    handler = Checkpoint({"model": model, "engine": engine}, tmp_path, "run", n_saved=None)
    with pytest.raises(CheckpointError, match="saved nothing yet"):
        handler.reload_objects({"model": model})
    for step in (1, 2, 3):
        model.weight.data.fill_(step)
        engine.state.iteration = step
        handler(engine)
    handler.reload_objects({"model": model}, global_step=2)
    assert model.weight.item() == 2
    handler.reload_objects({"model": model})
    assert model.weight.item() == 3
    with pytest.raises(CheckpointError, match=r"run_checkpoint_9\.pt.*does not exist.*run_checkpoint_3"):
        handler.reload_objects({"model": model}, global_step=9)
    with pytest.raises(UsageError, match="asked to reload by step"):
        handler.reload_objects({"model": model}, step=9)
    with pytest.raises(UsageError, match="no folder"):
        Checkpoint({"model": model}, lambda *_: None).reload_objects({"model": model})
    best = Checkpoint({"model": model}, tmp_path, "best", score_name="acc")
    engine.state.metrics["acc"] = 0.65
    best(engine)
    best.reload_objects({"model": nn.Linear(1, 1)}, load_kwargs={"strict": False}, score=0.65)


def test_a_rank_that_does_not_exist_would_save_nothing_and_is_refused(tmp_path):
    engine, to_save = _engine(), {"m": nn.Linear(1, 1)}
    handler = Checkpoint(to_save, tmp_path, save_on_rank=1)
    with pytest.raises(UsageError, match="asked to save on rank 1, found 1 ranks"):
        handler(engine)
    with pytest.raises(UsageError, match="on rank 1, found 1 ranks"):
        DiskSaver(tmp_path, save_on_rank=1)({"n": 1}, "a.pt")
    with pytest.raises(UsageError, match=r"rank 0 in .* which rank 1 writes"):
        Checkpoint(to_save, DiskSaver(tmp_path, save_on_rank=1))
    assert _names(tmp_path) == []


def test_a_kept_file_that_is_gone_after_a_resume_is_named(tmp_path, caplog):
    engine, to_save = _engine(), {"m": nn.Linear(1, 1)}
    first = Checkpoint(to_save, tmp_path, n_saved=2)
    for engine.state.iteration in (1, 2):
        first(engine)
    (tmp_path / "m_1.pt").unlink()
    second = Checkpoint(to_save, tmp_path, n_saved=2)
    torch.save(first.state_dict(), tmp_path / "state")
    second.load_state_dict(torch.load(tmp_path / "state", weights_only=True))  # Trap 40
    assert "m_1.pt are not there" in caplog.text
    assert second.last_checkpoint == tmp_path / "m_2.pt"
    assert second.saved == [Checkpoint.Item(1, "m_1.pt"), Checkpoint.Item(2, "m_2.pt")]
    second.reset()
    assert second.saved == [] and second.last_checkpoint is None


def _train_until_the_disk_is_full(folder, queue):
    torch.set_num_threads(1)
    model = nn.Linear(10, 10)
    trainer = Engine(lambda engine, batch: None)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, ModelCheckpoint(folder, "run", n_saved=1), {"model": model})

    @trainer.on(Events.ITERATION_STARTED(once=3))
    def grow(engine):
        model.weight.data = torch.zeros(1000, 1000)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    try:
        trainer.run(range(5))
    except CheckpointError as error:
        queue.put(str(error))


def test_a_file_that_does_not_fit_leaves_the_one_before(tmp_path):
    # Trap 39, by the handler in a training; the store itself is tried in tests/checkpoint/test_checkpoint_files.py.
    fork = multiprocessing.get_context("fork")
    queue = fork.SimpleQueue()
    process = fork.Process(target=_train_until_the_disk_is_full, args=(tmp_path, queue))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert "File too large" in queue.get()
    assert [path.name for path in tmp_path.iterdir()] == ["run_model_2.pt"]
    Checkpoint.load_objects({"model": nn.Linear(10, 10)}, tmp_path / "run_model_2.pt")


def test_the_best_models_by_one_call(tmp_path):
    trainer, model = _engine(), nn.Linear(1, 1)
    scores = iter([0.1, 0.5, 0.3, 0.3, 0.4])
    evaluator = Engine(lambda engine, batch: engine.state.metrics.update(Loss=next(scores)))
    best = common.save_best_model_by_val_score(tmp_path, evaluator, model, "Loss", 2, trainer, score_sign=-1.0)
    kept = []
    other = common.gen_save_best_models_by_val_score(
        lambda state, name: kept.append(name), evaluator, {"a": model, "b": model}, "Loss", tag="test", n_saved=None
    )
    stop = common.add_early_stopping_by_val_score(2, evaluator, trainer, "Loss", -1.0, grace_period=1)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda engine: evaluator.run([0]))
    trainer.run([0], max_epochs=9)
    assert (trainer.state.epoch, stop.counter, stop.best_score) == (5, 2, -0.3)
    assert _names(tmp_path) == ["best_model_1_val_loss=-0.1000.pt", "best_model_3_val_loss=-0.3000.pt"]
    assert best.best_checkpoint.name == "best_model_1_val_loss=-0.1000.pt"
    name = "best_checkpoint_test_loss={}.pt".format
    assert kept == [name(text) for text in ("0.1000", "0.5000", "0.3000", "0.3000-2", "0.4000")]
    assert other.best_checkpoint == name("0.5000")


def test_it_keeps_neither_the_engine_nor_the_models_alive(tmp_path):
    torch.optim.SGD([torch.zeros(1)])  # the first one imports more of torch, which leaves cycles of its own
    gc.collect()
    gc.disable()
    try:
        trainer, evaluator, model = _engine(), _engine(), nn.Linear(1, 1)
        handler = ModelCheckpoint(tmp_path / "a")
        trainer.add_event_handler(Events.EPOCH_COMPLETED, handler, {"model": model})
        evaluator.state.metrics["acc"] = 0.5
        common.save_best_model_by_val_score(tmp_path / "b", evaluator, model, "acc", trainer=trainer)
        stop = common.add_early_stopping_by_val_score(1, evaluator, trainer, "acc")
        trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda engine, other: other.run([0]), evaluator)
        trainer.run([0], max_epochs=2)
        references = [weakref.ref(item) for item in (trainer, evaluator, model)]
        del trainer, evaluator, model, handler
        assert [reference() for reference in references] == [None, None, None]
        assert stop.num_evaluations > 0
    finally:
        gc.enable()
