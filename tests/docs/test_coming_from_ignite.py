"""The table for those who come from Ignite: it has all that there is, and names nothing that there isn't."""

import importlib
import re
from pathlib import Path

import pytest

_PAGE = (Path(__file__).parents[2] / "docs" / "coming-from-ignite.md").read_text(encoding="utf-8")
_WORDS = set(re.findall(r"\w+", _PAGE))

# Tables and helpers of ours that no name of Ignite's stands beside.
_OURS_ALONE = {"METRICS", "World", "unwrap_model", "FilteredEvent", "MetricUsage"}


@pytest.mark.parametrize("room", ["engine", "handlers", "metrics", "common", "distributed", "utils"])
def test_every_public_name_has_its_line(room):
    names = set(importlib.import_module(f"shoal.{room}").__all__)
    assert not sorted(names - _WORDS - _OURS_ALONE)


def test_every_dotted_name_of_ours_is_there():
    dotted = set(re.findall(r"`(shoal(?:\.\w+)+)", _PAGE))
    assert len(dotted) > 40
    for name in sorted(dotted):
        found = importlib.import_module("shoal")
        path = ["shoal"]
        for part in name.split(".")[1:]:
            path.append(part)
            found = getattr(found, part, None) or importlib.import_module(".".join(path))


def test_tables_have_three_columns():
    rows = [line for line in _PAGE.splitlines() if line.startswith("|")]
    assert len(rows) > 100
    for row in rows:
        assert len(re.findall(r"(?<!\\)\|", re.sub(r"`[^`]*`", "", row))) == 4, row


@pytest.mark.parametrize("room", ["engine", "handlers", "metrics", "common", "distributed", "utils", "trackers"])
def test_every_public_name_has_a_docstring_of_its_own(room):
    module = importlib.import_module(f"shoal.{room}")
    for name in module.__all__:
        thing = getattr(module, name)
        if callable(thing):
            assert (thing.__doc__ or "").strip(), f"shoal.{room}.{name} has no docstring"
            inherited = [base.__doc__ for base in getattr(thing, "__mro__", ())[1:]]
            assert thing.__doc__ not in inherited, f"shoal.{room}.{name} has its base's docstring"
