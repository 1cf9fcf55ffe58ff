"""The supervised engines: the same training and the same evaluation at every world size."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import shoal.distributed as idist
from shoal.engine import Events, create_supervised_evaluator, create_supervised_trainer
from shoal.errors import DataError, NotComputableError, UsageError
from shoal.metrics import Accuracy, Loss, RunningAverage
from shoal.testing import run_workers


def _data(size):
    torch.manual_seed(0)
    x = torch.randn(size, 5, dtype=torch.float64)
    return TensorDataset(x, (x.sum(1) > 0).long())


def _train(size, batch_size, accumulation=1, epochs=3):
    data = _data(size)
    train = idist.auto_dataloader(data, batch_size=batch_size, shuffle=True, seed=3)
    test = idist.auto_dataloader(data, batch_size=batch_size + 1)
    torch.manual_seed(1)
    model = idist.auto_model(nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)).double())
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9))
    loss_fn = nn.CrossEntropyLoss()
    trainer = create_supervised_trainer(
        model, optimizer, loss_fn, device=idist.device(), gradient_accumulation_steps=accumulation
    )
    evaluator = create_supervised_evaluator(
        model, {"accuracy": Accuracy(), "loss": Loss(loss_fn)}, device=idist.device()
    )
    RunningAverage(output_transform=lambda loss: loss).attach(trainer, "running loss")
    history = []

    @trainer.on(Events.EPOCH_COMPLETED)
    def evaluate():
        history.append(dict(evaluator.run(test).metrics))

    trainer.run(train, max_epochs=epochs)
    return history, trainer.state.iteration


CASES = [(24, 4, 1), (21, 4, 1), (22, 7, 1), (7, 2, 1), (21, 4, 3), (13, 6, 2)]


def test_a_training_is_the_same_at_every_world_size():
    def all_cases():
        return [_train(*case) for case in CASES]

    alone = all_cases()
    for world_size in (2, 3):
        for results in run_workers(all_cases, world_size):
            for (history, iterations), (expected, expected_iterations) in zip(results, alone, strict=True):
                assert iterations == expected_iterations
                for got, wanted in zip(history, expected, strict=True):
                    assert got["accuracy"] == wanted["accuracy"]
                    assert got["loss"] == pytest.approx(wanted["loss"], rel=1e-6)


def test_an_evaluation_counts_every_sample_once_at_every_size():
    def count():
        wrong = []
        model = nn.Identity()
        for size in range(41):
            x = torch.eye(3)[torch.arange(size) % 3]
            y = torch.where(torch.arange(size) == 0, 1, torch.arange(size) % 3)  # sample 0 is wrong
            for batch_size in range(1, 8):
                for drop_last in (False, True):
                    loader = idist.auto_dataloader(TensorDataset(x, y), batch_size=batch_size, drop_last=drop_last)
                    expected = size - size % batch_size if drop_last else size
                    metric = Accuracy()
                    evaluator = create_supervised_evaluator(model, {"accuracy": metric})
                    if expected == 0:
                        with pytest.raises((DataError, NotComputableError)):
                            evaluator.run(loader)
                        continue
                    value = evaluator.run(loader).metrics["accuracy"]
                    if value != (expected - 1) / expected:
                        wrong.append((size, batch_size, drop_last, value))
        return wrong

    assert count() == []
    for world_size in (2, 5):
        assert run_workers(count, world_size) == [[]] * world_size


def test_five_samples_one_wrong_on_two_ranks_is_four_fifths():
    def accuracy():
        y = torch.tensor([1, 1, 1, 1, 0])
        loader = idist.auto_dataloader(TensorDataset(torch.tensor([[0.0, 1.0]] * 5), y), batch_size=2)
        return create_supervised_evaluator(nn.Identity(), {"a": Accuracy()}).run(loader).metrics["a"]

    assert run_workers(accuracy, 2) == [0.8, 0.8]


def test_ranks_with_loaders_of_their_own_may_have_unequal_numbers_of_batches():
    def own_loaders():
        rank = idist.get_rank()
        size = [5, 0, 2][rank]
        data = TensorDataset(torch.tensor([[0.0, 1.0]] * size).reshape(size, 2), torch.ones(size, dtype=torch.long))
        evaluator = create_supervised_evaluator(idist.auto_model(nn.Linear(2, 2)), {"a": Accuracy()})
        evaluator.run(DataLoader(data, batch_size=2))
        return evaluator.state.iteration

    assert run_workers(own_loaders, 3) == [3, 0, 1]


def test_the_output_is_the_loss_as_a_tensor_and_what_the_transform_makes():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = (torch.ones(3, 2), torch.zeros(3, 1))
    trainer = create_supervised_trainer(model, optimizer, nn.MSELoss())
    output = trainer.run([batch]).output
    assert isinstance(output, torch.Tensor)
    assert output.dim() == 0
    assert not output.requires_grad
    named = create_supervised_trainer(
        model, optimizer, nn.MSELoss(), output_transform=lambda x, y, y_pred, loss: {"batch loss": loss.item()}
    )
    assert set(named.run([batch]).output) == {"batch loss"}


def test_evaluation_leaves_no_gradient_and_training_mode_comes_back():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    trainer = create_supervised_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss())
    evaluator = create_supervised_evaluator(model, {"accuracy": Accuracy()})
    modes = []
    batch = (torch.ones(3, 2), torch.zeros(3, dtype=torch.long))

    @trainer.on(Events.ITERATION_COMPLETED)
    def look():
        modes.append(model.training)
        assert not evaluator.run([batch]).output[0].requires_grad
        modes.append(model.training)

    trainer.run([batch] * 2)
    assert modes == [True, False, True, False]


def test_hooks_of_the_data_and_the_model_are_used():
    seen = {}
    model = nn.Linear(2, 2)

    def prepare(batch, device, non_blocking):
        seen["prepare"] = (device, non_blocking)
        return batch["x"], batch["y"]

    trainer = create_supervised_trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        nn.CrossEntropyLoss(),
        device="cpu",
        non_blocking=True,
        prepare_batch=prepare,
        model_fn=lambda m, x: {"logits": m(x)},
        model_transform=lambda output: output["logits"],
        output_transform=lambda x, y, y_pred, loss: y_pred.shape,
    )
    state = trainer.run([{"x": torch.ones(3, 2), "y": torch.zeros(3, dtype=torch.long)}])
    assert state.output == (3, 2)
    assert seen["prepare"] == (torch.device("cpu"), True)


def test_options_that_cannot_work_are_refused_at_once():
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UsageError, match="amp_mode='apex'"):
        create_supervised_trainer(model, optimizer, nn.MSELoss(), amp_mode="apex")
    with pytest.raises(UsageError, match="scaler=True was given without"):
        create_supervised_trainer(model, optimizer, nn.MSELoss(), scaler=True)
    with pytest.raises(UsageError, match="gradient_accumulation_steps=0"):
        create_supervised_trainer(model, optimizer, nn.MSELoss(), gradient_accumulation_steps=0)
