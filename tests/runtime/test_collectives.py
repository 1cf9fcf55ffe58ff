import os
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from shoal import runtime
from shoal.errors import CollectiveError, EnvironmentConflictError, UsageError
from shoal.runtime.environments import detect
from shoal.testing import run_workers


def _everything():
    """Each collective on each kind of value; a function of rank and world size alone."""
    rank = runtime.current().rank
    big = "x" * 10_000 + str(rank)
    return {
        "sum of ints": runtime.all_reduce(rank + 1),
        "max of floats": runtime.all_reduce(rank / 2, op="MAX"),
        "sum of bf16": runtime.all_reduce(torch.full((2,), rank + 1, dtype=torch.bfloat16)),
        "or of bools": runtime.all_reduce(torch.tensor([rank == 0, False]), op="MAX"),
        "ints": runtime.all_gather(rank),
        "strings": runtime.all_gather(f"rank {rank}"),
        "long strings": runtime.all_gather(big) == ["x" * 10_000 + str(r) for r in range(runtime.current().world_size)],
        "objects": runtime.all_gather({"rank": rank, "none": None}),
        "scalars": runtime.all_gather(torch.tensor(rank)),
        "unequal": runtime.all_gather(torch.arange(rank, dtype=torch.float64)),
        "all empty": runtime.all_gather(torch.empty(0, 3)),
        "bools": runtime.all_gather(torch.tensor([rank == 0])),
        "string from 0": runtime.broadcast("héllo" if rank == 0 else None),
        "tensor from last": runtime.broadcast(torch.full((2, 2), rank), src=runtime.current().world_size - 1),
        "object from 0": runtime.broadcast([rank, {"a": (1, 2)}]),
        "number from 0": runtime.broadcast(rank + 0.5),
    }


def _expected(world_size):
    ranks = range(world_size)
    return {
        "sum of ints": sum(r + 1 for r in ranks),
        "max of floats": (world_size - 1) / 2,
        "sum of bf16": torch.full((2,), sum(r + 1 for r in ranks), dtype=torch.bfloat16),
        "or of bools": torch.tensor([True, False]),
        "ints": list(ranks),
        "strings": [f"rank {r}" for r in ranks],
        "long strings": True,
        "objects": [{"rank": r, "none": None} for r in ranks],
        "scalars": torch.arange(world_size),
        "unequal": torch.cat([torch.arange(r, dtype=torch.float64) for r in ranks]),
        "all empty": torch.empty(0, 3),
        "bools": torch.tensor([r == 0 for r in ranks]),
        "string from 0": "héllo",
        "tensor from last": torch.full((2, 2), world_size - 1),
        "object from 0": [0, {"a": (1, 2)}],
        "number from 0": 0.5,
    }


def _assert_equal(got, expected):
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert type(got[name]) is type(value), name
        if isinstance(value, torch.Tensor):
            assert got[name].dtype == value.dtype, name
            assert torch.equal(got[name], value), name
        else:
            assert got[name] == value, name


@pytest.mark.parametrize("world_size", [2, 3])
def test_collectives_give_the_same_types_and_values_at_every_world_size(world_size):
    for values in run_workers(_everything, world_size):
        _assert_equal(values, _expected(world_size))


def test_collectives_in_one_process_are_those_of_a_world_of_one():
    _assert_equal(_everything(), _expected(1))


def test_a_list_of_ranks_and_a_group_reach_their_members_alone():
    def in_groups():
        rank = runtime.current().rank
        group = runtime.new_group([0, 2])
        kept = runtime.new_group([2, 0]) is group
        return kept, runtime.all_reduce(rank + 1, group=group), runtime.all_gather(rank, group=[1, 2])

    assert run_workers(in_groups, 3) == [(True, 4, [0]), (True, 2, [1, 2]), (True, 4, [1, 2])]


def test_tensors_that_do_not_fit_are_refused_on_every_rank_with_both_shapes():
    def mismatch():
        with pytest.raises(CollectiveError) as error:
            runtime.all_gather(torch.zeros(2, 3 + runtime.current().rank))
        return str(error.value)

    first, second = run_workers(mismatch, 2)
    assert "(2, 3) on rank 0" in first
    assert "(2, 4) on rank 1" in first
    assert "(2, 4) on rank 1" in second


def test_numbers_are_reduced_exactly_and_must_be_of_one_kind():
    def reduce():
        rank = runtime.current().rank
        big = runtime.all_reduce(2**70 + rank), runtime.all_reduce(rank + 2, op="PRODUCT")
        with pytest.raises(CollectiveError, match="give the same kind of value"):
            runtime.all_reduce(1 if rank == 0 else 0.5)
        with pytest.raises(CollectiveError, match=r"shape \(2,\)"):
            runtime.all_reduce(torch.zeros(1 + rank))
        with pytest.raises(CollectiveError, match="float64"):
            runtime.all_reduce(torch.zeros(1, dtype=[torch.float32, torch.float64][rank]))
        return big

    first, second = run_workers(reduce, 2)
    assert first == second == (2 * 2**70 + 1, 6)


def test_an_object_that_cannot_be_pickled_is_an_error_on_every_rank():
    def send():
        value = __import__("threading").Lock() if runtime.current().rank == 0 else 1
        with pytest.raises(CollectiveError, match="a lock on rank 0 that cannot be pickled"):
            runtime.all_gather(value)
        with pytest.raises(CollectiveError, match="broadcast was given a lock on rank 0"):
            runtime.broadcast(value)
        return runtime.all_reduce(1)

    assert run_workers(send, 2) == [2, 2]


def test_states_of_any_shape_and_dtype_travel_bit_for_bit():
    def gather():
        rank = runtime.current().rank
        torch.manual_seed(rank)
        states = [
            {"n": torch.tensor(rank), "sum": torch.randn((), dtype=torch.float64)},
            {"all": torch.randn(rank * 2000, 2, dtype=torch.bfloat16), "flag": torch.tensor([True])},
            {},
        ]
        return states, runtime.gather_states(states)

    own, gathered = zip(*run_workers(gather, 3), strict=True)
    for seen in gathered:
        for states, expected in zip(seen, own, strict=True):
            for state, other in zip(states, expected, strict=True):
                assert state.keys() == other.keys()
                assert all(
                    torch.equal(state[key], other[key]) and state[key].dtype == other[key].dtype for key in state
                )


def test_states_cost_one_collective_while_they_are_small():
    def count():
        calls = []
        backend = runtime.active().backend
        original = backend.all_gather
        backend.all_gather = lambda tensor, group: calls.append(tensor.numel()) or original(tensor, group)
        runtime.gather_states([{"n": torch.tensor(1)}, {"s": torch.zeros(10)}])
        return len(calls)

    assert run_workers(count, 2) == [1, 1]


def test_what_cannot_be_reduced_is_refused():
    with pytest.raises(UsageError, match="takes a tensor, an int or a float"):
        runtime.all_reduce("text")
    with pytest.raises(UsageError, match="choose one of SUM"):
        runtime.all_reduce(1, op="MEAN")
    with pytest.raises(UsageError, match=r"src=4, which is not among the ranks \[0\]"):
        runtime.broadcast(1, src=4)


def test_a_timeout_reaches_every_group_also_when_it_equals_the_default():
    def timeouts(seconds):
        runtime.finalize()
        runtime.initialize("gloo", timeout=timedelta(seconds=seconds))
        group = runtime.new_group([0, 1])
        return [g._get_backend(torch.device("cpu")).options._timeout.total_seconds() for g in (dist.group.WORLD, group)]

    assert run_workers(timeouts, 2, 77) == [[77.0, 77.0]] * 2
    assert run_workers(timeouts, 2, 1800) == [[1800.0, 1800.0]] * 2


def test_one_rank_runs_alone_or_first():
    def ordered():
        rank = runtime.current().rank
        only = runtime.one_rank_only(rank=1, with_barrier=True)(lambda: f"ran on {rank}")()
        with runtime.one_rank_first():
            mark = Path(os.environ["SHOAL_LAUNCH_FOLDER"], "made-by-0")
            seen = mark.exists()
            if rank == 0:
                mark.touch()
        return only, seen

    assert run_workers(ordered, 2) == [(None, False), ("ran on 1", True)]


def test_a_group_that_the_user_made_is_adopted_and_left_to_its_maker():
    def own_group():
        runtime.finalize()
        dist.init_process_group("gloo")
        rank = runtime.current().rank
        total = runtime.all_reduce(rank + 1)
        runtime.finalize()
        kept = dist.is_initialized()
        dist.destroy_process_group()
        return total, kept, runtime.current().world_size

    assert run_workers(own_group, 2) == [(3, True, 1)] * 2


def test_ranks_that_contradict_each_other_are_refused_with_both():
    with pytest.raises(EnvironmentConflictError, match="RANK=2 and WORLD_SIZE=2"):
        detect({"RANK": "2", "WORLD_SIZE": "2", "MASTER_PORT": "1"})
    with pytest.raises(EnvironmentConflictError, match="MASTER_ADDR is not set"):
        detect({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1"})
    with pytest.raises(EnvironmentConflictError, match="WORLD_SIZE is not set"):
        detect({"RANK": "0"})
    with pytest.raises(EnvironmentConflictError, match="RANK='one'"):
        detect({"RANK": "one", "WORLD_SIZE": "2"})


def test_a_wrong_backend_or_timeout_is_refused_with_what_there_is():
    with pytest.raises(UsageError, match=r"unknown backend 'glooo' \(did you mean 'gloo'\?\)"):
        runtime.initialize("glooo")
    with pytest.raises(UsageError, match="longer than zero"):
        runtime.initialize("gloo", timeout=0)
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="needs an NVIDIA GPU"):
            runtime.initialize("nccl")


def test_one_process_with_a_backend_is_a_group_of_one():
    world = runtime.initialize("gloo")
    try:
        assert (world.rank, world.world_size, world.backend) == (0, 1, "gloo")
        assert runtime.all_reduce(3) == 3
        with pytest.raises(UsageError, match="call finalize"):
            runtime.initialize("gloo")
    finally:
        runtime.finalize()
    assert runtime.current().backend is None
