"""Windows of accumulated gradients that are broken off, saved in odd places, or of an epoch of another length."""

import io

import pytest
import torch
from torch import nn

from shoal.engine import Events, create_supervised_trainer


class Broken(Exception):
    pass


def batches(number):
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(2, 3, generator=generator).double(), torch.randn(2, 1, generator=generator).double())
        for _ in range(number)
    ]


def built(**options):
    torch.manual_seed(0)
    model = nn.Linear(3, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return create_supervised_trainer(model, optimizer, nn.functional.mse_loss, **options), model, optimizer


def assert_same(model, expected):
    for got, right in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(got, right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("lengths", [(3, 4), (4, 3), (5, 2)])
def test_a_run_anew_with_epochs_of_another_length_has_windows_of_these(lengths):
    trainer, model, _ = built(gradient_accumulation_steps=2)
    data = batches(6)
    for length in lengths:
        trainer.state.max_epochs = None
        trainer.run(data, epoch_length=length)
    _, expected, other_optimizer = built()
    for length in lengths:
        fresh = create_supervised_trainer(
            expected, other_optimizer, nn.functional.mse_loss, gradient_accumulation_steps=2
        )
        fresh.run(data, epoch_length=length)
    assert_same(model, expected)


@pytest.mark.parametrize("where", ["prepare_batch", "loss_fn", "backward", "output_transform"])
@pytest.mark.parametrize("number", [1, 2, 4, 6, 7])
def test_a_window_in_which_a_step_breaks_off_is_done_anew(where, number):
    # Of windows of 3 in epochs of 7; what a backward pass added to the gradients before it failed must not count.
    calls = dict.fromkeys(("prepare_batch", "loss_fn", "backward", "output_transform"), 0)

    def count(name):
        calls[name] += 1
        if name == where and calls[name] == number:
            raise Broken

    def prepare(batch, device, non_blocking):
        count("prepare_batch")
        return batch

    def loss_fn(y_pred, y):
        count("loss_fn")
        loss = nn.functional.mse_loss(y_pred, y)
        y_pred.register_hook(lambda _: count("backward"))
        return loss

    def output(x, y, y_pred, loss):
        count("output_transform")
        return loss

    def train(breaks):
        calls.update(dict.fromkeys(calls, 0 if breaks else -1000))
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1)).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        trainer = create_supervised_trainer(
            model, optimizer, loss_fn,
            prepare_batch=prepare, output_transform=output, gradient_accumulation_steps=3,
        )  # fmt: skip
        if breaks:
            with pytest.raises(Broken):
                trainer.run(batches(7), max_epochs=2)
        assert trainer.run(batches(7), max_epochs=2).iteration == 14
        return model

    if where == "output_transform" and number in (6, 7):  # the optimizer has stepped: only this batch comes again
        train(breaks=True)
        return
    assert_same(train(breaks=True), train(breaks=False))


def test_a_window_of_an_iterator_that_breaks_off_says_what_it_holds(caplog):
    def output(x, y, y_pred, loss):
        if trainer.state.iteration == 2 and not caplog.records:
            raise Broken
        return loss

    trainer, _, _ = built(gradient_accumulation_steps=3, output_transform=output)
    data = iter(batches(6))
    with pytest.raises(Broken):
        trainer.run(data, max_epochs=1, epoch_length=6)
    assert "a part of that batch twice" in caplog.text
    assert trainer.run(data, max_epochs=1).iteration == 6


def test_a_state_saved_in_a_window_that_lies_in_two_passes_over_the_data_goes_on_where_it_began():
    data = batches(3)
    options = {"gradient_accumulation_steps": 4}
    trainer, model, optimizer = built(**options)
    saved = []

    def save(engine):
        file = io.BytesIO()
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "trainer": engine.state_dict()}, file
        )
        file.seek(0)
        saved.append(torch.load(file, weights_only=True))

    trainer.add_event_handler(Events.ITERATION_COMPLETED, save)
    trainer.run(data, max_epochs=2, epoch_length=11)
    for states in saved:
        again, other, other_optimizer = built(**options)
        other.load_state_dict(states["model"])
        other_optimizer.load_state_dict(states["optimizer"])
        again.load_state_dict(states["trainer"])
        drawn = []
        again.add_event_handler(Events.ITERATION_COMPLETED, lambda e, drawn=drawn: drawn.append(e.state.batch))
        again.run(data, max_epochs=2)
        assert_same(other, model)
