"""EarlyStopping: what counts as an improvement, and when the trainer is stopped."""

from __future__ import annotations

import gc
import logging
import math
import weakref

import pytest
import torch

from shoal import checkpoint
from shoal.engine import Engine, Events
from shoal.errors import CheckpointError, UsageError
from shoal.handlers import EarlyStopping

NAN = math.nan


def _stops_after(scores, patience, **options):
    """After how many evaluations the trainer was stopped; None where it wasn't."""
    trainer, evaluator = Engine(lambda engine, batch: None), Engine(lambda engine, batch: None)
    handler = EarlyStopping(patience, lambda engine: scores[trainer.state.epoch - 1], trainer, **options)
    evaluator.add_event_handler(Events.COMPLETED, handler)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda engine: evaluator.run([0]))
    trainer.run([0], max_epochs=len(scores))
    return trainer.state.epoch if trainer.state.epoch < len(scores) or handler.counter >= patience else None


@pytest.mark.parametrize(
    ("scores", "options", "stop"),
    [
        ([1, 2, 3, 4], {}, None),
        ([1, 2, 2, 2, 9], {}, 4),
        ([1, 0.5, 2, 1, 1, 9], {}, 5),
        # NaN is worse than anything, also as the first score.
        ([NAN, NAN, 9], {}, 2),
        ([NAN, 1, NAN, 2, NAN, NAN, 9], {}, 6),
        ([-math.inf, NAN, 1, 2], {}, None),
        ([math.inf, 1, 1, 9], {}, 3),
        # The change must exceed min_delta; from the best score, or added up since the last improvement.
        ([1.0, 1.5, 2.0, 2.5, 3.0], {"min_delta": 0.7}, 3),
        ([1.0, 1.5, 2.0, 2.5, 3.0], {"min_delta": 0.7, "cumulative_delta": True}, None),
        ([1.0, 1.5, 2.0, 2.5, 3.0], {"threshold": 0.7, "cumulative": True}, None),
        ([1.0, 2.0, 3.0], {"min_delta": 1.0}, 3),
        # A part of the score; negative scores that get worse are no improvement.
        ([100, 105, 109, 999], {"min_delta": 0.1, "min_delta_mode": "rel", "cumulative_delta": True}, 3),
        ([100, 111, 123, 136], {"min_delta": 0.1, "threshold_mode": "rel"}, None),
        ([-1.0, -1.05, -1.05, 9], {"min_delta": 0.1, "min_delta_mode": "rel"}, 3),
        ([3, 2, 1, 1, 1, 0], {"mode": "min"}, 5),
        ([3, 2.5, 2.5, 0], {"mode": "min", "min_delta": 1.0}, 3),
        # What is in the grace period doesn't count.
        ([9, 1, 1, 2, 3, 4], {"grace_period": 1}, None),
        ([9, 1, 1, 1, 4], {"grace_period": 1}, 4),
        ([1, 1, 1, 1, 1, 1, 9], {"grace_period": 3}, 6),
    ],
)
def test_it_stops_after_evaluations_in_a_row_without_improvement(scores, options, stop):
    assert _stops_after(scores, 2, **options) == stop


def test_counters_survive_a_resume(tmp_path):
    trainer = Engine(lambda engine, batch: None)
    engine = Engine(lambda engine, batch: None)

    def make():
        return EarlyStopping(3, lambda e: e.state.score, trainer, grace_period=1)

    scores = [0.9, 0.5, NAN, 0.6, 0.4, 0.3, 0.2]
    for cut in range(len(scores)):
        handler = make()
        for number, score in enumerate(scores):
            if number == cut:  # Trap 40: what is saved loads with weights_only=True
                torch.save(checkpoint.to_plain(handler.state_dict()), tmp_path / "state.pt")
                handler = make()
                handler.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
            engine.state.score = score
            handler(engine)
        assert (handler.counter, handler.best_score, handler.num_evaluations) == (3, 0.6, 7)
    handler.load_state_dict({"counter": 2, "best_score": 1.0})
    assert (handler.counter, handler.num_evaluations) == (2, 3)
    with pytest.raises(CheckpointError, match="EarlyStopping"):
        handler.load_state_dict({"weight": 1})
    assert handler.counter == 2


def test_attach_starts_anew_with_a_training_but_not_with_its_resumption():
    trainer, evaluator = Engine(lambda engine, batch: None), Engine(lambda engine, batch: None)
    handler = EarlyStopping(9, lambda engine: 1.0, trainer)
    handler.attach(evaluator, reset_engine=trainer)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda engine: evaluator.run([0]))
    trainer.run([0], max_epochs=3)
    assert handler.counter == 2
    trainer.run([0], max_epochs=5)
    assert handler.counter == 4
    trainer.state.max_epochs = None
    trainer.run([0], max_epochs=2)
    assert handler.counter == 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"patience": 0}, "patience=0"),
        ({"patience": 1.5}, "patience=1.5"),
        ({"score_function": 3}, "score_function=3"),
        ({"trainer": None}, "NoneType"),
        ({"min_delta": -1}, "min_delta=-1"),
        ({"min_delta": NAN}, "min_delta=nan"),
        ({"min_delta": "1"}, "min_delta='1'"),
        ({"threshold": []}, r"min_delta=\[\]"),
        ({"min_delta_mode": "x"}, "'abs', 'rel'"),
        ({"mode": "up"}, "'min', 'max'"),
        ({"grace_period": -1}, "grace_period=-1"),
    ],
)
def test_arguments_that_cannot_work_are_refused(options, text):
    arguments = {"patience": 1, "score_function": lambda engine: 1, "trainer": Engine(lambda engine, batch: None)}
    with pytest.raises(UsageError, match=text):
        EarlyStopping(**(arguments | options))


def test_a_best_score_of_nan_from_another_library_is_none():
    trainer = Engine(lambda engine, batch: None)
    handler = EarlyStopping(3, lambda engine: 1.0, trainer)
    handler.load_state_dict({"counter": 2, "best_score": NAN})
    handler(trainer)
    assert (handler.counter, handler.best_score) == (0, 1.0)
    with pytest.raises(CheckpointError, match="EarlyStopping"):
        handler.load_state_dict({"counter": math.inf, "best_score": 1.0})


def test_a_score_that_is_no_number_is_named():
    trainer = Engine(lambda engine, batch: None)
    with pytest.raises(UsageError, match="returned 'high'"):
        EarlyStopping(1, lambda engine: "high", trainer)(trainer)
    tensors = EarlyStopping(1, lambda engine: torch.tensor(1.0), trainer)
    tensors(trainer)
    assert tensors.best_score == 1.0


def test_it_does_not_keep_the_trainer_alive(caplog):
    gc.disable()
    try:
        trainer, evaluator = Engine(lambda engine, batch: None), Engine(lambda engine, batch: None)
        handler = EarlyStopping(1, lambda engine: 1.0, trainer)
        handler.attach(evaluator, reset_engine=trainer)
        trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda engine, other: other.run([0]), evaluator)
        with caplog.at_level(logging.INFO, logger="shoal.engine"):
            trainer.run([0], max_epochs=5)
        assert trainer.state.epoch == 2
        assert "no improvement in 1 evaluations; the best score was 1.0" in caplog.text
        references = weakref.ref(trainer), weakref.ref(evaluator)
        del trainer, evaluator
        assert [reference() for reference in references] == [None, None]
        with pytest.raises(UsageError, match="trainer that is gone"):
            handler(Engine(lambda engine, batch: None))
    finally:
        gc.enable()
