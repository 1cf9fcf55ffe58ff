"""Metrics that share samples in one engine, usages that fit together or not, and states that are loaded beside one."""

import gc
import weakref

import pytest
import torch

from shoal.engine import Engine, Events
from shoal.errors import NotComputableError, UsageError
from shoal.metrics import (
    Accuracy,
    Average,
    BatchFiltered,
    BatchWise,
    EpochWise,
    Frequency,
    MetricGroup,
    MetricsLambda,
    MetricUsage,
    RunningAverage,
    RunningBatchWise,
    RunningEpochWise,
    SingleEpochRunningBatchWise,
)


class Counting(Average):
    """An average that says how often it was fed, started anew and asked for its samples."""

    num_updates = num_resets = num_states = 0

    def reset(self):
        super().reset()
        self.num_resets += 1

    def update(self, output):
        super().update(output)
        self.num_updates += 1

    def state(self):
        self.num_states += 1
        return super().state()


def passing():
    return Engine(lambda engine, batch: batch)


def run(attach, data=(1.0, 2.0, 6.0), max_epochs=1):
    engine = passing()
    attach(engine)
    return engine.run(list(data), max_epochs=max_epochs).metrics


def test_a_metric_of_many_others_is_fed_started_and_gathered_once():
    metric = Counting()

    def attach(engine):
        metric.attach(engine, "mean")
        metric.attach(engine, "mean_again")
        (metric * 2).attach(engine, "twice")
        MetricsLambda(lambda both: sum(both), [metric, metric + 1]).attach(engine, "sum")
        MetricGroup({"in_group": metric, "negative": -metric}).attach(engine, "group")
        metric.num_resets = 0

    found = run(attach, max_epochs=2)
    assert (metric.num_updates, metric.num_resets, metric.num_states) == (6, 2, 2)
    assert found == {
        "mean": 3.0,
        "mean_again": 3.0,
        "twice": 6.0,
        "sum": 7.0,
        "group": {"in_group": 3.0, "negative": -3.0},
        "in_group": 3.0,
        "negative": -3.0,
    }


def test_values_may_be_shown_at_different_times_where_the_samples_are_the_same():
    metric, shown = Counting(), []

    def attach(engine):
        metric.attach(engine, "so_far", SingleEpochRunningBatchWise())
        (metric * 2).attach(engine, "twice", EpochWise)
        engine.add_event_handler(Events.ITERATION_COMPLETED, lambda e: shown.append(e.state.metrics["so_far"]))

    assert run(attach)["twice"] == 6.0
    assert shown == [1.0, 1.5, 3.0]
    assert metric.num_updates == 3


def test_usages_that_start_one_metric_anew_at_different_times_are_refused():
    for usages in ((EpochWise(), BatchWise()), ("running_epoch_wise", None), (None, BatchFiltered(every=2))):
        engine, metric = passing(), Accuracy()
        metric.attach(engine, "accuracy", usages[0])
        with pytest.raises(UsageError, match=r"'accuracy' uses one Accuracy object with usage=.* and 'error' with"):
            (1 - metric).attach(engine, "error", usages[1])
        assert engine._metrics.has(metric)
        Accuracy().attach(engine, "error", usages[1])


def test_a_group_that_hands_a_metric_something_else_than_it_takes_on_its_own_is_refused():
    engine, metric = passing(), Average()
    metric.attach(engine, "mean")
    with pytest.raises(UsageError, match="'mean' and 'group' hand one Average object an output in different forms"):
        MetricGroup({"inside": metric}, output_transform=lambda out: out + 1).attach(engine, "group")


def test_the_source_of_a_running_average_is_its_own():
    accuracy = Accuracy()
    pairs = (
        (accuracy, RunningAverage(accuracy)),
        (accuracy, RunningAverage(1 - accuracy)),
        (1 - accuracy, RunningAverage(RunningAverage(accuracy))),
        (RunningAverage(accuracy), RunningAverage(accuracy, alpha=0.5)),
    )
    for one, other in (*pairs, *(pair[::-1] for pair in pairs)):
        engine = passing()
        one.attach(engine, "one")
        with pytest.raises(UsageError, match="'one' and 'other' use one Accuracy object, which a RunningAverage"):
            other.attach(engine, "other")
        assert not other.is_attached(engine)


def test_the_source_of_a_running_average_is_in_use_where_that_is():
    outer, inner, accuracy = passing(), passing(), Accuracy()
    RunningAverage(1 - accuracy).attach(outer, "running")
    accuracy.attach(inner, "accuracy")
    batch = torch.eye(2), torch.tensor([0, 0])
    outer.add_event_handler(Events.ITERATION_COMPLETED, lambda: inner.run([batch]))
    with pytest.raises(UsageError, match="'accuracy' is attached to another engine"):
        outer.run([batch])
    assert inner.run([batch]).metrics == {"accuracy": 0.5}


@pytest.mark.parametrize(
    "usage", [EpochWise, BatchWise, RunningEpochWise, RunningBatchWise, SingleEpochRunningBatchWise]
)
def test_a_usage_is_a_name_a_class_or_an_object(usage):
    values = []
    for given in (usage.usage_name, usage, usage()):
        metric = Average()
        shown = []

        def attach(engine, metric=metric, given=given, shown=shown):
            metric.attach(engine, "mean", usage=given)
            assert metric.is_attached(engine, usage=usage)
            assert not metric.is_attached(engine, usage="epoch_wise" if usage is not EpochWise else "batch_wise")
            engine.add_event_handler(Events.ITERATION_COMPLETED, lambda e: shown.append(e.state.metrics.get("mean")))

        run(attach, max_epochs=2)
        values.append(shown)
    assert values[0] == values[1] == values[2]
    for wrong in (MetricUsage, 3, int, "epochwise"):
        with pytest.raises(UsageError, match="choose one of epoch_wise"):
            Average().attach(passing(), "mean", wrong)


def test_a_metric_may_see_some_iterations_only():
    def attach(engine):
        Average().attach(engine, "odd", BatchFiltered(lambda engine, n: n % 2 == 1))
        Average().attach(engine, "second", BatchFiltered(once=2))
        Average().attach(engine, "late", BatchFiltered(after=1))

    assert run(attach) == {"odd": 3.5, "second": 2.0, "late": 4.0}
    engine, metric = passing(), Average()
    with pytest.raises(UsageError, match="every=0"):
        metric.attach(engine, "none", BatchFiltered(every=0))
    assert not metric.is_attached(engine)


def test_detaching_one_leaves_the_others_fed():
    engine, metric = passing(), Counting()
    twice = metric * 2
    metric.attach(engine, "mean")
    metric.attach(engine, "so_far", "single_epoch_running_batch_wise")
    twice.attach(engine, "twice")
    metric.detach(engine, usage="single_epoch_running_batch_wise")
    metric.detach(engine)
    with pytest.raises(UsageError, match="not attached with usage='epoch_wise'"):
        metric.detach(engine, "epoch_wise")
    with pytest.raises(UsageError, match="a metric was asked for with usage='epochs'"):
        metric.detach(engine, "epochs")
    assert engine.run([1.0, 2.0]).metrics == {"twice": 3.0}
    twice.detach(engine)
    engine.run([5.0, 6.0])
    assert metric.num_updates == 2


def test_a_metric_that_is_detached_in_the_middle_of_a_run_is_free_for_others():
    engine, other, metric = passing(), passing(), Average()
    metric.attach(engine, "mean")

    def hand_over(engine):
        metric.detach(engine)
        metric.attach(other, "mean")
        other.run([4.0])

    engine.add_event_handler(Events.ITERATION_COMPLETED(once=1), hand_over)
    engine.run([1.0, 2.0])
    assert other.state.metrics == {"mean": 4.0}


def test_values_that_are_dicts_lie_flat_beside_their_name_but_hide_no_other():
    def attach(engine):
        pair = MetricsLambda(lambda mean: {"mean": mean * 10, "tensor": torch.tensor(mean)}, Average())
        pair.attach(engine, "pair")
        Average().attach(engine, "mean")

    assert run(attach) == {"pair": {"mean": 30.0, "tensor": 3.0}, "mean": 3.0, "tensor": 3.0}
    with pytest.raises(UsageError, match=r"'pair' has values named \['pair'\]"):
        run(lambda engine: MetricsLambda(lambda mean: {"pair": mean}, Average()).attach(engine, "pair"))


def test_a_group_of_this_ranks_own_averages_lies_flat_after_each_iteration():
    shown = []

    def attach(engine):
        MetricGroup({"one": RunningAverage(alpha=0.5), "two": RunningAverage(alpha=1.0)}).attach(engine, "group")
        engine.add_event_handler(Events.ITERATION_COMPLETED, lambda e: shown.append(dict(e.state.metrics)))

    run(attach, data=[1.0, 3.0])
    assert shown[1] == {"group": {"one": 2.0, "two": 1.0}, "one": 2.0, "two": 1.0}


def test_an_error_of_a_function_tells_which_metric_it_was():
    with pytest.raises(TypeError) as caught:
        run(lambda engine: (Average() + "x").attach(engine, "sum"))
    assert "It was the metric 'sum' that was computed." in caught.value.__notes__


def test_values_of_an_earlier_run_are_taken_out_those_of_dicts_too():
    engine = passing()
    MetricGroup({"mean": Average()}).attach(engine, "group")
    assert engine.run([1.0]).metrics == {"group": {"mean": 1.0}, "mean": 1.0}
    engine.add_event_handler(Events.ITERATION_COMPLETED(once=1), lambda e: e.terminate())
    assert engine.run([1.0, 2.0]).metrics == {}


def test_a_running_average_over_epochs_averages_the_values_of_epochs():
    shown, outputs = [], iter([1.0, 2.0, 3.0, 5.0, 8.0, 8.0])
    engine = Engine(lambda engine, batch: next(outputs))
    average = RunningAverage(Average(), alpha=0.5)
    average.attach(engine, "over_epochs", RunningEpochWise())
    RunningAverage(alpha=0.5).attach(engine, "of_outputs", RunningEpochWise())
    engine.add_event_handler(Events.EPOCH_COMPLETED, lambda e: shown.append(dict(e.state.metrics)))
    engine.run([0, 0], max_epochs=3)
    assert [values["over_epochs"] for values in shown] == [1.5, 2.75, 5.375]
    assert [values["of_outputs"] for values in shown] == [1.5, 3.625, 6.90625]
    with pytest.raises(UsageError, match="'each' was to be attached with usage=RunningBatchWise"):
        average.attach(engine, "each")
    saved = average.state_dict()
    average.reset()
    average.load_state_dict(saved)
    assert average.compute() == 5.375


def test_a_metric_that_raises_in_the_last_iteration_leaves_a_run_that_goes_on():
    def check(output):
        if broken["is"]:
            raise ValueError("not today")
        return output

    def breaks(engine, broken):
        broken["is"] = True

    for data in ([1.0], [1.0, 2.0]):
        broken = {"is": False}
        engine = passing()
        engine.add_event_handler(Events.ITERATION_STARTED(once=len(data)), breaks, broken)
        Average(output_transform=check).attach(engine, "mean")
        with pytest.raises(ValueError, match="not today"):
            engine.run(data, max_epochs=2)
        broken["is"] = False
        ended = []
        engine.add_event_handler(Events.EPOCH_COMPLETED, lambda e, ended=ended: ended.append(e.state.epoch))
        assert engine.run(data, max_epochs=2).metrics["mean"] == sum(data) / len(data)
        assert ended == [1, 2]


def test_no_sample_in_a_whole_epoch_is_an_error_that_names_the_group_and_the_member():
    with pytest.raises(NotComputableError, match="'group': 'mean' of the group"):
        run(lambda engine: MetricGroup({"mean": Average()}).attach(engine, "group"), data=[None, None])


@pytest.mark.parametrize("metric_first", [True, False])
def test_an_epoch_goes_on_with_the_samples_of_a_file_whichever_is_loaded_first(metric_first, tmp_path):
    engine, metric, running = passing(), Average(), RunningAverage(alpha=0.5)
    metric.attach(engine, "mean")
    running.attach(engine, "running")
    engine.add_event_handler(Events.ITERATION_COMPLETED(once=2), lambda e: e.terminate())
    engine.run([1.0, 2.0, 6.0])
    kept = {"engine": engine, "metric": metric, "running": running}
    torch.save({name: part.state_dict() for name, part in kept.items()}, tmp_path / "run.pt")

    engine, metric, running = passing(), Average(), RunningAverage(alpha=0.5)
    metric.attach(engine, "mean")
    running.attach(engine, "running")
    loaded = torch.load(tmp_path / "run.pt", weights_only=True)
    parts = {"metric": metric, "running": running, "engine": engine}
    for name in parts if metric_first else reversed(parts):
        parts[name].load_state_dict(loaded[name])
    assert engine.run([1.0, 2.0, 6.0]).metrics == {"mean": 3.0, "running": 3.75}

    engine.load_state_dict(loaded["engine"])  # alone: the samples of this run are none of that epoch's
    assert engine.run([1.0, 2.0, 6.0]).metrics["mean"] == 6.0


def test_an_engine_with_metrics_made_of_others_is_freed_without_the_garbage_collector():
    gc.collect()
    gc.disable()
    try:
        engine, accuracy = passing(), Accuracy()
        (1 - accuracy).attach(engine, "error")
        MetricGroup({"accuracy": accuracy}).attach(engine, "group")
        RunningAverage(Accuracy()).attach(engine, "running")
        RunningAverage(Accuracy()).attach(engine, "over_epochs", "running_epoch_wise")
        rate = Frequency(output_transform=lambda out: len(out[1]))
        rate.attach(engine, "rate", Events.ITERATION_COMPLETED)
        engine.run([(torch.eye(2), torch.tensor([0, 1]))] * 2)
        held = [weakref.ref(engine), weakref.ref(accuracy)]
        del engine, accuracy
        assert [reference() for reference in held] == [None, None]
    finally:
        gc.enable()
