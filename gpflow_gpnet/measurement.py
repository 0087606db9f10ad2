"""Distributions c(x) of the measurement points at which functions are compared.

Draws are functions of a stateless seed, the same ones with and without XLA.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from gpflow.base import AnyNDArray, TensorType
from gpflow.config import default_float
from gpflow.kernels import Kernel

from . import random_numbers
from .checks import check_finite
from .spectral import smoothing_lengthscales

__all__ = [
    "BatchInputs",
    "Empirical",
    "KernelSmoothed",
    "MeasurementDistribution",
    "Mixture",
    "Uniform",
    "UserDefined",
    "as_measurement",
]

Count: TypeAlias = "int | tf.Tensor"
Seed: TypeAlias = "TensorType | Sequence[int]"


class MeasurementDistribution(abc.ABC):
    """Distribution c(x) over inputs with D columns (Shi, Khan and Zhu 2019, section 3).

    >>> distribution = gpn.measurement.Uniform(0.0, 1.0)
    >>> distribution(3).shape, distribution.sample(3, seed=[0, 1]).shape
    (TensorShape([3, 1]), TensorShape([3, 1]))
    """

    @abc.abstractmethod
    def sample(self, num: Count, seed: Seed, batch_inputs: TensorType | None = None) -> tf.Tensor:
        """Draw num points [num, D], a function of the seed.

        :param num: M, the number of points: an integer, or a scalar tensor where only the graph
            knows.
        :param seed: two integers.
        :param batch_inputs: inputs [B, D] of the current batch; points have their dtype, or the
            default float where there is no batch.
        :raises ValueError: if the distribution needs a batch and has none, or the number of columns
            differs from the batch's.
        """

    def __call__(self, num: Count, seed: Seed = (0, 0)) -> tf.Tensor:
        """Draw num points [num, D] from a distribution that needs no batch."""
        return self.sample(num, seed)

    def mapped(
        self, forward: Callable[[tf.Tensor], tf.Tensor], inverse: Callable[[tf.Tensor], tf.Tensor]
    ) -> MeasurementDistribution:
        """The distribution of forward(x); batches are then given as forward(batch) as well."""
        return _Mapped(self, forward, inverse)


class _Mapped(MeasurementDistribution):
    def __init__(
        self,
        distribution: MeasurementDistribution,
        forward: Callable[[tf.Tensor], tf.Tensor],
        inverse: Callable[[tf.Tensor], tf.Tensor],
    ) -> None:
        self.distribution = distribution
        self.forward = forward
        self.inverse = inverse

    def sample(self, num: Count, seed: Seed, batch_inputs: TensorType | None = None) -> tf.Tensor:
        batch = None if batch_inputs is None else self.inverse(batch_inputs)
        return self.forward(self.distribution.sample(num, seed, batch))


def _dtype(batch_inputs: TensorType | None) -> tf.DType:
    return tf.as_dtype(default_float() if batch_inputs is None else batch_inputs.dtype)


def _like_batch(points: tf.Tensor, batch_inputs: TensorType | None, name: str) -> tf.Tensor:
    """Points in the dtype of the batch, after a check of their columns."""
    if batch_inputs is not None and points.shape[-1] != batch_inputs.shape[-1]:
        raise ValueError(
            f"{name}: points have {points.shape[-1]} columns, but batch_inputs have shape "
            f"{tuple(batch_inputs.shape)}."
        )
    return tf.cast(points, _dtype(batch_inputs))


def _seeds(seed: Seed, num: int) -> list[tf.Tensor]:
    """Independent seeds made of one."""
    return tf.unstack(
        tf.random.experimental.stateless_split(seed, num, alg=random_numbers.ALGORITHM), num
    )


class Uniform(MeasurementDistribution):
    """Uniform on the box from low to high.

    >>> gpn.measurement.Uniform([0.0, -1.0], [1.0, 1.0])(5).shape
    TensorShape([5, 2])
    """

    def __init__(self, low: TensorType | float, high: TensorType | float) -> None:
        """
        :param low: lower corner [D], or a scalar for all inputs.
        :param high: upper corner, likewise. With two scalars D is the batch's, 1 without a batch.
        :raises ValueError: unless low < high everywhere, both finite.
        """
        low, high = np.broadcast_arrays(np.asarray(low, float), np.asarray(high, float))
        if low.ndim > 1 or not (np.isfinite(low) & np.isfinite(high) & (low < high)).all():
            raise ValueError(
                "low and high must be finite scalars or vectors [D] with low < high, got "
                f"low = {low}, high = {high}."
            )
        self.low = tf.constant(low, default_float())
        self.high = tf.constant(high, default_float())

    def sample(self, num: Count, seed: Seed, batch_inputs: TensorType | None = None) -> tf.Tensor:
        dtype = _dtype(batch_inputs)
        low, high = tf.cast(self.low, dtype), tf.cast(self.high, dtype)
        scalar_dim = 1 if batch_inputs is None else batch_inputs.shape[-1]
        dim = low.shape[0] if low.shape.rank else scalar_dim
        points = low + (high - low) * random_numbers.uniform([num, dim], seed, dtype)
        return _like_batch(points, batch_inputs, "Uniform")


class Empirical(MeasurementDistribution):
    """Rows of a data set, drawn with replacement.

    >>> points = gpn.measurement.Empirical(X)(5)
    >>> points.shape, bool(np.isin(points, X).all())
    (TensorShape([5, 1]), True)
    """

    def __init__(self, X: TensorType) -> None:
        """
        :param X: inputs [N, D].
        :raises ValueError: for another rank, no rows, or values that are not finite.
        """
        self.X = _to_default_float(X)
        if self.X.shape.rank != 2 or self.X.shape[0] == 0:
            raise ValueError(f"X must have shape [N, D] with at least one row, got {self.X.shape}.")
        if tf.executing_eagerly():
            check_finite("X, the measurement points,", self.X.numpy())

    def sample(self, num: Count, seed: Seed, batch_inputs: TensorType | None = None) -> tf.Tensor:
        rows = random_numbers.integers([num], seed, 0, self.X.shape[0])
        return _like_batch(tf.gather(self.X, rows), batch_inputs, "Empirical")


class BatchInputs(MeasurementDistribution):
    """Rows of the batch in random order, each used once before any is used again.

    >>> points = gpn.measurement.BatchInputs().sample(20, [0, 1], tf.constant(X))
    >>> bool(np.allclose(np.sort(points, axis=0), X))  # each once
    True
    """

    def mapped(self, forward: Any, inverse: Any) -> MeasurementDistribution:
        return self

    def sample(self, num: Count, seed: Seed, batch_inputs: TensorType | None = None) -> tf.Tensor:
        if batch_inputs is None:
            raise ValueError("BatchInputs needs batch_inputs [B, D], got None.")
        batch_size = tf.shape(batch_inputs)[0]
        order = tf.argsort(random_numbers.integers([batch_size], seed, None, None))
        return tf.gather(batch_inputs, tf.gather(order, tf.range(num) % batch_size))


class KernelSmoothed(MeasurementDistribution):
    """Rows plus Gaussian noise of standard deviation lengthscale / sqrt(2) in every input.

    Lengthscales are the kernel's current ones, by `spectral.smoothing_lengthscales`; no gradient
    flows to them. Inputs without a lengthscale, such as an output index, get no noise.

    >>> gpn.measurement.KernelSmoothed(X, kernel)(5).shape
    TensorShape([5, 1])
    """

    def __init__(self, X: TensorType | None, kernel: Kernel) -> None:
        """
        :param X: inputs [N, D], drawn with replacement; None for rows of the batch.
        :param kernel: of one or several outputs.
        :raises TypeError: if kernel is not a GPflow kernel.
        :raises ValueError: as `Empirical`.
        """
        if not isinstance(kernel, Kernel):
            raise TypeError(f"kernel must be a gpflow.kernels.Kernel, got {type(kernel).__name__}.")
        self.centres: MeasurementDistribution = BatchInputs() if X is None else Empirical(X)
        self.kernel = kernel

    def mapped(self, forward: Any, inverse: Any) -> MeasurementDistribution:
        """Centres are mapped; lengthscales are those of the kernel, which sees mapped inputs."""
        distribution = KernelSmoothed(None, self.kernel)
        distribution.centres = self.centres.mapped(forward, inverse)
        return distribution

    def sample(self, num: Count, seed: Seed, batch_inputs: TensorType | None = None) -> tf.Tensor:
        if batch_inputs is None and isinstance(self.centres, BatchInputs):
            raise ValueError("KernelSmoothed(None, kernel) needs batch_inputs [B, D], got None.")
        row_seed, noise_seed = _seeds(seed, 2)
        points = self.centres.sample(num, row_seed, batch_inputs)
        scale = tf.stop_gradient(smoothing_lengthscales(self.kernel, points.shape[-1]))
        noise = random_numbers.normal(tf.shape(points), noise_seed, points.dtype)
        return points + tf.cast(scale, points.dtype) * np.sqrt(0.5) * noise


class Mixture(MeasurementDistribution):
    """A fixed number of points from each of several distributions, in proportion to weights.

    >>> mixture = gpn.measurement.Mixture(X, gpn.measurement.Uniform(5.0, 6.0), weights=[3, 1])
    >>> int(np.sum(mixture(8) > 4.0))
    2
    """

    def __init__(self, *components: Any, weights: Sequence[float] | None = None) -> None:
        """
        :param components: whatever `as_measurement` takes.
        :param weights: one a component, not negative; equal by default. What rounding down leaves
            over goes to the first component.
        :raises ValueError: for no component, or other weights.
        """
        if not components:
            raise ValueError("components must hold at least one distribution, got none.")
        shares: AnyNDArray = np.ones(len(components)) if weights is None else np.asarray(weights)
        if shares.shape != (len(components),) or not ((shares >= 0.0).all() and shares.sum() > 0.0):
            raise ValueError(
                f"weights must be {len(components)} numbers, one a component, none negative and "
                f"not all 0, got {weights}."
            )
        distributions = [as_measurement(component) for component in components]
        self.components = [component for component in distributions if component is not None]
        if len(self.components) != len(components):
            raise ValueError("components must be distributions, got None among them.")
        self.weights = shares / shares.sum()

    def mapped(self, forward: Any, inverse: Any) -> MeasurementDistribution:
        components = (component.mapped(forward, inverse) for component in self.components)
        return Mixture(*components, weights=self.weights)

    def sample(self, num: Count, seed: Seed, batch_inputs: TensorType | None = None) -> tf.Tensor:
        counts = self._counts(num)
        seeds = _seeds(seed, len(self.components))
        return tf.concat(
            [
                component.sample(count, component_seed, batch_inputs)
                for component, count, component_seed in zip(
                    self.components, counts, seeds, strict=True
                )
                if tf.is_tensor(count) or count
            ],
            axis=0,
        )

    def _counts(self, num: Count) -> list[Count]:
        # The small number keeps a whole share from falling below itself by rounding.
        if tf.is_tensor(num):
            shares = tf.cast(num, tf.float64) * self.weights + 1e-9
            counts = tf.unstack(tf.cast(shares, tf.int32))
        else:
            counts = (num * self.weights + 1e-9).astype(int).tolist()
        counts[0] += num - sum(counts)
        return counts


class UserDefined(MeasurementDistribution):
    """A function from a number of points to points; it, not the seed, makes the randomness.

    A function of NumPy is called anew at each step, also where the step is compiled, but not by
    XLA; one of TensorFlow operations has no such limit.

    >>> gpn.measurement.UserDefined(lambda n: np.full([n, 2], 0.5))(3).shape
    TensorShape([3, 2])
    """

    def __init__(self, function: Callable[[int], TensorType]) -> None:
        """
        :param function: n -> [n, D].
        """
        self.function = function

    def sample(self, num: Count, seed: Seed, batch_inputs: TensorType | None = None) -> tf.Tensor:
        """Draw num points [num, D].

        :raises ValueError: if the function returns another shape, or other columns than the batch.
        """
        tracing = not tf.executing_eagerly()
        state = np.random.get_state()
        try:
            points = self.function(num)
        except TypeError:  # NumPy does not take a number that only the graph knows
            if not tf.is_symbolic_tensor(num):
                raise
            if batch_inputs is None:
                raise ValueError(
                    "a measurement function of NumPy needs a fixed number of points where there "
                    "is no batch whose columns they have: set num_measurement_points."
                ) from None
            return self._draw(num, [None, batch_inputs.shape[-1]], _dtype(batch_inputs))
        finally:
            if tracing:  # how often a step is traced must not show in its numbers
                np.random.set_state(state)
        shape = tuple(points.shape) if tf.is_tensor(points) else np.shape(points)
        expected = None if tf.is_tensor(num) else num
        if len(shape) != 2 or (expected and shape[0] not in (None, expected)):
            raise ValueError(
                f"the measurement function must return points of shape [n, D] for n = {num}, got "
                f"shape {shape}."
            )
        if tracing and not tf.is_symbolic_tensor(points):
            # Tracing would make the points a constant of the graph.
            points = self._draw(num, [expected, shape[1]], _dtype(batch_inputs))
        points = tf.ensure_shape(points, [expected, shape[1]])
        return _like_batch(points, batch_inputs, "UserDefined")

    def _draw(self, num: Count, shape: list[int | None], dtype: tf.DType) -> tf.Tensor:
        """Points of a function of NumPy, drawn when the graph runs."""

        def draw(number: Any) -> Any:
            return np.asarray(self.function(int(number)), dtype.as_numpy_dtype)

        return tf.ensure_shape(tf.numpy_function(draw, [num], dtype), shape)


def _to_default_float(X: TensorType) -> tf.Tensor:
    values = X if tf.is_tensor(X) else np.asarray(X, default_float())
    return tf.cast(values, default_float())


def as_measurement(obj: Any) -> MeasurementDistribution | None:
    """Distribution of measurement points from what users pass; None stays None.

    >>> type(gpn.measurement.as_measurement(X)).__name__
    'Empirical'

    :param obj: a distribution, a function n -> [n, D], or rows [M, D] to draw from.
    :raises TypeError: for anything else.
    :raises ValueError: for an array of another rank, or without rows.
    """
    if obj is None or isinstance(obj, MeasurementDistribution):
        return obj
    message = (
        "measurement must be a distribution of gpflow_gpnet.measurement, a function n -> [n, D], "
        f"an array [M, D] or None, got {obj!r}."
    )
    if isinstance(obj, (type, Kernel)):
        raise TypeError(message)
    if callable(obj):
        return UserDefined(obj)
    try:
        rows = _to_default_float(obj)
    except (TypeError, ValueError) as error:
        raise TypeError(message) from error
    return Empirical(rows)
