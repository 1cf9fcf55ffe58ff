"""How far two judgements agree beyond chance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch

from shoal.errors import UsageError
from shoal.metrics._inputs import aligned, count_by_class, misfit, no_class, pair_of
from shoal.metrics._sums import Sums
from shoal.metrics.base import Metric, State
from shoal.metrics.epoch_metric import EpochMetric

__all__ = ["CohenKappa"]

Weights = Literal["linear", "quadratic"] | None


class CohenKappa(Metric):
    """Cohen's kappa: 1 - observed disagreement / the disagreement of chance; 1 is full agreement, 0 is chance.

    ``update`` takes ``(y_pred, y)``, both classes (not scores), of shape ``(N,)`` or ``(N, 1)``.

    Args:
        output_transform: see ``Metric``.
        weights: what a disagreement of classes i and j counts: None (default): 1; ``"linear"``: ``|i - j|``;
            ``"quadratic"``: ``(i - j)²``.
        check_compute_fn: without ``num_classes``: whether the first batch is computed at once, to see that it can be.
        device: see ``Metric``.
        skip_unrolling: see ``Metric``.
        num_classes: keeps counts of the classes ``0 … num_classes - 1`` instead of all samples; others are counted and
            reported when the value is computed. None (default): all samples are kept, and any whole numbers are
            classes.

    Raises:
        UsageError: there are no such weights, or ``num_classes`` is below 2.

    The value is ``sklearn.metrics.cohen_kappa_score``'s, which takes the distance of classes by their order where
    ``labels`` lacks some between them; NaN where chance leaves nothing to disagree on. Source: Cohen (1960; 1968 for
    weights). Unlike Ignite's it needs no scikit-learn.
    """

    def __init__(
        self,
        output_transform: Callable[[Any], Any] | None = None,
        weights: Weights = None,
        check_compute_fn: bool = False,
        device: torch.device | str | None = None,
        skip_unrolling: bool = False,
        num_classes: int | None = None,
    ) -> None:
        if weights not in (None, "linear", "quadratic"):
            raise UsageError(f"CohenKappa was given weights={weights!r}; choose one of None, 'linear', 'quadratic'")
        if num_classes is not None and (not isinstance(num_classes, int) or num_classes < 2):
            raise UsageError(
                f"CohenKappa was given num_classes={num_classes!r}; give a whole number of 2 or more, or None"
            )

        self._kept: Metric
        if num_classes is None:
            self._kept = EpochMetric(lambda y_pred, y: _of_pairs(y_pred, y, weights), None, check_compute_fn, device)
        else:
            self._kept = _PairCounts(num_classes, weights, device)
        super().__init__(output_transform, device, skip_unrolling)

    def reset(self) -> None:
        """Forget all samples."""
        self._kept.reset()

    def update(self, output: Any) -> None:
        """Take one batch.

        Raises:
            UsageError: the output is no pair of tensors of classes whose shapes fit.
        """
        y_pred, y = aligned("CohenKappa", *pair_of("CohenKappa", output))
        if y.numel() != len(y):
            raise misfit(y_pred, y, "CohenKappa takes (N,) twice, classes")
        if len(y):
            self._kept.update((y_pred.reshape(-1), y.reshape(-1)))

    def state(self) -> State:
        """The counts of pairs of classes, or all pairs."""
        return self._kept.state()

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Be as if the samples of ``state``, and no others, had been seen."""
        self._kept.load_state(state)

    def merge(self, states: Sequence[Mapping[str, torch.Tensor]]) -> State:
        """The counts or pairs of all ranks."""
        return self._kept.merge(states)

    def compute_from(self, state: Mapping[str, torch.Tensor]) -> float:
        """Kappa.

        Raises:
            NotComputableError: no rank has seen a sample.
            UsageError: classes are outside ``num_classes``, or no whole numbers.
        """
        return float(self._kept.compute_from(state))


class _PairCounts(Sums):
    """How often each pair of classes occurred."""

    sums = ("matrix", "count", "outside")

    def __init__(self, num_classes: int, weights: Weights, device: torch.device | str | None) -> None:
        self._size, self._weights = num_classes, weights
        super().__init__(None, device)

    @torch.no_grad()
    def update(self, output: Any) -> None:
        y_pred, y = output
        size = self._size
        outside = no_class(y, size) | no_class(y_pred, size)
        place = torch.where(outside, size * size, y.long() * size + y_pred.long())
        counts = count_by_class(place, size * size + 1)
        self.add(matrix=counts[:-1].reshape(size, size), count=len(y), outside=outside.sum())

    def compute_from(self, state: Mapping[str, torch.Tensor]) -> float:
        self.count_of(state)
        if outside := int(state["outside"]):
            raise UsageError(
                f"CohenKappa was given {outside} samples with a class that is none of its {self._size}, 0 to "
                f"{self._size - 1}; leave them out by output_transform, or give no num_classes"
            )
        return _kappa(state["matrix"], torch.arange(self._size), self._weights)


def _of_pairs(y_pred: torch.Tensor, y: torch.Tensor, weights: Weights) -> float:
    given = torch.cat([y_pred, y])
    if given.is_floating_point() and (strange := int((given != given.round()).sum())):
        raise UsageError(
            f"CohenKappa was given {strange} values that are no whole numbers; make classes of scores by "
            "output_transform: argmax, or a threshold"
        )
    classes, places = torch.unique(given, return_inverse=True)
    size = len(classes)
    pairs = places[len(y_pred) :] * size + places[: len(y_pred)]
    return _kappa(torch.bincount(pairs, minlength=size * size).reshape(size, size), classes, weights)


def _kappa(matrix: torch.Tensor, classes: torch.Tensor, weights: Weights) -> float:
    counts, numbers = matrix.double(), classes.double()  # a difference of uint8 would wrap around
    distance = (numbers.view(-1, 1) - numbers.view(1, -1)).abs()
    cost = distance.square() if weights == "quadratic" else distance if weights else (distance > 0).double()
    by_chance = torch.outer(counts.sum(dim=1), counts.sum(dim=0)) / counts.sum()
    return float(1 - (cost * counts).sum() / (cost * by_chance).sum())
