"""What a run finds out for its report: the most wrong predictions, exactly over ranks, and where its time goes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import shoal.distributed as idist
from shoal.engine import Engine, Events, create_supervised_evaluator
from shoal.metrics import Accuracy, Loss
from shoal.recipes.mistakes import Mistakes, MostWrong, WrongPredictions
from shoal.recipes.phases import Phases
from shoal.testing import run_workers

CLASSES, KEPT = 10, 24  # as in the recipe on CIFAR-10


def samples(count: int = 41) -> tuple[Tensor, Tensor, Tensor]:
    """Scores with many equal ones, so that losses tie."""
    generator = torch.Generator().manual_seed(1)
    y_pred = torch.randint(-2, 3, (count, CLASSES), generator=generator).float()
    return y_pred, torch.randint(0, CLASSES, (count,), generator=generator), torch.arange(count)


def expected(count: int) -> list[int]:
    """The places of the most wrong, by hand."""
    y_pred, y, index = samples()
    loss = nn.functional.cross_entropy(y_pred, y, reduction="none")
    wrong = [(-float(loss[i]), i) for i in index.tolist() if int(y_pred[i].argmax()) != int(y[i])]
    return [place for _, place in sorted(wrong)[:count]]


@pytest.mark.parametrize("batch_size", [1, 7, 41])
@pytest.mark.parametrize("num_kept", [3, 24, 1000])
def test_the_most_wrong_are_those_of_the_highest_loss_whatever_the_batches(batch_size: int, num_kept: int) -> None:
    metric = MostWrong(num_kept)
    assert metric.compute().place.tolist() == []
    for batch in zip(*(part.split(batch_size) for part in samples()), strict=True):
        metric.update(batch)
    found: WrongPredictions = metric.compute()
    assert found.place.tolist() == expected(num_kept)
    y_pred, y, _ = samples()
    probabilities = y_pred.softmax(dim=1)
    for place, label, predicted, probability, label_probability in zip(*(c.tolist() for c in found), strict=True):
        assert (label, predicted) == (int(y[place]), int(y_pred[place].argmax()))
        assert probability == pytest.approx(float(probabilities[place, predicted]))
        assert label_probability == pytest.approx(float(probabilities[place, label]))


def test_a_state_loads_as_weights_only_and_goes_on(tmp_path: Path) -> None:
    # Trap 40.
    y_pred, y, index = samples()
    first, second = MostWrong(6), MostWrong(6)
    first.update((y_pred[:20], y[:20], index[:20]))
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    second.update((y_pred[20:], y[20:], index[20:]))
    assert second.compute().place.tolist() == expected(6)


def test_a_loss_that_is_no_number_is_the_most_wrong() -> None:
    metric = MostWrong(2)
    y_pred = torch.tensor([[0.0, 1.0], [float("nan"), float("nan")], [0.0, 9.0]])
    metric.update((y_pred, torch.tensor([0, 1, 0]), torch.arange(3)))
    assert metric.compute().place.tolist() == [1, 2]


def evaluated(part: slice) -> tuple[list[int], list[list[int]], dict[str, Any], int]:
    """An evaluation over a part of the samples: what it found, what trackers see, and the collectives it took."""

    def output(_x: Tensor, target: tuple[Tensor, Tensor], y_pred: Tensor) -> dict[str, Tensor]:
        return {"y_pred": y_pred, "y": target[0], "index": target[1]}

    mistakes = Mistakes(CLASSES, num_kept=KEPT)
    metrics = {"Accuracy": Accuracy(), "Loss": Loss(nn.CrossEntropyLoss())}
    evaluator = create_supervised_evaluator(nn.Identity(), metrics, output_transform=output)
    mistakes.attach(evaluator)
    y_pred, y, index = samples()
    count = len(y_pred[part])
    batches = [(y_pred[part][i : i + 4], (y[part][i : i + 4], index[part][i : i + 4])) for i in range(0, count, 4)]
    seen: dict[str, Any] = {}
    evaluator.add_event_handler(Events.COMPLETED, lambda engine: seen.update(engine.state.metrics))
    exchanges = []

    def counted(*arguments: Any, **options: Any) -> Any:
        exchanges.append(1)
        return all_gather(*arguments, **options)

    all_gather, dist.all_gather = dist.all_gather, counted
    try:
        evaluator.run(batches)
    finally:
        dist.all_gather = all_gather
    assert mistakes.confusion is not None
    assert mistakes.most_wrong is not None
    return mistakes.most_wrong.place.tolist(), mistakes.confusion.tolist(), seen, len(exchanges)


def on_a_rank(parts: list[slice]) -> Any:
    return evaluated(parts[idist.get_rank()])


def test_mistakes_over_ranks_are_those_of_one_process_in_the_collective_of_the_other_metrics() -> None:
    places, confusion, seen, _ = evaluated(slice(None))
    assert places == expected(KEPT)
    assert sum(map(sum, confusion)) == 41
    assert set(seen) == {"Accuracy", "Loss"}  # nothing that a tracker would take for numbers
    for theirs in run_workers(on_a_rank, 3, [slice(0, 30), slice(30, 41), slice(41, 41)]):
        assert theirs[:2] == (places, confusion)
        assert theirs[2]["Accuracy"] == seen["Accuracy"]
        assert theirs[3] == 1


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_time_is_told_by_phase_and_an_inner_phase_is_its_own() -> None:
    clock = Clock()
    phases = Phases(10, ("evaluation", "checkpoint"), clock)

    def passing(seconds: float) -> Callable[..., None]:
        def wait(*_: object) -> None:
            clock.now += seconds

        return wait

    def batches() -> Any:
        while True:
            clock.now += 2
            yield None

    trainer = Engine(passing(3))
    phases.attach(trainer)
    trainer.add_event_handler(Events.ITERATION_COMPLETED(every=2), phases.timed("checkpoint", passing(5)))
    taken = []

    @trainer.on(Events.EPOCH_COMPLETED)
    def evaluate(engine: Engine) -> None:
        with phases.aside("evaluation"):
            clock.now += 7
            phases.timed("checkpoint", passing(1))(engine)
            clock.now += 7
        taken.append(phases.take(engine.state.iteration))

    clock.now += 1000  # nothing counts before the start
    trainer.run(batches(), max_epochs=2, epoch_length=4)
    one = {"seconds/data": 8, "seconds/step": 12, "seconds/evaluation": 14, "seconds/checkpoint": 11}
    assert taken == [one | {"speed/images_per_s": 4 * 10 / 20}] * 2
    clock.now += 1
    assert phases.take(8) == {"seconds/step": 1}  # no step, no speed
