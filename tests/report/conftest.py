"""Runs to report on, trained once, and the browser that opens their pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sklearn  # noqa: F401 - its import sets environment variables, which no test may do

from shoal.cli import train

if TYPE_CHECKING:
    from playwright.sync_api import Browser

OPTIONS = [
    *("--model", "shufflenet_v2_x0_5", "--subset", "120", "--batch-size", "24", "--num-epochs", "2"),
    *("--validate-every", "1", "--checkpoint-every", "4", "--log-every-iters", "1", "--num-workers", "0"),
]


def _train(output: Path, *options: str) -> Path:
    assert train.main(["cifar10", *OPTIONS, *options, "--output-path", str(output)]) == 0
    (folder,) = output.iterdir()
    return folder


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short training on real digits."""
    return _train(tmp_path_factory.mktemp("run"), "--learning-rate", "0.05")


@pytest.fixture(scope="session")
def other_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with another learning rate."""
    return _train(tmp_path_factory.mktemp("other"), "--learning-rate", "0.02")


@pytest.fixture
def copied(run: Path, tmp_path: Path) -> Path:
    """A copy of the run's folder that a test may spoil."""
    return Path(shutil.copytree(run, tmp_path / run.name))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Headless Chromium. Where there is none the tests are skipped, but not on a CI machine."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("there is no Chromium, and CI is set; run scripts/install-browser")
        pytest.skip("there is no Chromium; run scripts/install-browser")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        launched = playwright.chromium.launch(executable_path=found, args=options)
        yield launched
        launched.close()
