"""The batches of a run: which pass over the data this is, how far it got, and how to come back there."""

from __future__ import annotations

import io
import itertools
import logging
from collections.abc import Iterable, Iterator
from typing import Any

from shoal.errors import DataError, UsageError

__all__ = ["END", "Feed", "length_of"]

END: Any = object()  # what next() gives in place of StopIteration


def length_of(data: Any) -> int | None:
    """The number of batches that ``data`` says it has; None where it doesn't say."""
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        return None


class Feed:
    """An iterator over the data of a run, with its place.

    Attributes:
        data: what is iterated; None gives None for every batch, without end.
        iterator: the open iterator, or None.
        number: the pass over the data, counted from 0; samplers are told it by ``set_epoch``.
        skip: batches of the pass to leave out when it is opened.
        ended: the pass gave its last batch.
    """

    def __init__(self) -> None:
        self.data: Any = None
        self.iterator: Iterator[Any] | None = None
        self.number = -1
        self.skip = 0
        self.ended = True

    def reset(self, data: Any) -> None:
        """Begin a run from nothing."""
        self.data, self.iterator = data, None
        self.number, self.skip, self.ended = -1, 0, True

    def restore(self, number: int, position: int, *, ended: bool) -> None:
        """Take the place of a feed of another process; the data come with ``resume``."""
        self.reset(None)
        self.number, self.skip, self.ended = number, position, ended

    def resume(self, data: Any, position: int) -> None:
        """Go on with the batch that comes next: in the open iterator, or after ``position`` batches of other data."""
        if data is not self.data:
            self.data, self.iterator = data, None
            self.skip = position
        if self.iterator is None and not self.ended:
            _announce(data, self.number)  # now, so that a handler of EPOCH_STARTED has the last word

    def new_pass(self, data: Any, epoch: int) -> None:
        """Begin the data anew; samplers learn the pass, which is ``epoch - 1`` where an epoch is one pass.

        A stream that has not ended goes on instead.
        """
        if data is not self.data or self.ended or not _is_stream(data):
            self.iterator, self.skip = None, 0
        self.data = data
        self.number = max(epoch - 1, self.number + 1)
        self.ended = False
        _announce(data, self.number)

    def at_end(self, position: int) -> bool:
        """Whether the data say that ``position`` batches are all."""
        length = None if self.data is None else length_of(self.data)
        return self.ended or (length is not None and position >= length)

    def place(self, position: int) -> tuple[int, int]:
        """The pass and the position in it, of a position that lies in one before this where it is below 0."""
        length = None if self.data is None else length_of(self.data)
        passes, within = divmod(position, length) if position < 0 and length else (0, max(position, 0))
        return self.number + passes, within

    def go_back(self, position: int) -> int | None:
        """Have the batch at ``position``, as ``place`` takes it, come next; None where the data cannot go back.

        Returns:
            The position in its pass.
        """
        if _is_stream(self.data):
            return None
        self.number, within = self.place(position)
        self.close(within)
        return within

    def cut(self) -> None:
        """Leave the rest of the pass out; of a stream, which has but one, nothing is left out."""
        self.ended = self.ended or not _is_stream(self.data)

    def open(self, logger: logging.Logger) -> int | None:
        """Make sure of an open iterator.

        Returns:
            How many batches of the pass lie before the one that it gives next, or None where it was open already.

        Raises:
            UsageError: the data cannot be iterated.
            DataError: they end before the place to go on at.
        """
        if self.iterator is not None:
            return None
        position, self.skip = self.skip, 0
        if self.data is None:
            self.iterator = itertools.repeat(None)
            return position
        seeks = position > 0 and callable(getattr(self.data, "seek", None)) and not isinstance(self.data, io.IOBase)
        if seeks:
            self.data.seek(position)
        try:
            self.iterator = iter(self.data)
        except TypeError as error:
            raise UsageError(
                f"run() was given data of type {type(self.data).__name__}, which cannot be iterated; "
                "give a loader, a sequence or an iterator of batches"
            ) from error
        if position and not seeks:
            self._draw(position, logger)
        return position

    def close(self, position: int) -> None:
        """Let go of the iterator, and with it of a loader's workers, keeping the place.

        A stream stays as it is: it cannot be opened again.
        """
        if not _is_stream(self.data):
            self.iterator, self.skip = None, position

    def push_back(self, batch: Any) -> None:
        """Give ``batch``, which was drawn but not used, again."""
        if self.iterator is not None:
            self.iterator = itertools.chain((batch,), self.iterator)

    def _draw(self, count: int, logger: logging.Logger) -> None:
        logger.info("Going on at batch %d of the data: the %d before it are drawn and left out.", count + 1, count)
        drawn = sum(1 for _ in itertools.islice(_present(self.iterator), count))
        if drawn < count:
            raise DataError(
                f"the run was to go on after batch {count} of the data, which ended after {drawn}; "
                "give the data of the run that is resumed"
            )


def _present(iterator: Iterator[Any] | None) -> Iterable[Any]:
    return () if iterator is None else iterator


def _is_stream(data: Any) -> bool:
    """Whether the data are one iterator, as a generator is: whoever iterates them anew goes on where they are.

    One with a length is a loader that begins anew when it is iterated, although it is its own iterator.
    """
    return isinstance(data, Iterator) and length_of(data) is None


def _announce(data: Any, number: int) -> None:
    """Tell the pass to whatever orders the samples of ``data``: itself, its sampler, its batch sampler."""
    batch_sampler = getattr(data, "batch_sampler", None)
    told: list[Any] = []
    for part in (data, getattr(data, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)):
        set_epoch = getattr(part, "set_epoch", None)
        if callable(set_epoch) and not any(part is other for other in told):
            told.append(part)
            set_epoch(number)
