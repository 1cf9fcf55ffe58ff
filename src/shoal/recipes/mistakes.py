"""How a classifier errs: the confusion matrix and the most wrong predictions, gathered exactly over all ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shoal.engine import Engine, Events
from shoal.metrics import ConfusionMatrix, Metric
from shoal.runs import ClassifiedImages, WrongImage, png_base64

__all__ = ["Mistakes", "MostWrong", "WrongPredictions"]

_NONE = -math.inf
"""Stands for the loss of a place that no wrong prediction has taken yet."""

_CONFUSION, _MOST_WRONG = "confusion matrix", "most wrong"


class WrongPredictions(NamedTuple):
    """Wrong predictions, the one with the highest loss first.

    Attributes:
        place: ``(n,)`` int64, of the samples in their data set.
        label, predicted: ``(n,)`` int64.
        probability, label_probability: ``(n,)`` float32, the model's for ``predicted`` and for ``label``.
    """

    place: Tensor
    label: Tensor
    predicted: Tensor
    probability: Tensor
    label_probability: Tensor


class MostWrong(Metric):
    """The wrong predictions with the highest cross-entropy; of equal ones those that come first in the data set.

    An update sorts and cuts where the outputs lie, and doesn't wait for the device. A rank sends ``num_kept`` rows at
    the most, 36 bytes each.

    ``update`` takes ``(y_pred, y, index)``: scores before the softmax ``(N, C)``, classes ``(N,)``, and each sample's
    place in its data set ``(N,)``, which must rise on every rank for the order of equal ones to be that of one process.

    Args:
        num_kept: how many there are at the most.
        output_transform, device: see ``Metric``.
    """

    required_output_keys = ("y_pred", "y", "index")

    def __init__(
        self,
        num_kept: int = 24,
        output_transform: Callable[[Any], Any] | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        self.num_kept = num_kept
        super().__init__(output_transform, device)

    def reset(self) -> None:
        """Forget all samples."""
        self._numbers = torch.empty(0, 3)  # loss, probability of the prediction, probability of the label
        self._places = torch.empty(0, 3, dtype=torch.int64)  # index, label, prediction

    @torch.no_grad()
    def update(self, output: tuple[Tensor, Tensor, Tensor]) -> None:
        """Take one batch."""
        y_pred, y, index = output
        if not len(y):
            return
        logarithms = y_pred.detach().float().log_softmax(dim=1)
        predicted = logarithms.argmax(dim=1)
        of_prediction, of_label = (logarithms.gather(1, classes[:, None])[:, 0] for classes in (predicted, y))
        loss = torch.where(predicted == y, _NONE, -of_label)
        numbers = torch.stack([loss, of_prediction.exp(), of_label.exp()], dim=1)
        places = torch.stack([index.to(y.device, non_blocking=True), y, predicted], dim=1)
        device = numbers.device if self.device is None else self.device
        numbers, places = numbers.to(device), places.to(device)
        if len(self._numbers):
            numbers, places = torch.cat([self._numbers, numbers]), torch.cat([self._places, places])
        self._numbers, self._places = _worst(numbers, places, self.num_kept)

    def state(self) -> dict[str, Tensor]:
        """This rank's wrong predictions; the device is waited for here."""
        numbers, places = self._numbers.cpu(), self._places.cpu()
        wrong = numbers[:, 0] != _NONE
        return {"numbers": numbers[wrong], "places": places[wrong]}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Be as if this metric had seen the samples of ``state``."""
        self._numbers, self._places = state["numbers"], state["places"]

    def merge(self, states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """The most wrong of all ranks."""
        numbers, places = (torch.cat([state[key] for state in states]) for key in ("numbers", "places"))
        by_index = places[:, 0].argsort(stable=True)
        numbers, places = _worst(numbers[by_index], places[by_index], self.num_kept)
        return {"numbers": numbers, "places": places}

    def compute_from(self, state: Mapping[str, Tensor]) -> WrongPredictions:
        """The wrong predictions of a partial result; none where there are none."""
        _, *probabilities = state["numbers"].unbind(dim=1)
        return WrongPredictions(*state["places"].unbind(dim=1), *probabilities)


def _worst(numbers: Tensor, places: Tensor, count: int) -> tuple[Tensor, Tensor]:
    # A loss that is NaN comes first, as torch sorts.
    order = numbers[:, 0].sort(descending=True, stable=True).indices[:count]
    return numbers[order], places[order]


class Mistakes:
    """What an evaluator found out about a classifier's mistakes, in the collective of its other metrics.

    Its values are no numbers to log, so they are taken out of ``state.metrics`` before the run's end, when trackers
    look there.

    Args:
        num_classes: of the classifier.
        num_kept: how many wrong predictions are kept.

    Attributes:
        confusion: ``(C, C)``, ``confusion[label, predicted]`` samples of the last evaluation; None before the first.
        most_wrong: the predictions with the highest loss of the last evaluation; None before the first.
    """

    def __init__(self, num_classes: int, num_kept: int = 24) -> None:
        self.confusion: Tensor | None = None
        self.most_wrong: WrongPredictions | None = None
        self._metrics = {_CONFUSION: ConfusionMatrix(num_classes), _MOST_WRONG: MostWrong(num_kept)}

    def attach(self, evaluator: Engine) -> None:
        """Watch ``evaluator``, whose output is a mapping with ``y_pred``, ``y`` and ``index``."""
        for name, metric in self._metrics.items():
            metric.attach(evaluator, name)
        evaluator.add_event_handler(Events.EPOCH_COMPLETED, self._take)

    def classified_images(
        self, step: int, epoch: int, classes: tuple[str, ...], read: Callable[[int], Tensor]
    ) -> ClassifiedImages:
        """The last evaluation, with the images of the most wrong predictions.

        Args:
            step, epoch: that it came after.
            classes: the classes' names.
            read: the image at a place of the data set: ``(3, height, width)`` uint8.
        """
        assert self.confusion is not None
        assert self.most_wrong is not None
        wrong = [
            WrongImage(
                index=index,
                label=label,
                predicted=predicted,
                probability=probability,
                label_probability=label_probability,
                png=png_base64(read(index).permute(1, 2, 0).numpy()),
            )
            for index, label, predicted, probability, label_probability in zip(
                *(column.tolist() for column in self.most_wrong), strict=True
            )
        ]
        return ClassifiedImages(
            step=step,
            epoch=epoch,
            score=int(self.confusion.trace()) / int(self.confusion.sum()),
            classes=classes,
            confusion=tuple(tuple(map(int, row)) for row in self.confusion.tolist()),
            most_wrong=tuple(wrong),
        )

    def _take(self, evaluator: Engine) -> None:
        self.confusion = evaluator.state.metrics.pop(_CONFUSION)
        self.most_wrong = evaluator.state.metrics.pop(_MOST_WRONG)
