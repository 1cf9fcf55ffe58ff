"""A search for a learning rate leaves no trace, and finds what plain arithmetic finds."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR

from shoal import common
from shoal.engine import Engine, Events, create_supervised_trainer
from shoal.errors import UsageError
from shoal.handlers import EMAHandler, FastaiLRFinder, LRScheduler, PiecewiseLinear
from shoal.metrics import Average, RunningAverage
from shoal.testing import run_workers
from shoal.utils import manual_seed

DATA = [(torch.rand(8, 3, generator=torch.Generator().manual_seed(i)), torch.ones(8, 1)) for i in range(20)]


class Training:
    """A model with all that a search could leave changed."""

    def __init__(self, schedule=None, **options):
        manual_seed(3)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
        groups = [
            {"params": self.model[0].parameters()},
            {"params": [p for m in self.model[1:] for p in m.parameters()]},
        ]
        self.optimizer = torch.optim.Adam(groups, lr=1e-3)
        self.trainer = create_supervised_trainer(self.model, self.optimizer, nn.functional.mse_loss, **options)
        self.to_save = {"model": self.model, "optimizer": self.optimizer}
        self.losses, self.rates = [], []
        if schedule is not None:
            common.setup_common_training_handlers(
                self.trainer, lr_scheduler=schedule(self.optimizer), with_pbars=False, output_names=["loss"]
            )
        self.trainer.add_event_handler(Events.ITERATION_COMPLETED, self._note)

    def _note(self, engine):
        self.losses.append(float(engine.state.output))
        self.rates.append([group["lr"] for group in self.optimizer.param_groups])

    def search(self, run=lambda search: search.run(DATA), **options):
        finder = FastaiLRFinder()
        with finder.attach(self.trainer, self.to_save, **({"num_iter": 12, "end_lr": 0.5} | options)) as search:
            run(search)
        noted = self.rates
        self.losses, self.rates = [], []
        return finder, noted

    def everything(self):
        drawn = random.random(), float(np.random.rand()), float(torch.rand(1))
        numbers = [float(tensor.double().sum()) for tensor in self.model.state_dict().values()]
        return self.losses, self.rates, numbers, drawn, self.trainer.state_dict()


SCHEDULES = {
    "none": None,
    "ours": lambda optimizer: PiecewiseLinear(optimizer, "lr", [(0, 1e-3), (40, 0.0)]),
    "torch's": lambda optimizer: ExponentialLR(optimizer, 0.9),
    "wrapped": lambda optimizer: LRScheduler(ExponentialLR(optimizer, 0.9)),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("accumulation", [1, 3])
def test_a_training_after_a_search_is_the_training_without_it_bit_for_bit(schedule, accumulation):
    plain = Training(SCHEDULES[schedule], gradient_accumulation_steps=accumulation)
    plain.trainer.run(DATA, max_epochs=2)
    expected = plain.everything()
    searched = Training(SCHEDULES[schedule], gradient_accumulation_steps=accumulation)
    searched.search()
    assert searched.trainer.state.iteration == 0
    assert searched.trainer.state.metrics == {}
    searched.trainer.run(DATA, max_epochs=2)
    assert searched.everything() == expected


def test_a_search_between_two_runs_leaves_the_second_as_it_was():
    runs = []
    for with_search in (False, True):
        training = Training(SCHEDULES["torch's"])
        training.trainer.state_dict_user_keys.append("weight")
        training.trainer.state.weight = 3
        training.trainer.run(DATA, max_epochs=1)
        losses = training.losses
        if with_search:
            finder, _ = training.search()
            assert len(finder.get_results()["loss"]) == 12
        training.trainer.run(DATA, max_epochs=3)
        runs.append((losses[:20], training.losses[-40:], *training.everything()[2:]))
    assert runs[0] == runs[1]


def _next_run(with_search, stop, again):
    """What happens in a run after another one, with or without a search between them."""
    training, seen = Training(SCHEDULES["wrapped"]), []
    trainer = training.trainer
    averaged = EMAHandler(training.model, momentum=0.3)
    averaged.attach(trainer)
    RunningAverage(output_transform=float, epoch_bound=False).attach(trainer, "running")
    Average(output_transform=float).attach(trainer, "average")
    trainer.add_event_handler(Events.ITERATION_COMPLETED(once=7), stop)
    trainer.run(DATA, max_epochs=1)
    place = trainer.state_dict()
    if with_search:
        training.search()
        assert trainer.state_dict() == place

    def note(engine):
        metrics = {name: float(value) for name, value in engine.state.metrics.items()}
        seen.append((engine.last_event_name, engine.state.epoch, engine.state.iteration, metrics))

    for event in (Events.STARTED, Events.EPOCH_STARTED, Events.ITERATION_COMPLETED, Events.EPOCH_COMPLETED):
        trainer.add_event_handler(event, note)
    again(trainer)
    numbers = [float(tensor.double().sum()) for tensor in averaged.ema_model.state_dict().values()]
    return seen, numbers, averaged.num_updates


@pytest.mark.parametrize("again", [{}, {"max_epochs": 1}, {"max_epochs": 2}], ids=str)
@pytest.mark.parametrize("stop", ["not", "terminate", "interrupt"])
def test_averaged_weights_metrics_and_events_of_the_next_run_are_as_without_a_search(stop, again):
    def leave(engine):
        if stop != "not" and engine.state.epoch == 1:
            getattr(engine, stop)()

    without, searched = (_next_run(between, leave, lambda trainer: trainer.run(DATA, **again)) for between in (0, 1))
    assert searched == without
    assert without[2] > 0


def test_a_search_leaves_no_place_in_a_trainer_that_has_not_run():
    training = Training()
    place = training.trainer.state_dict()
    training.search()
    assert training.trainer.state_dict() == place


def test_an_open_window_of_accumulated_gradients_is_done_again_after_a_search():
    training = Training(gradient_accumulation_steps=3)
    handle = training.trainer.add_event_handler(Events.ITERATION_COMPLETED(once=5), lambda engine: engine.terminate())
    training.trainer.run(DATA)
    handle.remove()
    assert training.trainer.state.iteration == 5
    training.search()
    assert training.trainer.state.iteration == 3
    training.trainer.run()
    assert training.trainer.state.iteration == len(DATA)
    assert len(training.losses) == len(DATA) - 3


def test_a_rate_that_is_a_tensor_stays_the_one_that_captured_graphs_hold():
    training = Training()
    rates = []
    for group in training.optimizer.param_groups:
        group["lr"] = torch.tensor(0.01)
        rates.append(group["lr"])
    training.search()
    assert [group["lr"] for group in training.optimizer.param_groups] == [pytest.approx(0.01)] * 2
    assert all(group["lr"] is rate for group, rate in zip(training.optimizer.param_groups, rates, strict=True))


def test_an_exception_in_the_search_leaves_no_trace_either():
    def fail(search):
        search.run([*DATA[:5], ("no", "batch")])

    plain = Training()
    plain.trainer.run(DATA)
    expected = plain.everything()
    searched = Training()
    finder = FastaiLRFinder()
    with pytest.raises(TypeError), finder.attach(searched.trainer, searched.to_save) as search:
        fail(search)
    assert [len(column) for column in finder.get_results().values()] == [5, 5]
    searched.losses, searched.rates = [], []
    searched.trainer.run(DATA)
    assert searched.everything() == expected
    assert len(searched.rates) == len(DATA)


@pytest.mark.parametrize("step_mode", ["exp", "linear"])
def test_the_first_iteration_uses_the_first_rate_and_the_last_one_the_last_of_each_group(step_mode):
    training = Training(SCHEDULES["ours"])  # its rates don't count in the search
    finder, rates = training.search(step_mode=step_mode, start_lr=[1e-4, 1e-3], end_lr=[0.1, 1.0], diverge_th=1e9)
    assert finder.get_results()["lr"] == rates
    assert rates[0] == [1e-4, 1e-3]
    assert rates[-1] == [0.1, 1.0]
    expected = np.geomspace(1e-4, 0.1, 12) if step_mode == "exp" else np.linspace(1e-4, 0.1, 12)
    assert [row[0] for row in rates] == pytest.approx(list(expected))
    assert training.optimizer.param_groups[0]["lr"] == 1e-3


def _given(losses, **options):
    """A search whose losses are given."""
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1e-4)
    values = iter(losses)
    trainer = Engine(lambda engine, batch: {"loss": torch.tensor(next(values))})
    finder = FastaiLRFinder()
    defaults = {"output_transform": lambda output: output["loss"], "end_lr": 1.0}
    with finder.attach(trainer, {"optimizer": optimizer}, **(defaults | options)) as search:
        search.run(range(len(losses)))
    return finder, optimizer, weight


def test_the_suggestion_is_where_the_smoothed_loss_falls_fastest():
    losses = [5.0, 4.9, 4.5, 3.0, 2.2, 2.0, 2.5, 3.0, 4.0, 9.5]
    finder, optimizer, weight = _given(losses, smooth_f=1.0)
    results = finder.get_results()
    assert results["loss"] == pytest.approx(losses)
    assert results["lr"] == pytest.approx(list(np.geomspace(1e-4, 1.0, 10)))
    assert finder.lr_suggestion() == results["lr"][3]
    finder.apply_suggested_lr(optimizer)
    assert optimizer.param_groups[0]["lr"] == results["lr"][3]
    with pytest.raises(UsageError, match="1 parameter groups, and this one has 2"):
        finder.apply_suggested_lr(torch.optim.SGD([{"params": [weight]}, {"params": [nn.Parameter(weight.clone())]}]))
    smoothed, _, _ = _given(losses, smooth_f=0.5)
    average = losses[0]
    for loss, found in zip(losses, smoothed.get_results()["loss"], strict=False):
        average = 0.5 * loss + 0.5 * average
        assert found == pytest.approx(average)


@pytest.mark.parametrize("bad", [11.0, math.nan, math.inf, -math.inf])
def test_a_search_ends_where_the_loss_diverges(bad):
    finder, _, _ = _given([3.0, 2.5, 2.2, 2.0, bad, 1.0, 1.0], smooth_f=0)
    assert len(finder.get_results()["loss"]) == 5


def test_a_negative_loss_that_falls_does_not_diverge():
    finder, _, _ = _given([-1.0, -2.0, -4.0, -5.0, -3.0, -26.0, -1.0, 16.0], smooth_f=1.0, diverge_th=2.0)
    assert len(finder.get_results()["loss"]) == 8


def test_a_search_that_shows_nothing_says_so(caplog):
    with pytest.raises(UsageError, match="no search yet"):
        FastaiLRFinder().lr_suggestion()
    rising, _, _ = _given([1.0, 1.1, 1.2], smooth_f=1.0)
    with pytest.raises(UsageError, match="didn't fall"):
        rising.lr_suggestion()
    assert "did not diverge" in caplog.text
    _given([1.0, 1.1, 1.2], num_iter=10)
    assert "10 iterations, and the run has 3" in caplog.text


def test_arguments_that_cannot_work_are_refused():
    training = Training()
    finder = FastaiLRFinder()
    for options, text in (
        ({"to_save": {"model": training.model}}, "as 'optimizer'"),
        ({"to_save": {}}, "to_save="),
        ({"to_save": training.to_save | {"loss": 3}}, r"to_save\['loss'\]"),
        ({"num_iter": 0}, "num_iter=0"),
        ({"step_mode": "log"}, "'log'"),
        ({"smooth_f": 2}, "smooth_f=2"),
        ({"diverge_th": 1}, "diverge_th=1"),
        ({"end_lr": 1e-9}, "give a higher end_lr"),
        ({"start_lr": [0.1]}, "each of 2 groups"),
        ({"start_lr": 0.0}, "above 0"),
        ({"start_lr": True}, "above 0"),
        ({"output_transform": 3}, "output_transform=3"),
    ):
        with (
            pytest.raises(UsageError, match=text),
            finder.attach(training.trainer, **({"to_save": training.to_save} | options)),
        ):
            pass
    with (
        pytest.raises(UsageError, match="as loss"),
        finder.attach(training.trainer, training.to_save, lambda output: "x") as search,
    ):
        search.run(DATA)
    with pytest.raises(UsageError, match="give num_iter"), finder.attach(training.trainer, training.to_save) as search:
        search.run(iter(DATA))


def test_in_its_block_a_search_is_looked_at_and_not_applied():
    training, finder = Training(), FastaiLRFinder()
    with finder.attach(training.trainer, training.to_save, start_lr=np.float32(1e-3), end_lr=0.5) as search:
        search.run(DATA)
        assert len(finder.get_results()["loss"]) == len(DATA)
        with pytest.raises(UsageError, match="call it after the block"):
            finder.apply_suggested_lr(training.optimizer)
    for group in training.optimizer.param_groups:
        group["lr"] = 0.0  # by a warm-up, say
    with (
        pytest.raises(UsageError, match=r"0\.0, the learning rate of the optimizer"),
        finder.attach(training.trainer, training.to_save),
    ):
        pass


def test_a_search_is_drawn():
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    finder, _, _ = _given([5.0, 4.9, 4.5, 3.0, 2.2, 2.0, 2.5, 3.0, 4.0, 9.5], smooth_f=1.0)
    axes = finder.plot(skip_start=1, skip_end=1)
    assert axes.get_xscale() == "log"
    assert len(axes.lines[0].get_xdata()) == 8
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["loss", "suggestion: 0.00215"]
    _, given = plt.subplots()
    assert finder.plot(skip_start=0, skip_end=0, log_lr=False, display_suggestion=False, ax=given) is given
    plt.close("all")
    with pytest.raises(UsageError, match="a search of 10"):
        finder.plot()


def _search_on_ranks():
    from shoal import runtime

    rank = runtime.current().rank
    training = Training()
    data = [(x + rank, y) for x, y in DATA]  # each rank sees others
    finder, _ = training.search(lambda search: search.run(data), num_iter=20, end_lr=1e4, diverge_th=1.5)
    results = finder.get_results()
    return results, training.everything()[2]


def test_ranks_see_one_loss_and_stop_together():
    (first, numbers), (second, others) = run_workers(_search_on_ranks, 2)
    assert first == second
    assert len(first["loss"]) < 20
    assert numbers == others
