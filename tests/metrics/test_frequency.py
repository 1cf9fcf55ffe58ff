import pytest
import torch

from shoal.engine import Engine, Events
from shoal.errors import NotComputableError, UsageError
from shoal.metrics import Frequency


def test_it_is_what_all_ranks_counted_over_the_mean_of_their_times():
    ranks = [Frequency(), Frequency(), Frequency()]
    ranks[0].update(30)
    ranks[1].update(torch.tensor(10))
    states = [metric.state() for metric in ranks]
    value = ranks[2].compute_from(ranks[2].merge(states))
    mean_seconds = (float(states[0]["seconds"]) + float(states[1]["seconds"])) / 2
    assert value == pytest.approx(40 / mean_seconds)
    with pytest.raises(NotComputableError):
        ranks[2].compute()
    assert ranks[2].peek() is None
    assert ranks[0].peek() == pytest.approx(ranks[0].compute())


def test_the_time_that_it_was_saved_for_does_not_count():
    metric, other = Frequency(), Frequency()
    metric.update(30)
    other.load_state(metric.state())
    assert other.compute() == metric.compute()
    other.update(20)
    assert other.state()["count"] == 50
    assert other.state()["seconds"] >= metric.state()["seconds"]


def test_engines_show_it_after_each_iteration_or_each_epoch_or_at_an_event():
    engine = Engine(lambda engine, batch: {"num_tokens": batch})
    shown = {"each": [], "epoch": [], "event": []}
    metrics = {name: Frequency(output_transform=lambda out: out["num_tokens"]) for name in shown}
    metrics["each"].attach(engine, "each")
    metrics["epoch"].attach(engine, "epoch", "epoch_wise")
    metrics["event"].attach(engine, "event", Events.ITERATION_COMPLETED(every=2))

    def look(engine):
        for name, values in shown.items():
            values.append(engine.state.metrics.get(name))

    engine.add_event_handler(Events.ITERATION_COMPLETED, look)
    state = engine.run([10, 20, 30, 40, 50])
    assert [value is not None for value in shown["each"]] == [True] * 5
    assert [value is not None for value in shown["epoch"]] == [False] * 5
    assert [value is not None for value in shown["event"]] == [False, True, True, True, True]
    assert shown["event"][1] == shown["event"][2] != shown["event"][3]
    for metric in metrics.values():
        assert metric.state()["count"] == 150
    assert state.metrics["epoch"] == pytest.approx(metrics["epoch"].compute())
    for name, metric in metrics.items():
        assert metric.is_attached(engine), name
        metric.detach(engine)
        assert not metric.is_attached(engine), name
    before = dict(state.metrics)
    assert engine.run([10], max_epochs=1).metrics == before


def test_the_event_may_be_named():
    engine = Engine(lambda engine, batch: batch)
    Frequency().attach(engine, "rate", event_name=Events.EPOCH_COMPLETED)
    assert engine.run([1, 2]).metrics["rate"] > 0


def test_what_is_no_number_of_samples_is_refused():
    with pytest.raises(UsageError, match=r"a tensor of shape \(3,\)"):
        Frequency().update(torch.ones(3))
    with pytest.raises(UsageError, match="'3'"):
        Frequency().update("3")
    with pytest.raises(UsageError, match="did you mean 'epoch_wise'"):
        Frequency().attach(Engine(lambda engine, batch: batch), "rate", "epochwise")


def test_counts_of_few_bits_neither_wrap_around_nor_stand_still():
    for dtype, count in ((torch.uint8, 200), (torch.int32, 2**31 - 1), (torch.float32, 2**24)):
        metric = Frequency()
        for number in (count, 1, 200):
            metric.update(torch.tensor(number, dtype=dtype))
        assert metric.state()["count"] == count + 201


def test_all_events_at_which_it_is_computed_are_undone_and_no_others():
    engine, metric = Engine(lambda engine, batch: batch), Frequency()
    metric.attach(engine, "first", event_name=Events.ITERATION_COMPLETED)
    metric.attach(engine, "second", event_name=Events.EPOCH_COMPLETED)
    metric.attach(engine, "epoch", "epoch_wise")
    metric.detach(engine, "epoch_wise")
    assert {*engine.run([1, 2]).metrics} == {"first", "second"}
    with pytest.raises(UsageError, match="'first', which is the name of"):
        Frequency().attach(engine, "first", Events.ITERATION_COMPLETED)
    metric.detach(engine)
    engine.state.metrics.clear()
    assert engine.run([1, 2], max_epochs=2).metrics == {}
