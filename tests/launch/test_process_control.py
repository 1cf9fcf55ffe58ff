"""Whole programs, started as a user starts them: what they print, how they end, what they leave."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest

_DEADLINE_S = 90


@pytest.fixture
def script(tmp_path):
    def write(text, name="main.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    return write


def _shoal(*arguments, **kwargs):
    command = [sys.executable, "-m", "shoal.cli.main", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S, check=False, **kwargs)


def _python(*arguments, **kwargs):
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S, check=False, **kwargs)


def _is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _until(condition, what):
    end = time.monotonic() + _DEADLINE_S
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.05)  # polls for what another process does
    pytest.fail(f"waited {_DEADLINE_S} s in vain until {what}")


_SCRIPT = """
    import os, sys
    import shoal.distributed as idist
    with idist.Parallel() as parallel:
        total = parallel.run(lambda local_rank: idist.all_reduce(local_rank + 1))
    names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR TORCHELASTIC_RUN_ID".split()
    line = " ".join([str(total), *sys.argv[1:], __name__, *(name for name in names if name not in os.environ)])
    os.write(1, (line + "\\n").encode())
"""


def test_shoal_launch_runs_a_script_as_torchrun_does_and_is_silent_otherwise(script):
    path = script(_SCRIPT)
    ours = _shoal("launch", "--nproc", 2, path, "--lr", "0.1")
    theirs = _python("-m", "torch.distributed.run", "--nproc-per-node", "2", path, "--lr", "0.1")
    assert (ours.returncode, theirs.returncode) == (0, 0), ours.stderr + theirs.stderr
    assert ours.stdout == theirs.stdout == "3 --lr 0.1 __main__\n" * 2
    assert "Traceback" not in ours.stderr
    assert "Warning" not in ours.stderr


def test_shoal_launch_runs_a_module_and_a_script_that_leaves_its_group(script, tmp_path):
    script(
        """
        import torch.distributed as dist
        dist.init_process_group("gloo")
        dist.barrier()
        """,
        "leaves_its_group.py",
    )
    done = _shoal("launch", "--nproc-per-node", 2, "-m", "leaves_its_group", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert "process group" not in done.stderr.lower()


def test_a_script_without_a_main_guard_starts_its_workers_once(script):
    path = script(
        """
        import torch
        import shoal.distributed as idist
        print("the script runs")
        class Model:
            value = 5
        def training(local_rank, config):
            Model.classes = torch.ones(1)  # a name that is also a submodule of torch
            return Model.value * config["scale"] + local_rank
        with idist.Parallel(backend="gloo", nproc_per_node=2) as parallel:
            print(parallel.run(training, {"scale": 2}))
        """
    )
    done = _python(path)
    assert (done.returncode, done.stdout) == (0, "the script runs\n[10, 11]\n"), done.stderr
    assert "Traceback" not in done.stderr


def test_loading_workers_find_a_dataset_of_the_script(script):
    path = script(
        """
        import torch
        import shoal.distributed as idist
        from torch.utils.data import DataLoader, Dataset
        class Squares(Dataset):
            def __len__(self): return 8
            def __getitem__(self, i): return i * i
        def training(local_rank):
            plain = DataLoader(Squares(), batch_size=4, num_workers=2)
            auto = idist.auto_dataloader(Squares(), batch_size=4, num_workers=2)
            return sum(int(b.sum()) for b in plain), sum(int(b.sum()) for b in auto)
        if __name__ == "__main__":
            with idist.Parallel(backend="gloo", nproc_per_node=2) as parallel:
                print(parallel.run(training))
        """
    )
    done = _python(path)
    assert done.returncode == 0, done.stderr
    (first_all, first), (second_all, second) = eval(done.stdout)
    assert first_all == second_all == first + second == sum(i * i for i in range(8))


def test_a_failing_script_shows_its_own_traceback_first_and_exits_with_1(script):
    path = script(
        """
        import os, shoal.distributed as idist
        idist.initialize("gloo")
        if idist.get_rank() == 1:
            raise ValueError("only rank 1")
        idist.barrier()
        """
    )
    done = _shoal("launch", "--nproc", 2, path)
    assert done.returncode == 1
    shown = done.stderr[done.stderr.index("rank 1 of 2 failed first") :].splitlines()
    assert shown[1] == "Traceback (most recent call last):"
    assert str(path) in shown[2]
    assert "ValueError: only rank 1" in done.stderr


def test_a_script_ends_as_under_torchrun(script, tmp_path):
    path = script(
        """
        import atexit, multiprocessing, os, sys
        rank = os.environ["RANK"]
        multiprocessing.set_start_method("spawn")
        atexit.register(lambda: os.write(1, f"exit handler {rank}\\n".encode()))
        kept = open(f"{sys.argv[1]}/file-{rank}", "w")
        kept.write("written")
        os.write(1, f"{os.path.isabs(__file__)}\\n".encode())
        """
    )
    done = _shoal("launch", "--nproc", 2, path.name, tmp_path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n")) == ["", "True", "True", "exit handler 0", "exit handler 1"]
    assert [(tmp_path / f"file-{rank}").read_text() for rank in range(2)] == ["written"] * 2


def test_a_batch_of_a_class_of_the_script_comes_from_a_loading_worker(script):
    path = script(
        """
        import collections
        import shoal.distributed as idist
        from torch.utils.data import DataLoader
        Batch = collections.namedtuple("Batch", "x y")
        class Data:
            def __len__(self): return 4
            def __getitem__(self, i): return Batch(i, i * i)
        def f(rank):
            return [type(b).__name__ for b in DataLoader(Data(), batch_size=2, num_workers=1)]
        with idist.Parallel("gloo", 2) as parallel:
            print(parallel.run(f))
        """
    )
    done = _python(path)
    assert done.stdout == "[['Batch', 'Batch'], ['Batch', 'Batch']]\n", done.stderr


def test_a_signal_that_is_ignored_stays_ignored_and_nothing_is_left_in_the_temporary_folder(script, tmp_path):
    before = set(Path(tempfile.gettempdir()).glob("shoal-*"))
    ignore = lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)
    path = script(_WAITS)
    command = [sys.executable, "-m", "shoal.cli.main", "launch", "--nproc", "2", str(path), str(tmp_path), "SIGTERM"]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=ignore)
    _until(lambda: all((tmp_path / f"pids-{rank}").exists() for rank in range(2)), "both workers run")
    job.send_signal(signal.SIGHUP)
    job.send_signal(signal.SIGTERM)
    _, err = job.communicate(timeout=_DEADLINE_S)
    assert [(tmp_path / f"heard-{rank}").read_text() for rank in range(2)] == ["1", "1"], err
    assert "leaked" not in err
    assert set(Path(tempfile.gettempdir()).glob("shoal-*")) <= before


def test_two_jobs_start_at_the_same_moment(script):
    path = script(_SCRIPT)
    command = [sys.executable, "-m", "shoal.cli.main", "launch", "--nproc", "2", str(path)]
    jobs = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    results = [job.communicate(timeout=_DEADLINE_S) for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], results
    assert [out for out, _ in results] == ["3 __main__\n" * 2] * 2


_WAITS = """
    import os, pathlib, signal, subprocess, sys, time
    import shoal.distributed as idist
    idist.initialize("gloo")
    folder = pathlib.Path(sys.argv[1])
    child = subprocess.Popen(["sleep", "600"])
    heard = []
    if len(sys.argv) > 2:
        number = getattr(signal, sys.argv[2])
        signal.signal(number, lambda *_: heard.append(1))
    (folder / f"pids-{idist.get_rank()}.tmp").write_text(f"{os.getpid()} {child.pid}")
    (folder / f"pids-{idist.get_rank()}.tmp").rename(folder / f"pids-{idist.get_rank()}")
    while not heard:
        time.sleep(0.05)
    time.sleep(0.3)
    (folder / f"heard-{idist.get_rank()}").write_text(str(len(heard)))
"""


def _start_waiting(path, tmp_path, *arguments):
    command = [sys.executable, "-m", "shoal.cli.main", "launch", "--nproc", "2", str(path), str(tmp_path), *arguments]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    files = [tmp_path / f"pids-{rank}" for rank in range(2)]
    _until(lambda: all(f.exists() for f in files) or job.poll() is not None, "both workers run")
    assert job.poll() is None, job.communicate()
    return job, [int(pid) for f in files for pid in f.read_text().split()]


@pytest.mark.parametrize(
    ("name", "send"),
    [
        ("SIGINT", os.killpg),  # as a terminal does: to the whole foreground group
        ("SIGTERM", os.kill),
        ("SIGTERM", os.killpg),  # as service managers and schedulers do
        ("SIGUSR1", os.kill),
    ],
)
def test_a_signal_reaches_every_worker_once_and_leaves_them_time_to_end(script, tmp_path, name, send):
    job, pids = _start_waiting(script(_WAITS), tmp_path, name)
    send(job.pid, getattr(signal, name))
    out, err = job.communicate(timeout=_DEADLINE_S)
    assert job.returncode in (130, 128 + getattr(signal, name), -getattr(signal, name)), (out, err)
    assert [(tmp_path / f"heard-{rank}").read_text() for rank in range(2)] == ["1", "1"]
    assert "Traceback" not in err
    _until(lambda: not any(map(_is_alive, pids)), "all workers and their children have ended")


def test_a_second_ctrl_c_ends_the_workers_grace(script, tmp_path):
    path = script(
        """
        import pathlib, signal, sys, time
        import shoal.distributed as idist
        def training(local_rank):
            signal.signal(signal.SIGINT, lambda *_: (pathlib.Path(sys.argv[1]) / f"heard-{local_rank}").touch())
            (pathlib.Path(sys.argv[1]) / f"ready-{local_rank}").touch()
            while True:
                time.sleep(0.05)
        with idist.Parallel(backend="gloo", nproc_per_node=2, grace_s=300) as parallel:
            parallel.run(training)
        """
    )
    job = subprocess.Popen(
        [sys.executable, str(path), str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    for name in ("ready", "heard"):
        _until(
            lambda name=name: all((tmp_path / f"{name}-{rank}").exists() for rank in range(2)), f"workers are {name}"
        )
        job.send_signal(signal.SIGINT)
    _, err = job.communicate(timeout=_DEADLINE_S)
    assert job.returncode in (-signal.SIGINT, 130), err
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert "Interrupted(" not in err


def test_no_worker_outlives_a_launcher_that_is_killed(script, tmp_path):
    job, pids = _start_waiting(script(_WAITS), tmp_path)
    job.kill()
    job.communicate(timeout=_DEADLINE_S)
    _until(lambda: not any(map(_is_alive, pids)), "all workers and their children have ended")


def test_no_loading_worker_outlives_a_job_that_fails(script, tmp_path):
    path = script(
        """
        import os, pathlib, subprocess, sys
        import shoal.distributed as idist
        idist.initialize("gloo")
        child = subprocess.Popen(["sleep", "600"])
        pathlib.Path(sys.argv[1], f"child-{idist.get_rank()}").write_text(str(child.pid))
        idist.barrier()
        if idist.get_rank() == 0:
            raise RuntimeError("end")
        idist.barrier()
        """
    )
    done = _shoal("launch", "--nproc", 2, path, tmp_path)
    assert done.returncode == 1
    pids = [int((tmp_path / f"child-{rank}").read_text()) for rank in range(2)]
    _until(lambda: not any(map(_is_alive, pids)), "the children have ended")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["launch"], "required"),
        (["launch", "--nproc", "2", "nosuch.py"], "there is no script 'nosuch.py'"),
        (["launch", "-m", "no.such.module"], "no module 'no.such.module'"),
        (["launch", "--num-processes", "5", "--nnodes", "2", __file__], "5 / 2 = 2.5 processes a node"),
        (["launch", "--nproc", "x", __file__], "nproc_per_node='x'"),
        (["launch", "--backend", "glop", __file__], "did you mean 'gloo'"),
        (["lunch"], "did you mean 'launch'"),
    ],
)
def test_a_command_line_that_cannot_work_is_refused_with_2(arguments, text):
    done = _shoal(*arguments)
    assert done.returncode == 2
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_help_and_version_import_no_torch():
    done = _python("-X", "importtime", "-m", "shoal.cli.main", "--help")
    assert "launch" in done.stdout
    assert not re.search(r"\| +(torch|numpy|tyro)$", done.stderr, re.MULTILINE)


def test_importing_shoal_imports_no_torch_and_touches_nothing():
    done = _python("-c", "import sys, shoal; print('torch' in sys.modules, shoal.__version__)")
    assert done.stdout.startswith("False ")


def test_env_prints_versions_devices_and_backends():
    done = _shoal("env")
    assert done.returncode == 0
    for name in ("shoal:", "torch:", "python:", "usable backends: gloo", "gpus:"):
        assert name in done.stdout


def test_an_exit_handler_that_does_not_return_is_named(script, tmp_path):
    program = script(
        f"""
        import atexit, pathlib, time
        import shoal.distributed as idist
        import shoal.launch.worker as worker

        def work(local_rank):
            worker.EXIT_PATIENCE_S = 0.2
            if local_rank == 1:
                atexit.register(a_library_that_waits)

        def a_library_that_waits():
            while not pathlib.Path({str(tmp_path / "told")!r}).exists():
                time.sleep(0.05)

        with idist.Parallel(backend="gloo", nproc_per_node=2) as parallel:
            parallel.run(work)
        """
    )
    with (tmp_path / "err").open("w") as err:
        job = subprocess.Popen([sys.executable, str(program)], stderr=err)
    _until(lambda: "in a_library_that_waits" in (tmp_path / "err").read_text(), "the handler is named")
    assert "rank 1" in (tmp_path / "err").read_text()
    assert "rank 0 (pid" not in (tmp_path / "err").read_text()
    (tmp_path / "told").touch()
    assert job.wait(_DEADLINE_S) == 0
