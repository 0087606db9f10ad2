"""Standard normal numbers that are functions of a seed, the same with and without XLA."""

from __future__ import annotations

import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import TensorType

__all__ = ["standard_normal"]


@check_shapes("seed: [2]", "return: [...]")
def standard_normal(shape: TensorType, seed: TensorType, dtype: tf.DType) -> tf.Tensor:
    """Independent N(0, 1) numbers of a shape.

    Integers of a fixed algorithm through the normal's quantile function, since TensorFlow's own
    normal numbers are other ones under XLA.
    """
    bits = tf.random.stateless_uniform(shape, seed, 0, 2**23, tf.int32, alg="philox")
    return tf.math.ndtri((tf.cast(bits, dtype) + 0.5) / 2**23)
