"""Files of a run that are cut off, tampered with, or somebody else's: each is read as far as it makes sense."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.cli import main as cli
from shoal.report import write_report
from shoal.report.compared import compared_page
from shoal.report.load import load_run
from shoal.report.single import single_page
from shoal.runs import is_locked, lock_run, read_predictions, read_records, summarize, trim_run, write_environment

ODD: list[Any] = [None, True, -1, 1e999, float("nan"), 10**400, "late", "Infinity", [], [1], {"a": 1}, "\ud800", 1e308]
STATE: dict[str, Any] = {
    "state": "stopped",
    "plan": {"title": "t", "command": "c", "num_epochs": 4, "steps_per_epoch": 5, "score": "val/accuracy"},
    "step": 12,
    "reason": "",
}
SESSION: dict[str, Any] = {"time": "2023-11-14T22:13:20+0000", "command": ["shoal"], "world_size": 2, "device": "cpu"}
WRONG: dict[str, Any] = {
    "index": 3,
    "label": 0,
    "predicted": 1,
    "probability": 0.9,
    "label_probability": 0.1,
    "png": "",
}
PREDICTIONS: dict[str, Any] = {
    "step": 10,
    "epoch": 2,
    "score": 0.5,
    "classes": ["a", "b"],
    "confusion": [[1, 1], [0, 2]],
    "most_wrong": [WRONG],
}
ROW: dict[str, Any] = {
    "time": 1.7e9,
    "axis": "iteration",
    "step": 5,
    "val/accuracy": 0.5,
    "val/loss": 1.0,
    "val/epoch": 1,
    "seconds/step": 2.0,
    "speed/images_per_s": 9.0,
}


def make(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("num_epochs: 4\n", encoding="utf-8")
    (folder / "metrics.jsonl").write_text(json.dumps(ROW) + "\n", encoding="utf-8")
    for name, content in (("state", STATE), ("environment", {"sessions": [SESSION]}), ("predictions", PREDICTIONS)):
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def spoiled(content: Any, odd: Any) -> list[Any]:
    """``content`` with ``odd`` in the place of each of its parts in turn."""
    found = [odd]
    if isinstance(content, dict):
        found += [content | {key: part} for key, value in content.items() for part in spoiled(value, odd)]
    if isinstance(content, list):
        found += [[*content[:i], part, *content[i + 1 :]] for i, v in enumerate(content) for part in spoiled(v, odd)]
    return found


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_nothing_in_a_file_breaks_the_list_or_the_page(
    odd: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"state.json": STATE, "environment.json": {"sessions": [SESSION]}, "predictions.json": PREDICTIONS}
    other = load_run(make(tmp_path / "other"))
    for number, (name, content) in enumerate([*files.items(), ("metrics.jsonl", ROW)]):
        run = make(tmp_path / str(number) / "run")
        for part in spoiled(content, odd):
            text = json.dumps(part) + "\n"
            if name == "metrics.jsonl":
                text += json.dumps(ROW) + "\n"
            (run / name).write_text(text, encoding="utf-8")
            assert cli.main(["runs", str(run.parent), "--json"]) == 0, part
            (shown,) = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
            assert shown["best"] is None or math.isfinite(shown["best"])
            loaded = load_run(run)
            assert chart_numbers_are_json(single_page(loaded)[1] + compared_page([loaded, other])[1])


def chart_numbers_are_json(page: str) -> bool:
    charts = re.findall('<script type="application/json">(.*?)</script>', page)
    return all(json.loads(chart, parse_constant=pytest.fail) for chart in charts)


@pytest.mark.parametrize("text", ["", "[]", "null", "[" * 100_000, "1" * 5000, '{"step":', "\0\0", "\udcff"])
def test_a_broken_file_is_none(text: str, tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    for path in run.iterdir():
        path.write_bytes(text.encode(errors="surrogateescape"))
    assert summarize(run).state == "killed"
    assert read_records(run).rows == []
    assert read_predictions(run) is None
    trim_run(run, 3)
    write_environment(run)
    assert len(json.loads((run / "environment.json").read_text(encoding="utf-8"))["sessions"]) == 1


def test_a_record_of_somebody_else_does_not_keep_a_run_from_going_on(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    ours = (run / "metrics.jsonl").read_text(encoding="utf-8")
    (run / "metrics.jsonl").write_bytes(b'[1]\n{"step": "late"}\n\xff\xfe\n' + ours.encode())
    trim_run(run, 5)
    assert (run / "metrics.jsonl").read_text(encoding="utf-8") == ours
    trim_run(run, 4)
    assert (run / "metrics.jsonl").read_text(encoding="utf-8") == ""


def test_a_foreign_folder_or_an_unreadable_file_hides_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "good")
    for name in ("latin", "unreadable"):
        make(tmp_path / name)
    (tmp_path / "latin" / "config.yaml").write_bytes(b"caf\xe9: 1\n")
    (tmp_path / "latin" / "state.json").unlink()
    (tmp_path / "unreadable" / "metrics.jsonl").unlink()
    (tmp_path / "unreadable" / "metrics.jsonl").symlink_to("/proc/self/mem")  # there, and reading it fails
    assert cli.main(["runs", str(tmp_path), "--json"]) == 0
    captured = capsys.readouterr()
    assert sorted(Path(run["folder"]).name for run in json.loads(captured.out)) == ["good", "latin"]
    assert "unreadable is left out: [Errno 5]" in captured.err
    assert cli.main(["report", str(tmp_path / "unreadable")]) == 2
    assert capsys.readouterr().err.startswith("shoal report: ")


@pytest.mark.parametrize("command", [["runs"], ["report"], ["train", "cifar10", "--resume-from"]])
def test_a_path_that_the_system_refuses_is_told_in_a_line(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*command, "a" * 300]) == 2
    assert "File name too long" in capsys.readouterr().err


def test_a_name_of_no_characters_is_shown_and_moves_no_cursor(tmp_path: Path) -> None:
    names = [os.fsdecode(b"\xff"), "a\x1b[31m\nb", "gr\N{LATIN SMALL LETTER O WITH DIAERESIS}n"]
    for name in names:
        make(tmp_path / name)
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    argv = [sys.executable, "-m", "shoal.cli.main", "runs", str(tmp_path)]
    shown = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True).stdout
    assert {line.split()[-1] for line in shown.splitlines()[1:7]} >= {"\\udcff", "a\\x1b[31m\\nb", "gr\\xf6n"}
    page = write_report([tmp_path / names[0]], tmp_path / "page.html")
    assert "<h1>t</h1>" in page.read_text(encoding="utf-8")


def test_a_reader_that_stops_early_gets_no_traceback(tmp_path: Path) -> None:
    for number in range(200):
        make(tmp_path / f"{number}_{'x' * 200}")
    argv = f"{sys.executable} -m shoal.cli.main runs {tmp_path} --json"
    result = subprocess.run(["bash", "-c", f"{argv} | head -1"], capture_output=True, text=True, check=True)
    assert (result.stdout, result.stderr) == ("[\n", "")


def test_a_run_is_found_by_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make(tmp_path / "run")
    monkeypatch.chdir(run)
    assert cli.main(["runs"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[::4] == ["stopped", "run"]
    assert cli.main(["report", "latest"]) == 0
    assert (run / "report.html").is_file()


def wait_for_a_word(receiving: Any, sending: Any) -> None:
    sending.send("forked")
    receiving.recv()


def test_a_process_that_was_forked_meanwhile_does_not_hold_the_run(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")  # as torch's loaders start theirs
    (receiving, tell), (hear, sending) = context.Pipe(), context.Pipe()
    lock = lock_run(tmp_path)
    process = context.Process(target=wait_for_a_word, args=(receiving, sending), daemon=True)
    process.start()
    hear.recv()
    assert is_locked(tmp_path)
    lock.close()
    assert not is_locked(tmp_path)
    tell.send("end")
    process.join()
    assert process.exitcode == 0
    for end in (receiving, tell, hear, sending):
        end.close()
