"""``shoal report RUN …``: a run, or several beside each other, as one HTML page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from shoal.errors import ShoalError
from shoal.report import write_report
from shoal.runs import REPORT_FILE, latest_run

__all__ = ["main"]

_DESCRIPTION = """\
Write one HTML page that shows a run: curves, times, the confusion matrix, the most wrong predictions, options and
environment. Several runs are compared on one page. The page needs no network; a run may still be going on."""

_COMPARISON_FILE = "comparison.html"


def main(argv: list[str]) -> int:
    """Write the page and say where it is.

    Args:
        argv: the arguments after ``report``.

    Returns:
        The exit code: 2 for what cannot be reported.
    """
    parser = argparse.ArgumentParser(prog="shoal report", description=_DESCRIPTION, allow_abbrev=False)
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="the folder of a run, or 'latest': the newest below here"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE.html",
        help=f"the page; default {REPORT_FILE} in the run's folder, or {_COMPARISON_FILE} here for several runs",
    )
    options = parser.parse_args(argv)
    try:
        runs = list(dict.fromkeys(_folder(run) for run in options.runs))
        page = write_report(runs, options.output or _default_output(runs))
    except (ShoalError, OSError) as error:
        print(f"shoal report: {error}", file=sys.stderr)
        return 2
    print(page)
    return 0


def _folder(run: str) -> Path:
    return latest_run(Path()) if run == "latest" else Path(run).expanduser()


def _default_output(runs: list[Path]) -> Path:
    return runs[0] / REPORT_FILE if len(runs) == 1 else Path(_COMPARISON_FILE)
