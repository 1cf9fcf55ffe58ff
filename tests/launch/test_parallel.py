"""Parallel and spawn: functions arrive, values come back, failures are told, whatever the function is."""

import os
import socket
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import shoal.distributed as idist
from shoal import runtime
from shoal.errors import EnvironmentConflictError, UsageError, WorkerFailedError
from shoal.testing import run_workers


def _on_two(function, *args, **kwargs):
    with idist.Parallel(backend="gloo", nproc_per_node=2) as parallel:
        return parallel.run(function, *args, **kwargs)


def test_lambdas_closures_and_local_classes_arrive_and_values_come_back_by_rank():
    class Point:
        def __init__(self, x):
            self.x = x

    offset = 10

    def closure(local_rank, point, *, scale):
        return Point((point.x + local_rank) * scale + offset)

    assert [p.x for p in _on_two(closure, Point(1), scale=2)] == [12, 14]
    assert _on_two(lambda rank: rank * 3) == [0, 3]
    assert idist.spawn(
        "gloo", lambda rank, a, b=0: rank + a + b, args=(1,), kwargs_dict={"b": 5}, nproc_per_node=2
    ) == [
        6,
        7,
    ]


def test_a_parent_that_has_computed_with_all_its_threads_can_launch():
    # What an initialised GPU is to a fork, a running thread pool is on a CPU: workers must not inherit it.
    torch.randn(600, 600) @ torch.randn(600, 600)
    assert _on_two(lambda rank: float((torch.ones(300, 300) @ torch.ones(300, 300)).sum())) == [27_000_000.0] * 2


def test_workers_see_the_environment_and_the_folder_of_now_not_of_the_first_launch(tmp_path, monkeypatch):
    def look(rank):
        return os.environ.get("SHOAL_TEST_VALUE"), str(Path.cwd())

    _on_two(look)
    monkeypatch.setenv("SHOAL_TEST_VALUE", "new")
    monkeypatch.chdir(tmp_path)
    assert _on_two(look) == [("new", str(tmp_path))] * 2


def test_output_of_workers_goes_where_the_launchers_goes(capfd):
    _on_two(lambda rank: os.write(1, f"printed by {rank}\n".encode()))
    assert sorted(capfd.readouterr().out.split("\n")) == ["", "printed by 0", "printed by 1"]


def test_the_log_tells_what_the_tutorials_run_tells(capfd, caplog):
    with caplog.at_level("INFO"):
        _on_two(lambda rank: None)
    text = caplog.text
    for line in (
        "Initialized distributed launcher with backend: 'gloo'",
        "- Parameters to spawn processes: \n\tnproc_per_node: 2\n\tnnodes: 1\n\tnode_rank: 0",
        "in 2 processes",
        "End of run",
    ):
        assert line in text


def test_a_failing_rank_ends_all_and_its_own_traceback_comes_first():
    def fail(rank):
        if rank == 1:
            raise KeyError("the first cause")
        idist.barrier()

    with pytest.raises(WorkerFailedError) as caught:
        _on_two(fail)
    report = str(caught.value.__cause__)
    assert report.splitlines()[0].startswith("rank 1 of 2 failed first")
    assert report.splitlines()[1] == "Traceback (most recent call last):"
    assert __file__ in report.splitlines()[2]
    assert "KeyError: 'the first cause'" in report
    assert [failure.rank for failure in caught.value.failures] in ([1], [1, 0])
    assert all(failure.is_consequence for failure in caught.value.failures[1:])


def test_a_rank_that_is_killed_is_the_first_cause_not_the_peer_that_lost_it():
    def die(rank):
        if rank == 1:
            os.kill(os.getpid(), 9)
        idist.barrier()

    with pytest.raises(WorkerFailedError, match="rank 1 of 2 failed first: the process was killed by SIGKILL"):
        _on_two(die)


def test_a_rank_that_exits_without_an_exception_is_named_with_its_code():
    def leave(rank):
        if rank == 0:
            os._exit(7)
        idist.barrier()

    with pytest.raises(WorkerFailedError, match="rank 0 of 2 failed first: the process ended with exit code 7"):
        _on_two(leave)


def test_a_launch_works_after_one_that_failed():
    with pytest.raises(WorkerFailedError):
        _on_two(lambda rank: 1 / 0)
    assert _on_two(lambda rank: rank) == [0, 1]


def test_what_cannot_be_sent_is_named_before_any_process_starts():
    lock = __import__("threading").Lock()
    with pytest.raises(UsageError, match=r"its argument 0 is a lock"):
        _on_two(lambda rank, x: None, lock)
    with pytest.raises(UsageError, match=r"the variable 'lock' that it uses is a lock"):
        _on_two(lambda rank: lock)


def test_a_value_that_cannot_come_back_is_named():
    with pytest.raises(WorkerFailedError, match="returned a lock that cannot be sent back"):
        _on_two(lambda rank: __import__("threading").Lock())


def test_big_values_come_back():
    value = _on_two(lambda rank: torch.full((3_000_000,), float(rank)))
    assert [v.numel() for v in value] == [3_000_000] * 2
    assert value[1][-1] == 1.0


def test_a_port_that_is_taken_is_refused_at_once_by_number():
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"master_port={port} was asked for, but it cannot be used"):
            idist.Parallel(backend="gloo", nproc_per_node=2, master_port=port)


def test_a_port_that_is_free_is_used():
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    with idist.Parallel(backend="gloo", nproc_per_node=2, master_port=port) as parallel:
        assert parallel.run(lambda rank: os.environ["MASTER_PORT"]) == [str(port)] * 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"nproc_per_node": 0}, "nproc_per_node=0 was given; give a whole number from 1"),
        ({"nproc_per_node": -1}, "give a whole number from 1"),
        ({"nproc_per_node": "two"}, "nproc_per_node='two'"),
        ({"nproc_per_node": 1.5}, "nproc_per_node=1.5"),
        ({"nproc_per_node": True}, "nproc_per_node=True"),
        ({"backend": "glo", "nproc_per_node": 2}, "did you mean 'gloo'"),
        ({"nproc_per_node": 2, "nnodes": 2}, "without node_rank"),
        ({"nproc_per_node": 2, "nnodes": 2, "node_rank": 0}, "without master_addr and master_port"),
        ({"nproc_per_node": 2, "master_addr": "no.such.host.invalid"}, "finds no address"),
        ({"nproc_per_node": 2, "timeout": float("nan")}, "timeout=nan"),
        ({"nproc_per_node": 2, "grace_s": "x"}, "grace_s='x'"),
        ({"nproc_per_node": 2, "nnodes": 2, "node_rank": 2}, "node_rank=2 was given with nnodes=2"),
        ({"nproc_per_node": 2, "master_port": 70000}, "65535"),
        ({"nproc_per_node": 2, "timeout": -3}, "longer than zero"),
        ({"start_method": "thread"}, "choose one of forkserver"),
        ({"nproc_per_node": 2, "grace_s": 0}, "grace_s=0"),
    ],
)
def test_bad_arguments_are_refused_before_any_process_starts(arguments, text):
    with pytest.raises(UsageError, match=text.replace("(", r"\(")):
        idist.Parallel(**arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_several_processes_are_gloo_workers_and_nccl_is_refused():
    with idist.Parallel(nproc_per_node=2) as parallel:
        assert parallel.run(lambda rank: (idist.backend(), idist.get_world_size())) == [("gloo", 2)] * 2
    with pytest.raises(UsageError, match="needs an NVIDIA GPU"):
        idist.Parallel(backend="nccl", nproc_per_node=2)


def test_without_processes_the_function_runs_here():
    with idist.Parallel() as parallel:
        assert parallel.run(lambda rank, x: (rank, x, os.getpid()), 5) == (0, 5, os.getpid())
    with idist.Parallel(backend="gloo") as parallel:
        assert parallel.run(lambda rank: (idist.backend(), idist.get_world_size())) == ("gloo", 1)


def test_an_error_leaves_no_world_behind():
    with pytest.raises(KeyError), idist.Parallel(backend="gloo"):
        raise KeyError
    with idist.Parallel(backend="gloo") as parallel:
        assert parallel.run(lambda rank: idist.get_world_size()) == 1


def test_parallel_inside_a_worker_joins_and_arguments_must_agree():
    def nested(rank):
        runtime.finalize()
        with idist.Parallel(backend="gloo", nproc_per_node=2) as parallel:
            joined = parallel.run(lambda r: (r, idist.get_world_size()))
        with idist.Parallel(backend="gloo") as parallel:  # a second time, in the same store
            again = parallel.run(lambda r: idist.all_reduce(r))
        with pytest.raises(EnvironmentConflictError, match=r"nproc_per_node=3.*nproc_per_node=2"):
            idist.Parallel(backend="gloo", nproc_per_node=3)
        with pytest.raises(UsageError, match="a launcher started"):
            idist.spawn("gloo", print, nproc_per_node=2)
        return joined, again

    assert _on_two(nested) == [((0, 2), 1), ((1, 2), 1)]


def test_a_timeout_given_to_parallel_reaches_the_workers_groups():
    def look(rank):
        return dist.group.WORLD._get_backend(torch.device("cpu")).options._timeout.total_seconds()

    with idist.Parallel(backend="gloo", nproc_per_node=2, timeout=timedelta(seconds=1800)) as parallel:
        assert parallel.run(look) == [1800.0] * 2
    with idist.Parallel(backend="gloo", nproc_per_node=2, timeout=33) as parallel:
        assert parallel.run(look) == [33.0] * 2


def test_objects_built_on_one_rank_alone_do_not_communicate():
    def build():
        if runtime.current().rank == 0:
            from torch.utils.data import TensorDataset

            from shoal.handlers import Checkpoint
            from shoal.metrics import Accuracy

            idist.auto_dataloader(TensorDataset(torch.arange(10)), batch_size=4)
            Accuracy()
            Checkpoint({"model": torch.nn.Linear(1, 1)}, os.environ["SHOAL_LAUNCH_FOLDER"])
        return runtime.all_reduce(1)

    assert run_workers(build, 2, timeout_s=60) == [2, 2]


def test_classes_of_a_test_or_script_can_be_pickled_again_inside_a_worker():
    class Cfg(dict):
        pass

    def send(rank):
        import pickle

        own = Cfg(rank=rank)
        pickle.loads(pickle.dumps(own))
        gathered = idist.all_gather(own)
        return [type(other) is Cfg for other in gathered], [dict(other) for other in gathered]

    assert _on_two(send) == [([True, True], [{"rank": 0}, {"rank": 1}])] * 2


def test_an_exception_that_a_worker_handles_is_no_failure():
    def handled(rank):
        try:
            with idist.Parallel(backend="gloo"):
                raise ValueError("handled")
        except ValueError:
            return idist.all_reduce(1)

    assert _on_two(handled) == [2, 2]


def test_a_rank_that_ends_with_code_0_before_it_returned_is_a_failure():
    def leave(rank):
        if rank == 1:
            os._exit(0)
        idist.barrier()

    with pytest.raises(WorkerFailedError, match="rank 1 of 2 failed first: the process ended with exit code 0 before"):
        _on_two(leave)


def test_an_exception_whose_text_cannot_be_made_keeps_its_rank_and_traceback():
    class Bad(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    def fail(rank):
        if rank == 1:
            raise Bad
        idist.barrier()

    with pytest.raises(WorkerFailedError, match="rank 1 of 2 failed first: Bad") as caught:
        _on_two(fail)
    assert "in fail" in str(caught.value.__cause__)


def test_running_outside_of_the_with_statement_is_refused():
    with pytest.raises(UsageError, match="outside of a with statement"):
        idist.Parallel().run(print)


def test_options_without_effect_are_said(caplog):
    with caplog.at_level("INFO"), idist.Parallel(backend="gloo", grace_s=5):
        pass
    assert "grace_s has no effect here" in caplog.text
