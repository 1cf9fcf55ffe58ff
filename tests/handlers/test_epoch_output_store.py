"""EpochOutputStore: the outputs of one epoch, no more and no less."""

from __future__ import annotations

import pytest
import torch

from shoal.engine import Engine, Events
from shoal.errors import UsageError
from shoal.handlers import EpochOutputStore


def test_it_has_the_outputs_of_the_epoch_cut_from_their_graphs():
    weight = torch.ones(2, requires_grad=True)
    engine, store = Engine(lambda engine, batch: (weight * batch, batch)), EpochOutputStore()
    store.attach(engine, "output")
    seen = []
    engine.add_event_handler(Events.EPOCH_COMPLETED, lambda e: seen.append(store.data))
    engine.run([1, 2, 3], max_epochs=2)
    assert engine.state.output is store.data is seen[1] and seen[0] is not seen[1]
    assert [batch for _, batch in store.data] == [1, 2, 3] == [batch for _, batch in seen[0]]
    assert not any(prediction.requires_grad for prediction, _ in store.data)
    assert torch.equal(store.data[2][0], torch.full((2,), 3.0))


def test_the_state_has_the_list_from_the_start_and_another_transform_chooses():
    engine, store = Engine(lambda engine, batch: {"y": batch, "x": "unused"}), EpochOutputStore(lambda out: out["y"])
    store.attach(engine, name="predictions")
    seen = []
    engine.add_event_handler(Events.ITERATION_COMPLETED(every=2), lambda e: seen.append(list(e.state.predictions)))
    engine.run(range(4))
    assert seen == [[0, 1], [0, 1, 2, 3]]
    store.reset()
    assert store.data == [] and engine.state.predictions == [0, 1, 2, 3]


def test_an_epoch_that_is_taken_up_in_its_middle_keeps_what_is_there():
    engine, store = Engine(lambda engine, batch: batch), EpochOutputStore()
    store.attach(engine)
    engine.add_event_handler(Events.ITERATION_COMPLETED(once=2), lambda e: e.terminate())
    engine.run(range(4))
    assert store.data == [0, 1]
    engine.run()
    assert store.data == [0, 1, 2, 3]
    assert not hasattr(engine.state, "predictions")


@pytest.mark.parametrize("name", ["epoch", "iteration", "max_epochs", "dataloader", 5])
def test_a_name_by_which_the_engine_runs_is_refused(name):
    with pytest.raises(UsageError, match=f"engine.state.{name}"):
        EpochOutputStore().attach(Engine(lambda engine, batch: batch), name)
    with pytest.raises(UsageError, match="output_transform=5"):
        EpochOutputStore(output_transform=5)
