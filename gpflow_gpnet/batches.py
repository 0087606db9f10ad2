"""Where training takes its batches from: arrays held once, or a stream."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from gpflow.base import RegressionData

__all__ = ["ArrayBatches", "Batches", "StreamBatches", "held_out_rows", "num_held_out"]

HELD_OUT_LIMIT = 2000


class Batches(abc.ABC):
    """Batches by step number."""

    @abc.abstractmethod
    def __call__(self, step: int) -> RegressionData:
        """The batch of a step."""


class ArrayBatches(Batches):
    """Shuffled batches of arrays; the last of an epoch is smaller where B does not divide N.

    The order is a function of (seed, step) alone, so that a resumed run sees the same batches. Data
    are tensors on the device, copied there once.
    """

    def __init__(self, data: RegressionData, batch_size: int, seed: int) -> None:
        """
        :param data: X [N, D] and Y [N, P].
        :param batch_size: B; all data at once, in order, where it is at least N.
        :raises ValueError: unless B >= 1.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}.")
        self.data = tuple(tf.convert_to_tensor(values) for values in data)
        self.num_rows = int(self.data[0].shape[0])
        self.batch_size = batch_size
        self._seed = seed
        self._epoch: tuple[int, np.ndarray] = (-1, np.arange(0))

    @property
    def batches_per_epoch(self) -> int:
        """Batches that hold each row once."""
        return -(-self.num_rows // self.batch_size)

    def __call__(self, step: int) -> RegressionData:
        if self.batch_size >= self.num_rows:
            return self.data
        epoch, position = divmod(step, self.batches_per_epoch)
        if self._epoch[0] != epoch:
            order = np.random.default_rng([self._seed, epoch]).permutation(self.num_rows)
            self._epoch = (epoch, order)
        rows = self._epoch[1][position * self.batch_size : (position + 1) * self.batch_size]
        return self.rows(rows)

    def rows(self, rows: np.ndarray) -> RegressionData:
        """The given rows of the data."""
        return tuple(tf.gather(values, rows) for values in self.data)

    def in_order(self) -> Iterator[RegressionData]:
        """Each row once, in the arrays' order."""
        for start in range(0, self.num_rows, self.batch_size):
            yield tuple(values[start : start + self.batch_size] for values in self.data)


class StreamBatches(Batches):
    """Batches of a ``tf.data.Dataset`` or an iterable of pairs, begun again where it ends."""

    def __init__(self, stream: Any, skipped: int = 0) -> None:
        """
        :param skipped: batches to leave out at first, those of steps already done.
        """
        self._stream = stream
        self._iterator = iter(stream)
        self._last: tuple[int, Any] = (-1, None)
        for step in range(skipped):
            self._next(step)

    def __call__(self, step: int) -> Any:
        # Asked again for the same step, a stream gives the same batch.
        if self._last[0] != step:
            self._last = (step, self._next(step))
        return self._last[1]

    def _next(self, step: int) -> Any:
        try:
            return next(self._iterator)
        except StopIteration:
            self._iterator = iter(self._stream)
        try:
            return next(self._iterator)
        except StopIteration:
            raise ValueError(
                f"data ended after {step} batches and cannot be begun again: give a Dataset (with "
                "repeat()), a list of batches, or an iterator of at least num_steps batches."
            ) from None


def num_held_out(total: int, fraction: float = 0.1) -> int:
    """How many rows are kept out of training to learn from them what it cannot tell."""
    return min(int(np.ceil(fraction * total)), HELD_OUT_LIMIT)


def held_out_rows(total: int, number: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the rows that stay, in order, and of those held out, at random."""
    order = np.random.default_rng([seed, 2**31]).permutation(total)
    return np.sort(order[number:]), order[:number]
