import pytest
import torch
from torch.nn.functional import cross_entropy

from shoal.engine import Engine, Events
from shoal.errors import NotComputableError, UsageError
from shoal.metrics import Accuracy, Loss, Metric, MetricUsage, RunningAverage


def batches(num_batches=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(5, 3, generator=generator), torch.randint(0, 3, (5,), generator=generator))
        for _ in range(num_batches)
    ]


def right(data):
    return [float((y_pred.argmax(1) == y).float().mean()) for y_pred, y in data]


def passing():
    return Engine(lambda engine, batch: batch)


def test_the_value_of_an_epoch_is_there_before_any_handler_of_its_end():
    engine, data, seen = passing(), batches(), []
    engine.add_event_handler(Events.EPOCH_COMPLETED, lambda e: seen.append(dict(e.state.metrics)))
    Accuracy().attach(engine, "accuracy")
    Loss(cross_entropy).attach(engine, "loss")
    engine.run(data, max_epochs=2)
    accuracy = sum(right(data)) / len(data)
    loss = float(torch.stack([cross_entropy(*batch).double() for batch in data]).mean())
    assert [values["accuracy"] for values in seen] == pytest.approx([accuracy] * 2)
    assert [values["loss"] for values in seen] == pytest.approx([loss] * 2)


def test_the_same_metrics_serve_two_engines_that_run_one_after_the_other():
    metrics = {"accuracy": Accuracy(), "loss": Loss(cross_entropy)}
    engines = passing(), passing()
    for engine in engines:
        for name, metric in metrics.items():
            metric.attach(engine, name)
    for seed in (1, 2):
        for engine, data in zip(engines, (batches(3, seed), batches(2, seed + 10)), strict=True):
            state = engine.run(data)
            assert state.metrics["accuracy"] == pytest.approx(sum(right(data)) / len(data))


def test_one_metric_in_two_engines_that_run_one_inside_the_other_is_refused():
    outer, inner, metric = passing(), passing(), Accuracy()
    metric.attach(outer, "accuracy")
    metric.attach(inner, "accuracy")
    outer.add_event_handler(Events.ITERATION_COMPLETED(once=2), lambda: inner.run(batches(1)))
    with pytest.raises(UsageError, match="'accuracy' is attached to another engine"):
        outer.run(batches())
    assert inner.run(batches(1)).metrics.keys() == {"accuracy"}


def test_each_usage_starts_anew_and_shows_its_value_when_it_says():
    data, expected = batches(4), right(batches(4))

    def mean(values):
        return sum(values) / len(values)

    twice = [*expected, *expected]
    wanted = {
        "batch_wise": twice,
        "running_batch_wise": [mean(twice[: n + 1]) for n in range(8)],
        "single_epoch_running_batch_wise": [mean(expected[: n % 4 + 1]) for n in range(8)],
    }
    for usage, values in wanted.items():
        engine, shown = passing(), []
        engine.add_event_handler(Events.ITERATION_COMPLETED, lambda e, shown: shown.append(e.state.metrics["a"]), shown)
        Accuracy().attach(engine, "a", usage=usage)
        engine.run(data, max_epochs=2)
        assert shown == pytest.approx(values), usage
    for usage in ("epoch_wise", "running_epoch_wise"):
        engine, shown = passing(), []
        Accuracy().attach(engine, "a", usage)
        engine.add_event_handler(
            Events.ITERATION_COMPLETED, lambda e, shown: shown.append("a" in e.state.metrics), shown
        )
        engine.run(data, max_epochs=2)
        assert shown == [False] * 4 + [True] * 4


def test_a_running_average_is_there_after_every_iteration():
    engine, shown = Engine(lambda engine, batch: {"loss": float(batch)}), []
    engine.add_event_handler(Events.ITERATION_COMPLETED, lambda e: shown.append(e.state.metrics["loss"]))
    RunningAverage(output_transform=lambda out: out["loss"], alpha=0.5).attach(engine, "loss")
    engine.run([1, 2, 3], max_epochs=2)
    assert shown == [1.0, 1.5, 2.25, 1.625, 1.8125, 2.40625]


def test_a_running_average_bound_to_the_epoch_starts_anew_in_each():
    engine, shown = Engine(lambda engine, batch: float(batch)), []
    RunningAverage(alpha=0.5, epoch_bound=True).attach(engine, "loss")
    engine.add_event_handler(Events.ITERATION_COMPLETED, lambda e: shown.append(e.state.metrics["loss"]))
    engine.run([1, 2], max_epochs=2)
    assert shown == [1.0, 1.5, 1.0, 1.5]


def test_a_running_average_of_a_metric_averages_its_value_for_each_batch():
    engine, data, shown = passing(), batches(3), []
    RunningAverage(Accuracy(), alpha=0.5).attach(engine, "a")
    engine.add_event_handler(Events.ITERATION_COMPLETED, lambda e: shown.append(float(e.state.metrics["a"])))
    engine.run(data)
    first, second, third = right(data)
    assert shown == pytest.approx([first, (first + second) / 2, (first + second) / 4 + third / 2])


def test_outputs_of_none_and_empty_batches_are_left_out():
    data = batches(3)
    engine = Engine(lambda engine, batch: batch)
    Accuracy().attach(engine, "accuracy")
    Loss(cross_entropy).attach(engine, "loss")
    RunningAverage(output_transform=lambda out: None if out is None else 1.0).attach(engine, "average")
    empty = (torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
    state = engine.run([None, data[0], empty, data[1], None, data[2]])
    assert state.metrics["accuracy"] == pytest.approx(sum(right(data)) / 3)
    assert state.metrics["loss"] == pytest.approx(float(torch.stack([cross_entropy(*b) for b in data]).mean()))
    assert state.metrics["average"] == 1.0


def test_a_metric_that_saw_no_sample_is_an_error_that_names_it():
    engine = Engine(lambda engine, batch: None)
    Accuracy().attach(engine, "accuracy")
    with pytest.raises(NotComputableError, match="'accuracy'"):
        engine.run(range(3))


def test_a_value_of_an_earlier_run_is_never_taken_for_this_ones():
    engine = passing()
    Accuracy().attach(engine, "accuracy")
    engine.run(batches())
    engine.add_event_handler(Events.ITERATION_COMPLETED(once=2), lambda e: e.terminate())
    assert "accuracy" not in engine.run(batches()).metrics


def test_an_epoch_that_goes_on_keeps_its_samples_and_one_that_was_loaded_counts_the_rest():
    data = batches(4)
    for stop in ("interrupt", "terminate"):
        engine = passing()
        Accuracy().attach(engine, "accuracy")
        engine.add_event_handler(Events.ITERATION_COMPLETED(once=2), lambda e, stop: getattr(e, stop)(), stop)
        engine.run(data)
        saved = engine.state_dict()
        assert engine.run(data).metrics["accuracy"] == pytest.approx(sum(right(data)) / 4)
        fresh = passing()
        Accuracy().attach(fresh, "accuracy")
        fresh.load_state_dict(saved)
        assert fresh.run(data).metrics["accuracy"] == pytest.approx(sum(right(data[2:])) / 2)


def test_an_evaluation_that_ends_by_iterations_has_its_metrics():
    engine, data = passing(), batches(4)
    Accuracy().attach(engine, "accuracy")
    assert engine.run(data, max_iters=3).metrics["accuracy"] == pytest.approx(sum(right(data[:3])) / 3)


def test_metrics_attach_under_free_names_and_known_usages_and_detach():
    engine, metric = passing(), Accuracy()
    metric.attach(engine, "accuracy")
    assert metric.is_attached(engine)
    with pytest.raises(UsageError, match="'accuracy'"):
        Accuracy().attach(engine, "accuracy")
    with pytest.raises(UsageError, match="did you mean 'epoch_wise'"):
        Accuracy().attach(engine, "other", usage="epochwise")
    with pytest.raises(UsageError, match="choose one of epoch_wise"):
        Accuracy().attach(engine, "other", usage=MetricUsage())
    for name in (None, "", 5):
        with pytest.raises(UsageError, match=f"under the name {name!r}; give a text"):
            Accuracy().attach(engine, name)
    metric.detach(engine)
    assert not metric.is_attached(engine)
    with pytest.raises(UsageError, match="not attached"):
        metric.detach(engine)
    assert engine.run(batches()).metrics == {}


class Spread(Metric):
    """A metric of one's own with several values: the least and the greatest number."""

    def reset(self):
        self.low, self.high = torch.tensor(float("inf")), torch.tensor(float("-inf"))

    def update(self, output):
        self.low, self.high = torch.minimum(self.low, output.min()), torch.maximum(self.high, output.max())

    def state(self):
        return {"low": self.low, "high": self.high}

    def merge(self, states):
        return {"low": min(s["low"] for s in states), "high": max(s["high"] for s in states)}

    def compute_from(self, state):
        return {"least": float(state["low"]), "greatest": float(state["high"])}


def test_a_metric_of_several_values_gives_each_a_name():
    engine = passing()
    Spread().attach(engine, "spread")
    state = engine.run([torch.tensor([1.0, 5.0]), torch.tensor([-2.0])])
    assert state.metrics == {"spread": {"least": -2.0, "greatest": 5.0}, "least": -2.0, "greatest": 5.0}


class Choosy(Metric):
    """A metric of one's own that refuses the last batch of an epoch, once."""

    refuses = True

    def reset(self):
        self.total = torch.tensor(0)

    def update(self, output):
        if output == 3 and self.refuses:
            self.refuses = False
            raise ValueError("what is this?")
        self.total = self.total + output

    def state(self):
        return {"total": self.total}

    def compute_from(self, state):
        if state["total"] == 0:
            raise NotComputableError("it has no sample")
        return int(state["total"])


def test_a_run_goes_on_after_a_metric_that_raised_in_the_last_batch_of_an_epoch():
    for data in ([1, 2, 3], [3]):
        engine, values = Engine(lambda engine, batch: batch), []
        Choosy().attach(engine, "total")
        engine.add_event_handler(
            Events.EPOCH_COMPLETED, lambda e, kept: kept.append(e.state.metrics.get("total")), values
        )
        with pytest.raises(ValueError, match="what is this"):
            engine.run(data, max_epochs=2)
        assert engine.run(data, max_epochs=2).epoch == 2
        assert values == ([3, 6] if len(data) == 3 else [None, 3])


def test_a_metric_that_is_attached_in_a_run_starts_anew_and_belongs_to_it_alone():
    metric, engine, inner = Accuracy(), passing(), passing()
    wrong, right = (torch.eye(2), torch.tensor([1, 0])), (torch.eye(2), torch.tensor([0, 1]))
    metric.update(wrong)
    metric.attach(inner, "accuracy")
    refused = []

    def attach(engine):
        metric.attach(engine, "accuracy")
        with pytest.raises(UsageError, match="attached to another engine too, which is running") as error:
            inner.run([wrong])
        refused.append(error)

    def attach_what_is_running(inner):
        with pytest.raises(UsageError, match="attached to another engine too, which is running"):
            other.attach(inner, "other")

    engine.add_event_handler(Events.EPOCH_STARTED, attach)
    assert engine.run([right, right]).metrics["accuracy"] == 1.0
    assert refused
    assert inner.run([wrong]).metrics["accuracy"] == 0.0

    outer, other, innermost = passing(), Accuracy(), passing()
    other.attach(outer, "other")
    innermost.add_event_handler(Events.STARTED, attach_what_is_running)
    outer.add_event_handler(Events.EPOCH_STARTED, lambda engine: innermost.run([right]))
    assert outer.run([right]).metrics["other"] == 1.0
    assert not other.is_attached(innermost)


@pytest.mark.parametrize("stop", ["interrupt", "terminate"])
def test_a_run_that_goes_on_does_not_take_the_samples_of_an_engine_that_ran_between(stop, caplog):
    wrong, right = (torch.eye(2), torch.tensor([1, 0])), (torch.eye(2), torch.tensor([0, 1]))
    data = [wrong, wrong, right, wrong]
    for metric, between in ((Accuracy(), True), (Accuracy(), False)):
        engine, other = passing(), passing()
        metric.attach(engine, "accuracy")
        metric.attach(other, "accuracy")
        engine.add_event_handler(Events.ITERATION_COMPLETED(once=2), lambda engine: getattr(engine, stop)())
        engine.run(data, max_epochs=2)
        caplog.clear()
        if between:
            other.run([right] * 5)
        seen = []
        engine.add_event_handler(Events.EPOCH_COMPLETED, lambda e, seen=seen: seen.append(e.state.metrics["accuracy"]))
        engine.run(data, max_epochs=2)
        assert seen == [0.5 if between else 0.25, 0.25]
        assert ("accuracy were used by another engine since" in caplog.text) is between


def test_a_state_that_is_loaded_in_mid_epoch_does_not_take_the_samples_of_an_evaluation_before_it_goes_on():
    wrong, right = (torch.eye(2), torch.tensor([1, 0])), (torch.eye(2), torch.tensor([0, 1]))
    saved, engine = [], passing()
    engine.add_event_handler(Events.ITERATION_COMPLETED(once=2), lambda engine: saved.append(engine.state_dict()))
    engine.run([wrong] * 4)
    metric, loaded, other = Accuracy(), passing(), passing()
    metric.attach(loaded, "accuracy")
    metric.attach(other, "accuracy")
    loaded.load_state_dict(saved[0])
    other.run([right] * 5)
    assert loaded.run([wrong] * 4).metrics["accuracy"] == 0.0
