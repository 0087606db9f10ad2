"""The prior over latent GPs: covariances of each latent under single and multi-output kernels."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import TensorType
from gpflow.kernels import Kernel, MultioutputKernel

from .spectral import is_stationary

__all__ = ["latent_covariance", "latent_kernels", "latent_variance"]


def latent_kernels(kernel: Kernel) -> Sequence[Kernel]:
    """The distinct kernels of the latent GPs: one where all share it, else L."""
    if isinstance(kernel, MultioutputKernel):
        return tuple(kernel.latent_kernels)
    return (kernel,)


def _centred(kernel: Kernel, X: tf.Tensor) -> tf.Tensor:
    """Shift X to its mean where the kernel cannot tell: squared distances cancel far from 0."""
    if not is_stationary(kernel):
        return X
    return X - tf.stop_gradient(tf.reduce_mean(X, axis=-2, keepdims=True))


@check_shapes("X: [batch..., N, D]", "return: [batch..., K, N, N]")
def latent_covariance(kernel: Kernel, X: TensorType) -> tf.Tensor:
    """Prior covariance of each distinct latent GP at X; K is 1 where all share the kernel."""
    covariances = [k(_centred(k, tf.convert_to_tensor(X))) for k in latent_kernels(kernel)]
    return tf.stack(covariances, axis=-3)


@check_shapes("X: [batch..., N, D]", "return: [batch..., K, N]")
def latent_variance(kernel: Kernel, X: TensorType) -> tf.Tensor:
    """Prior variance of each distinct latent GP at X; K is 1 where all share the kernel."""
    return tf.stack([k(X, full_cov=False) for k in latent_kernels(kernel)], axis=-2)
