"""The one variance of a Gaussian likelihood, which an optimiser may follow by moving averages."""

from __future__ import annotations

import tensorflow as tf
from gpflow import Parameter
from gpflow.likelihoods import Gaussian, Likelihood

from .likelihoods import base_likelihood

__all__ = ["assign_noise_variance", "noise_parameter", "noise_variance"]


def noise_parameter(likelihood: Likelihood) -> Parameter | None:
    """The one variance, or the one scale in its place; None where there is no such thing."""
    likelihood = base_likelihood(likelihood)
    if not isinstance(likelihood, Gaussian):
        return None
    for name in ("variance", "scale"):
        parameter = getattr(likelihood, name, None)
        if isinstance(parameter, Parameter) and parameter.shape.num_elements() == 1:
            return parameter
    return None


def noise_variance(likelihood: Likelihood) -> tf.Tensor:
    """Of a likelihood that has one, a scalar."""
    parameter = noise_parameter(likelihood)
    value = tf.reshape(tf.convert_to_tensor(parameter), [])
    return tf.square(value) if _is_scale(likelihood, parameter) else value


def assign_noise_variance(likelihood: Likelihood, variance: tf.Tensor) -> None:
    """Set it to a scalar, or to GPflow's lower bound where that is higher.

    :raises ValueError: for a likelihood that has none.
    """
    parameter = noise_parameter(likelihood)
    if parameter is None:
        raise ValueError(f"{type(likelihood).__name__} has no single Gaussian noise variance.")
    # A little above GPflow's bound, which the parameter's transform excludes.
    value = tf.maximum(variance, 1.01 * base_likelihood(likelihood).variance_lower_bound)
    value = tf.sqrt(value) if _is_scale(likelihood, parameter) else value
    parameter.assign(tf.reshape(value, parameter.shape))


def _is_scale(likelihood: Likelihood, parameter: Parameter | None) -> bool:
    return parameter is base_likelihood(likelihood).scale
