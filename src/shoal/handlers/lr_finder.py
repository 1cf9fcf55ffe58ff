"""A search for a learning rate: one short run in which it rises, and the loss beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import torch

from shoal import runtime
from shoal._optional import require
from shoal.checkpoint.objects import check_objects
from shoal.engine import Engine, Events
from shoal.errors import UsageError
from shoal.handlers._keeping import kept
from shoal.handlers.param_scheduler import set_param

__all__ = ["FastaiLRFinder"]


_NOT_GIVEN = ", the learning rate of the optimizer (which a schedule may have set)"


def _whole_output(output: Any) -> Any:
    return output


class FastaiLRFinder:
    """Raises the learning rate from iteration to iteration, until the loss diverges, and suggests one::

        finder = FastaiLRFinder()
        with finder.attach(trainer, to_save={"model": model, "optimizer": optimizer}, end_lr=1.0) as search:
            search.run(loader)
        finder.apply_suggested_lr(optimizer)

    After the block all is as before it: see :meth:`attach`. (L. N. Smith, "Cyclical Learning Rates for Training Neural
    Networks", 2017; the smoothing and the suggestion are those that fastai made known.)

    Differs from Ignite: the first iteration uses ``start_lr`` itself, ``state_dict`` copies stay in memory, the
    trainer's own place, schedules and random states are put back, too, and on several ranks all see one loss.
    """

    def __init__(self) -> None:
        self._search: _Search | None = None

    @contextmanager
    def attach(
        self,
        trainer: Engine,
        to_save: Mapping[str, Any],
        output_transform: Callable[[Any], Any] = _whole_output,
        num_iter: int | None = None,
        start_lr: float | Sequence[float] | None = None,
        end_lr: float | Sequence[float] = 10.0,
        step_mode: str = "exp",
        smooth_f: float = 0.05,
        diverge_th: float = 5.0,
    ) -> Iterator[Engine]:
        """Make a search of the trainer's runs inside the block.

        At its end, also after an exception, these are as before: the objects in ``to_save``, the gradient scaler, the
        handlers and metrics that are attached to the trainer (averaged weights, schedules, …), its place, its state,
        and the process's random states. A window of accumulated gradients that was open is done again. Handlers are
        called in the search, too; so attach those that write, such as checkpoints and trackers, after it. On several
        ranks the block is entered by all, and each iteration costs one collective: the loss is the mean
        of the ranks', and so all stop in one iteration with the same results.

        Args:
            trainer: the engine.
            to_save: objects with ``state_dict()`` by name, with the optimizer as ``"optimizer"``, and the model.
            output_transform: takes ``trainer.state.output`` and returns the loss; by default the output is that.
            num_iter: iterations of the search; by default those of the run, epochs times their length.
            start_lr: the first rate, for all groups or a list for each; None (default): those of the optimizer.
            end_lr: the last one, likewise.
            step_mode: ``"exp"``: by the same factor each time; ``"linear"``: by the same amount.
            smooth_f: weight of a new loss in the running average, at most 1; 0, like 1, doesn't smooth.
            diverge_th: the search ends where the average is this many times the lowest one, above 1; or is no number.

        Yields:
            The trainer.

        Raises:
            UsageError: an argument cannot work; the text says which. In the run: the output is no loss, or the length
                of the search is not known.
        """
        _check(trainer, to_save, output_transform, num_iter, step_mode, smooth_f, diverge_th)
        optimizer = to_save["optimizer"]
        starts = _rates("start_lr", start_lr, optimizer)
        ends = _rates("end_lr", end_lr, optimizer)
        for start, end in zip(starts, ends, strict=True):
            if not start < end:
                raise UsageError(f"asked for a search from start_lr={start} to end_lr={end}; give a higher end_lr")
        search = _Search(optimizer, output_transform, starts, ends, step_mode, smooth_f, diverge_th, num_iter)
        with kept(trainer, to_save):
            self._search = search
            handles = [
                trainer.add_event_handler(Events.STARTED, search.begin),
                trainer.add_event_handler(Events.ITERATION_STARTED, search.set_rates),
                trainer.add_event_handler(Events.ITERATION_COMPLETED, search.look),
                trainer.add_event_handler(Events.COMPLETED, search.end),
            ]
            try:
                yield trainer
            finally:
                search.is_open = False
                for handle in handles:
                    handle.remove()

    def get_results(self) -> dict[str, list[Any]]:
        """``{"lr": [...], "loss": [...]}``: the rates, a list where there are several groups, and smoothed losses.

        Raises:
            UsageError: there was no search.
        """
        search = self._done()
        complete = search.rates[: len(search.losses)]  # an iteration that failed has no loss
        rates: list[Any] = [list(row) if len(row) > 1 else row[0] for row in complete]
        return {"lr": rates, "loss": list(search.losses)}

    def lr_suggestion(self) -> float | list[float]:
        """The rate at which the smoothed loss fell fastest, before it was lowest; a list for several groups.

        Raises:
            UsageError: there was no search, or the loss didn't fall in at least three iterations.
        """
        search = self._done()
        row = search.rates[self._steepest(search)]
        return list(row) if len(row) > 1 else row[0]

    def apply_suggested_lr(self, optimizer: torch.optim.Optimizer) -> None:
        """Set the suggested rate in each group of ``optimizer``.

        A schedule that was made of the optimizer before keeps the rates that it was made with; make it after this.

        Raises:
            UsageError: as :meth:`lr_suggestion`, or the optimizer has another number of groups, or the block of
                :meth:`attach`, whose end would undo it, isn't left yet.
        """
        if self._done().is_open:
            raise UsageError(
                "apply_suggested_lr() was called in the block of attach(), whose end takes the rate back; "
                "call it after the block"
            )
        suggested = self.lr_suggestion()
        rates = suggested if isinstance(suggested, list) else [suggested]
        groups = optimizer.param_groups
        if len(rates) != len(groups):
            raise UsageError(
                f"the search was of an optimizer with {len(rates)} parameter groups, and this one has {len(groups)}; "
                "give the one that was searched, or one like it"
            )
        for group, rate in zip(groups, rates, strict=True):
            set_param(group, "lr", rate)

    def plot(
        self,
        skip_start: int = 10,
        skip_end: int = 5,
        log_lr: bool = True,
        display_suggestion: bool = True,
        ax: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Draw the loss over the rate.

        Args:
            skip_start: first iterations that are left out.
            skip_end: last ones.
            log_lr: whether the rates' axis is logarithmic.
            display_suggestion: whether the suggestion is marked, if there is one.
            ax: the axes of matplotlib to draw into; None (default) makes a figure.
            kwargs: for ``matplotlib.pyplot.subplots``.

        Returns:
            The axes.

        Raises:
            MissingExtraError: matplotlib is not installed.
            UsageError: there was no search, or less of it than is left out.
        """
        search = self._done()
        last = len(search.losses) - skip_end
        if skip_start < 0 or skip_end < 0 or skip_start >= last:
            raise UsageError(
                f"asked to leave out {skip_start} iterations at the start and {skip_end} at the end of a search of "
                f"{len(search.losses)}; give smaller numbers"
            )
        if ax is None:
            _, ax = require("matplotlib.pyplot", extra="plot", purpose="FastaiLRFinder.plot()").subplots(**kwargs)
        steepest = self._steepest(search) if display_suggestion and _falls(search.losses) else None
        for group in range(len(search.rates[0])):
            rates = [row[group] for row in search.rates]
            label = "loss" if len(search.rates[0]) == 1 else f"loss, group {group}"
            (line,) = ax.plot(rates[skip_start:last], search.losses[skip_start:last], label=label)
            if steepest is not None:
                mark = f"suggestion: {rates[steepest]:.3g}"
                ax.scatter([rates[steepest]], [search.losses[steepest]], color=line.get_color(), zorder=3, label=mark)
        if log_lr:
            ax.set_xscale("log")
        ax.set_xlabel("learning rate")
        ax.set_ylabel("loss, smoothed")
        ax.legend()
        return ax

    def _done(self) -> _Search:
        if self._search is None or not self._search.losses:
            raise UsageError("there was no search yet; run the trainer in a block of attach() first")
        return self._search

    def _steepest(self, search: _Search) -> int:
        if not _falls(search.losses):
            raise UsageError(
                f"the loss didn't fall in three iterations of the search, from learning rate {search.rates[0]} on; "
                "look at plot(), and give a lower start_lr or a higher end_lr, or more iterations"
            )
        losses = search.losses[: _lowest(search.losses) + 1]
        slopes = [(after - before) / 2 for before, after in zip(losses, losses[2:], strict=False)]
        return slopes.index(min(slopes)) + 1


@dataclass
class _Search:
    """One search: what to set, and what was seen."""

    optimizer: Any
    output_transform: Callable[[Any], Any]
    starts: list[float]
    ends: list[float]
    step_mode: str
    smooth_f: float
    diverge_th: float
    num_iter: int | None
    length: int = 0
    diverged: bool = False
    is_open: bool = True
    rates: list[list[float]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def begin(self, engine: Engine) -> None:
        """Know how long it is, and forget an earlier run."""
        state = engine.state
        run = None if state.epoch_length is None or state.max_epochs is None else state.epoch_length * state.max_epochs
        run = state.max_iters or run
        length = self.num_iter or run
        if length is None:
            raise UsageError("the length of the data is not known, nor that of the search; give num_iter")
        if run is not None and run < length:
            engine.logger.warning(
                "The search was to have %d iterations, and the run has %d: the learning rate will not reach end_lr. "
                "Give run() more epochs.", length, run,
            )  # fmt: skip
        self.length, self.diverged = length, False
        self.rates.clear()
        self.losses.clear()

    def set_rates(self) -> None:
        """Set the rates of the iteration that starts."""
        part = min(len(self.losses) / max(1, self.length - 1), 1.0)
        rates = [self._rate(start, end, part) for start, end in zip(self.starts, self.ends, strict=True)]
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            set_param(group, "lr", rate)
        self.rates.append(rates)

    def look(self, engine: Engine) -> None:
        """Take the loss, and end the run where the search ends."""
        loss = self._agreed(self.output_transform(engine.state.output))
        if self.smooth_f and self.losses and math.isfinite(loss):
            loss = self.smooth_f * loss + (1 - self.smooth_f) * self.losses[-1]
        self.losses.append(loss)
        best = min((one for one in self.losses if math.isfinite(one)), default=loss)
        # For a lowest loss below 0 the bound lies above it by as much as it would for one above 0.
        self.diverged = not math.isfinite(loss) or loss > best + (self.diverge_th - 1) * abs(best)
        if self.diverged or len(self.losses) >= self.length:
            engine.terminate()

    def end(self, engine: Engine) -> None:
        """Tell of a search that showed no end."""
        if not self.diverged:
            engine.logger.warning(
                "The loss did not diverge up to learning rate %s. Look at plot(); a higher end_lr or a lower "
                "diverge_th shows more.", self.rates[-1] if self.rates else self.starts,
            )  # fmt: skip

    def _rate(self, start: float, end: float, part: float) -> float:
        if part == 1.0:
            return end
        return start * (end / start) ** part if self.step_mode == "exp" else start + (end - start) * part

    def _agreed(self, loss: Any) -> float:
        try:
            own = float(loss)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UsageError(
                f"the search was given {loss!r} as loss; give an output_transform that returns a number, or a tensor "
                "of one"
            ) from error
        world_size = runtime.current().world_size
        return own if world_size == 1 else float(runtime.all_reduce(own)) / world_size


def _lowest(losses: Sequence[float]) -> int:
    finite = [loss if math.isfinite(loss) else math.inf for loss in losses]
    return finite.index(min(finite))


def _falls(losses: Sequence[float]) -> bool:
    return len(losses) > 0 and _lowest(losses) >= 2


def _check(
    trainer: object,
    to_save: Mapping[str, Any],
    output_transform: object,
    num_iter: object,
    step_mode: str,
    smooth_f: float,
    diverge_th: float,
) -> None:
    if not isinstance(trainer, Engine):
        raise UsageError(f"FastaiLRFinder was attached to a {type(trainer).__qualname__}; give an engine")
    for method in ("state_dict", "load_state_dict"):
        check_objects(to_save, argument="to_save", method=method)
    if not hasattr(to_save.get("optimizer"), "param_groups"):
        raise UsageError(
            f"to_save has {', '.join(to_save)}; give the optimizer as 'optimizer', "
            "and the model and whatever else a step changes"
        )
    if not callable(output_transform):
        raise UsageError(f"asked for output_transform={output_transform!r}; give a function of the output")
    if num_iter is not None and (isinstance(num_iter, bool) or not isinstance(num_iter, int) or num_iter < 1):
        raise UsageError(f"asked for num_iter={num_iter!r}; give a whole number of at least 1")
    if step_mode not in ("exp", "linear"):
        raise UsageError(f"asked for step_mode={step_mode!r}; give 'exp' or 'linear'")
    if not isinstance(smooth_f, Real) or not 0 <= smooth_f <= 1:
        raise UsageError(f"asked for smooth_f={smooth_f!r}; give a number from 0 to 1")
    if not isinstance(diverge_th, Real) or not diverge_th > 1:
        raise UsageError(f"asked for diverge_th={diverge_th!r}; give a number above 1")


def _rates(name: str, given: object, optimizer: Any) -> list[float]:
    """One rate for each group."""
    groups = optimizer.param_groups
    count = len(groups)
    rates = [float(group["lr"]) for group in groups] if given is None else given
    rates = [rates] * count if isinstance(rates, Real) else rates
    if not isinstance(rates, Sequence) or isinstance(rates, str) or len(rates) != count:
        raise UsageError(f"asked for {name}={given!r}; give a number, or a list of one for each of {count} groups")
    for rate in rates:
        if isinstance(rate, bool) or not isinstance(rate, Real) or not 0 < float(rate) < math.inf:
            raise UsageError(f"{name} has {rate!r}{_NOT_GIVEN if given is None else ''}; give rates above 0")
    return [float(rate) for rate in rates]
