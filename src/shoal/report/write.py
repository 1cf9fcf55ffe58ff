"""The pages, put together, and written whole."""

from __future__ import annotations

import contextlib
import importlib.resources
import os
import string
import time
from collections.abc import Sequence
from pathlib import Path

from shoal._optional import require
from shoal._version import __version__
from shoal.errors import UsageError
from shoal.report.compared import compared_page
from shoal.report.html import text
from shoal.report.load import load_run
from shoal.report.single import single_page

__all__ = ["make_page", "write_report"]

_MOST_RUNS = 26  # as many as there are letters

# Nothing may be fetched, whatever a text from a run smuggles in.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def write_report(runs: Sequence[Path], output: Path) -> Path:
    """Write the page of a run, or of several beside each other; it appears whole.

    Args:
        runs: the runs' folders.
        output: the HTML file.

    Returns:
        ``output``.

    Raises:
        UsageError: a folder holds no run, a run has no metrics yet, or the file cannot be written.
        MissingExtraError: the library that draws is not installed.
    """
    page = make_page(runs)
    # Beside the file, and renamed: a browser that loads it meanwhile sees the old page or the new one.
    temporary = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        # A folder's name, or a class's, may hold what is no character.
        temporary.write_text(page, encoding="utf-8", errors="replace")
        temporary.replace(output)
    except OSError as error:
        raise UsageError(f"the page {output} cannot be written: {error.strerror}; name another --output") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return output


def make_page(runs: Sequence[Path]) -> str:
    """The whole HTML text; see :func:`write_report`."""
    if not 1 <= len(runs) <= _MOST_RUNS:
        raise UsageError(f"a page of {len(runs)} runs was asked for; give 1 to {_MOST_RUNS}")
    plotly = require("plotly.offline", extra="report", purpose="`shoal report`")
    loaded = [load_run(folder) for folder in runs]
    title, body = single_page(loaded[0]) if len(loaded) == 1 else compared_page(loaded)
    own = importlib.resources.files("shoal.report")
    shell = string.Template((own / "page.html").read_text(encoding="utf-8"))
    return shell.substitute(
        policy=_POLICY,
        title=text(title),
        style=(own / "page.css").read_text(encoding="utf-8"),
        body=body,
        written=time.strftime("%Y-%m-%d %H:%M:%S"),
        version=text(__version__),
        # Raw text of a script element: only its own end tag could end it, and the bundle is checked for that in a test.
        plotly=plotly.get_plotlyjs(),
        script=(own / "page.js").read_text(encoding="utf-8"),
    )
