"""Files in a folder that others use too: other processes, other users, file systems with other rules."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import resource
import signal
import time
from pathlib import Path

import pytest
import torch

from shoal import checkpoint
from shoal.checkpoint.store import FolderStore
from shoal.errors import CheckpointError

fork = multiprocessing.get_context("fork")


def _save_for_ever(folder):
    torch.set_num_threads(1)
    manager = checkpoint.CheckpointManager(folder, naming=checkpoint.Naming(prefix="training"), n_saved=1)
    for step in range(10**9):
        manager.save(lambda _: {"n": 1}, filename_step=step)


def test_the_latest_is_found_while_a_run_saves_and_deletes(tmp_path):
    process = fork.Process(target=_save_for_ever, args=(tmp_path,), daemon=True)
    process.start()
    try:
        while not list(tmp_path.glob("*.pt")):
            assert process.is_alive()
        found = [checkpoint.step_in_name(checkpoint.latest(tmp_path).name) for _ in range(300)]
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    assert found == sorted(found)
    assert found[-1] > found[0]


def test_a_series_whose_prefix_means_something_to_glob_is_found(tmp_path):
    FolderStore(tmp_path)({"n": 1}, "run[1]_checkpoint_3.pt")
    assert checkpoint.latest(tmp_path, "run[1]").name == "run[1]_checkpoint_3.pt"


@pytest.mark.parametrize("name", ["a" * 252 + ".pt", "é" * 126 + ".pt", "漢" * 84 + ".pt"])
def test_a_name_as_long_as_names_may_be(name, tmp_path):
    checkpoint.save({"n": 1}, tmp_path / name)
    assert checkpoint.load(tmp_path / name) == {"n": 1}
    assert len(list(tmp_path.iterdir())) == 1


def _save_as_nobody(folder, queue):
    os.chdir(folder)  # those above are root's
    os.seteuid(65534)
    FolderStore(".")({"n": 2}, "theirs.pt")
    queue.put(sorted(path.name for path in Path().iterdir()))


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_what_another_user_has_left_half_written_is_left_alone(tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    (folder / ".a.pt.0123.shoal-tmp").write_text("")
    (folder / ".a.pt.0123.shoal-tmp").chmod(0o600)
    queue = fork.SimpleQueue()
    process = fork.Process(target=_save_as_nobody, args=(folder, queue))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert queue.get() == [".a.pt.0123.shoal-tmp", "theirs.pt"]


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    # A fake: such a file system, as Lustre is where it was mounted without flock, cannot be had here.
    def flock(descriptor, operation):
        raise OSError(errno.ENOSYS, "Function not implemented")

    (tmp_path / ".a.pt.0123.shoal-tmp").write_text("")  # being written or left over: nobody can tell
    monkeypatch.setattr(fcntl, "flock", flock)
    FolderStore(tmp_path)({"n": 1}, "b.pt")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".a.pt.0123.shoal-tmp", "b.pt"]
    assert checkpoint.load(tmp_path / "b.pt") == {"n": 1}


def _save_in_place_with_a_limit(folder, queue):
    torch.set_num_threads(1)
    save = FolderStore(folder, atomic=False)
    save({"n": 1}, "a.pt")
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    try:
        save({"w": torch.ones(1_000_000)}, "b.pt")
    except CheckpointError as error:
        queue.put(str(error))


def test_in_place_nothing_is_left_of_a_file_that_could_not_grow(tmp_path):
    queue = fork.SimpleQueue()
    process = fork.Process(target=_save_in_place_with_a_limit, args=(tmp_path, queue))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert "File too large" in queue.get()
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]


def _save_in_place_for_ever(folder, start):
    torch.set_num_threads(1)
    manager = checkpoint.CheckpointManager(
        FolderStore(folder, atomic=False), naming=checkpoint.Naming(pattern="model.{ext}"), n_saved=1
    )
    for step in range(start, 10**9):
        manager.save(lambda _, s=step: {"w": torch.full((2_000_000,), float(s)), "n": s})


def test_killed_while_it_writes_in_place_under_a_fixed_name_one_that_is_whole_is_there(tmp_path):
    # Trap 39, for atomic=False: the file is broken while it is written, so it is never the only one.
    num_broken, attempt = 0, 0
    deadline = time.monotonic() + 60
    while num_broken < 3:  # it is killed half-way, or a moment too late
        attempt += 1
        folder = tmp_path / str(attempt)
        process = fork.Process(target=_save_in_place_for_ever, args=(folder, 1), daemon=True)
        process.start()
        while len(set(map(_size, (folder / "model.pt", folder / "model-2.pt"))) - {0}) < 2:
            assert process.is_alive() and time.monotonic() < deadline
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        whole = []
        for path in folder.glob("*.pt"):
            try:
                whole.append(checkpoint.load(path)["n"])
            except CheckpointError:
                num_broken += 1
        assert whole


def _size(path):
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
