"""What a tracker is, and what those that come with Shoal share."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeAlias, runtime_checkable

from shoal import runtime
from shoal.errors import ShoalError, TrackerError, UsageError
from shoal.trackers._names import readable, relative
from shoal.trackers._plain import plain_config, scalars
from shoal.trackers.media import Figure, Histogram, Image, Medium, Text, as_medium

__all__ = ["OnError", "RankZeroTracker", "Tracker"]

_log = logging.getLogger(__name__)

OnError: TypeAlias = Literal["raise", "warn"]


@runtime_checkable
class Tracker(Protocol):
    """Somewhere that the numbers of a training go. Only rank 0 writes; on other ranks every call does nothing."""

    def log_metrics(self, metrics: Mapping[str, Any], *, step: int, prefix: str = "", axis: str = "iteration") -> None:
        """Record numbers.

        Args:
            metrics: numbers or tensors by name; a tensor of several values is recorded as ``name/0``, ``name/1``, …
            step: where on the axis.
            prefix: put before each name, as ``prefix/name``.
            axis: what ``step`` counts: ``"iteration"`` or ``"epoch"``. Axes are independent: an epoch's step may
                follow a larger iteration's.
        """
        ...

    def log_config(self, config: Mapping[str, Any]) -> None:
        """Record how the run was configured; values of any type are stored, unusual ones as text."""
        ...

    def log_media(self, media: Mapping[str, Any], *, step: int, prefix: str = "", axis: str = "iteration") -> None:
        """Record texts, images, figures and histograms; what the service has no place for is said once in the log.

        Args:
            media: :class:`Text`, :class:`Image`, :class:`Figure` or :class:`Histogram` by name; a string is a text.
            step, prefix, axis: as in :meth:`log_metrics`.
        """
        ...

    def log_artifact(self, path: str | os.PathLike[str], name: str | None = None) -> None:
        """Store a copy of a file under ``name``, by default the file's own."""
        ...

    def close(self) -> None:
        """Write out what is left. A second call does nothing."""
        ...


class RankZeroTracker:
    """What trackers share: nothing is opened before the first record, and then on rank 0 alone.

    A constructor can therefore run before any process group exists, and on every rank. Subclasses implement
    ``_write_metrics``, ``_write_config`` and ``_close``, and of ``_write_text``, ``_write_image``, ``_write_figure``,
    ``_write_histogram`` and ``_write_artifact`` those that their service has a place for.

    A record that cannot be written raises :class:`shoal.errors.TrackerError`, which ends the training on all ranks;
    its last checkpoint is there. Services that send in the background (ClearML, Weights & Biases, trackio) bridge an
    outage themselves and log it: from them an error comes only where they refuse a record.

    Args:
        on_error: ``"raise"`` (default), or ``"warn"``: the training goes on, each kind of error is logged once, and
            ``close`` says how many records were lost. After a failure that took seconds, records are lost without a try
            for nine times as long.

    Raises:
        UsageError: ``on_error`` is something else.
    """

    on_error: OnError = "raise"
    _is_closed = False
    _failed = False
    _said: frozenset[str] = frozenset()
    _num_lost = 0
    _quiet_until = 0.0

    def __init__(self, *, on_error: OnError = "raise") -> None:
        if on_error not in ("raise", "warn"):
            raise UsageError(f"asked for on_error={on_error!r}; give 'raise' or 'warn'")
        self.on_error = on_error

    def log_metrics(self, metrics: Mapping[str, Any], *, step: int, prefix: str = "", axis: str = "iteration") -> None:
        """Record numbers; see :class:`Tracker`.

        Raises:
            UsageError: the step is no whole number; on rank 0.
        """
        if not runtime.current().is_main:
            return
        values = {}
        for given, value in metrics.items():
            name = readable(given)
            found = dict(scalars(name, value))
            if not found:
                kind = type(value).__name__
                self._say_once(name, "The metric '%s' is a %s and not recorded: it has no number", name, kind)
            values.update({f"{prefix}/{key}" if prefix else key: number for key, number in found.items()})
        step = _whole(step)
        if values:
            self._attempt(f"metrics of step {step}", self._write_metrics, values, step, axis)

    def log_config(self, config: Mapping[str, Any]) -> None:
        """Record how the run was configured; see :class:`Tracker`."""
        if runtime.current().is_main:
            plain = {readable(key): plain_config(value) for key, value in config.items()}
            self._attempt("the configuration", self._write_config, plain)

    def log_media(self, media: Mapping[str, Any], *, step: int, prefix: str = "", axis: str = "iteration") -> None:
        """Record texts, images, figures and histograms; see :class:`Tracker`.

        Raises:
            UsageError: a value is none of these, or the step is no whole number; on rank 0.
        """
        if not runtime.current().is_main:
            return
        named = {readable(name): as_medium(str(name), value) for name, value in media.items()}
        step = _whole(step)
        for key, medium in named.items():
            name = f"{prefix}/{key}" if prefix else key
            self._attempt(f"'{name}' of step {step}", self._write_medium, name, medium, step, axis)

    def log_artifact(self, path: str | os.PathLike[str], name: str | None = None) -> None:
        """Store a copy of a file; see :class:`Tracker`. A name that leads elsewhere, as ``../x``, is kept inside.

        Raises:
            UsageError: there is no such file; on rank 0.
        """
        if not runtime.current().is_main:
            return
        file = Path(path)
        if not file.is_file():
            raise UsageError(f"asked to store the file '{file}', which is not there; give a file, packed if it's many")
        self._attempt(f"the file '{file}'", self._write_artifact, file, relative(readable(name or file.name)))

    def close(self) -> None:
        """Write out what is left; see :class:`Tracker`."""
        if self._is_closed:
            return
        self._is_closed = True
        self._attempt("what was left", self._close)
        if self._num_lost:
            _log.warning("%s has lost %d records; the first errors are above", type(self).__name__, self._num_lost)

    def state_dict(self) -> dict[str, Any]:
        """Which run of the service is written to, for a checkpoint; None before the first record, or without runs."""
        return {"run_id": self._run_id()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on in the run of the service that an earlier training has written to, if the service has runs.

        Raises:
            UsageError: this tracker already writes to another one.
        """
        wanted, found = state_dict.get("run_id"), self._run_id()
        if wanted is not None and found is not None and wanted != found:
            raise UsageError(
                f"asked to go on in the run {wanted!r}, and {type(self).__name__} has written to {found!r} already; "
                "load the checkpoint before the first record"
            )
        if wanted is not None:
            self._resume(str(wanted))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        self._failed = True
        try:
            self.close()
        except TrackerError as failure:  # what ended the block comes first
            _log.error("%s", failure)

    def _attempt(self, what: str, write: Callable[..., None], *args: Any) -> None:
        began = time.monotonic()
        if began < self._quiet_until and write != self._close:
            self._num_lost += 1
            return
        try:
            write(*args)
        except ShoalError:
            raise
        except Exception as error:
            text = f"{type(self).__name__} could not record {what}: {type(error).__name__}: {error}"
            if self.on_error == "raise":
                raise TrackerError(
                    f"{text}; mend what it says and resume from the last checkpoint, or make the tracker with "
                    "on_error='warn' to train on without what it loses"
                ) from error
            self._num_lost += 1
            ended = time.monotonic()
            if ended - began > 1:  # a server that is not there: waiting for it takes a tenth of the time at most
                self._quiet_until = ended + 9 * (ended - began)
            self._say_once(type(error).__qualname__, "%s. The training goes on without it", text)

    def _say_once(self, key: str, text: str, *args: object) -> None:
        if key not in self._said:
            self._said |= {key}
            _log.warning(text, *args)

    def _on_rank_zero(self, what: str) -> None:
        """Raise UsageError on any other rank: a second process must not open the service."""
        world = runtime.current()
        if not world.is_main:
            raise UsageError(
                f"asked for the {what} of {type(self).__name__} on rank {world.rank}, and only rank 0 has one; "
                "ask under `if idist.get_rank() == 0:`"
            )

    def _has_no(self, what: str, name: str) -> None:
        self._say_once(
            f"no {what}",
            "%s has no place for %s; '%s' and others are not recorded",
            type(self).__name__,
            what,
            name,
        )

    def _write_medium(self, name: str, medium: Medium, step: int, axis: str) -> None:
        match medium:
            case Text():
                self._write_text(name, medium, step, axis)
            case Image():
                self._write_image(name, medium, step, axis)
            case Figure():
                self._write_figure(name, medium, step, axis)
            case Histogram():
                self._write_histogram(name, medium, step, axis)

    def _write_metrics(self, values: dict[str, float], step: int, axis: str) -> None:
        raise NotImplementedError

    def _write_config(self, config: dict[str, Any]) -> None:
        raise NotImplementedError

    def _write_text(self, name: str, text: Text, step: int, axis: str) -> None:  # noqa: ARG002
        self._has_no("texts", name)

    def _write_image(self, name: str, image: Image, step: int, axis: str) -> None:  # noqa: ARG002
        self._has_no("images", name)

    def _write_figure(self, name: str, figure: Figure, step: int, axis: str) -> None:  # noqa: ARG002
        self._has_no("figures", name)

    def _write_histogram(self, name: str, histogram: Histogram, step: int, axis: str) -> None:  # noqa: ARG002
        self._has_no("histograms", name)

    def _write_artifact(self, path: Path, name: str) -> None:  # noqa: ARG002
        self._has_no("files", name)

    def _close(self) -> None:
        raise NotImplementedError

    def _run_id(self) -> str | None:
        """The service's name for the run that is written to."""
        return None

    def _resume(self, run_id: str) -> None:
        """Write to this run from now on."""


def _whole(step: Any) -> int:
    try:
        return int(step)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"asked to log at step={step!r}; give a whole number") from error
