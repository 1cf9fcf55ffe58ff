"""Run the comparisons of Shoal with its peers, print the table of ratios and keep the record as JSON.

    python bench/run.py [--quick] [--only NAME]...

The environment ``.venv-bench`` is made at the first run. Only the standard library is needed to start this.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from environment import PEERS, ROOT, clean_environment, ensure_environment, versions
from harness import Row, read_rows
from report import failures, machine, table, write_record

COMPARISONS = {
    "startup": "Start-up: processes to their first all-reduce",
    "engine": "Engine: cost of one iteration",
    "step": "Supervised step of a tiny model",
    "imports": "Imports and help: what they take beyond `import torch`",
    "sampler": "Sampler: first index of 100 million shuffled samples",
}


def main() -> int:
    """Run what was asked for; the exit code is 1 where a side of Shoal's failed to run, else 0."""
    given = _arguments()
    python = ensure_environment()
    facts = {
        **machine(),
        "quick": given.quick,
        "commit": _commit(),
        "python": sys.version.split()[0],
        "versions": versions(python, ("shoal", "torch", *PEERS)),
    }
    comparisons: dict[str, list[Row]] = {}
    crashes: list[str] = []
    for name in given.only or COMPARISONS:
        print(f"bench: {name}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="shoal-bench-") as scratch:
            rows, crash = _compare(python, name, Path(scratch), quick=given.quick)
        comparisons[name] = rows
        if crash:
            crashes.append(crash)
    print(_heading(facts))
    for name, rows in comparisons.items():
        print("\n" + table(COMPARISONS[name], rows))
    for paragraph in [*crashes, *failures(comparisons)]:
        print("\n" + paragraph)
    path = ROOT / "bench" / "results" / f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.json"
    write_record(path, facts=facts, comparisons=comparisons)
    print("\n" + _summary(comparisons))
    print(f"record: {path.relative_to(ROOT)}")
    return 1 if crashes or any(row.ours_error for rows in comparisons.values() for row in rows) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--only", action="append", choices=list(COMPARISONS), metavar="NAME", help=f"one of: {', '.join(COMPARISONS)}"
    )
    parser.add_argument("--quick", action="store_true", help="one round, fewer iterations: a look, no measurement")
    return parser.parse_args()


def _compare(python: Path, name: str, scratch: Path, *, quick: bool) -> tuple[list[Row], str | None]:
    """Run one comparison in a process of its own; return its rows, or none and what went wrong."""
    out = scratch / "rows.json"
    home = scratch / "home"
    home.mkdir()
    command = [str(python), str(ROOT / "bench" / f"{name}.py"), "--out", str(out), *(["--quick"] if quick else [])]
    finished = subprocess.run(command, env=clean_environment(home), cwd=scratch, check=False)
    if finished.returncode != 0 or not out.exists():
        return [], f"{name}: the comparison itself ended with exit code {finished.returncode}; its output is above"
    return read_rows(out), None


def _commit() -> str:
    """The commit of this checkout, with a plus where tracked files differ from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    return finished.stdout.strip() or "unknown"


def _heading(facts: dict[str, object]) -> str:
    found = facts["versions"]
    assert isinstance(found, dict)
    names = ", ".join(f"{name} {release or 'missing'}" for name, release in found.items())
    load = facts["load_average"]
    assert isinstance(load, list)
    heading = f"\n{names}\n{facts['processor']}, {facts['num_cores']} cores, load {load[0]:.2f} before the start"
    return heading + ("\nquick: a look, no measurement" if facts["quick"] else "")


def _summary(comparisons: dict[str, list[Row]]) -> str:
    asked = [row for rows in comparisons.values() for row in rows if row.target_limit is not None]
    met = sum(row.met is True for row in asked)
    return f"targets met: {met} of {len(asked)}"


if __name__ == "__main__":
    sys.exit(main())
