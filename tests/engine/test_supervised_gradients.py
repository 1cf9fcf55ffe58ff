"""What a supervised trainer does to gradients, and how it tells; and its process functions on their own."""

import io
import math

import pytest
import torch
from torch import nn

from shoal.engine import (
    Engine,
    Events,
    create_supervised_evaluator,
    create_supervised_trainer,
    supervised_evaluation_step,
    supervised_evaluation_step_amp,
    supervised_training_step,
    supervised_training_step_amp,
)
from shoal.errors import UsageError
from shoal.handlers import LRScheduler
from shoal.metrics import Accuracy


def _batches(number, size=4):
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(size, 3, generator=generator), torch.randint(0, 2, (size,), generator=generator))
        for _ in range(number)
    ]


def _made(momentum=0.9):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=momentum)


def _trainer(**options):
    model, optimizer = _made()
    return create_supervised_trainer(model, optimizer, nn.CrossEntropyLoss(), **options), model, optimizer


def test_the_norm_is_on_the_state_where_it_is_asked_for_or_clipped():
    for options in ({}, {"log_grad_norm": True}, {"max_grad_norm": 0.01}, {"max_grad_value": 0.001}):
        trainer, model, _ = _trainer(**options)
        assert trainer.state.grad_norm is None
        norm = trainer.run(_batches(1)).grad_norm
        if not options:
            assert norm is None
            continue
        assert isinstance(norm, torch.Tensor)
        assert norm.dim() == 0
        plain, reference, _ = _trainer()
        plain.run(_batches(1))
        expected = torch.stack([p.grad.norm() for p in reference.parameters()]).norm()
        torch.testing.assert_close(norm, expected)
        kept = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        if "max_grad_norm" in options:
            assert float(kept) == pytest.approx(0.01, rel=1e-4)
        if "max_grad_value" in options:
            assert max(float(p.grad.abs().max()) for p in model.parameters()) == pytest.approx(0.001)


def test_with_accumulation_the_norm_is_that_of_the_window_and_told_once_an_optimizer_step():
    trainer, _, _ = _trainer(gradient_accumulation_steps=2, log_grad_norm=True)
    norms = []
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda e: norms.append(e.state.grad_norm))
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda e: norms.append(e.state.grad_norm))
    batches = _batches(3)
    trainer.run(iter(batches))  # without a length, so that the window of the last one is closed at the epoch's end
    assert norms[0] is None
    assert norms[1] is norms[2]
    assert norms[3] is not norms[2]
    whole, _, _ = _trainer(log_grad_norm=True)
    first_two = tuple(torch.cat(parts) for parts in zip(*batches[:2], strict=True))
    torch.testing.assert_close(whole.run([first_two]).grad_norm, norms[1])


def test_a_step_that_the_scaler_skips_is_on_the_state_and_does_not_advance_a_schedule():
    # Trap 32, with a real scaler: the second and the fifth loss are infinite.
    model, optimizer = _made()
    iteration = iter(range(1, 100))

    def loss_fn(y_pred, y):
        return nn.functional.cross_entropy(y_pred, y) * (math.inf if next(iteration) in (2, 5) else 1.0)

    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    trainer = create_supervised_trainer(model, optimizer, loss_fn, amp_mode="bf16", scaler=scaler, max_grad_norm=1.0)
    schedule = LRScheduler(torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5))
    rates, skipped, counts, finite = [], [], [], []
    trainer.add_event_handler(Events.ITERATION_STARTED, schedule)

    @trainer.on(Events.ITERATION_COMPLETED)
    def look(engine):
        rates.append(optimizer.param_groups[0]["lr"])
        skipped.append(engine.state.step_skipped)
        counts.append(engine.state.num_skipped_steps)
        finite.append(bool(engine.state.grad_norm.isfinite()))

    trainer.run(_batches(6))
    assert skipped == [False, True, False, False, True, False]
    assert counts == [0, 1, 1, 1, 2, 2]
    assert finite == [not each for each in skipped]
    assert rates == [0.5, 0.25, 0.25, 0.125, 0.0625, 0.0625]
    assert trainer.state.scaler is scaler


def test_the_loss_that_is_reported_is_the_batchs_own_also_with_accumulation():
    # Trap 27.
    trainer, model, _ = _trainer(gradient_accumulation_steps=4)
    batches, losses = _batches(4), []
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda e: losses.append(e.state.output))
    expected = [nn.functional.cross_entropy(model(x), y).detach() for x, y in batches]
    trainer.run(batches)
    torch.testing.assert_close(torch.stack(losses), torch.stack(expected))


class Unsized:
    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


def _through_a_file(**states):
    file = io.BytesIO()
    torch.save(states, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("kind", [list, Unsized])
@pytest.mark.parametrize("cut_at", [None, 2])
def test_a_training_that_is_saved_in_the_middle_of_a_window_goes_on_as_if_it_had_not_been_left(kind, cut_at):
    data = kind(_batches(7))

    def build():
        trainer, model, optimizer = _trainer(gradient_accumulation_steps=3, max_grad_norm=0.5)
        if cut_at is not None:
            trainer.add_event_handler(
                Events.ITERATION_COMPLETED(once=cut_at), lambda e: e.terminate_epoch(skip_epoch_completed=True)
            )
        return trainer, model, optimizer

    trainer, model, optimizer = build()
    saved = []
    trainer.add_event_handler(
        Events.ITERATION_COMPLETED,
        lambda e: saved.append(
            _through_a_file(model=model.state_dict(), optimizer=optimizer.state_dict(), trainer=e.state_dict())
        ),
    )
    trainer.run(data, max_epochs=2)
    places = [states["trainer"]["iteration"] for states in saved]
    if cut_at is None:
        last = (7, 14) if kind is list else (6, 13)  # without a length, the epoch's end closes its last window
        assert places == [0, 0, 3, 3, 3, 6, last[0], 7, 7, 10, 10, 10, 13, last[1]]
    for states in saved:
        again, other, other_optimizer = build()
        other.load_state_dict(states["model"])
        other_optimizer.load_state_dict(states["optimizer"])
        again.load_state_dict(states["trainer"])
        state = again.run(data, max_epochs=2)
        assert state.iteration == trainer.state.iteration
        for got, expected in zip(other.parameters(), model.parameters(), strict=True):
            assert torch.equal(got, expected), states["trainer"]


def test_epochs_of_unlike_lengths_step_on_every_batch():
    class Growing(Unsized):
        length = 2

        def __iter__(self):
            self.length += 1
            return iter(self.batches[: self.length])

    trainer, model, _ = _trainer(gradient_accumulation_steps=2)
    trainer.run(Growing(_batches(5)), max_epochs=3)
    by_hand, reference, _ = _trainer(gradient_accumulation_steps=2)
    for length in (3, 4, 5):
        by_hand.state.max_epochs = None
        by_hand.run(_batches(5)[:length])
    for got, expected in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(got, expected)


def test_a_window_that_a_cut_epoch_leaves_open_is_stepped_on_also_without_its_end():
    trainer, model, _ = _trainer(gradient_accumulation_steps=4)
    before = model[0].weight.detach().clone()
    trainer.add_event_handler(
        Events.ITERATION_COMPLETED(once=2), lambda e: e.terminate_epoch(skip_epoch_completed=True)
    )
    trainer.run(_batches(6))
    assert not torch.equal(model[0].weight, before)


def test_windows_follow_data_that_are_set_in_the_middle_of_an_epoch():
    trainer, _, _ = _trainer()
    trainer.add_event_handler(Events.ITERATION_COMPLETED(once=2), lambda e: e.set_data(_batches(4, size=2)))
    sizes = []
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda e: sizes.append(len(e.state.batch[0])))
    trainer.run(_batches(4))
    assert sizes == [4, 4, 2, 2]


def test_the_process_functions_on_their_own_do_what_the_engines_do():
    batches = _batches(5)
    for options in ({}, {"gradient_accumulation_steps": 2}, {"gradient_accumulation_steps": 2, "max_grad_norm": 0.1}):
        trainer, model, _ = _trainer(**options)
        trainer.run(Unsized(batches), max_epochs=2)
        other, optimizer = _made()
        engine = Engine(supervised_training_step(other, optimizer, nn.CrossEntropyLoss(), **options))
        engine.run(Unsized(batches), max_epochs=2)
        for got, expected in zip(other.parameters(), model.parameters(), strict=True):
            assert torch.equal(got, expected), options
        evaluator = Engine(supervised_evaluation_step(other))
        Accuracy().attach(evaluator, "accuracy")
        expected = create_supervised_evaluator(model, {"accuracy": Accuracy()}).run(batches).metrics
        assert evaluator.run(batches).metrics == expected
    half = Engine(supervised_training_step_amp(*_made(), nn.CrossEntropyLoss()))
    assert half.run(batches).output.dim() == 0
    assert Engine(supervised_evaluation_step_amp(other)).run(batches).output[0].dtype == torch.float32


def test_what_ignite_names_and_is_not_needed_says_so(caplog):
    _trainer(deterministic=True)
    assert "deterministic=True has no effect" in caplog.text


def test_bounds_that_cannot_work_are_refused_when_the_trainer_is_made():
    for options in ({"max_grad_norm": 0}, {"max_grad_value": -1}, {"max_grad_norm": 1, "max_grad_value": 1}):
        with pytest.raises(UsageError, match="max_grad"):
            _trainer(**options)
