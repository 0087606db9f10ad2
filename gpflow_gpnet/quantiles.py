r"""Quantiles of new observations: of p(y | x) = ∫ p(y | f) N(f; m, v) df, which is a mixture.

The CDF of the mixture is an average of CDFs of p(y | f), and its quantile is found by a search over
the numbers that the float type has: no scale to choose, and exact for integers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from check_shapes import check_shapes
from gpflow import likelihoods
from gpflow.base import AnyNDArray, TensorType
from gpflow.likelihoods import Likelihood

from .observations import conditional_distribution
from .quadrature import REACH, average, centred_nodes, columns, hermite, noise_variances

__all__ = ["predictive_quantiles"]

CDF = Callable[[tf.Tensor], tf.Tensor]
"""From y [Q, batch..., N, P] to P(observation ≤ y) of the same shape."""

_GRID_NODES = 600
"""About as many nodes has a grid over several latents."""


@check_shapes(
    "X: [batch..., N, D]",
    "mean: [batch..., N, L]",
    "variance: [batch..., N, L]",
    "return: [Q, batch..., N, P]",
)
def predictive_quantiles(
    likelihood: Likelihood, X: TensorType, mean: tf.Tensor, variance: tf.Tensor, levels: Any
) -> tf.Tensor:
    """Smallest y with P(observation ≤ y) ≥ level, where f ~ N(mean, variance) at each row of X.

    In closed form for Gaussian. For StudentT and Normal heteroskedastic likelihoods f is integrated
    out in closed form; for other scalar ones by quadrature, to about 1e-6 in probability (float64)
    for inverse links that are monotone; for others on a grid over the latents, which needs p(y | f)
    to be wide against the grid's spacing, about half a standard deviation of f.

    Where y is beyond the largest float, it is about that, or infinite. Without gradients.

    >>> from gpflow_gpnet.quantiles import predictive_quantiles
    >>> mean, variance = model.predict_f(X)
    >>> predictive_quantiles(likelihood, X, mean, variance, [0.05, 0.5, 0.95]).shape
    TensorShape([3, 20, 1])

    :param levels: numbers [Q] strictly between 0 and 1, in any order.
    :raises ValueError: for other levels, and for likelihoods of unordered classes.
    :raises NotImplementedError: for a likelihood without a `conditional_distribution`.
    """
    level = _checked(levels, tf.as_dtype(mean.dtype))
    if isinstance(likelihood, (likelihoods.MultiClass, likelihoods.Softmax)):
        raise ValueError(
            f"{type(likelihood).__name__}: unordered classes have no quantiles; predict_y gives "
            "their probabilities, predict_y_samples draws labels."
        )
    variance = tf.maximum(variance, 0.0)
    level = tf.reshape(level, [-1] + [1] * len(mean.shape))
    normals = noise_variances(likelihood, X, mean, variance)
    if normals is not None:
        mean, variance = mean[..., : normals[1].shape[-1]], variance[..., : normals[1].shape[-1]]
        weights, scale = normals[0], tf.sqrt(variance + normals[1])
        if len(weights) == 1:
            return mean + scale[0] * tf.math.ndtri(level)
        cdf, integers = _normal_mixture_cdf(weights, mean, scale), False
        outputs = tf.shape(mean)
    else:
        distribution = conditional_distribution(likelihood, X, mean)
        integers = distribution.experimental_default_event_space_bijector() is None
        scalar = isinstance(likelihood, likelihoods.ScalarLikelihood)
        make_cdf = _scalar_cdf if scalar else _grid_cdf
        cdf = make_cdf(likelihood, X, mean, tf.sqrt(variance))
        outputs = distribution.batch_shape_tensor()
    level = tf.broadcast_to(level, tf.concat([tf.shape(level)[:1], outputs], axis=0))
    return _search(cdf, level, integers)


def _checked(levels: Any, dtype: tf.DType) -> tf.Tensor:
    values: AnyNDArray = np.asarray(levels, dtype.as_numpy_dtype)
    if values.ndim != 1 or not values.size or not ((values > 0.0) & (values < 1.0)).all():
        raise ValueError(
            f"levels must be a list of numbers strictly between 0 and 1, got {levels!r}."
        )
    return tf.constant(values)


def _normal_mixture_cdf(weights: AnyNDArray, mean: tf.Tensor, scale: tf.Tensor) -> CDF:
    components = tfp.distributions.Normal(mean, scale[:, None])
    return lambda y: average(weights, components.cdf(y))


# ------------------------------------------------------------------ f integrated out by quadrature


def _scalar_cdf(likelihood: Likelihood, X: TensorType, mean: tf.Tensor, scale: tf.Tensor) -> CDF:
    """Quadrature with nodes about the f for which y is the median, at all distances from there.

    As a function of f the CDF of p(y | f) may be a step, where the noise is small, which nodes that
    do not know y would miss.
    """
    offsets, weights = centred_nodes()

    def conditional_cdf(y: tf.Tensor, z: tf.Tensor) -> tf.Tensor:
        return _cdf(conditional_distribution(likelihood, X, mean + scale * z), y)

    def cdf(y: tf.Tensor) -> tf.Tensor:
        centre = _median_crossing(lambda z: conditional_cdf(y, z), tf.zeros_like(y))
        z = centre + tf.cast(columns(offsets, y), y.dtype)
        density = tf.cast(columns(weights, y), y.dtype) * tf.exp(-0.5 * tf.square(z))
        total = tf.reduce_sum(density, axis=0)
        return tf.reduce_sum(density * conditional_cdf(y[None], z), axis=0) / total

    return cdf


def _median_crossing(function: CDF, centre: tf.Tensor) -> tf.Tensor:
    """Where a monotone function within reach of 0 crosses 1/2, else an end; by bisection."""
    low, high = centre - REACH, centre + REACH
    falling = function(low) >= function(high)

    def body(low: tf.Tensor, high: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        middle = 0.5 * (low + high)
        right = tf.equal(function(middle) > 0.5, falling)
        return tf.where(right, middle, low), tf.where(right, high, middle)

    low, high = tf.while_loop(lambda *_: True, body, (low, high), maximum_iterations=14)
    return 0.5 * (low + high)


def _grid_cdf(likelihood: Likelihood, X: TensorType, mean: tf.Tensor, scale: tf.Tensor) -> CDF:
    """Gauss-Hermite quadrature over all L latents at once."""
    latents = mean.shape[-1]
    nodes, weights = hermite(max(6, int(_GRID_NODES ** (1.0 / latents))))
    grid = np.stack(np.meshgrid(*[nodes] * latents, indexing="ij"), -1).reshape(-1, latents)
    weights = np.prod(np.meshgrid(*[weights] * latents, indexing="ij"), axis=0).ravel()
    z = tf.reshape(tf.cast(grid, mean.dtype), [len(grid)] + [1] * len(mean.shape[:-1]) + [latents])
    conditional = conditional_distribution(likelihood, X, (mean + scale * z)[:, None])
    return lambda y: average(weights, _cdf(conditional, y[None]))


def _cdf(distribution: Any, y: tf.Tensor) -> tf.Tensor:
    if distribution.dtype.is_integer:  # the cast to which rounds towards 0 and may overflow
        y = tf.clip_by_value(tf.floor(y), -(2.0**30), 2.0**30)
    return tf.cast(distribution.cdf(y), y.dtype)


# ------------------------------------------------------------------ search for the quantile


def _search(cdf: CDF, level: tf.Tensor, integers: bool) -> tf.Tensor:
    """Smallest float y with cdf(y) ≥ level, of level's shape; infinity if none is finite.

    Bisection between integers with the bits of floats, which are in the order of the floats. In the
    integers that the CDF is known to be constant between, it goes from one to the next.
    """
    key_type = tf.int64 if level.dtype == tf.float64 else tf.int32

    def to_key(y: tf.Tensor) -> tf.Tensor:
        key = tf.bitcast(tf.abs(y), key_type)
        return tf.where(y < 0.0, -key, key)

    def to_float(key: tf.Tensor) -> tf.Tensor:
        y = tf.bitcast(tf.abs(key), level.dtype)
        return tf.where(key < 0, -y, y)

    def body(low: tf.Tensor, high: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        key = low + (high - low) // 2
        y = to_float(key)
        reached = cdf(y) >= level
        if integers:
            y = tf.floor(y)
            return (
                tf.where(reached, low, tf.maximum(key, to_key(y + 1.0) - 1)),
                tf.where(reached, to_key(y), high),
            )
        return tf.where(reached, low, key), tf.where(reached, key, high)

    zero = tf.zeros_like(level)
    infinity = to_key(zero + np.inf)
    # Between keys of one sign the difference cannot overflow; NaN counts as not reached.
    above = tf.logical_not(cdf(zero) >= level)
    _, high = tf.while_loop(
        lambda low, high: tf.reduce_any(high - low > 1),
        body,
        (tf.where(above, to_key(zero), -infinity), tf.where(above, infinity, to_key(zero))),
        maximum_iterations=8 * key_type.size,
    )
    return to_float(high)
