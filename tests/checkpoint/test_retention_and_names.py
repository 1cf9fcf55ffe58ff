"""Which checkpoints stay, what they are called, and what is found again."""

from __future__ import annotations

import logging
import math
import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from shoal import checkpoint
from shoal.checkpoint import CheckpointManager, Naming, Retention, default_pattern, restore_states
from shoal.errors import CheckpointError, UsageError

NAN = float("nan")


def _feed(retention, scores):
    """Offer a checkpoint for each score; return what stays, by number of the offer."""
    for number, score in enumerate(scores):
        plan = retention.plan(str(number), score)
        if plan is not None:
            retention.commit(plan)
    return {int(item.filename) for item in retention.saved}


@given(st.lists(st.one_of(st.integers(-3, 3).map(float), st.just(NAN), st.just(-math.inf))), st.integers(1, 4))
def test_the_best_stay_and_nan_is_worst(scores, n_saved):
    kept = _feed(Retention(n_saved), scores)

    def key(score):
        return (not math.isnan(score), 0.0 if math.isnan(score) else score)

    assert sorted(key(scores[number]) for number in kept) == sorted(map(key, scores))[-n_saved:]


def test_an_equal_score_does_not_replace_and_of_equals_the_older_goes_first():
    assert _feed(Retention(1), [0.5, 0.5]) == {0}
    assert _feed(Retention(1, greater_or_equal=True), [0.5, 0.5]) == {1}
    assert _feed(Retention(2), [0.5, 0.5, 0.6]) == {1, 2}
    assert _feed(Retention(1), [NAN, NAN, -math.inf]) == {2}


@given(st.lists(st.integers(-2, 2).map(float)), st.integers(1, 3))
def test_with_greater_or_equal_the_newest_of_equals_stay(scores, n_saved):
    kept = _feed(Retention(n_saved, greater_or_equal=True), scores)
    assert kept == {number for _, number in sorted((s, n) for n, s in enumerate(scores))[-n_saved:]}


@given(st.integers(0, 10), st.one_of(st.none(), st.integers(1, 3)))
def test_without_a_score_the_newest_stay(count, n_saved):
    kept = _feed(Retention(n_saved), [None] * count)
    assert kept == set(range(count)[-n_saved:] if n_saved else range(count))


def test_a_checkpoint_of_the_same_step_and_score_takes_its_own_place():
    retention = Retention(1)
    retention.commit(retention.plan("a", 0.5, 7))
    plan = retention.plan("a", 0.5, 7)
    assert plan is not None and plan.dropped == () and plan.filename == "a"
    assert retention.plan("a", 0.5, 8) is None
    assert retention.plan("b", 0.5, 7) is None
    assert retention.plan("a", 0.49999, 7) is None
    assert retention.plan("a", NAN, 7) is None


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([None, 1, 2]), st.integers(0, 2))), st.integers(1, 3))
def test_no_two_that_stay_share_a_file_and_no_file_that_stays_is_deleted(offers, n_saved):
    retention, files = Retention(n_saved, greater_or_equal=True), {}
    for number, (name, step, score) in enumerate(offers):
        plan = retention.plan(f"{name}.pt", float(score), step)
        if plan is None:
            continue
        files[plan.filename] = number
        retention.commit(plan)
        for gone in plan.dropped:
            del files[gone]
        assert len({item.filename for item in retention.saved}) == len(retention.saved)
        assert {item.filename for item in retention.saved} == set(files)
        by_name = {item.filename: item for item in retention.saved}
        assert all(by_name[file].score == offers[number][2] for file, number in files.items())


def test_fewer_that_stay_than_were_kept_before_a_resume():
    retention = Retention(3)
    for score in (0.1, 0.2, 0.3):
        retention.commit(retention.plan(f"{score}", score))
    fewer = Retention(1)
    fewer.load_state_dict(retention.state_dict())
    assert fewer.plan("0.15", 0.15) is None
    plan = fewer.plan("0.4", 0.4)
    assert (plan.saved[0].filename, plan.dropped) == ("0.4", ("0.1", "0.2", "0.3"))


@pytest.mark.parametrize("saved", [None, [], {}, {"saved": [1]}, {"saved": [{"filename": "../a", "score": None}]},
                                   {"saved": [{"filename": "/a", "score": None}]},
                                   {"saved": [{"filename": 3, "score": None}]},
                                   {"saved": [{"filename": "a", "score": "high"}]}])  # fmt: skip
def test_a_state_that_would_delete_files_elsewhere_is_refused(saved):
    retention = Retention(1)
    retention.commit(retention.plan("b"))
    with pytest.raises(CheckpointError, match="which checkpoints are kept"):
        retention.load_state_dict(saved)
    assert [item.filename for item in retention.saved] == ["b"]


@given(st.lists(st.tuples(st.sampled_from([0.1, 0.2, None]), st.integers(0, 2))), st.integers(1, 3))
def test_in_place_no_file_that_is_kept_is_written_over(offers, n_saved):
    retention = Retention(n_saved)
    for score, step in offers:
        before = {item.filename for item in retention.saved}
        plan = retention.plan("a.pt", score, step, in_place=True)
        if plan is not None:
            assert plan.filename not in before
            retention.commit(plan)
            after = {item.filename for item in retention.saved}
            assert before - set(plan.dropped) | {plan.filename} == after and len(after) <= n_saved


def test_n_saved_of_zero_is_refused():
    with pytest.raises(UsageError, match="n_saved=0"):
        Retention(0)


def test_names_are_those_that_ignite_gives():
    assert Naming(prefix="training").filename(step=200) == "training_checkpoint_200.pt"
    best = Naming(name="model", prefix="best", score_name="val_accuracy")
    assert best.filename(step=5, score=0.6588) == "best_model_5_val_accuracy=0.6588.pt"
    assert best.filename(score=0.65884) == "best_model_val_accuracy=0.6588.pt"
    assert best.filename(step=5, score=NAN) == "best_model_5_val_accuracy=nan.pt"
    assert Naming().filename(score=3) == "checkpoint_3.pt"
    assert Naming(pattern="{global_step:06d}-{name}.{ext}").filename(step=7) == "000007-checkpoint.pt"
    assert default_pattern() == "{filename_prefix}_{name}_{global_step}_{score_name}={score}.{ext}"
    assert default_pattern(with_prefix=False, with_score=False, with_score_name=False) == "{name}_{global_step}.{ext}"


@pytest.mark.parametrize("bad", [{"pattern": "{epoch}.pt"}, {"prefix": "a/b"}, {"name": "../x"}, {"pattern": "{"},
                                 {"pattern": 5}, {"pattern": ""}, {"pattern": ".."}, {"prefix": ".."},
                                 {"score_name": "a\0"}])  # fmt: skip
def test_names_that_cannot_work_are_refused_at_the_door(bad):
    with pytest.raises(UsageError):
        Naming(**bad)


def test_steps_are_read_back_from_names():
    assert checkpoint.step_in_name("training_checkpoint_200.pt") == 200
    assert checkpoint.step_in_name("best_model_5_val_accuracy=0.6588.pt") == 5
    assert checkpoint.step_in_name("weights.pt") is None


def test_the_state_is_not_collected_for_a_checkpoint_that_would_not_stay(tmp_path):
    manager = CheckpointManager(tmp_path, n_saved=1)
    assert manager.save(lambda _: {}, score=0.9) == "checkpoint_0.9000.pt"
    assert manager.save(lambda _: pytest.fail("collected"), score=0.1) is None
    assert manager.last_checkpoint == tmp_path / "checkpoint_0.9000.pt"


def test_bookkeeping_goes_on_in_a_new_manager(tmp_path):
    first = CheckpointManager(tmp_path, n_saved=2)
    for step, score in enumerate((0.1, 0.5, 0.3)):
        first.save(lambda kept: {"kept": kept}, score=score, filename_step=step)
    newest = checkpoint.load(tmp_path / "checkpoint_2_0.3000.pt")
    second = CheckpointManager(tmp_path, n_saved=2)
    second.load_state_dict(newest["kept"])
    second.save(lambda _: {}, score=0.4, filename_step=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint_1_0.5000.pt", "checkpoint_3_0.4000.pt"]
    with pytest.raises(CheckpointError, match="include_self"):
        second.load_state_dict({"model": 1})


def test_latest_passes_over_broken_files_loudly(tmp_path, caplog):
    for step in (90, 100, 1000):
        checkpoint.save({"n": step}, tmp_path / f"training_checkpoint_{step}.pt")
    checkpoint.save({"n": 0}, tmp_path / "best_model_2000.pt")
    assert checkpoint.latest(tmp_path).name == "training_checkpoint_1000.pt"
    broken = tmp_path / "training_checkpoint_1000.pt"
    broken.write_bytes(broken.read_bytes()[:-100])
    with caplog.at_level(logging.WARNING):
        assert checkpoint.latest(tmp_path).name == "training_checkpoint_100.pt"
    assert "training_checkpoint_1000.pt" in caplog.text


def test_latest_looks_into_the_newest_run_folder(tmp_path):
    for run, step, seconds in (("run1", 900, 100), ("run2", 200, 300), ("run3", 500, 200)):
        (tmp_path / run).mkdir()
        path = tmp_path / run / f"training_checkpoint_{step}.pt"
        checkpoint.save({"n": step}, path)
        os.utime(path, (seconds, seconds))
    assert checkpoint.latest(tmp_path) == tmp_path / "run2" / "training_checkpoint_200.pt"
    with pytest.raises(CheckpointError, match=r"best_\*\.pt.*found none"):
        checkpoint.latest(tmp_path, "best")


def test_a_state_loads_with_and_without_wrapping():
    module = nn.Linear(2, 2)
    plain = {key: value.clone() for key, value in module.state_dict().items()}
    for prefix in ("", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."):
        target = nn.Linear(2, 2)
        restore_states({"model": target}, {f"{prefix}{key}": value for key, value in plain.items()})
        assert torch.equal(target.weight, module.weight)


def test_a_state_that_does_not_fit_says_which_keys_differ(caplog):
    state = {"weight": torch.zeros(2, 2), "scale": torch.zeros(2)}
    with pytest.raises(CheckpointError, match=r"(?s)'model'.*Linear.*bias.*scale") as caught:
        restore_states({"model": nn.Linear(2, 2)}, state)
    assert "strict=False" in str(caught.value)
    with caplog.at_level(logging.WARNING):
        restore_states({"model": nn.Linear(2, 2)}, state, strict=False)
    assert "bias" in caplog.text and "scale" in caplog.text


def test_an_object_that_is_not_in_the_checkpoint_is_named():
    objects = {"model": nn.Linear(2, 2), "optimiser": nn.Linear(2, 2)}
    with pytest.raises(CheckpointError, match=r"'optimiser' is missing \(did you mean 'optimizer'\?\)"):
        restore_states(objects, {"model": {}, "optimizer": {}})


def test_what_has_no_state_is_refused_at_the_door():
    for bad in ({}, None, [nn.Linear(1, 1)], {"model": 3}, {1: nn.Linear(1, 1)}):
        with pytest.raises(UsageError, match="to_save"):
            checkpoint.check_objects(bad, argument="to_save", method="state_dict")
