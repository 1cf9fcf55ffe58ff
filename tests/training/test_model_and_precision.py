import logging
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shoal.errors import UsageError
from shoal.testing import run_workers
from shoal.training import (
    Precision,
    StepOptions,
    SupervisedStep,
    auto_model,
    auto_optim,
    convert_tensor,
    evaluate_batch,
    prepare_batch,
    unwrap_model,
)


def test_preparing_a_model_twice_changes_nothing():
    # Trap 31.
    def twice():
        once = auto_model(nn.Linear(2, 2))
        return auto_model(once) is once, isinstance(unwrap_model(once), nn.Linear), type(once).__name__

    assert run_workers(twice, 2) == [(True, True, "DistributedDataParallel")] * 2
    model = nn.Linear(2, 2)
    assert auto_model(auto_model(model)) is model


def test_a_model_without_trainable_parameters_is_not_wrapped():
    def frozen():
        model = nn.Linear(2, 2).requires_grad_(False)
        return auto_model(model) is model

    assert run_workers(frozen, 2) == [True, True]


def test_evaluation_calls_the_module_inside_and_talks_to_nobody():
    def evaluate():
        torch.manual_seed(0)
        model = auto_model(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
        from shoal import runtime

        if runtime.current().rank == 0:  # DistributedDataParallel's own forward would wait for rank 1 here
            evaluate_batch(model, (torch.ones(3, 2), torch.ones(3)), StepOptions())
        return isinstance(model, DistributedDataParallel), model.training

    assert run_workers(evaluate, 2, timeout_s=20) == [(True, False), (True, True)]


def test_unwrapping_goes_through_compiled_models():
    model = nn.Linear(2, 2)
    assert unwrap_model(torch.compile(model)) is model


def test_what_is_no_optimizer_is_refused():
    with pytest.raises(UsageError, match="a Linear"):
        auto_optim(nn.Linear(1, 1))


@pytest.mark.parametrize("mode", ["amp", "bf16", "fp16"])
def test_mixed_precision_on_a_cpu_runs_in_bfloat16_and_gives_float32(mode, caplog):
    # Trap 30.
    seen = []

    class Probe(nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            seen.append(y.dtype)
            return y

    with caplog.at_level(logging.INFO):
        precision = Precision.resolve(mode, "cpu", scaler=True)
    assert ("bfloat16" in caplog.text) is True
    assert precision.scaler is None
    model = Probe(4, 2)
    options = StepOptions(precision=precision)
    step = SupervisedStep(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), options)
    result = step((torch.randn(3, 4), torch.tensor([0, 1, 0])))
    assert seen == [torch.bfloat16]
    assert result.y_pred.dtype == torch.float32
    assert model.weight.grad.dtype == torch.float32
    assert evaluate_batch(model, (torch.randn(3, 4), None), options)[2].dtype == torch.float32


def test_precision_that_cannot_be_is_refused():
    with pytest.raises(UsageError, match=r"amp_mode='bf61' was given \(did you mean 'bf16'\?\)"):
        Precision.resolve("bf61", "cpu")
    with pytest.raises(UsageError, match="has no effect"):
        Precision.resolve(None, "cpu", scaler=True)
    with pytest.raises(UsageError, match="gradient_accumulation_steps=0"):
        StepOptions(accumulation=0)


def test_batches_keep_their_structure():
    class Pair(NamedTuple):
        a: torch.Tensor
        b: object

    batch = {"x": [torch.ones(1), "text"], "y": Pair(torch.zeros(1), None), "n": 3}
    moved = convert_tensor(batch, "meta")
    assert moved["x"][0].device.type == moved["y"].a.device.type == "meta"
    assert moved["x"][1] == "text"
    assert isinstance(moved["y"], Pair)
    assert moved["n"] == 3


def test_a_batch_that_is_no_pair_is_named():
    with pytest.raises(UsageError, match="a list of 3 items came from the loader"):
        prepare_batch([1, 2, 3])


def test_a_layer_that_was_put_into_evaluation_stays_there():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model.train()
    model[1].eval()
    step = SupervisedStep(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss(), StepOptions())
    step((torch.randn(4, 2), torch.zeros(4, 2)))
    assert model[0].training
    assert not model[1].training
