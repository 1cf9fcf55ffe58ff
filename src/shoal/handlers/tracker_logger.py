"""What an engine knows, written to a tracker at its events; the same for every tracker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

from shoal import runtime
from shoal.engine import Engine, RemovableEventHandle
from shoal.engine.events import EventKey, EventLike, EventsList, FilteredEvent
from shoal.errors import UsageError
from shoal.handlers._counts import axis_of, count
from shoal.trackers import Figure, Histogram, Image, Text, Tracker

__all__ = ["OptimizerParamsHandler", "OutputHandler", "TrackerLogger"]

_MEDIA = (str, Text, Image, Figure, Histogram)


class OutputHandler:
    """Writes metrics and outputs of an engine, as ``tag/name``.

    A value that is a text, or an ``Image``, a ``Figure`` or a ``Histogram`` of :mod:`shoal.trackers`, is written as
    that; all others as numbers.

    Args:
        tag: put before each name.
        metric_names: names in ``engine.state.metrics``, or ``"all"``. One that is missing is said once and left out.
        output_transform: takes ``engine.state.output`` and returns values by name, or one value, then ``output``.
        global_step_transform: takes the engine and the event and returns the step; by default the iteration or the
            epoch, as the event counts.
        state_attributes: names of attributes of ``engine.state``.

    Raises:
        UsageError: there is nothing to write, or ``metric_names`` is of another kind.
    """

    def __init__(
        self,
        tag: str,
        metric_names: Sequence[str] | Literal["all"] | None = None,
        output_transform: Callable[[Any], Any] | None = None,
        global_step_transform: Callable[[Engine, EventKey], int] | None = None,
        state_attributes: Sequence[str] | None = None,
    ) -> None:
        if metric_names is None and output_transform is None and state_attributes is None:
            raise UsageError(f"OutputHandler({tag!r}) has nothing to write; give metric_names or output_transform")
        if isinstance(metric_names, str) and metric_names != "all":
            raise UsageError(f"asked for metric_names={metric_names!r}; give a list of names, or 'all'")
        self.tag = tag
        self.metric_names = metric_names
        self.output_transform = output_transform
        self.global_step_transform = global_step_transform
        self.state_attributes = state_attributes or ()
        self._missing: set[str] = set()

    def __call__(self, engine: Engine, logger: TrackerLogger, event_name: EventKey) -> None:
        """Write the values of now."""
        transform = self.global_step_transform
        step = count(engine, event_name) if transform is None else transform(engine, event_name)
        axis = axis_of(getattr(transform, "event_name", None) or event_name)
        values = self._values(engine)
        media = {name: value for name, value in values.items() if isinstance(value, _MEDIA)}
        numbers = {name: value for name, value in values.items() if name not in media}
        if numbers:
            logger.tracker.log_metrics(numbers, step=step, prefix=self.tag, axis=axis)
        if media:
            logger.tracker.log_media(media, step=step, prefix=self.tag, axis=axis)

    def _values(self, engine: Engine) -> dict[str, Any]:
        metrics = engine.state.metrics
        if self.metric_names == "all":
            values = dict(metrics)
        else:
            names = self.metric_names or ()
            values = {name: metrics[name] for name in names if name in metrics}
            for name in set(names) - set(metrics) - self._missing:
                self._missing.add(name)
                engine.logger.warning("'%s' was to be logged and is no metric of the engine; left out", name)
        if self.output_transform is not None:
            output = self.output_transform(engine.state.output)
            values.update(output if isinstance(output, Mapping) else {"output": output})
        values.update({name: getattr(engine.state, name) for name in self.state_attributes})
        return values


class OptimizerParamsHandler:
    """Writes a parameter of each of an optimizer's groups, as ``lr/group_0``, ``lr/group_1``, …

    Args:
        optimizer: a torch optimizer, or anything with ``param_groups``.
        param_name: the parameter's name in a group.
        tag: put before, as ``tag/lr/group_0``.

    Raises:
        UsageError: the optimizer has no ``param_groups``.
    """

    def __init__(self, optimizer: Any, param_name: str = "lr", tag: str | None = None) -> None:
        if not hasattr(optimizer, "param_groups"):
            raise UsageError(f"asked to log {param_name!r} of a {type(optimizer).__qualname__}; give an optimizer")
        self.optimizer = optimizer
        self.param_name = param_name
        self.prefix = f"{tag}/{param_name}" if tag else param_name

    def __call__(self, engine: Engine, logger: TrackerLogger, event_name: EventKey) -> None:
        """Write the values of now."""
        groups = self.optimizer.param_groups
        values = {f"group_{index}": group[self.param_name] for index, group in enumerate(groups)}
        logger.tracker.log_metrics(values, step=count(engine, event_name), prefix=self.prefix, axis=axis_of(event_name))


class TrackerLogger:
    """Attaches a tracker to engines. Only rank 0 writes; it may exist on all ranks or on rank 0 alone.

    It has state, the service's name for the run: among the objects of a :class:`Checkpoint`, a resumed training goes on
    in the same run of the service.

    Args:
        tracker: where values go.
    """

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker

    def attach(
        self,
        engine: Engine,
        log_handler: Callable[..., None],
        event_name: EventLike,
        *args: Any,
        **kwargs: Any,
    ) -> RemovableEventHandle:
        """Have ``log_handler`` called on rank 0 with (engine, this logger, event, …) at ``event_name``.

        Args:
            engine: the engine.
            log_handler: one of the handlers here, or a function of your own.
            event_name: an event, filtered or not, or several joined by ``|``.
            args: passed to ``log_handler`` after the event.
            kwargs: passed to ``log_handler``.

        Returns:
            A handle that removes it again.
        """
        handles = []
        for event in event_name if isinstance(event_name, EventsList) else (event_name,):
            base = event.event if isinstance(event, FilteredEvent) else event
            handles.append(engine.add_event_handler(event, self._on_rank_zero, log_handler, base, *args, **kwargs))
        return _Handles(handles)

    def attach_output_handler(
        self, engine: Engine, event_name: EventLike, *args: Any, **kwargs: Any
    ) -> RemovableEventHandle:
        """Attach an :class:`OutputHandler` that is made of the arguments."""
        return self.attach(engine, OutputHandler(*args, **kwargs), event_name)

    def attach_opt_params_handler(
        self, engine: Engine, event_name: EventLike, *args: Any, **kwargs: Any
    ) -> RemovableEventHandle:
        """Attach an :class:`OptimizerParamsHandler` that is made of the arguments."""
        return self.attach(engine, OptimizerParamsHandler(*args, **kwargs), event_name)

    def log_config(self, config: Mapping[str, Any]) -> None:
        """Record how the run was configured."""
        self.tracker.log_config(config)

    def close(self) -> None:
        """Write out what is left."""
        self.tracker.close()

    def state_dict(self) -> dict[str, Any]:
        """Which run of the service is written to; empty for a tracker without state."""
        state: dict[str, Any] = self.tracker.state_dict() if hasattr(self.tracker, "state_dict") else {}
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on in the run that an earlier training has written to; before the first record."""
        if hasattr(self.tracker, "load_state_dict"):
            self.tracker.load_state_dict(state_dict)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if hasattr(self.tracker, "__exit__"):  # it tells the service that the run has failed
            self.tracker.__exit__(kind, error, trace)
        else:
            self.close()

    def _on_rank_zero(
        self, engine: Engine, log_handler: Callable[..., None], event: EventKey, *args: Any, **kwargs: Any
    ) -> None:
        if runtime.current().is_main:
            log_handler(engine, self, event, *args, **kwargs)


class _Handles(RemovableEventHandle):
    """Several as one: each event of a list is attached with its own name."""

    def __init__(self, handles: Sequence[RemovableEventHandle]) -> None:
        self._handles = handles

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
