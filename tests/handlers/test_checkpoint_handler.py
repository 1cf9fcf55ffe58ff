"""The Checkpoint handler: names, what is in a file, what stays, what is loaded."""

from __future__ import annotations

import gc
import math
import weakref

import pytest
import torch
from torch import nn

from shoal.engine import Engine, Events
from shoal.errors import CheckpointError, UsageError
from shoal.handlers import Checkpoint, DiskSaver, global_step_from_engine


def _engine(metrics=None):
    def step(engine, batch):
        if metrics is not None:
            engine.state.metrics.update(metrics[engine.state.iteration - 1])

    return Engine(step)


def _names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("event", "name"),
    [
        (Events.ITERATION_COMPLETED(every=2), "model_6.pt"),
        (Events.EPOCH_COMPLETED, "model_2.pt"),
        (Events.COMPLETED, "model_2.pt"),
        (Events.ITERATION_COMPLETED(every=4) | Events.COMPLETED, "model_6.pt"),
    ],
)
def test_the_step_in_the_name_is_what_the_event_counts(tmp_path, event, name):
    trainer = _engine()
    trainer.add_event_handler(event, Checkpoint({"model": nn.Linear(1, 1)}, tmp_path))
    trainer.run(range(3), max_epochs=2)
    assert _names(tmp_path) == [name]


def test_a_single_object_is_saved_as_its_own_state_and_several_by_name(tmp_path):
    model, engine = nn.Linear(2, 1), _engine()
    optimizer = torch.optim.Adam(model.parameters())
    Checkpoint({"model": model}, tmp_path, "best")(engine)
    Checkpoint({"model": model, "optimizer": optimizer, "trainer": engine}, str(tmp_path), "training")(engine)
    assert _names(tmp_path) == ["best_model_0.pt", "training_checkpoint_0.pt"]
    assert list(torch.load(tmp_path / "best_model_0.pt")) == ["weight", "bias"]
    assert list(torch.load(tmp_path / "training_checkpoint_0.pt")) == ["model", "optimizer", "trainer"]
    for name in ("best_model_0.pt", "training_checkpoint_0.pt"):
        other = nn.Linear(2, 1)
        Checkpoint.load_objects({"model": other}, tmp_path / name)
        assert torch.equal(other.weight, model.weight)
        Checkpoint.load_objects({"model": nn.DataParallel(other)}, torch.load(tmp_path / name))


@pytest.mark.parametrize("wrap", [lambda handler: handler, lambda handler: lambda engine: handler(engine)])
def test_the_best_by_a_metric_of_the_evaluator_at_the_trainers_epoch(tmp_path, wrap):
    scores = [0.1, math.nan, 0.65884, 0.3, 0.65884]
    trainer, evaluator = _engine(), _engine([{"Accuracy": score} for score in scores])
    handler = Checkpoint(
        {"model": nn.Linear(1, 1)},
        tmp_path,
        filename_prefix="best",
        n_saved=2,
        global_step_transform=global_step_from_engine(trainer),
        score_name="val_accuracy",
        score_function=Checkpoint.get_default_score_fn("Accuracy"),
    )
    evaluator.add_event_handler(Events.COMPLETED, wrap(handler))
    seen = []

    def evaluate(engine):
        evaluator.state.max_epochs = None
        evaluator.state.metrics["Accuracy"] = scores[engine.state.epoch - 1]
        evaluator._process = lambda *_: None
        evaluator.run([0])
        seen.append(_names(tmp_path))

    trainer.add_event_handler(Events.EPOCH_COMPLETED, evaluate)
    trainer.run([0, 0, 0], max_epochs=5)
    name = "best_model_{}_val_accuracy={}.pt".format
    assert seen == [
        [name(1, "0.1000")],
        [name(1, "0.1000"), name(2, "nan")],
        [name(1, "0.1000"), name(3, "0.6588")],
        [name(3, "0.6588"), name(4, "0.3000")],
        [name(3, "0.6588"), name(5, "0.6588")],
    ]
    assert handler.last_checkpoint == tmp_path / name(5, "0.6588")


def test_lower_is_better_with_a_negative_sign_and_a_missing_metric_is_named(tmp_path):
    engine = _engine()
    handler = Checkpoint({"m": nn.Linear(1, 1)}, tmp_path, score_function=Checkpoint.get_default_score_fn("loss", -1.0))
    for loss in (2.0, 1.0, 3.0):
        engine.state.metrics["loss"] = loss
        handler(engine)
    assert _names(tmp_path) == ["m_-1.0000.pt"]
    with pytest.raises(UsageError, match="'acc', which the engine does not have; it has: loss"):
        Checkpoint({"m": nn.Linear(1, 1)}, tmp_path, score_name="acc")(engine)


def test_an_evaluation_twice_at_one_epoch_with_one_score_is_one_file(tmp_path):
    engine = _engine()
    handler = Checkpoint(
        {"m": nn.Linear(1, 1)}, tmp_path, score_name="acc", n_saved=2, global_step_transform=lambda *_: 3
    )
    engine.state.metrics["acc"] = 0.5
    handler(engine)
    handler(engine)
    assert _names(tmp_path) == ["m_3_acc=0.5000.pt"]


def test_scores_that_look_the_same_do_not_share_a_file(tmp_path):
    model, engine = nn.Linear(1, 1, bias=False), _engine()
    handler = Checkpoint({"m": model}, tmp_path, score_name="acc", n_saved=2)
    for score in (0.50001, 0.50003, 0.50001, 0.50002):
        model.weight.data.fill_(score)
        engine.state.metrics["acc"] = score
        handler(engine)
    assert _names(tmp_path) == ["m_acc=0.5000-2.pt", "m_acc=0.5000.pt"]
    assert handler.saved == [(0.50002, "m_acc=0.5000.pt"), (0.50003, "m_acc=0.5000-2.pt")]
    for score, name in handler.saved:
        assert torch.load(tmp_path / name)["weight"].item() == pytest.approx(score)
    assert handler.best_checkpoint == tmp_path / "m_acc=0.5000-2.pt"
    assert handler.last_checkpoint == tmp_path / "m_acc=0.5000.pt"


@pytest.mark.parametrize("pattern", ["{name}.{ext}", "{name}_{score}.{ext}", "{global_step}_{name}.{ext}"])
def test_no_pattern_of_ones_own_loses_a_file(tmp_path, pattern):
    evaluator = _engine()
    handler = Checkpoint({"m": nn.Linear(1, 1)}, tmp_path, score_name="acc", n_saved=3, filename_pattern=pattern)
    evaluator.add_event_handler(Events.COMPLETED, handler)
    for score in (0.5, 0.5, math.nan, 0.7, 0.7, 0.1):
        evaluator.state.metrics["acc"] = score
        evaluator.fire_event(Events.COMPLETED)
    assert sorted(item.filename for item in handler.saved) == _names(tmp_path)
    assert sorted(item.priority for item in handler.saved) == [0.5, 0.7, 0.7]


def test_a_fixed_name_is_replaced_where_one_checkpoint_is_kept(tmp_path):
    engine = _engine()
    handler = Checkpoint({"m": nn.Linear(1, 1)}, tmp_path, filename_pattern="{name}.{ext}")
    for engine.state.iteration in (1, 2, 3):
        handler(engine)
        assert _names(tmp_path) == ["m.pt"]


def test_which_files_are_kept_survives_a_resume(tmp_path):
    model, engine = nn.Linear(1, 1), _engine()
    first = Checkpoint({"model": model}, tmp_path, n_saved=2, include_self=True)
    for iteration in (1, 2, 3):
        engine.state.iteration = iteration
        first(engine)
    assert _names(tmp_path) == ["checkpoint_2.pt", "checkpoint_3.pt"]
    second = Checkpoint({"model": model}, tmp_path, n_saved=2, include_self=True)
    Checkpoint.load_objects({"model": model, "checkpointer": second}, tmp_path / "checkpoint_3.pt")
    engine.state.iteration = 4
    second(engine)
    assert _names(tmp_path) == ["checkpoint_3.pt", "checkpoint_4.pt"]


def test_a_save_that_fails_leaves_the_bookkeeping_and_the_old_file(tmp_path):
    class Unsavable(nn.Linear):
        bad = False

        def state_dict(self, *args, **kwargs):
            return {"x": object()} if self.bad else super().state_dict(*args, **kwargs)

    model, engine = Unsavable(1, 1), _engine()
    handler = Checkpoint({"model": model}, tmp_path)
    handler(engine)
    model.bad, engine.state.iteration = True, 1
    with pytest.raises(CheckpointError, match="convert it in state_dict"):
        handler(engine)
    assert _names(tmp_path) == ["model_0.pt"]
    model.bad = False
    handler(engine)
    assert _names(tmp_path) == ["model_1.pt"]


def test_a_function_or_an_object_may_save_instead(tmp_path):
    calls = []

    class Saver:
        def __call__(self, checkpoint, filename, metadata=None):
            calls.append((filename, sorted(checkpoint), metadata))

        def remove(self, filename):
            calls.append(filename)

    model, engine = nn.Linear(1, 1), _engine()
    for handler in (
        Checkpoint({"m": model}, lambda state, name: calls.append(name)),
        Checkpoint({"m": model}, Saver()),
    ):
        for iteration in (1, 2):
            engine.state.iteration = iteration
            handler(engine)
    metadata = {"basename": "m", "score_name": None, "priority": 2, "step": 2}
    assert calls[:2] == ["m_1.pt", "m_2.pt"]
    assert calls[3:] == [("m_2.pt", ["bias", "weight"], metadata), "m_1.pt"]


def test_disk_saver_refuses_a_folder_that_is_in_use(tmp_path):
    saver = DiskSaver(tmp_path)
    saver({"n": 1}, "a.pt")
    with pytest.raises(UsageError, match=r"holds 1 \.pt files"):
        DiskSaver(tmp_path)
    DiskSaver(tmp_path, require_empty=False, atomic=False)({"n": 2}, "a.pt")
    assert torch.load(tmp_path / "a.pt") == {"n": 2}
    with pytest.raises(UsageError, match="pickle_protocol"):
        DiskSaver(tmp_path / "x", pickle_protocol=2)


def test_what_cannot_work_is_refused_at_the_door(tmp_path):
    model = nn.Linear(1, 1)
    for arguments, text in (
        (({"model": 3}, tmp_path), "state_dict"),
        (([model], tmp_path), "to_save"),
        (({"model": model}, None), "save_handler"),
        (({"model": model}, tmp_path, "a/b"), "filename_prefix"),
    ):
        with pytest.raises(UsageError, match=text):
            Checkpoint(*arguments)
    with pytest.raises(UsageError, match="n_saved=0"):
        Checkpoint({"model": model}, tmp_path, n_saved=0)
    with pytest.raises(UsageError, match="checkpointer"):
        Checkpoint({"checkpointer": model}, tmp_path, include_self=True)
    with pytest.raises(UsageError, match="to_load"):
        Checkpoint.load_objects({"model": object()}, {})
    with pytest.raises(UsageError, match="from a list"):
        Checkpoint.load_objects({"model": model}, [1])
    assert list(tmp_path.iterdir()) == []


def test_keys_that_differ_are_named_or_allowed(tmp_path):
    Checkpoint({"model": nn.Linear(2, 1)}, tmp_path)(_engine())
    other = nn.Linear(2, 1, bias=False)
    with pytest.raises(CheckpointError, match="bias"):
        Checkpoint.load_objects({"model": other}, tmp_path / "model_0.pt")
    Checkpoint.load_objects({"model": other}, tmp_path / "model_0.pt", strict=False)


def test_an_engine_that_is_saved_by_its_own_handler_is_freed(tmp_path):
    gc.collect()
    gc.disable()
    try:
        trainer, model = _engine(), nn.Linear(1, 1)
        handler = Checkpoint({"trainer": trainer, "model": model}, tmp_path)
        trainer.add_event_handler(Events.COMPLETED, handler)
        trainer.run([0])
        gone = [weakref.ref(trainer), weakref.ref(model)]
        del trainer, model
        with pytest.raises(UsageError, match="engine that is gone"):
            handler(_engine())
        del handler
        assert [reference() for reference in gone] == [None, None]
    finally:
        gc.enable()
