"""`shoal env`: what a bug report needs."""

from __future__ import annotations

import importlib.metadata
import re

import pytest

from shoal.cli import main as cli


def test_the_versions_of_all_packages_that_an_extra_brings_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["env"]) == 0
    told = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    needed = [line for line in importlib.metadata.requires("shoal") or [] if not re.search(r"extra == .dev", line)]
    names = {re.split(r"[^\w-]", line, maxsplit=1)[0].lower() for line in needed} - {"shoal"}
    assert len(names) > 15
    assert names - set(told) == set()
    assert told["plotly"] == importlib.metadata.version("plotly")
