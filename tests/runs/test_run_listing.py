"""How runs stand, as their folders show it: what `shoal runs` lists."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from shoal import checkpoint
from shoal.cli import main as cli
from shoal.cli import runs as command
from shoal.runs import (
    ClassifiedImages,
    Plan,
    RunState,
    find_runs,
    lock_run,
    read_predictions,
    summarize,
    trim_run,
    write_predictions,
    write_state,
)

PLAN = Plan(title="resnet18 on digits, 1 process", command="shoal train cifar10", num_epochs=4, steps_per_epoch=5)
START = 1_700_000_000  # 2023-11-14T22:13:20+0000


def make_run(
    output: Path,
    time: str,
    *,
    state: RunState | None = None,
    scores: tuple[float, ...] = (),
    resumable: bool = True,
    starts: tuple[int, ...] = (0,),
) -> Path:
    """A run's folder as the recipe writes it: an evaluation an epoch of 5 steps, 10 s apart, and a checkpoint."""
    run = output / f"resnet18_backend-None-1_{time}"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("batch_size: 24\nnum_epochs: 4\n", encoding="utf-8")
    sessions = [{"time": f"2023-11-14T22:{13 + s // 60:02}:{20 + s % 60:02}+0000"} for s in starts]
    (run / "environment.json").write_text(json.dumps({"sessions": sessions}), encoding="utf-8")
    records: list[dict[str, Any]] = [
        {
            "time": START + 10.0 * epoch,
            "axis": "iteration",
            "step": 5 * epoch,
            "val/accuracy": score,
            "val/epoch": epoch,
        }
        for epoch, score in enumerate(scores, start=1)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    if state is not None:
        write_state(run, state)
    if resumable:
        checkpoint.save({"step": 5}, run / "training_checkpoint_5.pt")
    return run


def said(word: Any, step: int = 10, reason: str = "") -> RunState:
    return RunState(state=word, plan=PLAN, step=step, reason=reason)


def test_the_state_is_what_the_run_said_and_whether_a_process_has_it(tmp_path: Path) -> None:
    for time, word in (("20250101-000001", "finished"), ("20250101-000002", "stopped"), ("20250101-000003", "failed")):
        summary = summarize(make_run(tmp_path, time, state=said(word, reason="why")))
        assert (summary.state, summary.reason) == (word, "why")
    going_on = make_run(tmp_path, "20250101-000004", state=said("running"))
    with lock_run(going_on):
        summary = summarize(going_on)
        assert (summary.state, summary.resume) == ("running", None)
    assert summarize(going_on).state == "killed"  # it says that it runs, and nobody has it


def test_runs_of_older_versions_are_told_by_what_they_left(tmp_path: Path) -> None:
    finished = make_run(tmp_path, "20250101-000001", scores=(0.1, 0.2, 0.3, 0.4))
    assert (summarize(finished).state, summarize(finished).epoch) == ("finished", 4)
    assert summarize(finished).resume == f"shoal train cifar10 --resume-from {finished} --num-epochs 8"
    killed = make_run(tmp_path, "20250101-000002", scores=(0.1, 0.2))
    assert (summarize(killed).state, summarize(killed).epoch, summarize(killed).num_epochs) == ("killed", 2, 4)
    (killed / "curves.png").touch()
    assert summarize(killed).state == "stopped"


def test_score_epochs_and_duration_come_from_the_records(tmp_path: Path) -> None:
    # The second session starts 25 s after the first; the first one's last record came after 20 s.
    run = make_run(
        tmp_path, "20250101-000001", state=said("stopped", 17), scores=(0.25, 0.5, float("nan"), 0.5), starts=(0, 25)
    )
    summary = summarize(run)
    assert (summary.best, summary.best_epoch) == (0.5, 2)
    assert summary.epoch == 4
    assert summary.duration_s == 20 + (40 - 25)
    assert summarize(make_run(tmp_path, "20250101-000002", state=said("killed", 0))).best is None


def test_a_folder_with_a_space_in_its_name_is_resumed_as_it_is_shown(tmp_path: Path) -> None:
    run = make_run(tmp_path / "my runs", "20250101-000001", state=said("stopped"))
    resume = summarize(run).resume
    assert resume is not None
    assert shlex.split(resume)[-1] == str(run)
    assert summarize(make_run(tmp_path, "20250101-000001", state=said("stopped"), resumable=False)).resume is None


def test_runs_are_found_in_a_folder_and_in_the_folders_in_it_the_newest_first(tmp_path: Path) -> None:
    old = make_run(tmp_path / "output-cifar10", "20250101-235959")
    new = make_run(tmp_path / "output-cifar10", "20250102-000000")
    beside = make_run(tmp_path, "20250101-120000")
    (tmp_path / "not-a-run").mkdir()
    (tmp_path / "not-a-run" / "config.yaml").write_text("of: somebody else\n", encoding="utf-8")
    assert find_runs(tmp_path) == [new, old, beside]


def test_the_table_fits_80_columns_and_shows_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    stopped = make_run(Path("out"), "20250102-000000", state=said("stopped", 12), scores=(0.25, 0.75))
    make_run(Path("out"), "20250101-000000", state=said("finished", 20), scores=(0.1, 0.2, 0.9, 0.3))
    assert command.main(["out"]) == 0
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert lines[0].split() == ["STATE", "BEST", "EPOCHS", "TIME", "RUN"]
    assert lines[1].split() == ["stopped", "0.7500", "2.4/4", "0:20", stopped.name]
    assert lines[2].split()[:4] == ["finished", "0.9000", "4/4", "0:40"]
    assert f"Go on:         shoal train cifar10 --resume-from {stopped}\n" in shown
    assert "--num-epochs 8" in shown
    assert all(len(line) <= 80 for line in lines[:3])


def test_a_name_that_does_not_fit_gets_a_line_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    run = make_run(tmp_path / "a_folder_with_a_longer_name", "20250102-000000", state=said("failed"), resumable=False)
    assert command.main([str(tmp_path)]) == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert (len(head), len(first)) < (60, 60)
    assert second.strip() == str(run.relative_to(tmp_path))


def test_json_holds_all_that_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path, "20250102-000000", state=said("failed", reason="UsageError: no"), scores=(0.5,))
    assert command.main([str(tmp_path), "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert (shown["folder"], shown["state"], shown["reason"]) == (str(run), "failed", "UsageError: no")
    assert (shown["score"], shown["best"], shown["best_epoch"]) == ("val/accuracy", 0.5, 1)
    assert (shown["title"], shown["started"], shown["num_epochs"]) == (PLAN.title, START, 4)


def test_no_folder_is_an_error_and_an_empty_one_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["runs", str(tmp_path / "absent")]) == 2
    assert "which does not exist; name the --output-path" in capsys.readouterr().err
    assert cli.main(["runs", str(tmp_path)]) == 0
    assert f"There is no run in {tmp_path}" in capsys.readouterr().out


def test_broken_files_of_a_run_hide_no_run(tmp_path: Path) -> None:
    run = make_run(tmp_path, "20250102-000000")
    for name in ("state.json", "environment.json"):
        (run / name).write_text('{"sta', encoding="utf-8")
    odd = b'{"step": 6, "val/accuracy": "many", "val/epoch": "NaN", "time": "late"}\n[1]\n{"step": 6, "va\xff'
    (run / "metrics.jsonl").write_bytes(b'{"step": 5, "val/accuracy": 0.5, "val/epoch": 1}\n' + odd)
    summary = summarize(run)
    assert (summary.best, summary.started, summary.duration_s) == (0.5, None, None)
    state = {"state": '"><script>', "plan": asdict(PLAN), "step": 1, "reason": ""}
    (run / "state.json").write_text(json.dumps(state), encoding="utf-8")
    assert summarize(run).state == "killed"  # not a word of ours


def test_going_on_from_an_older_step_takes_back_what_later_ones_said(tmp_path: Path) -> None:
    run = make_run(tmp_path, "20250102-000000", scores=(0.25, 0.75))
    found = ClassifiedImages(step=10, epoch=2, score=0.75, classes=("a",), confusion=((1,),), most_wrong=())
    write_predictions(run, found)
    trim_run(run, 10)
    assert read_predictions(run) == found
    trim_run(run, 9)
    assert read_predictions(run) is None
    assert summarize(run).best == 0.25


def test_looking_at_a_run_does_not_take_it_from_who_starts_it(tmp_path: Path) -> None:
    run = make_run(tmp_path, "20250102-000000", state=said("stopped"))
    looks = "import sys; from pathlib import Path; from shoal.runs import is_locked\n"
    looks += "while sys.stdin.readable(): is_locked(Path(sys.argv[1])) or print('free', flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", looks, str(run)], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for _ in range(200):
            lock_run(run).close()
        process.stdout.close()
        process.kill()


def test_listing_and_reporting_import_no_torch(tmp_path: Path) -> None:
    run = make_run(tmp_path, "20250102-000000", state=said("stopped", 12), scores=(0.25, 0.75))
    program = f"""
import sys
from shoal.cli.main import main
codes = [main(["runs", {str(tmp_path)!r}]), main(["report", {str(run)!r}])]
print("codes", codes, "heavy", sorted({{"torch", "numpy", "matplotlib"}} & set(sys.modules)))
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "codes [0, 0] heavy []" in result.stdout
