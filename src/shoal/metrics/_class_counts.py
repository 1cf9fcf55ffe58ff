"""What precision, recall and all that is made of them count."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import torch

from shoal.errors import CollectiveError, UsageError
from shoal.metrics._inputs import (
    Kind,
    count_by_class,
    kind_of,
    no_class,
    not_binary,
    pair_of,
    predicted_classes,
    widened,
)
from shoal.metrics._sums import Sums

__all__ = ["Average", "ClassCounts", "Scores", "ratio"]

Average = Literal["micro", "macro", "weighted", "samples"] | bool | None


class Scores(NamedTuple):
    """Per class or label, each of shape ``(C,)``.

    Attributes:
        precision: float64.
        recall: float64.
        support: how many targets, int64.
        binary: whether the two classes are 0 and 1 of binary samples.
    """

    precision: torch.Tensor
    recall: torch.Tensor
    support: torch.Tensor
    binary: bool


class ClassCounts(Sums):
    """Counts, for each class or label, how often it was predicted, was the target, and both at once.

    Its value is ``Scores``. ``update`` takes what ``Accuracy`` takes, by the same rules: binary and multilabel
    predictions and targets are 0 or 1, and scores with a NaN among them count as a wrong prediction. What is neither 0
    nor 1, and targets that are none of the classes, are counted on the device and reported when the value is computed.
    """

    sums: tuple[str, ...] = ("right", "predicted", "actual", "count", "spoilt", "outside", "binary")

    def __init__(
        self,
        output_transform: Callable[[Any], Any] | None = None,
        is_multilabel: bool = False,
        device: torch.device | str | None = None,
        skip_unrolling: bool = False,
    ) -> None:
        self.is_multilabel = is_multilabel
        super().__init__(output_transform, device, skip_unrolling=skip_unrolling)

    def reset(self) -> None:
        """Forget all samples, and of which kind they were."""
        super().reset()
        self._kind: tuple[Kind, int] | None = None

    @torch.no_grad()
    def update(self, output: Any) -> None:
        """Take one batch.

        Raises:
            UsageError: the output is no pair of tensors whose shapes fit, or is of another kind than before.
        """
        owner = type(self).__name__
        y_pred, y = pair_of(owner, output)
        kind, num_classes = self._kind = kind_of(owner, y_pred, y, self.is_multilabel, self._kind)
        if y.numel() == 0:
            return
        if kind == "multilabel":
            self.add(spoilt=not_binary(y_pred) + not_binary(y), outside=0, binary=0)
            self.add_labels((y_pred == 1).movedim(1, -1).flatten(0, -2), (y == 1).movedim(1, -1).flatten(0, -2))
        elif kind == "binary":
            self.add(spoilt=not_binary(y_pred) + not_binary(y), outside=0, binary=y.numel())
            self._add_classes((y_pred.reshape(y.shape) == 1).long(), (y == 1).long(), num_classes)
        else:
            outside = no_class(y, num_classes)
            self.add(spoilt=0, outside=outside.sum(), binary=0)
            target = y.long()
            self._add_classes(predicted_classes(y_pred, target), torch.where(outside, num_classes, target), num_classes)

    def add_labels(self, predicted: torch.Tensor, actual: torch.Tensor) -> None:
        """Count the labels of a multilabel batch, ``(places, C)`` bool twice."""
        self.add(
            right=(predicted & actual).sum(dim=0),
            predicted=predicted.sum(dim=0),
            actual=actual.sum(dim=0),
            count=len(actual),
        )

    def _add_classes(self, predicted: torch.Tensor, actual: torch.Tensor, num_classes: int) -> None:
        """Count classes; ``num_classes`` itself stands for none of them."""
        hits = torch.where(predicted == actual, actual, num_classes)
        self.add(
            right=count_by_class(hits, num_classes + 1)[:-1],
            predicted=count_by_class(predicted, num_classes + 1)[:-1],
            actual=count_by_class(actual, num_classes + 1)[:-1],
            count=actual.numel(),
        )

    def check(self, state: Mapping[str, torch.Tensor]) -> None:
        """Raise what is wrong with a merged state; see ``compute_from``."""
        owner = type(self).__name__
        count = self.count_of(state)
        if spoilt := int(state["spoilt"]):
            raise UsageError(
                f"{owner} was given {spoilt} binary or multilabel predictions or targets that are neither 0 nor 1; "
                "threshold them by output_transform, or give scores of shape (N, C, ...) for classes of shape (N, ...)"
            )
        if outside := int(state["outside"]):
            raise UsageError(
                f"{owner} was given {outside} targets that are none of its {len(state['actual'])} classes, 0 to "
                f"{len(state['actual']) - 1}; leave out what is not labelled by output_transform"
            )
        if int(state["binary"]) not in (0, count):
            raise CollectiveError(f"{owner} was given binary batches on some ranks and scores of 2 classes on others")

    def compute_from(self, state: Mapping[str, torch.Tensor]) -> Any:
        """The scores of each class.

        Raises:
            NotComputableError: it holds no sample.
            UsageError: values that have to be 0 or 1 were not, or targets are none of the classes.
        """
        self.check(state)
        return Scores(
            ratio(state["right"], state["predicted"]),
            ratio(state["right"], state["actual"]),
            state["actual"].clone(),
            bool(state["binary"]),
        )


class AveragedScore(ClassCounts):
    """Base of ``Precision`` and ``Recall``: which share is taken, and how those of the classes become one.

    Attributes:
        divisor: the key of what the number of right predictions is divided by.
    """

    divisor: Literal["predicted", "actual"]

    def __init__(
        self,
        output_transform: Callable[[Any], Any] | None = None,
        average: Average = False,
        is_multilabel: bool = False,
        device: torch.device | str | None = None,
        skip_unrolling: bool = False,
    ) -> None:
        if not (average is None or isinstance(average, bool) or average in ("micro", "macro", "weighted", "samples")):
            raise UsageError(
                f"{type(self).__name__} was given average={average!r}; choose one of False, None, True, 'micro', "
                "'macro', 'weighted', 'samples'"
            )
        if average == "samples" and not is_multilabel:
            raise UsageError(
                f"{type(self).__name__} was given average='samples', which is for samples of several labels; give "
                "is_multilabel=True too, or another average"
            )
        self.average: Average = "macro" if average is True else average
        if average == "samples":
            self.sums = (*ClassCounts.sums, "shares")
        super().__init__(output_transform, is_multilabel, device, skip_unrolling)

    def add_labels(self, predicted: torch.Tensor, actual: torch.Tensor) -> None:
        """Count the labels, and for ``average="samples"`` add up each sample's share."""
        super().add_labels(predicted, actual)
        if self.average == "samples":
            whole = (predicted if self.divisor == "predicted" else actual).sum(dim=1)
            self.add(shares=(widened((predicted & actual).sum(dim=1)) / whole.clamp(min=1)).sum())

    def compute_from(self, state: Mapping[str, torch.Tensor]) -> float | torch.Tensor:
        """The score: a float, or per class or label a float64 tensor of shape ``(C,)``.

        Raises:
            NotComputableError: it holds no sample.
            UsageError: values that have to be 0 or 1 were not, or targets are none of the classes.
        """
        self.check(state)
        right, whole = state["right"], state[self.divisor]
        if self.average == "samples":
            return float(state["shares"]) / int(state["count"])
        if self.average == "micro":
            return float(ratio(right.sum(), whole.sum()))
        scores = ratio(right, whole)
        if self.average == "macro":
            return float(scores.mean())
        if self.average == "weighted":
            return float(ratio((scores * state["actual"]).sum(), state["actual"].sum()))
        return float(scores[1]) if self.average is False and bool(state["binary"]) else scores


def ratio(part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """``part / whole`` in float64, 0 where ``whole`` is."""
    some = whole != 0
    return torch.where(some, part.double() / torch.where(some, whole, 1).double(), 0.0)
