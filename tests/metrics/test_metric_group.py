import pytest
import torch
from torch.nn.functional import mse_loss

from shoal.engine import Engine, Events
from shoal.errors import NotComputableError, UsageError
from shoal.metrics import Accuracy, Average, Loss, MetricGroup, RunningAverage


def batch():
    return torch.eye(3), torch.tensor([0, 1, 1])


def test_a_group_is_updated_computed_and_reset_as_one():
    accuracy = Accuracy()
    group = MetricGroup({"accuracy": accuracy, "error": 1 - accuracy, "size": Average(lambda out: len(out[1]))})
    group.update(batch())
    assert group.compute() == pytest.approx({"accuracy": 2 / 3, "error": 1 / 3, "size": 3.0})
    group.update(batch())
    assert accuracy.state()["count"] == 6
    group.reset()
    assert group.peek() is None
    with pytest.raises(NotComputableError, match="'accuracy' of the group"):
        group.compute()


def test_the_groups_transform_comes_before_the_members_own():
    group = MetricGroup(
        {"accuracy": Accuracy(), "loss": Loss(mse_loss, output_transform=lambda out: (out[0][:, 0], out[1].float()))},
        output_transform=lambda out: out["pair"],
    )
    y_pred, y = batch()
    for give in (group.update, group.take):
        group.reset()
        give({"pair": (y_pred, y)})
        assert group.compute()["accuracy"] == pytest.approx(2 / 3)
        assert group.compute()["loss"] == pytest.approx(float(mse_loss(y_pred[:, 0], y.float())))


def test_groups_lie_in_groups_and_in_arithmetic():
    inner = MetricGroup({"mean": Average()}, output_transform=lambda out: out[0])
    outer = MetricGroup({"inner": inner, "twice": inner["mean"] * 2}, output_transform=lambda out: [out])
    outer.take(3.0)
    assert outer.compute() == {"inner": {"mean": 3.0}, "twice": 6.0}
    assert len(outer.parts()) == 1


def test_unrolling_is_left_out_where_the_group_or_the_member_asks_for_it():
    lists = ([torch.tensor([0.1, 0.9]), torch.tensor([0.8, 0.2])], [1, 0])
    assert _num_updates(lists, member=False, group=False) == 2
    assert _num_updates(lists, member=True, group=False) == 1
    assert _num_updates(lists, member=False, group=True) == 1


def _num_updates(output, member, group):
    class Counting(Accuracy):
        num_updates = 0

        def update(self, output):
            self.num_updates += 1

    metric = Counting(skip_unrolling=member)
    MetricGroup({"metric": metric}, skip_unrolling=group).take(output)
    return metric.num_updates


def test_what_cannot_work_is_refused():
    with pytest.raises(UsageError, match="with one at least"):
        MetricGroup({})
    with pytest.raises(UsageError, match="'loss'"):
        MetricGroup({"loss": 3})
    accuracy = Accuracy()
    group = MetricGroup({"accuracy": accuracy}, output_transform=lambda out: out)
    with pytest.raises(UsageError, match="Accuracy object would take each output twice"):
        MetricGroup({"group": group, "accuracy": accuracy})


@pytest.mark.parametrize("members", [{"accuracy": Accuracy}, {"average": lambda: RunningAverage(Accuracy())}])
def test_values_of_an_iteration_without_samples_are_gone_under_all_names(members):
    outputs = iter([batch(), None, batch()])
    engine, shown = Engine(lambda engine, data: next(outputs)), []
    MetricGroup({name: make() for name, make in members.items()}).attach(engine, "group", "batch_wise")
    engine.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: shown.append({*engine.state.metrics}))
    engine.run([0, 0, 0])
    assert shown == [{"group", *members}, set(), {"group", *members}]


def test_a_member_whose_value_is_gone_is_gone_under_its_own_name():
    outputs = iter([(1.0, 2.0), (None, 3.0)])
    engine, shown = Engine(lambda engine, data: next(outputs)), []
    members = {
        "a": RunningAverage(output_transform=lambda out: out[0]),
        "b": RunningAverage(output_transform=lambda out: out[1]),
    }
    MetricGroup(members).attach(engine, "group", "batch_wise")
    engine.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: shown.append({*engine.state.metrics}))
    engine.run([0, 0])
    assert shown == [{"group", "a", "b"}, {"group", "b"}]
