"""When an attached metric starts anew, and when its value is shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal, TypeAlias

from shoal._registry import nearest
from shoal.errors import UsageError

__all__ = [
    "USAGES",
    "BatchFiltered",
    "BatchWise",
    "EpochWise",
    "MetricUsage",
    "Moment",
    "RunningBatchWise",
    "RunningEpochWise",
    "SingleEpochRunningBatchWise",
    "UsageLike",
    "usage_of",
]

Moment = Literal["run", "epoch", "iteration", "never"]


class MetricUsage:
    """When an attached metric starts anew, and when its value is put into ``state.metrics``.

    Attributes:
        usage_name: the name by which ``attach`` takes it too.
        reset: with what the metric starts anew: each ``"run"``, ``"epoch"`` or ``"iteration"``.
        publish: at the end of what its value is shown: each ``"epoch"`` or ``"iteration"``, or ``"never"``.
    """

    usage_name: ClassVar[str]
    reset: ClassVar[Moment]
    publish: ClassVar[Moment]

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class EpochWise(MetricUsage):
    """A value an epoch, over its samples: ``"epoch_wise"``."""

    usage_name = "epoch_wise"
    reset: ClassVar[Moment] = "epoch"
    publish: ClassVar[Moment] = "epoch"


class BatchWise(MetricUsage):
    """A value an iteration, over its samples: ``"batch_wise"``."""

    usage_name = "batch_wise"
    reset: ClassVar[Moment] = "iteration"
    publish: ClassVar[Moment] = "iteration"


class RunningEpochWise(EpochWise):
    """A value an epoch, over all samples of the run so far: ``"running_epoch_wise"``.

    (Ignite's updates the metric once an epoch, with the output of the last iteration alone.)
    """

    usage_name = "running_epoch_wise"
    reset: ClassVar[Moment] = "run"


class RunningBatchWise(BatchWise):
    """A value an iteration, over all samples of the run so far: ``"running_batch_wise"``."""

    usage_name = "running_batch_wise"
    reset: ClassVar[Moment] = "run"


class SingleEpochRunningBatchWise(BatchWise):
    """A value an iteration, over the samples of the epoch so far: ``"single_epoch_running_batch_wise"``."""

    usage_name = "single_epoch_running_batch_wise"
    reset: ClassVar[Moment] = "epoch"


class BatchFiltered(EpochWise):
    """A value an epoch, over the samples of some of its iterations.

    Args:
        event_filter, every, once, before, after: which iterations, as ``Events.ITERATION_COMPLETED(...)`` takes them.
    """

    usage_name = "batch_filtered"

    def __init__(self, event_filter: Callable[..., bool] | None = None, **filters: Any) -> None:
        self.filters = filters if event_filter is None else {"event_filter": event_filter, **filters}

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.filters.items())
        return f"BatchFiltered({shown})"

    __hash__ = MetricUsage.__hash__


USAGES: dict[str, type[MetricUsage]] = {
    usage.usage_name: usage
    for usage in (EpochWise, BatchWise, RunningEpochWise, RunningBatchWise, SingleEpochRunningBatchWise)
}

UsageLike: TypeAlias = str | MetricUsage | type[MetricUsage]


def usage_of(given: UsageLike, name: str = "") -> MetricUsage:
    """The usage that a name, a class or an object stands for; ``name`` is the metric's, where one is attached.

    Raises:
        UsageError: it stands for none.
    """
    if isinstance(given, MetricUsage) and type(given) is not MetricUsage:
        return given
    chosen = USAGES.get(given) if isinstance(given, str) else given
    if isinstance(chosen, type) and issubclass(chosen, MetricUsage) and chosen is not MetricUsage:
        return chosen()
    close = nearest(given, list(USAGES)) if isinstance(given, str) else ""
    asked = f"the metric {name!r} was to be attached" if name else "a metric was asked for"
    raise UsageError(
        f"{asked} with usage={given!r}{close}; choose one of {', '.join(USAGES)}, or "
        "a class of shoal.metrics such as EpochWise"
    )
