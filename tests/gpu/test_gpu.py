"""What needs an NVIDIA GPU; see docs/gpu.md."""

import pytest
import torch

import shoal.distributed as idist

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU; run scripts/check-gpu where there is one"),
]


def test_a_parent_that_has_used_its_gpu_can_launch():
    torch.ones(1, device="cuda")
    with idist.Parallel(backend="nccl", nproc_per_node=torch.cuda.device_count()) as parallel:
        devices = parallel.run(lambda rank: str(idist.device()))
    assert devices == [f"cuda:{rank}" for rank in range(torch.cuda.device_count())]


def test_collectives_over_nccl_keep_types_and_devices():
    def everything(rank):
        tensor = idist.all_reduce(torch.ones(2, device=idist.device()) * (rank + 1))
        return (
            tensor.device == idist.device(),
            tensor.sum().item(),
            idist.all_reduce(rank + 1),
            idist.all_gather(f"rank {rank}"),
            idist.all_gather(torch.arange(rank)).tolist(),
            idist.broadcast({"from": rank}),
        )

    num_gpus = torch.cuda.device_count()
    with idist.Parallel(backend="nccl", nproc_per_node=num_gpus) as parallel:
        results = parallel.run(everything)
    total = num_gpus * (num_gpus + 1) // 2
    expected = (
        True,
        2.0 * total,
        total,
        [f"rank {r}" for r in range(num_gpus)],
        [i for r in range(num_gpus) for i in range(r)],
        {"from": 0},
    )
    assert results == [expected] * num_gpus


def test_fp16_with_a_scaler_trains_and_a_skipped_step_does_not_count():
    from shoal.training import Precision, StepOptions, SupervisedStep

    device = torch.device("cuda", 0)
    model = torch.nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = StepOptions(device=device, precision=Precision.resolve("amp", device, scaler=True))
    step = SupervisedStep(model, optimizer, torch.nn.functional.mse_loss, options)
    before = model.weight.detach().clone()
    result = step((torch.full((2, 4), float("inf")), torch.zeros(2, 1)))
    assert step.num_steps_taken == 0
    assert torch.equal(model.weight, before)
    result = step((torch.ones(2, 4), torch.zeros(2, 1)))
    assert step.num_steps_taken == 1
    assert result.y_pred.dtype == torch.float32
