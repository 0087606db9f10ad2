"""The prior over latent GPs: covariances of each latent under single and multi-output kernels."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import TensorType
from gpflow.kernels import Kernel, MultioutputKernel

from .spectral import is_stationary

__all__ = ["center", "latent_covariance", "latent_kernels", "latent_variance"]


def latent_kernels(kernel: Kernel) -> Sequence[Kernel]:
    """The distinct kernels of the latent GPs: one where all share it, else L."""
    if isinstance(kernel, MultioutputKernel):
        return tuple(kernel.latent_kernels)
    return (kernel,)


@check_shapes("X: [batch..., N, D]")
def center(kernel: Kernel, X: TensorType) -> tf.Tensor:
    """What to subtract from inputs before the kernel: far from 0 squared distances cancel.

    The median of each column, which a few far rows do not move; 0 where the kernel could tell.
    """
    X = tf.convert_to_tensor(X)
    if not is_stationary(kernel):
        return tf.zeros([1, 1], X.dtype)
    middle = tf.shape(X)[-2] // 2
    return tf.stop_gradient(tf.sort(X, axis=-2)[..., middle : middle + 1, :])  # none of no rows


@check_shapes(
    "X: [batch..., N, D]",
    "around: [broadcast batch..., M, D]",
    "return: [batch..., K, N, N]",
)
def latent_covariance(kernel: Kernel, X: TensorType, around: TensorType | None = None) -> tf.Tensor:
    """Prior covariance of each distinct latent GP at X; K is 1 where all share the kernel.

    :param around: inputs whose :func:`center` to use; by default those of X itself.
    """
    X = tf.convert_to_tensor(X)
    around = X if around is None else around
    covariances = [k(X - center(k, around)) for k in latent_kernels(kernel)]
    # The distance of a far row to itself is rounded too, and not 0.
    return tf.linalg.set_diag(tf.stack(covariances, axis=-3), latent_variance(kernel, X))


@check_shapes("X: [batch..., N, D]", "return: [batch..., K, N]")
def latent_variance(kernel: Kernel, X: TensorType) -> tf.Tensor:
    """Prior variance of each distinct latent GP at X; K is 1 where all share the kernel."""
    return tf.stack([k(X, full_cov=False) for k in latent_kernels(kernel)], axis=-2)
