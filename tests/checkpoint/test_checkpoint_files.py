"""Files: whole or absent, checked when they are read."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import stat
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from shoal import checkpoint
from shoal.checkpoint.store import FolderStore
from shoal.errors import CheckpointError, UsageError

fork = multiprocessing.get_context("fork")


def test_what_was_saved_is_loaded_bit_for_bit(tmp_path):
    state = {"w": torch.randn(5, 7), "n": 3, "lr": 0.1, "names": ["a", None], "pair": (1, 2.5), "flag": True}
    checkpoint.save(state, tmp_path / "a.pt")
    loaded = checkpoint.load(tmp_path / "a.pt")
    assert torch.equal(loaded.pop("w"), state.pop("w"))
    assert loaded == state
    assert [file.name for file in tmp_path.iterdir()] == ["a.pt"]


def test_a_file_has_the_permissions_of_an_ordinary_new_file(tmp_path):
    (tmp_path / "ordinary").write_text("")
    checkpoint.atomic_write_text(tmp_path / "ours", "text")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("ordinary", "ours")]
    assert modes[0] == modes[1]
    assert (tmp_path / "ours").read_text() == "text"


def test_an_error_while_writing_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "a.txt"
    checkpoint.atomic_write_text(path, "old")
    with pytest.raises(KeyError), checkpoint.atomic_writer(path) as file:
        file.write(b"half of the ne")
        raise KeyError("stop")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_numpy_numbers_are_saved_as_numbers(tmp_path):
    checkpoint.save({"lr": np.float64(0.5), "steps": [np.int64(3)]}, tmp_path / "a.pt")
    loaded = torch.load(tmp_path / "a.pt", weights_only=True)
    assert loaded == {"lr": 0.5, "steps": [3]}
    assert type(loaded["lr"]) is float


@pytest.mark.parametrize("bad", [lambda: None, Path("x"), np.zeros(2), object()])
def test_what_would_need_code_to_load_is_refused_with_its_place(tmp_path, bad):
    with pytest.raises(CheckpointError, match=r"\['scheduler'\]\['fn'\]\[1\].*convert it"):
        checkpoint.save({"scheduler": {"fn": [0, bad]}}, tmp_path / "a.pt")
    assert list(tmp_path.iterdir()) == []


def test_the_metadata_of_a_module_state_survives(tmp_path):
    state = torch.nn.BatchNorm1d(3).state_dict()
    checkpoint.save({"model": state}, tmp_path / "a.pt")
    assert checkpoint.load(tmp_path / "a.pt")["model"]._metadata == state._metadata


def test_a_missing_file_is_named_with_those_that_are_there(tmp_path):
    checkpoint.save({"n": 1}, tmp_path / "training_checkpoint_200.pt")
    with pytest.raises(CheckpointError, match=r"training_checkpoint_300\.pt.*does not exist.*training_checkpoint_200"):
        checkpoint.load(tmp_path / "training_checkpoint_300.pt")
    with pytest.raises(CheckpointError, match="is a folder"):
        checkpoint.load(tmp_path)
    with pytest.raises(CheckpointError, match="nor does its folder"):
        checkpoint.load(tmp_path / "nowhere" / "a.pt")


def test_a_file_cut_at_any_length_is_found(tmp_path):
    path = tmp_path / "a.pt"
    checkpoint.save({"w": torch.randn(300)}, path)
    whole = path.read_bytes()
    for length in range(0, len(whole), max(1, len(whole) // 100)):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"cut off or altered|not a checkpoint"):
            checkpoint.load(path)


def test_a_changed_weight_is_found(tmp_path):
    path = tmp_path / "a.pt"
    weights = torch.arange(1000, dtype=torch.float64)
    checkpoint.save({"w": weights}, path)
    whole = bytearray(path.read_bytes())
    at = whole.index(weights.numpy().tobytes())
    for offset in range(0, 8000, 797):
        altered = bytearray(whole)
        altered[at + offset] ^= 1
        path.write_bytes(altered)
        with pytest.raises(CheckpointError, match="checksum"):
            checkpoint.load(path)


def test_a_file_that_would_run_code_is_refused(tmp_path):
    marker = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(marker),))

    torch.save({"model": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(CheckpointError, match="could run code"):
        checkpoint.load(tmp_path / "evil.pt")
    assert not marker.exists()


def test_other_files_are_not_taken_for_checkpoints(tmp_path):
    (tmp_path / "a.pt").write_text("some text")
    with pytest.raises(CheckpointError, match="not a checkpoint file"):
        checkpoint.load(tmp_path / "a.pt")


# --- Trap 39: killed in the middle of a save, disk full in the middle of a save; n_saved=1.


def _save_for_ever(folder, count, parameters):
    torch.set_num_threads(1)
    manager = checkpoint.CheckpointManager(folder, naming=checkpoint.Naming(prefix="training"), n_saved=1)
    for step in range(count, 10**9):
        manager.save(
            lambda _, s=step: {"w": torch.full((parameters,), float(s)), "n": s}, step=step, filename_step=step
        )


def _kill_in_the_middle(folder, start, parameters, fraction):
    """Start a process that saves without end; kill it when a new file is written to the given fraction."""
    process = fork.Process(target=_save_for_ever, args=(folder, start, parameters), daemon=True)
    process.start()
    deadline = time.monotonic() + 60
    seen = False
    while not seen and time.monotonic() < deadline:
        whole = [path for path in folder.glob("training_*.pt") if checkpoint.step_in_name(path.name) > start]
        for path in folder.glob(".*.shoal-tmp"):
            try:
                seen = seen or (bool(whole) and path.stat().st_size >= fraction * 4 * parameters)
            except FileNotFoundError:
                continue
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert seen, "no save was caught half-way"


def test_killed_in_the_middle_of_a_save_the_previous_checkpoint_is_there_and_loads(tmp_path):
    parameters, start, num_leftovers = 1_000_000, 0, 0
    for fraction in (0.0, 0.01, 0.3, 0.6, 0.9, 1.0):
        _kill_in_the_middle(tmp_path, start, parameters, fraction)
        num_leftovers += len(list(tmp_path.glob(".*.shoal-tmp")))
        newest = checkpoint.latest(tmp_path)
        state = checkpoint.load(newest)
        assert state["n"] == checkpoint.step_in_name(newest.name) > start
        assert torch.equal(state["w"], torch.full((parameters,), float(state["n"])))
        for path in tmp_path.glob("*.pt"):
            checkpoint.verify(path)
        start = state["n"] + 1
    assert num_leftovers > 0  # it was killed half-way, and the next run has cleared that away:
    FolderStore(tmp_path)({"n": 1}, "last.pt")
    assert list(tmp_path.glob(".*.shoal-tmp")) == []


def test_a_file_that_is_being_written_is_no_leftover(tmp_path):
    with checkpoint.atomic_writer(tmp_path / "a") as file:
        file.write(b"x")
        assert checkpoint.remove_leftovers(tmp_path) == []
        assert len(list(tmp_path.iterdir())) == 1
    assert (tmp_path / "a").read_bytes() == b"x"


def _save_twice_with_a_limit(folder, queue):
    torch.set_num_threads(1)  # the threads of the process that was forked are not here
    manager = checkpoint.CheckpointManager(folder, n_saved=1)
    manager.save(lambda _: {"w": torch.ones(1000)}, filename_step=1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    try:
        manager.save(lambda _: {"w": torch.ones(1_000_000)}, filename_step=2)
    except CheckpointError as error:
        queue.put((str(error), error.__cause__ is not None, manager.state_dict()))


def test_a_file_that_cannot_grow_leaves_the_previous_checkpoint(tmp_path):
    queue = fork.SimpleQueue()
    process = fork.Process(target=_save_twice_with_a_limit, args=(tmp_path, queue))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    text, has_cause, kept = queue.get()
    assert "File too large" in text
    assert has_cause
    assert kept == {"saved": [{"filename": "checkpoint_1.pt", "score": None, "step": None}], "last": "checkpoint_1.pt"}
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint_1.pt"]
    assert torch.equal(checkpoint.load(tmp_path / "checkpoint_1.pt")["w"], torch.ones(1000))


@contextmanager
def _small_disk(folder, size):
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True, text=True
    )
    if made.returncode != 0:
        pytest.skip(f"mounting a small file system is not allowed here: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_leaves_the_previous_checkpoint_and_its_space(tmp_path):
    with _small_disk(tmp_path / "disk", "3m") as disk:
        manager = checkpoint.CheckpointManager(disk, n_saved=1)
        manager.save(lambda _: {"w": torch.ones(400_000)}, filename_step=1)
        for _ in range(3):
            with pytest.raises(CheckpointError, match=r"No space left.*free some space") as caught:
                manager.save(lambda _: {"w": torch.zeros(400_000)}, filename_step=2)
            assert caught.value.__cause__ is not None
        assert [path.name for path in disk.iterdir()] == ["checkpoint_1.pt"]
        assert torch.equal(checkpoint.load(disk / "checkpoint_1.pt")["w"], torch.ones(400_000))
        manager.save(lambda _: {"w": torch.zeros(300_000)}, filename_step=3)
        assert [path.name for path in disk.iterdir()] == ["checkpoint_3.pt"]


def test_a_folder_that_is_a_file_is_refused_when_it_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="which is a file"):
        FolderStore(tmp_path / "file")
    with pytest.raises(UsageError, match="create_dir"):
        FolderStore(tmp_path / "missing", create_dir=False)
