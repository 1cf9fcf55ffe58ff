"""EMAHandler: the average, its own storage, and its state."""

from __future__ import annotations

import copy
import gc
import logging
import weakref

import pytest
import torch
from torch import nn

from shoal import checkpoint
from shoal.engine import Engine, Events
from shoal.errors import CheckpointError, UsageError
from shoal.handlers import Checkpoint, EMAHandler


def _net():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def _trainer(model, lr=0.5):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)

    def step(engine, batch):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return Engine(step)


def _data(num, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(8, 3, generator=generator).to(dtype) for _ in range(num)]


def _values(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("handle_buffers", ["copy", "update", "ema_train"])
def test_it_is_the_average_of_the_weights_after_each_iteration(handle_buffers):
    torch.manual_seed(0)
    model = _net()
    trainer, ema = _trainer(model), EMAHandler(model, momentum=0.1, handle_buffers=handle_buffers)
    expected = {name: value.double() for name, value in _values(model).items()}
    ema.attach(trainer)

    @trainer.on(Events.ITERATION_COMPLETED)
    def by_hand(engine):
        for name, value in model.state_dict().items():
            is_buffer = "running" in name or "tracked" in name
            if not is_buffer or (handle_buffers == "update" and value.is_floating_point()):
                expected[name] = 0.9 * expected[name] + 0.1 * value.double()
            elif handle_buffers != "ema_train":
                expected[name] = value.double()

    trainer.run(_data(5), max_epochs=2)
    assert (ema.num_updates, trainer.state.ema_momentum) == (10, 0.1)
    for name, value in ema.ema_model.state_dict().items():
        torch.testing.assert_close(value.double(), expected[name], rtol=1e-5, atol=1e-6)
    assert ema.ema_model.training == (handle_buffers == "ema_train")
    assert not any(parameter.requires_grad for parameter in ema.ema_model.parameters())


def test_it_shares_no_memory_with_the_model():
    model = _net()
    trainer, ema = _trainer(model), EMAHandler(model)
    ema.attach(trainer)
    trainer.run(_data(3))
    before = _values(ema.ema_model)
    with torch.no_grad():
        for value in (*model.parameters(), *model.buffers()):
            value.fill_(7)
    assert all(torch.equal(value, before[name]) for name, value in ema.ema_model.state_dict().items())
    own = {value.data_ptr() for value in ema.ema_model.state_dict().values()}
    assert not own & {value.data_ptr() for value in model.state_dict().values()}


def test_the_momentum_warms_up_and_is_in_the_state():
    model = nn.Linear(3, 1)
    trainer, seen = _trainer(model), []
    ema = EMAHandler(model, momentum=0.5, momentum_warmup=0.1, warmup_iters=5)
    ema.attach(trainer, name="momentum_of_a", event=Events.ITERATION_COMPLETED(every=2))
    assert trainer.state.momentum_of_a == 0.1
    trainer.add_event_handler(Events.ITERATION_COMPLETED(every=2), lambda e: seen.append(e.state.momentum_of_a))
    trainer.run(_data(14))
    assert seen == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.5])  # Trap 29: the first value first


def test_a_momentum_that_is_changed_in_the_state_is_used():
    model = nn.Linear(3, 1)
    trainer, ema = _trainer(model), EMAHandler(model, momentum=0.1)
    ema.attach(trainer)
    trainer.add_event_handler(Events.ITERATION_STARTED, lambda e: setattr(e.state, "ema_momentum", 1.0))
    trainer.run(_data(3))
    assert torch.equal(ema.ema_model.weight, model.weight)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_have_averages_in_float32(dtype):
    model = nn.Linear(3, 1, bias=False).to(dtype)
    with torch.no_grad():
        model.weight.fill_(1)
    engine, ema = Engine(lambda engine, batch: None), EMAHandler(model, momentum=0.0002)
    ema.attach(engine)
    engine.add_event_handler(Events.ITERATION_STARTED(once=1), lambda e: model.weight.data.fill_(2))
    engine.run(range(5000))
    expected = 2 - (1 - 0.0002) ** 5000  # in half precision it would have stayed at 1
    assert ema.ema_model.weight.dtype is dtype
    assert ema.state_dict()["exact"]["weight"].dtype is torch.float32
    torch.testing.assert_close(ema.ema_model.weight.float(), torch.full((1, 3), expected), rtol=5e-3, atol=0)
    torch.testing.assert_close(ema.state_dict()["exact"]["weight"], torch.full((1, 3), expected), rtol=1e-4, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("handle_buffers", ["copy", "update"])
def test_a_resumed_average_is_the_uninterrupted_one_bit_for_bit(tmp_path, dtype, handle_buffers):
    def build():
        torch.manual_seed(1)
        model = _net().to(dtype)
        trainer = _trainer(model)
        ema = EMAHandler(model, 0.1, momentum_warmup=0.01, warmup_iters=7, handle_buffers=handle_buffers)
        ema.attach(trainer)
        return trainer, model, ema, {"trainer": trainer, "model": model, "ema": ema}

    data = _data(10, dtype=dtype)
    trainer, _, whole, _ = build()
    trainer.run(data)
    trainer, _, ema, to_save = build()
    Checkpoint(to_save, tmp_path)(trainer)
    trainer.add_event_handler(Events.ITERATION_COMPLETED(once=4), Checkpoint(to_save, tmp_path))
    trainer.add_event_handler(Events.ITERATION_COMPLETED(once=6), lambda e: e.terminate())
    trainer.run(data)
    trainer, _, ema, to_load = build()
    torch.load(tmp_path / "checkpoint_4.pt", weights_only=True)  # Trap 40
    Checkpoint.load_objects(to_load, tmp_path / "checkpoint_4.pt")
    trainer.run(data)
    assert trainer.state.ema_momentum == pytest.approx(0.1)
    assert ema.num_updates == whole.num_updates == 10
    for name, value in whole.state_dict()["exact"].items():
        assert torch.equal(ema.state_dict()["exact"][name], value)
    for name, value in whole.ema_model.state_dict().items():
        assert torch.equal(ema.ema_model.state_dict()[name], value)


def test_it_begins_with_the_weights_of_the_first_run_unless_it_was_given_some():
    model = nn.Linear(3, 1)
    ema, given = EMAHandler(model, 0.5), EMAHandler(model, 0.5)
    other = nn.Linear(3, 1)
    model.load_state_dict(other.state_dict())  # pretrained weights, after the handler was made
    third = copy.deepcopy(nn.Linear(3, 1))
    given.ema_model.load_state_dict(third.state_dict())
    engine = Engine(lambda engine, batch: None)
    ema.attach(engine)
    given.attach(engine, "second")
    engine.run(range(1))
    assert torch.equal(ema.ema_model.weight, other.weight)
    torch.testing.assert_close(given.ema_model.weight, (third.weight + other.weight) / 2)


def test_weights_loaded_into_the_averaged_half_precision_model_are_averaged_on():
    model = nn.Linear(3, 1, bias=False).bfloat16()
    ema, engine = EMAHandler(model, 0.5), Engine(lambda engine, batch: None)
    ema.attach(engine)
    engine.run(range(2))
    ema.ema_model.load_state_dict({"weight": torch.full((1, 3), 4.0)})
    model.weight.data.fill_(2)
    engine.run(range(3))
    assert torch.equal(ema.ema_model.weight, torch.full((1, 3), 2.25).bfloat16())


def test_wrapped_and_tied_models(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(3, 3)
            self.b = nn.Linear(3, 3)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(self.a(x))

    bare = Tied()
    ema = EMAHandler(nn.DataParallel(torch.compile(bare)), 0.5)
    assert ema.model is bare
    assert ema.ema_model.a.weight is ema.ema_model.b.weight
    engine = Engine(lambda engine, batch: None)
    ema.attach(engine)
    engine.run(range(1))
    bare.a.weight.data.add_(1)
    engine.run(range(2))
    torch.testing.assert_close(ema.ema_model.a.weight, bare.a.weight - 0.25)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"momentum": 0}, "momentum=0"),
        ({"momentum": 1.0}, "momentum=1.0"),
        ({"momentum": None}, "momentum=None"),
        ({"momentum": "0.5"}, "momentum='0.5'"),
        ({"momentum_warmup": 0.1, "warmup_iters": 2.5}, "warmup_iters=2.5"),
        ({"momentum_warmup": 0.1}, "give both or none"),
        ({"warmup_iters": 3}, "give both or none"),
        ({"momentum_warmup": 0.1, "warmup_iters": 0}, "warmup_iters=0"),
        ({"handle_buffers": "share"}, "'copy', 'update', 'ema_train'"),
        ({"model": 3}, "asked to average a int"),
        ({"model": nn.LazyLinear(3)}, "wait for a first batch"),
    ],
)
def test_arguments_that_cannot_work_are_refused(options, text):
    with pytest.raises(UsageError, match=text):
        EMAHandler(**({"model": nn.Linear(1, 1)} | options))


def test_a_state_of_another_model_is_refused_and_changes_nothing():
    ema = EMAHandler(nn.Linear(3, 1))
    before = _values(ema.ema_model)
    for state, text in (
        ({"weight": torch.ones(1)}, "found something else"),
        (EMAHandler(nn.Linear(3, 2)).state_dict(), "of another shape"),
        (EMAHandler(nn.Linear(3, 1).bfloat16()).state_dict(), "2 half precision tensors"),
    ):
        with pytest.raises(CheckpointError, match=text):
            ema.load_state_dict(checkpoint.to_plain(state))
    assert all(torch.equal(value, before[name]) for name, value in ema.ema_model.state_dict().items())


def test_an_attribute_that_is_there_keeps_its_value_and_is_named(caplog):
    engine, model = Engine(lambda engine, batch: None), nn.Linear(1, 1)
    EMAHandler(model, 0.1).attach(engine)
    EMAHandler(model, 0.2).attach(engine, warn_if_exists=False)
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        EMAHandler(model, 0.2).attach(engine)
    assert "'ema_momentum' already" in caplog.text
    assert engine.state.ema_momentum == 0.1


def test_it_does_not_keep_the_engine_alive():
    torch.optim.SGD([torch.zeros(1)])  # the first one imports more of torch, which leaves cycles of its own
    gc.collect()
    gc.disable()
    try:
        model = _net()
        trainer, ema = _trainer(model), EMAHandler(model)
        ema.attach(trainer)
        trainer.run(_data(2))
        references = weakref.ref(trainer), weakref.ref(ema.ema_model)
        del trainer, ema
        assert [reference() for reference in references] == [None, None]
    finally:
        gc.enable()
