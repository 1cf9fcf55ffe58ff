"""A training with all that has state, killed and resumed, ends as the one that nobody killed."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from shoal import checkpoint, common
from shoal.engine import Engine, Events, create_supervised_trainer
from shoal.handlers import Checkpoint, EMAHandler, ModelCheckpoint, TimeLimit

fork = multiprocessing.get_context("fork")
# One an evaluation. The best come early, some look alike, some are no numbers; 3 in a row without a better one: stop.
SCORES = [0.5, math.nan, 0.70001, 0.70003, 0.7, math.nan, 0.80001, 0.8, 0.1, math.nan, 0.9, 0.9]
NUM_EPOCHS_RUN = 10


def _data():
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(8, 3, generator=generator), torch.randn(8, 1, generator=generator)) for _ in range(4)]


class _Killer:
    """Kills its process at a chosen moment."""

    def __init__(self, moment):
        self.moment = moment
        self.num_states = 0

    def at(self, moment):
        if moment == self.moment:
            os.kill(os.getpid(), signal.SIGKILL)

    def state_dict(self):  # in the middle of collecting a checkpoint
        self.num_states += 1
        self.at(("state", self.num_states))
        return {}

    def load_state_dict(self, state):
        pass


def _train(folder, moment):
    torch.set_num_threads(1)  # the threads of the process that was forked are not here
    torch.manual_seed(0)
    killer = _Killer(moment)
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    trainer = create_supervised_trainer(model, optimizer, mse_loss)
    evaluator = Engine(lambda engine, batch: None)
    ema = EMAHandler(model, 0.1, momentum_warmup=0.5, warmup_iters=20, handle_buffers="update")
    ema.attach(trainer)
    best = common.gen_save_best_models_by_val_score(folder, evaluator, {"average": ema.ema_model}, "score", n_saved=2)
    by_call = ModelCheckpoint(folder, "every", n_saved=2, require_empty=False)
    stopping = common.add_early_stopping_by_val_score(3, evaluator, trainer, "score", grace_period=1)
    limit = TimeLimit(3600)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, limit)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: schedule.step())
    trainer.add_event_handler(Events.ITERATION_STARTED, lambda engine: killer.at(("iteration", engine.state.iteration)))

    @trainer.on(Events.EPOCH_COMPLETED)
    def evaluate(engine):
        evaluator.state.metrics["score"] = SCORES[engine.state.epoch - 1]
        evaluator.run([0])
        killer.at(("evaluated", engine.state.epoch))

    trainer.add_event_handler(Events.EPOCH_COMPLETED, by_call, {"model": model})
    to_save = {
        "trainer": trainer, "model": model, "optimizer": optimizer, "schedule": schedule, "ema": ema, "best": best,
        "by_call": by_call, "stopping": stopping, "limit": limit, "killer": killer,
    }  # fmt: skip
    newest = Checkpoint(to_save, folder, "training", n_saved=2, include_self=True)
    trainer.add_event_handler(Events.ITERATION_COMPLETED(every=3) | Events.COMPLETED, newest)
    if checkpoint.list_checkpoints(folder):
        Checkpoint.load_objects(to_save | {"checkpointer": newest}, checkpoint.latest(folder))
    trainer.run(_data(), max_epochs=len(SCORES))


def _run(folder, moment=None):
    folder.mkdir(exist_ok=True)
    process = fork.Process(target=_train, args=(folder, moment))
    process.start()
    process.join(120)
    assert process.exitcode == (0 if moment is None else -signal.SIGKILL)


def _equal(one, other, where=""):
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), where
    elif isinstance(one, dict):
        assert list(one) == list(other), where
        for key in one:
            if (where, key) != ("limit", "used_sec"):
                _equal(one[key], other[key], key)
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), where
        for left, right in zip(one, other, strict=True):
            _equal(left, right, where)
    else:
        assert repr(one) == repr(other), where


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    torch.optim.SGD([torch.zeros(1)])  # the first one imports more of torch, which the forked processes then have
    folder = tmp_path_factory.mktemp("resumed") / "whole"
    _run(folder)
    return folder


def _names(folder: Path):
    return sorted(path.name for path in folder.iterdir())


def test_the_uninterrupted_training_keeps_and_stops_as_it_should(uninterrupted):
    assert _names(uninterrupted) == [
        "best_average_val_score=0.8000-2.pt", "best_average_val_score=0.8000.pt",
        "every_model_10.pt", "every_model_9.pt",
        "training_checkpoint_39.pt", "training_checkpoint_40.pt",
    ]  # fmt: skip
    state = torch.load(uninterrupted / "training_checkpoint_40.pt", weights_only=True)  # Trap 40
    assert state["stopping"] == {"counter": 3, "best_score": 0.80001, "num_evaluations": NUM_EPOCHS_RUN}
    assert [item["score"] for item in state["best"]["saved"]] == [0.8, 0.80001]


@pytest.mark.parametrize(
    "moments",
    [
        [("iteration", 8)],
        [("evaluated", 7)],  # the best model is saved, the training's checkpoint is not
        [("state", 5)],  # in the middle of a save
        [("iteration", 17), ("evaluated", 9), ("iteration", 39)],
    ],
)
def test_killed_and_resumed_it_ends_as_the_uninterrupted_one(tmp_path, uninterrupted, moments):
    for moment in moments:
        _run(tmp_path / "run", moment)
    _run(tmp_path / "run")
    assert _names(tmp_path / "run") == _names(uninterrupted)
    for path in uninterrupted.iterdir():
        _equal(torch.load(path, weights_only=True), torch.load(tmp_path / "run" / path.name, weights_only=True))
