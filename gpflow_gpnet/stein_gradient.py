"""The spectral Stein gradient estimator: gradients of a log density that only has samples."""

from __future__ import annotations

import tensorflow as tf
from check_shapes import check_shapes

__all__ = ["median_distance", "score"]

_EXPLAINED = 0.99
"""The share of the eigenvalues' sum that is kept by default."""

_MEDIANS = 2.0
"""The default lengthscale in median distances; 1 doubles the error for Gaussians of 1 to 10
dimensions and 100 or 500 samples."""


@check_shapes("samples: [batch..., S, D]", "return: [batch...]")
def median_distance(samples: tf.Tensor) -> tf.Tensor:
    """Median distance between two of the samples.

    >>> from gpflow_gpnet.stein_gradient import median_distance
    >>> float(median_distance(tf.constant([[0.0], [1.0], [3.0]])))
    2.0

    :param samples: S of them, in D dimensions.
    """
    size = tf.shape(samples)[-2]
    samples = _centred(samples, samples)
    squares = tf.linalg.set_diag(
        _squared_distances(samples, samples), tf.zeros_like(samples[..., 0])
    )
    shape = tf.concat([tf.shape(samples)[:-2], [size * size]], axis=0)
    ordered = tf.sort(tf.reshape(squares, shape), axis=-1)
    # The first S are the zeros of the diagonal; each pair then comes twice.
    return tf.sqrt(tf.maximum(ordered[..., size + (size * size - size) // 2], 0.0))


def _centred(values: tf.Tensor, samples: tf.Tensor) -> tf.Tensor:
    """Squared distances cancel far from 0."""
    return values - tf.reduce_mean(samples, axis=-2, keepdims=True)


def _squared_distances(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    squares = tf.reduce_sum(tf.square(a), axis=-1)[..., None] + tf.linalg.matrix_transpose(
        tf.reduce_sum(tf.square(b), axis=-1)[..., None]
    )
    return tf.maximum(squares - 2.0 * tf.matmul(a, b, transpose_b=True), 0.0)


@check_shapes(
    "samples: [batch..., S, D]",
    "points: [batch..., P, D]",
    "lengthscale: [broadcast batch...]",
    "return: [batch..., P, D]",
)
def score(
    samples: tf.Tensor,
    points: tf.Tensor,
    num_eigenvectors: int | None = None,
    lengthscale: tf.Tensor | float | None = None,
) -> tf.Tensor:
    r"""∇ log q at points, from independent samples of q (Shi, Sun and Zhu 2018, equation 11).

    Expands the gradient in eigenfunctions of a squared exponential kernel k under q (Nyström), with
    coefficients by Stein's identity. With :math:`K = k(samples, samples) = U Λ U^\top` and
    :math:`G_n = \sum_m ∇_{x_m} k(x_m, x_n)` it is

    .. math:: -k(x, samples)\, U_J Λ_J^{-2} U_J^\top G

    for the J largest eigenvalues. Time O(S³ + P S (S + D)), memory O(S² + P S), whatever D.
    Accuracy falls with the dimension that q really has.

    >>> from gpflow_gpnet.stein_gradient import score
    >>> samples = tf.constant(np.random.default_rng(0).normal(size=(200, 1)))
    >>> gradient = score(samples, tf.constant([[1.0]], tf.float64))  # of N(0, 1): -1
    >>> gradient.shape, round(float(gradient[0, 0]), 1)
    (TensorShape([1, 1]), -1.2)

    :param num_eigenvectors: J; by default as many as make 99 % of the eigenvalues' sum.
    :param lengthscale: of k, positive; by default twice the median distance of the samples.
    :raises ValueError: for J out of 1 … S.
    """
    size = samples.shape[-2]
    if num_eigenvectors is not None and not 1 <= num_eigenvectors <= (size or num_eigenvectors):
        raise ValueError(f"num_eigenvectors must be 1 to {size}, got {num_eigenvectors}.")
    if lengthscale is None:
        lengthscale = _MEDIANS * median_distance(samples)
    lengthscale = tf.convert_to_tensor(lengthscale, samples.dtype)[..., None, None]
    points, samples = (_centred(values, samples) / lengthscale for values in (points, samples))
    gram = tf.exp(-0.5 * _squared_distances(samples, samples))
    cross = tf.exp(-0.5 * _squared_distances(points, samples))
    gradients = samples * tf.reduce_sum(gram, axis=-1)[..., None] - tf.matmul(gram, samples)
    values, vectors = tf.linalg.eigh(gram)  # ascending
    largest_first = values[..., ::-1]
    if num_eigenvectors is None:
        before = tf.cumsum(largest_first, axis=-1, exclusive=True)
        kept = before < _EXPLAINED * tf.reduce_sum(values, axis=-1, keepdims=True)
    else:
        kept = tf.broadcast_to(tf.range(tf.shape(values)[-1]) < num_eigenvectors, tf.shape(values))
    weights = tf.where(kept, largest_first, tf.ones_like(values)) ** -2 * tf.cast(
        kept, values.dtype
    )
    vectors = vectors[..., ::-1]
    coefficients = weights[..., None] * tf.matmul(vectors, gradients, transpose_a=True)
    return -tf.matmul(tf.matmul(cross, vectors), coefficients) / lengthscale
