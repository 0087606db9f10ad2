"""Steps on several devices or machines: sums over the rows of a batch, a share on each replica.

Replicas are those of a ``tf.distribute`` strategy. The model stays one ordinary model in each
process: replicas compute their parts of what a step sums, parts are added up by one all-reduce, and
the process makes the step once, from the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf
from gpflow.base import RegressionData

__all__ = ["Replicas", "Share", "WHOLE"]


class Share:
    """A replica's part of a sum: contiguous rows, the same number for each up to one.

    What is not a sum over rows counts one ``number``-th on each replica.

    >>> from gpflow_gpnet.replicas import Share
    >>> [Share(index, 2).rows(tf.range(5)).numpy().tolist() for index in range(2)]
    [[0, 1], [2, 3, 4]]
    """

    def __init__(self, index: int | tf.Tensor, number: int) -> None:
        """
        :param index: of the replica, from 0.
        :param number: of replicas.
        """
        self.index = index
        self.number = number

    def rows(self, values: tf.Tensor, axis: int = 0) -> tf.Tensor:
        """This replica's slice of an axis; empty where there are too few rows."""
        if self.number == 1:
            return values
        start, stop = self.bounds(size_of(values, axis))
        return values[(slice(None),) * (axis % len(values.shape)) + (slice(start, stop),)]

    def bounds(self, size: int | tf.Tensor) -> tuple[int | tf.Tensor, int | tf.Tensor]:
        """First row, and the one after the last, of so many."""
        return size * self.index // self.number, size * (self.index + 1) // self.number

    def of(self, batch: RegressionData) -> RegressionData:
        """This replica's rows of a batch."""
        X, Y = batch
        return self.rows(X), self.rows(Y)

    def gather(self, values: tf.Tensor, size: int | tf.Tensor, axis: int = 0) -> tf.Tensor:
        """All replicas' rows, of :meth:`rows` of so many, where this one has computed its own.

        Gradients are right for a loss that is the same on all replicas and counts one
        ``number``-th on each: then what reaches a replica's own rows is what reaches them on all.
        """
        if self.number == 1:
            return values
        start, stop = self.bounds(size)
        before = axis % len(values.shape)
        padding = [[0, 0]] * before + [[start, size - stop]]
        padding += [[0, 0]] * (len(values.shape) - before - 1)

        @tf.custom_gradient
        def gathered(own: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            def gradient(upstream: tf.Tensor) -> tf.Tensor:
                return self.number * self.rows(upstream, axis)

            return _all_reduce(tf.distribute.get_replica_context(), [tf.pad(own, padding)])[
                0
            ], gradient

        return gathered(values)


WHOLE = Share(0, 1)
"""The share of a replica that is alone."""


class Replicas:
    """The replicas of a strategy, or one where there is none.

    >>> from gpflow_gpnet.replicas import Replicas
    >>> replicas = Replicas(tf.distribute.MirroredStrategy(["CPU:0"]))
    >>> total = replicas.sum(lambda share: tf.reduce_sum(share.rows(tf.range(5))))
    >>> replicas.number, int(total)
    (1, 10)
    """

    def __init__(self, strategy: tf.distribute.Strategy | None = None) -> None:
        """
        :param strategy: a MirroredStrategy (devices of one host) or a MultiWorkerMirroredStrategy
            (one process a host, each with its devices); None: this process and one device.
        :raises TypeError: for another.
        """
        kinds = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)
        if strategy is not None and not isinstance(strategy, kinds):
            raise TypeError(
                "strategy must be a tf.distribute.MirroredStrategy, a "
                f"MultiWorkerMirroredStrategy or None, got {type(strategy).__name__}."
            )
        self.strategy = strategy
        self.number = 1 if strategy is None else int(strategy.num_replicas_in_sync)
        self._gather = tf.function(self._gathered, autograph=False)

    @property
    def in_several_processes(self) -> bool:
        """Whether other processes train with this one."""
        strategy = self.strategy
        return strategy is not None and self.number > len(strategy.extended.worker_devices)

    @property
    def is_chief(self) -> bool:
        """Whether this is the process that writes."""
        return self.strategy is None or bool(self.strategy.extended.should_checkpoint)

    def check(self, *owners: Any) -> None:
        """Refuse models, optimisers and callers inside ``strategy.scope()``, with its variables.

        :param owners: of ``variables``.
        :raises ValueError: saying what to move.
        """
        if tf.distribute.has_strategy():
            raise ValueError(
                "strategy.scope() is open: make the model and train it outside, and give the "
                "strategy as an argument."
            )
        for owner in owners:
            variables = owner.variables() if callable(owner.variables) else owner.variables
            if any(isinstance(variable, tf.distribute.DistributedValues) for variable in variables):
                raise ValueError(
                    f"{type(owner).__name__} was made inside strategy.scope(): make it outside, "
                    "training shares out the work itself."
                )

    def sum(self, function: Callable[[Share], Any]) -> Any:
        """Sum over replicas of a function of their share: a tensor, or a structure of them.

        None stays None. To be called where a step is compiled.
        """
        if self.strategy is None:
            return function(WHOLE)
        structure: list[Any] = []

        def on_replica() -> list[tf.Tensor]:
            context = tf.distribute.get_replica_context()
            index = context.replica_id_in_sync_group
            known = tf.get_static_value(index)
            parts = function(Share(index if known is None else int(known), self.number))
            structure.append(parts)
            tensors = [part for part in tf.nest.flatten(parts) if part is not None]
            return _all_reduce(context, [tf.convert_to_tensor(tensor) for tensor in tensors])

        sums = iter(self._local(total)[0] for total in self.strategy.run(on_replica))
        return tf.nest.map_structure(
            lambda part: None if part is None else next(sums), structure[0]
        )

    def _local(self, value: Any) -> tuple[Any, ...]:
        """A value on each replica of this process."""
        assert self.strategy is not None
        return tuple(self.strategy.experimental_local_results(value))

    # ------------------------------------------------------------------ agreement of processes

    def from_chief(self, values: Iterable[tf.Tensor]) -> list[tf.Tensor]:
        """The first replica's values, in every process."""
        values = list(values)
        if not self.in_several_processes:
            return values

        @tf.function(autograph=False)
        def broadcast() -> list[tf.Tensor]:
            return self.sum(
                lambda share: [
                    tf.where(tf.equal(share.index, 0), value, tf.zeros_like(value))
                    for value in values
                ]
            )

        return broadcast()

    def everyones(self, value: int) -> list[int]:
        """An integer of each replica's process, in the order of replicas."""
        if not self.in_several_processes:
            return [value]
        return [int(number) for number in np.asarray(self._gather(tf.constant(value, tf.int64)))]

    def _gathered(self, value: tf.Tensor) -> tf.Tensor:
        one = tf.ones([], tf.int64)
        return self.sum(lambda share: value * tf.one_hot(share.index, self.number, one, 0 * one))

    def check_same(self, value: int, what: str) -> None:
        """Refuse to go on unless all processes have the same number.

        :param what: it is, for the message, and what to do.
        :raises ValueError: in all of them, with the numbers of all.
        """
        values = self.everyones(value)
        if len(set(values)) > 1:
            raise ValueError(f"Processes differ in {what}. By replica: {values}.")


def size_of(values: tf.Tensor, axis: int = 0) -> int | tf.Tensor:
    """Length of an axis, an integer where it is known before the graph runs."""
    size = values.shape[axis]
    return tf.shape(values)[axis] if size is None else size


def _all_reduce(context: tf.distribute.ReplicaContext, parts: list[tf.Tensor]) -> list[tf.Tensor]:
    """Sums over replicas, those of one type in one message."""
    sums: dict[int, tf.Tensor] = {}
    for dtype in dict.fromkeys(part.dtype for part in parts):
        chosen = [index for index, part in enumerate(parts) if part.dtype == dtype]
        packed = tf.concat([tf.reshape(parts[index], [-1]) for index in chosen], axis=0)
        total = context.all_reduce(tf.distribute.ReduceOp.SUM, packed)
        sizes = [tf.size(parts[index]) for index in chosen]
        for index, flat in zip(chosen, tf.split(total, sizes), strict=True):
            shape = tf.shape(parts[index])
            sums[index] = tf.ensure_shape(tf.reshape(flat, shape), parts[index].shape)
    return [sums[index] for index in range(len(parts))]
