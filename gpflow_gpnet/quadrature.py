"""Integrals over f ~ N(m, v) at each row: nodes and weights; noise as a mixture of normals."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow import likelihoods
from gpflow.base import AnyNDArray
from gpflow.likelihoods import Likelihood
from gpflow.utilities import Dispatcher
from scipy import optimize, stats

from .likelihoods import KnownNoise

__all__ = ["REACH", "average", "centred_nodes", "columns", "hermite", "noise_variances"]

REACH = 6.0
"""Standard deviations of f beyond which its mass, 2e-9, is neglected."""


def columns(values: AnyNDArray, like: tf.Tensor) -> AnyNDArray:
    """[K] as [K, 1, ..., 1], one axis more than a tensor has."""
    return values.reshape([-1] + [1] * len(like.shape))


def average(weights: AnyNDArray, values: tf.Tensor) -> tf.Tensor:
    """Over the first axis."""
    return tf.tensordot(tf.cast(weights, values.dtype), values, 1)


def hermite(number: int) -> tuple[AnyNDArray, AnyNDArray]:
    """Nodes and weights of expectations under N(0, 1)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(number)
    return nodes, weights / weights.sum()


@lru_cache
def _gamma_nodes(shape: float) -> tuple[AnyNDArray, AnyNDArray]:
    """Weights and nodes of Gamma(shape, shape): equal steps in the logarithm."""
    gamma = stats.gamma(shape, scale=1.0 / shape)
    low, high = np.log(gamma.ppf(1e-13)), np.log(gamma.isf(1e-15))
    nodes = np.linspace(low, high, int((high - low) / (0.35 * min(1.0, shape**-0.5))))
    weights = np.exp(gamma.logpdf(np.exp(nodes)) + nodes)
    return weights / weights.sum(), np.exp(nodes)


@lru_cache
def centred_nodes() -> tuple[AnyNDArray, AnyNDArray]:
    """Nodes about 0 and weights of integrals, by the trapezoidal rule.

    Equal steps of asinh(z / ε) + z / κ: distances grow with |z|, from ε to κ times the step.
    """
    step, smallest, largest, reach = 0.35, 1e-3, 3.0, 2.0 * REACH

    def position(z: float) -> float:
        return float(np.arcsinh(z / smallest) + z / largest)

    half = np.arange(0.0, position(reach), step)
    right = np.array([optimize.brentq(lambda z, t=t: position(z) - t, 0.0, reach) for t in half])
    nodes = np.concatenate([-right[:0:-1], right])
    return nodes, step / (1.0 / np.hypot(smallest, nodes) + 1.0 / largest)


noise_variances: Any = Dispatcher("noise_variances")
"""Weights [K] and variances [K, batch..., N, P] of normals whose mixture is y - f; or None."""


@noise_variances.register(Likelihood, object, object, object)
def _not_normal(likelihood: Likelihood, X: Any, mean: Any, variance: Any) -> None:
    return None


@noise_variances.register((likelihoods.Gaussian, KnownNoise), object, object, object)
def _normal(likelihood: Likelihood, X: Any, mean: Any, variance: Any) -> Any:
    return np.ones(1), likelihood.conditional_variance(X, mean)[None]


@noise_variances.register(likelihoods.StudentT, object, object, object)
def _student_t(likelihood: likelihoods.StudentT, X: Any, mean: Any, variance: Any) -> Any:
    """Student's t with ν degrees: variance scale² / u, u ~ Gamma(ν / 2, ν / 2)."""
    weights, precision = _gamma_nodes(0.5 * float(likelihood.df))
    noise = tf.square(likelihood._scale(X)) * tf.ones_like(mean)
    return weights, noise / tf.cast(columns(precision, noise), noise.dtype)


@noise_variances.register(likelihoods.HeteroskedasticTFPConditional, object, object, object)
def _heteroskedastic(
    likelihood: likelihoods.HeteroskedasticTFPConditional, X: Any, mean: Any, variance: Any
) -> Any:
    """The location is the first latent, the noise is a function of the second."""
    nodes, weights = hermite(64)
    steps = tf.constant([0.0, 1.0], mean.dtype) * tf.cast(columns(nodes, mean), mean.dtype)
    conditional = likelihood.conditional_distribution(mean + tf.sqrt(variance) * steps)
    if not isinstance(conditional, tfp.distributions.Normal):
        return None
    return weights, tf.square(conditional.scale)
