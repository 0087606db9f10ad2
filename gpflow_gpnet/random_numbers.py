"""Random numbers that are functions of a seed, the same with and without XLA."""

from __future__ import annotations

import warnings

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import AnyNDArray, TensorType
from scipy.stats import qmc

__all__ = ["ALGORITHM", "draw_seed", "integers", "low_discrepancy", "normal", "uniform"]

ALGORITHM = "philox"
"""The generator; TensorFlow's default one differs under XLA."""


def draw_seed() -> int:
    """A seed from TensorFlow's global one; a new one where op determinism forbids to draw."""
    try:
        with tf.init_scope():  # a number while tracing too
            return int(tf.random.uniform([], maxval=2**31 - 1, dtype=tf.int32))
    except RuntimeError:
        return int(np.random.default_rng().integers(2**31 - 1))


@check_shapes("seed: [2]", "return: [...]")
def integers(shape: TensorType, seed: TensorType, low: int | None, high: int | None) -> tf.Tensor:
    """Integers from low to high - 1, or any; unlike floats, the same with and without XLA."""
    return tf.random.stateless_uniform(shape, seed, low, high, tf.int32, alg=ALGORITHM)


@check_shapes("seed: [2]", "return: [...]")
def uniform(shape: TensorType, seed: TensorType, dtype: tf.DType) -> tf.Tensor:
    """Numbers strictly between 0 and 1, of as many bits as float32 has."""
    return (tf.cast(integers(shape, seed, 0, 2**23), dtype) + 0.5) / 2**23


@check_shapes("seed: [2]", "return: [...]")
def normal(shape: TensorType, seed: TensorType, dtype: tf.DType) -> tf.Tensor:
    """Independent N(0, 1) numbers, by the normal's quantile function."""
    return tf.math.ndtri(uniform(shape, seed, dtype))


@check_shapes("return: [num, dim]")
def low_discrepancy(num: int, dim: int, rng: np.random.Generator) -> AnyNDArray:
    """Points [num, dim] of the unit cube, spread evenly; each one uniform.

    A scrambled Sobol sequence whose coordinates are moved into num equal strata, for any num; in
    random order, since a regular subset of the sequence is far from even.
    """
    with warnings.catch_warnings():  # of numbers that are not powers of two, for which strata help
        warnings.simplefilter("ignore", UserWarning)
        points = qmc.Sobol(dim, seed=rng).random(num)
    strata = np.argsort(np.argsort(points, axis=0), axis=0)
    return rng.permutation((strata + rng.random((num, dim))) / num)
