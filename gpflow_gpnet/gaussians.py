"""Gaussian algebra on plain tensors: factorisations, the mirror-descent target and divergences.

Nothing here knows of kernels, networks or training. Leading dimensions are batch dimensions (latent
GPs, in this package). References: Shi, Khan and Zhu (2019), section 3; Khan and Lin (2017).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.config import default_jitter

__all__ = [
    "add_diagonal",
    "bridge",
    "cholesky",
    "cholesky_and_inverse",
    "condition",
    "conjugate_gradients",
    "expected_log_ratio",
    "kl_divergence",
    "lower_root_of_inverse",
    "nugget",
    "symmetrise",
    "times_lower",
]

_RETRIES = 5
_LEAF = 128
_BLOCKS = 4
_SMALLEST_BLOCK = 200


def symmetrise(matrix: tf.Tensor) -> tf.Tensor:
    """Average of a matrix [..., N, N] and its transpose.

    >>> gpn.gaussians.symmetrise(tf.constant([[1.0, 2.0], [0.0, 1.0]])).numpy().tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    return 0.5 * (matrix + tf.linalg.matrix_transpose(matrix))


def nugget(covariance: tf.Tensor) -> tf.Tensor:
    """Diagonal [...] that makes covariance [..., N, N] safely positive definite in its dtype.

    ``default_jitter()`` relative to the mean variance, never below the rounding error of an
    N x N factorisation.

    >>> float(gpn.gaussians.nugget(tf.eye(3, dtype=tf.float64)))
    1e-06
    """
    size = tf.cast(tf.shape(covariance)[-1], covariance.dtype)
    relative = tf.maximum(
        tf.constant(default_jitter(), covariance.dtype), 8.0 * _epsilon(covariance.dtype) * size
    )
    return relative * _mean_diagonal(covariance)


def _epsilon(dtype: tf.DType) -> float:
    return float(np.finfo(dtype.as_numpy_dtype).eps)


def _mean_diagonal(matrix: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.linalg.diag_part(matrix), axis=-1)


def add_diagonal(matrix: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """matrix [..., N, N] plus value [...] times the identity.

    >>> gpn.gaussians.add_diagonal(tf.ones([2, 2]), tf.constant(1.0)).numpy().tolist()
    [[2.0, 1.0], [1.0, 2.0]]
    """
    return tf.linalg.set_diag(matrix, tf.linalg.diag_part(matrix) + value[..., None])


def times_lower(matrix: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """matrix [..., N, F] times lower-triangular factor [..., F, F], in 5/8 of the arithmetic.

    Large products go by blocks, without those of the factor's zeros; so do their gradients.

    >>> factor = tf.constant([[2.0, 0.0], [1.0, 1.0]])
    >>> gpn.gaussians.times_lower(tf.ones([3, 2]), factor).numpy().tolist()
    [[3.0, 1.0], [3.0, 1.0], [3.0, 1.0]]
    """
    size = factor.shape[-1]
    if (
        size is None
        or size < _BLOCKS * _SMALLEST_BLOCK
        or matrix.shape[:-2] != factor.shape[:-2]
        or not matrix.shape[:-2].is_fully_defined()
    ):
        return tf.matmul(matrix, factor)
    edges = np.linspace(0, size, _BLOCKS + 1).astype(int)
    blocks = list(pairwise(edges.tolist()))

    @tf.custom_gradient
    def product(
        matrix: tf.Tensor, factor: tf.Tensor
    ) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]]:
        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            d_matrix = [
                tf.matmul(upstream[..., :stop], factor[..., start:stop, :stop], transpose_b=True)
                for start, stop in blocks
            ]
            d_factor = [
                tf.pad(
                    tf.matmul(matrix[..., start:], upstream[..., start:stop], transpose_a=True),
                    [[0, 0]] * (len(factor.shape) - 2) + [[start, 0], [0, 0]],
                )
                for start, stop in blocks
            ]
            return tf.concat(d_matrix, axis=-1), tf.linalg.band_part(
                tf.concat(d_factor, axis=-1), -1, 0
            )

        columns = [
            tf.matmul(matrix[..., start:], factor[..., start:, start:stop])
            for start, stop in blocks
        ]
        return tf.concat(columns, axis=-1), gradient

    return product(matrix, factor)


def _all_finite(matrix: tf.Tensor) -> tf.Tensor:
    return tf.reduce_all(tf.math.is_finite(matrix))


def _with_retries(
    factorise: Callable[[tf.Tensor], tf.Tensor], matrix: tf.Tensor, name: str
) -> tf.Tensor:
    """Factorise; while the result is not finite, try again with ten times more jitter."""
    kind = f"a {matrix.dtype.name} matrix of shape {matrix.shape}"
    scale = tf.abs(_mean_diagonal(matrix)) + tf.cast(1e-30, matrix.dtype)
    start = tf.constant(default_jitter(), matrix.dtype)

    def attempt(k: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        jitter = start * tf.cast(10.0, matrix.dtype) ** tf.cast(k, matrix.dtype)
        return k + 1, factorise(add_diagonal(matrix, jitter * scale))

    def retry() -> tf.Tensor:
        _, result = tf.while_loop(
            lambda k, result: ~_all_finite(result),
            attempt,
            attempt(tf.constant(0), matrix),
            maximum_iterations=_RETRIES - 1,
        )
        checks = [
            tf.debugging.Assert(
                _all_finite(matrix),
                [
                    f"Cholesky of {name} failed: {kind} has NaN or infinite entries. Likely cause: "
                    "parameters that diverged, or data that are not finite. Shape now:",
                    tf.shape(matrix),
                ],
            ),
            tf.debugging.Assert(
                _all_finite(result),
                [
                    f"Cholesky of {name} failed: {kind} is not positive definite, even with "
                    f"{_RETRIES} increasing amounts of jitter. Likely cause: inputs that are not "
                    "centred, or lengthscales far below their spread (squared distances cancel), "
                    "an indefinite kernel, or float32 where float64 is needed. Remedy: scale the "
                    "inputs, raise gpflow's default jitter or use float64. Shape now:",
                    tf.shape(matrix),
                ],
            ),
        ]
        with tf.control_dependencies([check for check in checks if check is not None]):
            return tf.identity(result)

    first = factorise(matrix)
    return tf.cond(_all_finite(first), lambda: first, retry)


def cholesky(matrix: tf.Tensor, name: str = "matrix") -> tf.Tensor:
    """Lower Cholesky factor [..., N, N] that retries with more jitter and then says why it failed.

    >>> gpn.gaussians.cholesky(tf.constant([[4.0, 2.0], [2.0, 2.0]])).numpy().tolist()
    [[2.0, 0.0], [1.0, 1.0]]

    :param matrix: [..., N, N], symmetric.
    :param name: what the matrix is, for the error message.
    :raises tf.errors.InvalidArgumentError: naming the matrix, shape, dtype and likely cause; also
        inside ``tf.function``. Under ``jit_compile=True`` assertions do not exist: NaN comes back.
    """

    @tf.custom_gradient
    def factorise(matrix: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        factor = _with_retries(tf.linalg.cholesky, matrix, name)

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            inner = tf.linalg.band_part(tf.matmul(factor, upstream, transpose_a=True), -1, 0)
            inner = tf.linalg.set_diag(inner, 0.5 * tf.linalg.diag_part(inner))
            left = tf.linalg.triangular_solve(factor, inner, adjoint=True)
            both = tf.linalg.triangular_solve(
                factor, tf.linalg.matrix_transpose(left), adjoint=True
            )
            return symmetrise(both)

        return factor, gradient

    return factorise(matrix)


def _factor_and_inverse(matrix: tf.Tensor, size: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Recursive halves, so that nearly all the arithmetic is matrix products."""
    if size <= _LEAF:
        factor = tf.linalg.cholesky(matrix)
        identity = tf.eye(size, batch_shape=tf.shape(matrix)[:-2], dtype=matrix.dtype)
        return factor, tf.linalg.triangular_solve(factor, identity)
    half = size // 2
    top, top_inverse = _factor_and_inverse(matrix[..., :half, :half], half)
    side = tf.matmul(matrix[..., half:, :half], top_inverse, transpose_b=True)
    corner, corner_inverse = _factor_and_inverse(
        matrix[..., half:, half:] - tf.matmul(side, side, transpose_b=True), size - half
    )
    side_inverse = -tf.matmul(corner_inverse, tf.matmul(side, top_inverse))

    def assemble(top: tf.Tensor, side: tf.Tensor, corner: tf.Tensor) -> tf.Tensor:
        upper = tf.pad(top, [[0, 0]] * (len(matrix.shape) - 1) + [[0, size - half]])
        return tf.concat([upper, tf.concat([side, corner], axis=-1)], axis=-2)

    return assemble(top, side, corner), assemble(top_inverse, side_inverse, corner_inverse)


def cholesky_and_inverse(matrix: tf.Tensor, name: str = "matrix") -> tuple[tf.Tensor, tf.Tensor]:
    """Cholesky factor and its inverse, both [..., N, N], at the cost of little more than one.

    N must be known statically. Not differentiable in graph mode beyond the first attempt.

    >>> factor, inverse = gpn.gaussians.cholesky_and_inverse(tf.constant([[4.0, 2.0], [2.0, 2.0]]))
    >>> bool(np.allclose(factor @ inverse, np.eye(2)))
    True

    :raises tf.errors.InvalidArgumentError: as :func:`cholesky`.
    """
    size = matrix.shape[-1]
    if size is None:
        raise ValueError(f"{name} must have a static size, got shape {matrix.shape}.")

    def both(matrix: tf.Tensor) -> tf.Tensor:
        return tf.stack(_factor_and_inverse(matrix, size))

    stacked = _with_retries(both, matrix, name)
    return stacked[0], stacked[1]


def lower_root_of_inverse(precision: tf.Tensor, name: str = "precision") -> tf.Tensor:
    """Lower-triangular S [..., N, N] with S Sᵀ = precision⁻¹ [..., N, N].

    The Cholesky factor of the reversed matrix is an upper-triangular factor of the matrix itself,
    whose inverse transpose is lower triangular.

    >>> precision = tf.constant([[4.0, 2.0], [2.0, 2.0]])
    >>> root = gpn.gaussians.lower_root_of_inverse(precision)
    >>> bool(np.allclose(root @ tf.transpose(root), tf.linalg.inv(precision)))
    True
    """
    _, inverse = cholesky_and_inverse(tf.reverse(precision, axis=[-2, -1]), name)
    return tf.linalg.matrix_transpose(tf.reverse(inverse, axis=[-2, -1]))


@check_shapes(
    "matrix: [batch..., N, N]",
    "target: [batch..., N]",
    "start: [batch..., N]",
    "root: [batch..., N, N]",
    "return: [batch..., N]",
)
def conjugate_gradients(
    matrix: tf.Tensor, target: tf.Tensor, start: tf.Tensor, root: tf.Tensor, iterations: int
) -> tf.Tensor:
    """A better solution of matrix x = target than the start, by preconditioned conjugate gradients.

    Each iteration reduces the error's norm in the matrix, costs O(N²), and N of them are exact.

    >>> matrix, target = tf.constant([[4.0, 2.0], [2.0, 2.0]]), tf.constant([2.0, 1.0])
    >>> start, root = tf.zeros(2), tf.eye(2)
    >>> x = gpn.gaussians.conjugate_gradients(matrix, target, start, root, iterations=2)
    >>> x.shape, bool(np.allclose(x, [0.5, 0.0], atol=1e-5))
    (TensorShape([2]), True)

    :param matrix: positive definite.
    :param root: S with S Sᵀ ≈ matrix⁻¹; where that is exact, so is the first iteration.
    """

    def times(operator: tf.Tensor, vector: tf.Tensor, transpose: bool = False) -> tf.Tensor:
        return tf.matmul(operator, vector[..., None], transpose_a=transpose)[..., 0]

    def inner(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(left * right, axis=-1, keepdims=True)

    solution, residual = start, target - times(matrix, start)
    direction, old_size = tf.zeros_like(start), tf.ones_like(start[..., :1])
    for _ in range(iterations):
        preconditioned = times(root, times(root, residual, transpose=True))
        size = inner(residual, preconditioned)
        direction = preconditioned + size / old_size * direction
        image = times(matrix, direction)
        step = tf.math.divide_no_nan(size, inner(direction, image))
        solution, residual = solution + step * direction, residual - step * image
        # A residual of zero stays zero.
        old_size = tf.where(size > 0.0, size, tf.ones_like(size))
    return solution


@check_shapes(
    "prior_mean: [broadcast batch..., N]",
    "prior_cov: [broadcast batch..., N, N]",
    "mean: [batch..., N]",
    "cov: [batch..., N, N]",
    "return[0]: [batch..., N]",
    "return[1]: [batch..., N, N]",
)
def bridge(
    beta: tf.Tensor,
    prior_mean: tf.Tensor,
    prior_cov: tf.Tensor,
    mean: tf.Tensor,
    cov: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    r"""Mean and covariance of p^β q^{1-β}, the Gaussian between prior p and network q.

    With :math:`C = β Σ + (1-β) K`: covariance :math:`K C^{-1} Σ`, mean
    :math:`β Σ C^{-1} m_0 + (1-β) K C^{-1} μ`. Neither K nor Σ is inverted, so K may be singular,
    and Σ too where β < 1. (Shi et al. 2019, section 3.2.)

    >>> K, S, zeros = tf.eye(3), 0.25 * tf.eye(3), tf.zeros(3)
    >>> mean, cov = gpn.gaussians.bridge(0.5, zeros, K, zeros, S)
    >>> mean.shape, bool(np.allclose(cov, np.eye(3) / (0.5 + 0.5 * 4)))  # precisions average
    (TensorShape([3]), True)

    :param beta: step size in [0, 1].
    :raises tf.errors.InvalidArgumentError: if C is not positive definite.
    """
    prior_cov = tf.broadcast_to(prior_cov, tf.shape(cov))
    prior_mean = tf.broadcast_to(prior_mean, tf.shape(mean))
    beta = tf.cast(tf.convert_to_tensor(beta, dtype_hint=cov.dtype), cov.dtype)
    factor = cholesky(beta * cov + (1.0 - beta) * prior_cov, "the bridge βΣ + (1-β)K")
    whitened_prior = tf.linalg.triangular_solve(factor, prior_cov)
    whitened = tf.linalg.triangular_solve(factor, cov)
    bridge_cov = symmetrise(tf.matmul(whitened_prior, whitened, transpose_a=True))

    def solve(vector: tf.Tensor) -> tf.Tensor:
        return tf.linalg.triangular_solve(factor, vector[..., None])

    bridge_mean = beta * tf.matmul(whitened, solve(prior_mean), transpose_a=True) + (
        1.0 - beta
    ) * tf.matmul(whitened_prior, solve(mean), transpose_a=True)
    return bridge_mean[..., 0], bridge_cov


@check_shapes(
    "mean: [batch..., J]",
    "cov: [batch..., J, J]",
    "y: [broadcast batch..., B]",
    "precision: [broadcast batch..., B]",
    "return[0]: [batch..., M]",
    "return[1]: [batch..., M, M]",
)
def condition(
    mean: tf.Tensor, cov: tf.Tensor, y: tf.Tensor, precision: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Condition the first B rows of N(mean, cov) on y; moments of the other M = J - B rows.

    >>> cov = tf.constant([[1.0, 0.5], [0.5, 1.0]])  # J = 2, of which the first is observed
    >>> mean, variance = gpn.gaussians.condition(tf.zeros(2), cov, tf.ones(1), tf.ones(1))
    >>> mean.numpy().round(3).tolist(), variance.numpy().round(3).tolist()
    ([0.25], [[0.875]])

    :param precision: 1 / noise variance of each observation; 0 leaves that observation out.
    """
    batch = tf.shape(y)[-1]
    root = tf.sqrt(tf.broadcast_to(precision, tf.concat([tf.shape(mean)[:-1], [batch]], 0)))
    inner = root[..., :, None] * cov[..., :batch, :batch] * root[..., None, :]
    factor = cholesky(add_diagonal(inner, tf.ones_like(root[..., 0])), "I + R^-½ K R^-½")
    cross = tf.linalg.triangular_solve(factor, root[..., :, None] * cov[..., :batch, batch:])
    residual = tf.linalg.triangular_solve(factor, (root * (y - mean[..., :batch]))[..., None])
    new_mean = mean[..., batch:] + tf.matmul(cross, residual, transpose_a=True)[..., 0]
    return new_mean, cov[..., batch:, batch:] - tf.matmul(cross, cross, transpose_a=True)


@check_shapes(
    "mean: [batch..., N]",
    "cov: [batch..., N, N]",
    "target_mean: [broadcast batch..., N]",
    "target_cov: [broadcast batch..., N, N]",
    "return: [batch...]",
)
def kl_divergence(
    mean: tf.Tensor, cov: tf.Tensor, target_mean: tf.Tensor, target_cov: tf.Tensor
) -> tf.Tensor:
    r"""KL[N(mean, cov) ‖ N(target_mean, target_cov)] in nats, with its closed-form gradients.

    No gradient passes through a Cholesky factor: with :math:`δ = μ - m`,
    :math:`∂/∂μ = K^{-1} δ = -∂/∂m`, :math:`∂/∂Σ = ½ (K^{-1} - Σ^{-1})` and
    :math:`∂/∂K = ½ K^{-1} (K - Σ - δδᵀ) K^{-1}`.

    >>> identity = tf.eye(3)
    >>> float(gpn.gaussians.kl_divergence(tf.ones(3), identity, tf.zeros(3), identity))
    1.5

    :raises tf.errors.InvalidArgumentError: if either covariance is not positive definite.
    """

    @tf.custom_gradient
    def divergence(
        mean: tf.Tensor, cov: tf.Tensor, target_mean: tf.Tensor, target_cov: tf.Tensor
    ) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, ...]]]:
        factor = cholesky(cov, "the network's covariance")
        target_factor = cholesky(target_cov, "the target's covariance")
        difference = (mean - target_mean)[..., None]
        whitened = tf.linalg.triangular_solve(target_factor, difference)
        ratio = tf.linalg.triangular_solve(target_factor, factor)
        size = tf.cast(tf.shape(mean)[-1], mean.dtype)
        value = 0.5 * (
            tf.reduce_sum(tf.square(whitened), axis=[-2, -1])
            + tf.reduce_sum(tf.square(ratio), axis=[-2, -1])
            - size
            + _log_determinant(target_factor)
            - _log_determinant(factor)
        )

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            identity = tf.eye(tf.shape(mean)[-1], dtype=mean.dtype)
            target_inverse = _inverse_from_root(target_factor, identity)
            inverse = _inverse_from_root(factor, identity)
            d_mean = tf.linalg.triangular_solve(target_factor, whitened, adjoint=True)
            root = tf.concat(
                [tf.linalg.triangular_solve(target_factor, ratio, adjoint=True), d_mean], axis=-1
            )
            d_target_cov = 0.5 * (target_inverse - tf.matmul(root, root, transpose_b=True))
            scale = upstream[..., None]
            return (
                scale * d_mean[..., 0],
                scale[..., None] * 0.5 * (target_inverse - inverse),
                -scale * d_mean[..., 0],
                scale[..., None] * d_target_cov,
            )

        return value, gradient

    return divergence(
        mean,
        cov,
        tf.broadcast_to(target_mean, tf.shape(mean)),
        tf.broadcast_to(target_cov, tf.shape(cov)),
    )


def _inverse_from_root(factor: tf.Tensor, identity: tf.Tensor) -> tf.Tensor:
    root = tf.linalg.triangular_solve(factor, tf.broadcast_to(identity, tf.shape(factor)))
    return tf.matmul(root, root, transpose_a=True)


def _log_determinant(factor: tf.Tensor) -> tf.Tensor:
    return 2.0 * tf.reduce_sum(tf.math.log(tf.linalg.diag_part(factor)), axis=-1)


def _trace_of_ratio(matrix: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """tr(C⁻¹ matrix), C = factor factorᵀ."""
    identity = tf.eye(tf.shape(factor)[-1], dtype=factor.dtype)
    return tf.reduce_sum(_inverse_from_root(factor, identity) * matrix, axis=[-2, -1])


@check_shapes(
    "mean: [batch..., N]",
    "root: [batch..., N, R]",
    "factor_1: [broadcast batch..., N, N]",
    "factor_2: [broadcast batch..., N, N]",
    "offset: [batch..., N]",
    "residual: [broadcast batch..., N, N]",
    "return: [batch...]",
)
def expected_log_ratio(
    mean: tf.Tensor,
    root: tf.Tensor,
    factor_1: tf.Tensor,
    factor_2: tf.Tensor,
    offset: tf.Tensor | None = None,
    residual: tf.Tensor | None = None,
) -> tf.Tensor:
    """E_q[log N(f; offset, C_1) - log N(f; 0, C_2)], nats, q = N(offset + mean, root rootᵀ + R).

    >>> identity = tf.eye(3)
    >>> ratio = gpn.gaussians.expected_log_ratio(tf.ones(3), identity, identity, 2.0 * identity)
    >>> ratio.shape
    TensorShape([])

    :param factor_1: Cholesky factor of C_1; factor_2: of C_2.
    :param offset: 0 by default; residual: R, 0 by default.
    """

    def minus_twice_log_density(mean: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
        moments = tf.concat([mean[..., None], root], axis=-1)
        shape = tf.concat([tf.shape(moments)[:-2], tf.shape(factor)[-2:]], axis=0)
        whitened = tf.linalg.triangular_solve(tf.broadcast_to(factor, shape), moments)
        squares = _log_determinant(factor) + tf.reduce_sum(tf.square(whitened), axis=[-2, -1])
        return squares if residual is None else squares + _trace_of_ratio(residual, factor)

    whole = mean if offset is None else mean + offset
    return 0.5 * (
        minus_twice_log_density(whole, factor_2) - minus_twice_log_density(mean, factor_1)
    )
