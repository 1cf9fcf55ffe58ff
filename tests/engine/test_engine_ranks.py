"""The engine and its metrics on real ranks. A launch costs seconds, so that each test checks many cases in one."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from shoal.testing import run_workers

NUM_CLASSES = 3


def evaluate_every_split(sizes, batch_sizes):
    """Evaluate samples that are split over the ranks unevenly; what each case gave and what one process gives."""
    import torch.distributed as dist

    from shoal import runtime
    from shoal.engine import Engine, Events
    from shoal.metrics import Accuracy, Loss, RunningAverage

    world = runtime.current()
    calls = {"n": 0}
    exchange = dist.all_gather
    others = {name: getattr(dist, name) for name in ("all_reduce", "broadcast", "barrier", "all_gather_object")}

    def counted(function):
        def call(*args, **kwargs):
            calls["n"] += 1
            return function(*args, **kwargs)

        return call

    results = []
    for size in sizes:
        generator = torch.Generator().manual_seed(size)
        scores = torch.randn(size, NUM_CLASSES, generator=generator)
        labels = torch.randint(0, NUM_CLASSES, (size,), generator=generator)
        # Rank 0 has the most, the last rank the fewest, often none.
        cuts = [round(size * (1 - (1 - rank / world.world_size) ** 2)) for rank in range(world.world_size + 1)]
        own = slice(cuts[world.rank], cuts[world.rank + 1])
        for batch_size in batch_sizes:
            data = list(zip(scores[own].split(batch_size), labels[own].split(batch_size), strict=True))
            data = data if own.start < own.stop else []
            engine = Engine(lambda engine, batch: batch)
            Accuracy().attach(engine, "accuracy")
            Loss(cross_entropy).attach(engine, "loss")
            Accuracy(lambda out: (out[0][:, :2].argmax(1), (out[1] > 0).long())).attach(engine, "binary")
            RunningAverage(output_transform=lambda out: out[0].sum()).attach(engine, "average")
            at_end = []
            engine.add_event_handler(Events.EPOCH_COMPLETED, lambda e, kept: kept.append(calls["n"]), at_end)
            calls["n"] = 0
            dist.all_gather = counted(exchange)
            for name, function in others.items():
                setattr(dist, name, counted(function))
            try:
                metrics = engine.run(data).metrics
            finally:
                dist.all_gather = exchange
                for name, function in others.items():
                    setattr(dist, name, function)
            whole = (scores.argmax(1) == labels).sum().item() / size
            binary = (scores[:, :2].argmax(1) == (labels > 0)).sum().item() / size
            results.append(
                {
                    "case": (size, batch_size, len(data)),
                    "collectives": calls["n"],
                    "accuracy": (metrics["accuracy"], whole),
                    "binary": (metrics["binary"], binary),
                    "loss": (metrics["loss"], float(cross_entropy(scores.double(), labels))),
                }
            )
    return results


@pytest.mark.parametrize("world_size", [2, 3])
def test_an_evaluation_is_exact_at_unequal_ranks_and_costs_one_collective(world_size):
    by_rank = run_workers(evaluate_every_split, world_size, (1, 2, 5, 17, 40), (1, 4, 64))
    without_sample = 0
    for results in by_rank:
        for result in results:
            assert result["accuracy"][0] == result["accuracy"][1], result
            assert result["binary"][0] == result["binary"][1], result
            assert result["loss"][0] == pytest.approx(result["loss"][1], abs=1e-6), result
            assert result["collectives"] == 1, result
            without_sample += result["case"][2] == 0
    assert without_sample > 0


def behaviours():
    """Everything else that needs ranks, in one launch; returns what was seen."""
    from shoal import runtime
    from shoal.engine import Engine, Events
    from shoal.errors import CollectiveError, NotComputableError
    from shoal.metrics import Accuracy, RunningAverage

    rank = runtime.current().rank
    seen = {}

    metric = Accuracy()
    values = []
    for _ in range(2):  # Trap 36: asked twice, updated between, nothing may be counted twice
        metric.update((torch.eye(3)[[0, 1]], torch.tensor([0, rank])))
        values.append(metric.compute())
    seen["update_compute_twice"] = values

    average = RunningAverage(alpha=0.5)
    if rank == 0:
        average.update(3.0)
    seen["average_of_the_ranks_that_have_one"] = average.compute()
    average.update(torch.tensor(float(rank + 4)))
    seen["average_of_all"] = average.compute()

    silent = Engine(lambda engine, batch: None)
    Accuracy().attach(silent, "accuracy")
    try:
        silent.run([1, 2])
    except NotComputableError as error:
        seen["no_sample_anywhere"] = str(error)

    uneven = Engine(lambda engine, batch: batch)
    Accuracy().attach(uneven, "accuracy")
    pair = (torch.eye(2)[[1]], torch.tensor([1]))
    wrong = (torch.eye(2)[[0]], torch.tensor([1]))
    epochs = []
    uneven.add_event_handler(Events.EPOCH_COMPLETED, lambda e: epochs.append(e.state.metrics["accuracy"]))
    uneven.run([pair, wrong, pair] if rank == 0 else (one for one in ()), max_epochs=2)
    seen["a_rank_without_a_batch_stays_in_step"] = epochs

    differing = Engine(lambda engine, batch: batch)
    Accuracy().attach(differing, "accuracy")
    if rank == 1:
        Accuracy().attach(differing, "another")
    try:
        differing.run([pair])
    except CollectiveError as error:
        seen["other_metrics_on_another_rank"] = str(error)

    # Trap 37: it costs no collective.
    only_here = Engine(lambda engine, batch: float(batch))
    if rank == 0:
        RunningAverage(alpha=0.5).attach(only_here, "average")
    seen["a_running_average_on_one_rank"] = only_here.run([1, 2]).metrics
    return seen


def test_what_ranks_must_agree_on_holds_and_what_they_need_not_hangs_nobody():
    first, second = run_workers(behaviours, 2)
    for seen in (first, second):
        # Each update: rank 0 has one of two right, rank 1 both.
        assert seen["update_compute_twice"] == [0.75, 0.75]
        assert seen["average_of_the_ranks_that_have_one"] == 3.0
        assert seen["average_of_all"] == (3.5 + 5.0) / 2
        assert "'accuracy'" in seen["no_sample_anywhere"]
        assert seen["a_rank_without_a_batch_stays_in_step"] == [2 / 3, 2 / 3]
        assert (
            "the metrics accuracy (Accuracy) on rank 0 and accuracy (Accuracy), another (Accuracy) on rank 1"
            in (seen["other_metrics_on_another_rank"])
        )
    assert first["a_running_average_on_one_rank"] == {"average": 1.5}
    assert second["a_running_average_on_one_rank"] == {}


def test_five_samples_of_which_one_is_wrong_are_four_fifths_right_on_two_ranks():
    def evaluate():
        from shoal import runtime
        from shoal.engine import Engine
        from shoal.metrics import Accuracy

        labels = torch.tensor([0, 1, 0, 1, 0])
        predicted = torch.tensor([0, 1, 0, 1, 1])
        own = slice(0, 3) if runtime.current().rank == 0 else slice(3, 5)
        engine = Engine(lambda engine, batch: batch)
        Accuracy().attach(engine, "accuracy")
        return engine.run([(predicted[own], labels[own])]).metrics["accuracy"]

    assert run_workers(evaluate, 2) == [0.8, 0.8]
