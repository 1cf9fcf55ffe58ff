"""Ranks whose data ends when it ends go on together: one small collective a step.

It is only used where nothing else can tell how much the other ranks have: iterable data sets and batch samplers that
are already sharded, and shards of which some are empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from shoal import runtime
from shoal._types import Share
from shoal.data.fetch import Loaded
from shoal.data.order import NO_SHARE
from shoal.errors import DataError

__all__ = ["agreed"]


class _Report(NamedTuple):
    """What a rank tells the others at a step."""

    num_samples: int
    has_ended: bool
    knows_structure: bool
    problem: str | None


def agreed(items: Iterator[Loaded], *, full_size: int | None) -> Iterator[Loaded]:
    """This rank's batches and, once it has no more, empty ones until no rank has more.

    Args:
        items: this rank's batches, before them perhaps an empty one that shows their structure.
        full_size: end at the first step at which all ranks together have fewer samples; None to use up all.

    Raises:
        DataError: another rank's data raised, so that all ranks end at the same step.
    """
    structure: Any = None
    knows_structure = has_ended = False
    while True:
        item, problem = None, None
        try:
            item = None if has_ended else next(items, None)
            if item is not None and item.share == NO_SHARE:
                structure, knows_structure = item.batch, True
                item = next(items, None)
        except Exception as error:
            problem = error
        has_ended = item is None
        reports = runtime.all_gather(
            _Report(
                item.share.local if item else 0,
                item is None and problem is None,
                knows_structure,
                None if problem is None else f"{type(problem).__name__}: {problem}",
            )
        )
        if problem is not None:
            raise problem
        for rank, report in enumerate(reports):
            if report.problem is not None:
                raise DataError(f"rank {rank}'s data failed, so this rank ends at the same step: {report.problem}")
        sizes = [report.num_samples for report in reports]
        if all(report.has_ended for report in reports) or (full_size is not None and sum(sizes) < full_size):
            return
        if any(report.has_ended and not report.knows_structure for report in reports):
            known = runtime.all_gather((structure,) if knows_structure else None)
            structure, knows_structure = next(found[0] for found in known if found is not None), True
        share = Share(sizes[runtime.current().rank], sum(sizes), min(sizes))
        yield Loaded(share, structure if item is None else item.batch)
