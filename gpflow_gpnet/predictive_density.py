"""Log densities of new observations, log ∫ p(y | f) N(f; m, v) df, for narrow noise too."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow import logdensities
from gpflow.base import TensorType
from gpflow.likelihoods import (
    Gaussian,
    Likelihood,
    QuadratureLikelihood,
    ScalarLikelihood,
    SwitchedLikelihood,
)

from .likelihoods import KnownNoise, base_likelihood, observed
from .quadrature import centred_nodes, columns, noise_variances

__all__ = ["predictive_log_density"]

_COARSE, _FARTHEST = 40, 1e4
"""How many values of f on either side, and how many of its standard deviations away, between which
the integrand's maximum is looked for."""

_SECTIONS = 40
"""That leave 5e-9 of an interval."""


@check_shapes(
    "X: [batch..., N, D]",
    "mean: [batch..., N, L]",
    "variance: [batch..., N, L]",
    "Y: [batch..., N, Q]",
    "return: [batch..., N]",
)
def predictive_log_density(
    likelihood: Likelihood, X: TensorType, mean: tf.Tensor, variance: tf.Tensor, Y: TensorType
) -> tf.Tensor:
    """log p(y) at each row, nats, summed over outputs, where f ~ N(mean, variance).

    As GPflow's, but that its Gauss-Hermite nodes, of which noise that is narrow against f's spread
    falls between two, are not used: f is integrated out in closed form for StudentT and Normal
    heteroskedastic likelihoods, and with nodes about the integrand's maximum for other scalar ones,
    to about 1e-5 nats (float64) where it has one maximum, as for log-concave likelihoods: of
    several separate ones all but one can be missed.

    >>> from gpflow_gpnet.predictive_density import predictive_log_density
    >>> narrow = gpflow.likelihoods.StudentT(scale=0.01)
    >>> zero = np.zeros((1, 1))
    >>> float(predictive_log_density(narrow, zero, zero, zero + 1.0, zero)[0])
    -0.91...

    :param Y: targets, and what the likelihood has beside them.
    """
    base = base_likelihood(likelihood)
    targets, there = observed(likelihood, Y)
    if not isinstance(base, (Gaussian, KnownNoise)):
        variance = tf.maximum(variance, 0.0)
        normals = noise_variances(base, X, mean, variance)
        if normals is not None:
            weights, noises = normals
            outputs = slice(noises.shape[-1])
            cells = logdensities.gaussian(
                targets, mean[..., outputs], variance[..., outputs] + noises
            )
            logs = cells + tf.cast(columns(np.log(weights), targets), cells.dtype)
            return _sum_of(tf.reduce_logsumexp(logs, axis=0), there)
        if _takes_quadrature(base):
            return _sum_of(_by_centred_nodes(base, X, mean, tf.sqrt(variance), targets), there)
    return likelihood.predict_log_density(X, mean, variance, Y)


def _takes_quadrature(likelihood: Likelihood) -> bool:
    method = type(likelihood)._predict_log_density
    default = method is QuadratureLikelihood._predict_log_density
    scalar = isinstance(likelihood, ScalarLikelihood)
    return default and scalar and not isinstance(likelihood, SwitchedLikelihood)


def _sum_of(cells: tf.Tensor, there: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.where(there > 0.0, cells, tf.zeros_like(cells)), axis=-1)


def _by_centred_nodes(
    likelihood: ScalarLikelihood, X: TensorType, mean: tf.Tensor, scale: tf.Tensor, Y: tf.Tensor
) -> tf.Tensor:
    """Trapezoidal rule with nodes at all distances from the integrand's maximum."""

    def log_integrand(z: tf.Tensor) -> tf.Tensor:
        return likelihood._scalar_log_prob(X, mean + scale * z, Y) + logdensities.gaussian(
            z, tf.zeros_like(z), tf.ones_like(z)
        )

    offsets, weights = centred_nodes()
    centre = _maximum(log_integrand, mean + tf.zeros_like(Y))
    z = centre + tf.cast(columns(offsets, centre), centre.dtype)
    logs = log_integrand(z) + tf.cast(columns(np.log(weights), centre), centre.dtype)
    undefined = tf.reduce_all(tf.math.is_nan(logs), axis=0)
    density = tf.reduce_logsumexp(_without_nan(logs), axis=0)
    return tf.where(undefined, tf.constant(np.nan, density.dtype), density)


def _without_nan(logs: tf.Tensor) -> tf.Tensor:
    """Log densities of f so far away that they overflow are those of 0."""
    return tf.where(tf.math.is_nan(logs), tf.constant(-np.inf, logs.dtype), logs)


def _maximum(function: Callable[[tf.Tensor], tf.Tensor], like: tf.Tensor) -> tf.Tensor:
    """Where a function of one maximum has it: among coarse values, then by golden sections."""
    sides = np.geomspace(0.1, _FARTHEST, _COARSE)
    coarse = tf.constant(np.concatenate([-sides[::-1], [0.0], sides]), like.dtype)

    def value(z: tf.Tensor) -> tf.Tensor:
        return _without_nan(function(z))

    shape = tf.concat([tf.shape(coarse), tf.shape(like)], axis=0)
    grid = tf.broadcast_to(tf.reshape(coarse, [-1] + [1] * len(like.shape)), shape)
    best = tf.argmax(value(grid), axis=0)
    ends = (
        tf.gather(coarse, tf.maximum(best - 1, 0)),
        tf.gather(coarse, tf.minimum(best + 1, 2 * _COARSE)),
    )
    golden = 0.5 * (np.sqrt(5.0) - 1.0)

    def body(low: tf.Tensor, high: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        length = golden * (high - low)
        left, right = high - length, low + length
        falls = value(left) > value(right)
        return tf.where(falls, low, left), tf.where(falls, right, high)

    low, high = tf.while_loop(lambda *_: True, body, ends, maximum_iterations=_SECTIONS)
    return 0.5 * (low + high)
