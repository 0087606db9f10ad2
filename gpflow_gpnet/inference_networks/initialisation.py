"""What a neural inference network takes from the prior at its start."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow import Parameter
from gpflow.base import AnyNDArray
from gpflow.config import default_float
from gpflow.kernels import Kernel

from ..latent_prior import latent_variance
from ..spectral import infer_input_dim, smoothing_lengthscales

__all__ = [
    "Start",
    "centred_normal",
    "flattened",
    "spread_rows",
    "starting_prior",
    "typical_inputs",
]


@dataclass(frozen=True)
class Start:
    """Sizes and scales that q starts with."""

    input_dim: int
    """D."""

    num_latent_gps: int
    """L."""

    variance: float
    """Of function values."""

    lengthscales: AnyNDArray
    """Of each input [D], 0 where unknown."""


def typical_inputs(input_dim: int) -> np.ndarray:
    """Inputs [256, D] of mean 0 and variance 1, to scale by while no data have been seen."""
    return np.random.default_rng(0).normal(size=(256, input_dim)).astype(default_float())


def spread_rows(X: AnyNDArray, most: int) -> AnyNDArray:
    """At most so many rows of X [N, D], evenly spaced: what a scale needs, in bounded memory."""
    return np.asarray(X)[:: -(-len(X) // most)]


def flattened(parameters: Iterable[Parameter]) -> AnyNDArray:
    """All values in one array, to see later whether any has moved."""
    return np.concatenate([np.ravel(parameter.numpy()) for parameter in parameters])


def starting_prior(
    kernel: Kernel | None, input_dim: int | None, num_latent_gps: int | None
) -> Start:
    """Sizes as given, else as the kernel says, else 1 latent GP; scales of the kernel, else 1.

    The variance is the kernel's mean over latent GPs and inputs of mean 0 and variance 1.

    :raises ValueError: if nothing tells D, or the arguments contradict each other.
    """
    if kernel is None and input_dim is None:
        raise ValueError("input_dim is needed, or a kernel that tells the number of inputs.")
    variance, lengthscales = 1.0, None
    if kernel is not None:
        input_dim = infer_input_dim(kernel, input_dim)
        lengthscales = smoothing_lengthscales(kernel, input_dim).numpy()
        inputs = tf.convert_to_tensor(typical_inputs(input_dim))
        variance = float(tf.reduce_mean(latent_variance(kernel, inputs)))
    assert input_dim is not None
    if isinstance(input_dim, bool) or not isinstance(input_dim, (int, np.integer)):
        raise TypeError(f"input_dim must be an integer, got {input_dim!r}.")
    if input_dim < 1:
        raise ValueError(f"input_dim must be at least 1, got {input_dim}.")
    if num_latent_gps is None:
        num_latent_gps = int(getattr(kernel, "num_latent_gps", 1))
    if num_latent_gps < 1:
        raise ValueError(f"num_latent_gps must be at least 1, got {num_latent_gps}.")
    if lengthscales is None:
        lengthscales = np.zeros(input_dim)
    return Start(int(input_dim), int(num_latent_gps), variance, lengthscales)


def centred_normal(scale: AnyNDArray | float) -> tfp.distributions.Normal:
    """N(0, scale²) as a prior of weights, where scale [in] has one entry for each row [in, out]."""
    scale = np.asarray(scale, default_float())
    return tfp.distributions.Normal(
        tf.zeros([], default_float()), tf.constant(scale[:, None] if scale.ndim else scale)
    )
