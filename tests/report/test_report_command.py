"""`shoal report`: what it takes, what it refuses, what it says of runs that did not end well."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from shoal.cli import main as cli
from shoal.report import write_report
from shoal.report.curves import least, moving_average
from shoal.runs import lock_run


def report(*argv: str | Path) -> int:
    return cli.main(["report", *map(str, argv)])


def test_the_page_is_written_into_the_run_or_where_one_asks(
    copied: Path, other_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (copied / "report.html").unlink()
    assert report("latest") == 0
    assert capsys.readouterr().out == f"{copied.name}/report.html\n"
    assert report(copied, "--output", tmp_path / "page.html") == 0
    assert report(copied, other_run, copied) == 0
    pages = [copied / "report.html", tmp_path / "page.html", tmp_path / "comparison.html"]
    assert [page.read_text(encoding="utf-8").count("<h1>") for page in pages] == [1, 1, 1]
    assert "2 training runs" in pages[-1].read_text(encoding="utf-8")
    assert not [path for path in (*tmp_path.iterdir(), *copied.iterdir()) if path.suffix == ".tmp"]


def test_the_page_names_no_other_file_and_no_host(run: Path) -> None:
    page = (run / "report.html").read_text(encoding="utf-8")
    own = page[: page.index("plotly.js v")] + page[page.rindex("use strict") :]
    assert not re.findall(r"""(?:src|href)=(?!"data:image/png)|url\(|@import|https?://""", own)
    assert "default-src 'none'" in own
    assert page.count("plotly.js v") == 1


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["{tmp}/absent"], r"there is no run .*absent; the newest runs there are .*_backend-None-1_.*"),
        (["{tmp}"], r"is not the folder of a run .*; it holds runs, give one or several of them, as .*_backend"),
        (["{tmp}/file"], "is a file; give the folder of a run"),
        (["{run}", "--output", "{tmp}/absent/page.html"], "cannot be written: No such file or directory"),
        (["{tmp}/empty"], "is not the folder of a run"),
    ],
)
def test_what_is_no_run_is_refused_with_what_there_is(
    argv: list[str], expected: str, copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    assert report(*(part.format(tmp=tmp_path, run=copied) for part in argv)) == 2
    assert re.search(expected, capsys.readouterr().err)


def test_no_latest_run_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert report("latest") == 2
    assert "asked for the latest run, and there is none in" in capsys.readouterr().err


def test_a_run_without_metrics_is_told_and_the_old_page_stays(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (copied / "report.html").read_bytes()
    (copied / "metrics.jsonl").write_text('{"time": 1.0, "axis": "itera', encoding="utf-8")
    assert report(copied) == 2
    assert "has no metrics yet" in capsys.readouterr().err
    assert (copied / "report.html").read_bytes() == before


@pytest.mark.parametrize(("module", "extra"), [("plotly.offline", "report"), ("yaml", "report")])
def test_a_missing_library_is_told_with_its_extra(
    module: str, extra: str, copied: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # Python's own way to say that it cannot be imported
    assert report(copied) == 2
    assert f"pip install 'shoal[{extra}]'" in capsys.readouterr().err


def test_a_run_that_goes_on_has_a_page(copied: Path) -> None:
    with (copied / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"time": 1.0, "axis": "iteration", "step": 11, "batch/lo')
    with lock_run(copied):
        page = write_report([copied], copied / "report.html").read_text(encoding="utf-8")
    assert "The run was still going on when this page was written." in page
    assert "could not be read" not in page  # it is being written


def test_what_is_wrong_with_the_files_is_said_on_the_page(copied: Path) -> None:
    with (copied / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"time": 1.0, "axis": "iteration", "step": 11, "batch/lo')
    (copied / "config.yaml").write_text("a: [\n", encoding="utf-8")
    (copied / "predictions.json").write_text('{"classes": ["a"], "confusion": [[1, 2]]}', encoding="utf-8")
    page = write_report([copied], copied / "report.html").read_text(encoding="utf-8")
    assert "1 line of metrics.jsonl could not be read and is left out." in page
    assert "config.yaml could not be read: " in page
    assert "confusion matrix" not in page.split("plotly.js v")[0]


def test_a_run_of_an_older_version_has_a_page(copied: Path) -> None:
    for name in ("state.json", "predictions.json"):
        (copied / name).unlink()
    rows = [json.loads(line) for line in (copied / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    old = [{key: value for key, value in row.items() if not key.startswith(("seconds/", "speed/"))} for row in rows]
    (copied / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in old), encoding="utf-8")
    page = write_report([copied], copied / "report.html").read_text(encoding="utf-8")
    assert "finished" in page
    assert '"title":{"text":"Epoch"}' in page  # told by the evaluations
    assert 'id="time"' not in page


def test_a_page_cannot_take_the_place_of_a_folder(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.remove(copied / "report.html")  # noqa: PTH107
    (copied / "report.html").mkdir()
    assert report(copied) == 2
    assert "cannot be written: Is a directory; name another --output" in capsys.readouterr().err
    shutil.rmtree(copied / "report.html")
    assert [path.name for path in copied.glob(".report*")] == []


def test_one_huge_loss_leaves_the_averages_after_it_exact() -> None:
    values = [1e300, *[0.25] * 999]
    assert moving_average(values)[100:] == [0.25] * 900
    assert moving_average([5e-324] * 30) == [5e-324] * 30
    assert least([math.nan, 0.5, math.inf]) == 0.5
    assert least([math.nan]) is None
