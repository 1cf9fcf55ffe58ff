"""Metrics on real processes that talk: many cases in one launch, which costs seconds."""

import pytest
import torch

from shoal.testing import run_workers


def make_ten(engine):
    """Ten metrics that are made of each other in every way."""
    import math

    from torch.nn.functional import cross_entropy

    from shoal.metrics import (
        Accuracy,
        Average,
        EpochMetric,
        Frequency,
        GeometricAverage,
        Loss,
        MetricGroup,
        MetricsLambda,
        RunningAverage,
    )

    accuracy, loss = Accuracy(), Loss(cross_entropy)
    places = Average(output_transform=lambda out: out[0])
    kept = EpochMetric(lambda y_pred, y: float((y_pred.argmax(1) == y).double().mean()), check_compute_fn=False)
    named = {
        "accuracy": accuracy,
        "error": 1 - accuracy,
        "loss": loss,
        "perplexity": MetricsLambda(math.exp, loss),
        "places": places,
        "first": places[0],
        "geometric": GeometricAverage(output_transform=lambda out: out[0].abs()),
        "kept": kept,
        "group": MetricGroup({"in_group": Accuracy(), "again": kept, "spread": places.max() - places.min()}),
        "rate": Frequency(output_transform=lambda out: len(out[1])),
    }
    for name, metric in named.items():
        metric.attach(engine, name, "epoch_wise")
    RunningAverage(Accuracy()).attach(engine, "running")
    return named


def evaluate(sizes, batch_sizes, share_of_rank):
    import torch.distributed as dist

    from shoal import runtime
    from shoal.engine import Engine, Events

    world = runtime.current()
    sent = []
    originals = {name: getattr(dist, name) for name in ("all_gather", "all_reduce", "broadcast", "barrier")}

    def counted(name):
        def call(*args, **kwargs):
            sent.append(name)
            return originals[name](*args, **kwargs)

        return call

    results = []
    for size in sizes:
        generator = torch.Generator().manual_seed(size)
        scores = torch.randn(size, 3, generator=generator)
        labels = torch.randint(0, 3, (size,), generator=generator)
        edges = [round(size * sum(share_of_rank[:rank])) for rank in range(world.world_size + 1)]
        own = slice(edges[world.rank], edges[world.rank + 1])
        for batch_size in batch_sizes:
            num = own.stop - own.start
            data = list(zip(scores[own].split(batch_size), labels[own].split(batch_size), strict=True)) if num else []
            engine = Engine(lambda engine, batch: batch)
            make_ten(engine)
            in_iterations = []
            engine.add_event_handler(Events.ITERATION_COMPLETED, lambda e, kept: kept.append(len(sent)), in_iterations)
            sent.clear()
            for name in originals:
                setattr(dist, name, counted(name))
            try:
                metrics = dict(engine.run(data).metrics)
            finally:
                for name, function in originals.items():
                    setattr(dist, name, function)
            for name in ("rate", "running", "group"):
                metrics.pop(name, None)
            results.append(
                {
                    "collectives": len(sent),
                    "in_iterations": max(in_iterations, default=0),
                    "metrics": metrics,
                    "case": (size, batch_size, num),
                }
            )
    return results


SIZES, BATCH_SIZES = (1, 2, 5, 23, 40), (1, 7, 64)


@pytest.mark.parametrize("shares", [(0.8, 0.2), (0.5, 0.0, 0.5)], ids=["two ranks", "three ranks, one without samples"])
def test_ten_metrics_are_exact_at_any_split_and_cost_one_collective_an_evaluation(shares):  # Traps 17, 18, 37
    by_rank = run_workers(evaluate, len(shares), SIZES, BATCH_SIZES, shares, timeout_s=120)
    alone = evaluate(SIZES, BATCH_SIZES, (1.0,))
    for results in by_rank:
        for result, expected in zip(results, alone, strict=True):
            assert result["case"][:2] == expected["case"][:2]
            assert result["collectives"] == 1, result
            assert result["in_iterations"] == 0, result
            for name, value in expected["metrics"].items():
                found = torch.as_tensor(result["metrics"][name], dtype=torch.float64)
                whole = name in ("accuracy", "error", "kept", "again", "in_group")
                tolerance = 0.0 if whole else 1e-6
                wanted = torch.as_tensor(value, dtype=torch.float64)
                torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance, msg=f"{name} {result}")


def behave():
    """What else needs ranks; returns what was seen."""
    from shoal import runtime
    from shoal.engine import Engine, Events
    from shoal.errors import CollectiveError
    from shoal.metrics import (
        Accuracy,
        Average,
        EpochMetric,
        Frequency,
        Precision,
        Recall,
        RunningAverage,
        RunningEpochWise,
    )

    rank = runtime.current().rank
    seen = {}

    accuracy = Accuracy()
    values = []
    for _ in range(2):  # Trap 36: asked for twice, updated between
        accuracy.update((torch.eye(3)[[0, 1]], torch.tensor([0, rank])))
        values.append(((1 - accuracy).compute(), accuracy.compute()))
    seen["update_compute_twice"] = values

    one_wrong_of_five = Accuracy()  # Trap 17
    labels = torch.tensor([0, 1, 0]) if rank == 0 else torch.tensor([1, 1])
    scores = torch.eye(2)[[0, 1, 0]] if rank == 0 else torch.eye(2)[[1, 0]]
    one_wrong_of_five.update((scores, labels))
    seen["one_wrong_of_five"] = one_wrong_of_five.compute()

    large = EpochMetric(lambda y_pred, y: int((y_pred == y).sum()), check_compute_fn=False)
    if rank == 0:  # some hundred kilobytes on one rank, nothing on the other
        large.update((torch.arange(20_000), torch.arange(20_000)))
    seen["large"] = large.compute()

    shapes = Average()
    shapes.update(torch.ones(2 + rank))
    try:
        shapes.compute()
    except CollectiveError as error:
        seen["shapes"] = str(error)

    # Over epochs: each rank's own output, the epoch's value over both.
    shown = []
    outputs = iter([1.0, 2.0, 3.0, 4.0] if rank == 0 else [5.0, 6.0, 7.0, 8.0])
    looped = Engine(lambda engine, batch: next(outputs))
    RunningAverage(Average(), alpha=0.5).attach(looped, "over_epochs", RunningEpochWise)
    looped.add_event_handler(Events.EPOCH_COMPLETED, lambda e: shown.append(e.state.metrics["over_epochs"]))
    looped.run([0, 0], max_epochs=2)
    seen["over_epochs"] = shown

    # The same metrics, attached in another order; and others under the same names.
    seen["order"] = []
    for names in (("low", "high"), ("high", "low")) if rank == 0 else (("high", "low"), ("low", "high")):
        ordered = Engine(lambda engine, batch: batch)
        for name in names:
            Average(lambda out, name=name: 1.0 if name == "low" else 2.0).attach(ordered, name)
        seen["order"].append(dict(sorted(ordered.run([0]).metrics.items())))
    mixed = Engine(lambda engine, batch: (torch.eye(2), torch.arange(2)))
    (Precision() if rank == 0 else Recall()).attach(mixed, "score")
    try:
        mixed.run([0])
    except CollectiveError as error:
        seen["mixed"] = str(error)
    try:
        (accuracy + one_wrong_of_five if rank == 0 else accuracy * 1).compute()
    except CollectiveError as error:
        seen["made_of_others"] = str(error)

    saved = accuracy.state_dict()
    if rank == 0:  # saving is no collective
        accuracy.state_dict()
    saved_by_0 = runtime.broadcast(saved)
    loaded = Accuracy()
    loaded.load_state_dict(saved_by_0)
    seen["loaded_of_rank_0"] = int(loaded.state()["count"].sum())
    loaded.load_state_dict(saved)
    seen["loaded_own"] = loaded.compute()

    rate = Frequency()
    rate.update(10)
    states = runtime.all_gather({key: float(value) for key, value in rate.state().items()})
    seconds = sum(state["seconds"] for state in states) / 2
    seen["rate"] = abs(rate.compute() - 20 / seconds) < 1e-6 * 20 / seconds
    seen["rate_of_this_rank"] = abs(rate.peek() - 20 / float(rate.state()["seconds"])) < 1e-3
    return seen


def test_what_metrics_do_on_two_ranks():
    for rank, seen in enumerate(run_workers(behave, 2, timeout_s=120)):
        # Rank 0 has samples of classes 0 and 0, rank 1 of 0 and 1.
        assert seen["update_compute_twice"] == [(0.25, 0.75), (0.25, 0.75)]
        assert seen["one_wrong_of_five"] == 0.8
        assert seen["large"] == 20_000
        assert "Average has partial results 'accumulator' of shapes (2,) on rank 0, (3,) on rank 1" in seen["shapes"]
        assert seen["over_epochs"] == [3.5, 0.5 * 3.5 + 0.5 * 5.5]
        assert seen["order"] == [{"high": 2.0, "low": 1.0}] * 2
        assert "the metrics score (Precision) on rank 0 and score (Recall) on rank 1" in seen["mixed"]
        assert "made of the same, on every rank" in seen["made_of_others"]
        assert seen["loaded_of_rank_0"] == (4 if rank == 0 else 0)
        assert seen["loaded_own"] == 0.75
        assert seen["rate"]
        assert seen["rate_of_this_rank"]
