"""An exponential moving average of what each iteration, or each epoch, gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from shoal.errors import NotComputableError, UsageError
from shoal.metrics._host import Host
from shoal.metrics.base import Metric, State
from shoal.metrics.usage import RunningEpochWise, UsageLike, usage_of

__all__ = ["RunningAverage"]

_OF_SRC = "src."


class RunningAverage(Metric):
    """``alpha * average + (1 - alpha) * value`` after each iteration; the first value starts it.

    The average is this rank's own: an iteration costs no collective, and a tensor stays on its device, without
    waiting for it. So ``state.metrics`` holds a tensor where the outputs are tensors. ``compute()`` gives the mean over
    the ranks that have one, which is the average of the ranks' mean value, the operation being linear. (Ignite's
    reduces in every iteration.)

    Attached with ``RunningEpochWise()``, it is shown once an epoch, as that mean; with ``src``, it then averages the
    values that ``src`` has for each whole epoch, over all ranks.

    Args:
        src: a metric whose value for each batch alone is averaged; a batch of weight 0 is left out. It is started anew
            for each, so give it an object that isn't attached itself. What only its ``compute`` can raise for, such as
            labels that are no class, makes the average NaN. None: the output is averaged itself.
        alpha: weight of the past, above 0 and at most 1; 0.98 by default.
        output_transform: makes a number or a tensor of the engine's output; with ``src``, leave it to that. By default
            the output is taken as it is. (Ignite requires one.)
        epoch_bound: True starts anew in each epoch; False, or None (default), goes on over the whole run.
        device: where the average lies; with ``src``, leave it to that. None (default): where the outputs lie.
        skip_unrolling: see ``Metric``; ``src`` is fed accordingly.

    Raises:
        UsageError: ``alpha`` is out of range, ``src`` is no metric, or ``output_transform`` is given beside ``src``.
    """

    required_output_keys = None
    merges = False

    def __init__(
        self,
        src: Metric | None = None,
        alpha: float = 0.98,
        output_transform: Callable[[Any], Any] | None = None,
        epoch_bound: bool | None = None,
        device: torch.device | str | None = None,
        skip_unrolling: bool = False,
    ) -> None:
        if not isinstance(alpha, int | float) or not 0.0 < alpha <= 1.0:
            raise UsageError(f"RunningAverage was given alpha={alpha!r}; give a number above 0 and at most 1")
        if src is not None and not isinstance(src, Metric):
            raise UsageError(f"RunningAverage was given src={src!r}; give a metric, or None and an output_transform")
        if src is not None and output_transform is not None:
            raise UsageError("RunningAverage was given src and output_transform; give output_transform to src instead")
        self._src = src
        self._alpha = alpha
        self._over_epochs = False
        self.default_usage = "single_epoch_running_batch_wise" if epoch_bound else "running_batch_wise"
        super().__init__(output_transform, device, skip_unrolling)

    def reset(self) -> None:
        """Forget all values, and what ``src`` has seen."""
        self._value: Any = None
        self._some: torch.Tensor | None = None  # whether it has a value, where only the device knows
        if self._src is not None:
            self._src.reset()

    def attach(self, engine: Host, name: str, usage: UsageLike | None = None) -> None:
        """See ``Metric.attach``.

        Raises:
            UsageError: also where it is attached to the engine already and averages ``src`` over iterations there, and
                over epochs here, or the other way round.
        """
        chosen = usage_of(usage or self.default_usage, name)
        over_epochs = self._src is not None and isinstance(chosen, RunningEpochWise)
        if over_epochs != self._over_epochs and engine.is_metric_attached(self):
            raise UsageError(
                f"the RunningAverage {name!r} was to be attached with usage={chosen!r} and is attached otherwise "
                "already; it averages over iterations or over epochs, so make a second one"
            )
        engine.attach_metric(self, name, chosen)
        self._over_epochs = over_epochs

    def sources(self) -> tuple[Metric, ...]:
        """``src``, where there is one."""
        return () if self._src is None else (self._src,)

    def take(self, engine_output: Any, skip_unrolling: bool = False) -> None:
        """Average the output, or what ``src`` makes of it; None leaves the average as it is."""
        src = self._src
        if src is not None:
            if engine_output is None:
                return
            if self._over_epochs:
                src.take(engine_output, skip_unrolling or self.skip_unrolling)
                return
            src.reset()
            src.take(engine_output, skip_unrolling or self.skip_unrolling)
            weight = src.peek_weight()
            if isinstance(weight, torch.Tensor):
                self._update_where(weight != 0, src.peek())
            else:
                self.update(src.peek())
            return
        transform = self.output_transform
        self.update(engine_output if transform is None or engine_output is None else transform(engine_output))

    def update(self, output: Any) -> None:
        """Average a number or a tensor; None leaves the average as it is.

        Raises:
            UsageError: it is something else, or a tensor of another shape than before.
        """
        old = self._value
        if type(output) is float and type(old) is float:  # at every iteration, so without a further call
            self._value = self._alpha * old + (1.0 - self._alpha) * output
        else:
            self._value = self._after(old, output)

    def peek(self) -> Any:
        """The average: a float, or a tensor where tensors were averaged; None before the first value."""
        return super().peek() if self._over_epochs else self._value

    def shown(self, value: Any) -> None:
        """Over epochs, take the value of this one as the past of the next."""
        if self._over_epochs and self._src is not None:
            self._value = value
            self._src.reset()

    def state(self) -> State:
        """``value`` (float64, without elements where there is none) and ``count`` (int64), 1 where there is one.

        Over epochs also the state of ``src``, its keys preceded by ``src.``.
        """
        if self._value is None or (self._some is not None and not self._some):
            value, count = torch.zeros(0, dtype=torch.float64), 0
        else:
            value, count = torch.as_tensor(self._value, dtype=torch.float64, device="cpu"), 1
        state = {"value": value, "count": torch.tensor(count)}
        if self._over_epochs and self._src is not None:
            state.update({_OF_SRC + key: tensor for key, tensor in self._src.state().items()})
        return state

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on with the average of ``state``."""
        value = state["value"].clone()
        self.reset()
        if int(state["count"]):
            self._value = value if value.dim() else value.item()
        if self._over_epochs and self._src is not None:
            self._src.load_state(_src_of(state))

    def merge(self, states: Sequence[Mapping[str, torch.Tensor]]) -> State:
        """The sums of the averages and of their number; over epochs also what ``src`` makes of its own."""
        merged = super().merge([{key: state[key] for key in ("value", "count")} for state in states])
        if self._over_epochs and self._src is not None:
            of_src = self._src.merge([_src_of(state) for state in states])
            merged.update({_OF_SRC + key: tensor for key, tensor in of_src.items()})
        return merged

    def compute_from(self, state: Mapping[str, torch.Tensor]) -> Any:
        """The mean over ranks; a float for numbers and tensors without dimension.

        Raises:
            NotComputableError: no rank has a value.
        """
        count = int(state["count"])
        value: Any = state["value"] / count if count else None
        if value is not None and value.dim() == 0:
            value = value.item()
        if self._over_epochs and self._src is not None:
            try:
                value = self._after(value, self._src.compute_from(_src_of(state)))
            except NotComputableError:
                if value is None:
                    raise
        if value is None:
            raise NotComputableError("RunningAverage was computed before any value; update it first")
        return value

    def _update_where(self, some: torch.Tensor, output: torch.Tensor) -> None:
        """Average a value that is one only if ``some`` is true: the mean over nothing is NaN, and would stay."""
        old, had = self._value, self._some
        if old is None:
            self._value, self._some = self._after(None, output), some
            return
        new = self._after(old, output)
        if had is not None:
            new, self._some = torch.where(had, new, output), had | some
        self._value = torch.where(some, new, old)

    def _after(self, old: Any, output: Any) -> Any:
        """The average once ``output`` is taken."""
        if type(output) is float:
            return output if old is None else self._alpha * old + (1.0 - self._alpha) * output
        if isinstance(output, torch.Tensor):
            return self._after_tensor(old, output)
        if isinstance(output, int | float):
            return self._after(old, float(output))
        if output is None:
            return old
        raise UsageError(
            f"RunningAverage was given a {type(output).__name__} and averages numbers and tensors; "
            "pick one by output_transform"
        )

    def _after_tensor(self, old: Any, output: torch.Tensor) -> torch.Tensor:
        value = output.detach()
        if isinstance(old, torch.Tensor):
            if old.dtype is value.dtype and old.shape == value.shape and old.device == value.device:
                return torch.lerp(value, old, self._alpha)
            if old.shape != value.shape:
                raise UsageError(
                    f"RunningAverage has averaged values of shape {tuple(old.shape)} and was given one of shape "
                    f"{tuple(value.shape)}; pick one of a fixed shape by output_transform"
                )
        if not value.is_floating_point() or value.element_size() < 4:
            value = value.float()  # half precision would lose what (1 - alpha) adds
        if self.device is not None:
            value = value.to(self.device)
        if old is None:
            return value.clone()  # the caller may reuse its tensor
        return torch.lerp(value, torch.as_tensor(old, dtype=value.dtype, device=value.device), self._alpha)


def _src_of(state: Mapping[str, torch.Tensor]) -> State:
    return {key.removeprefix(_OF_SRC): tensor for key, tensor in state.items() if key.startswith(_OF_SRC)}
