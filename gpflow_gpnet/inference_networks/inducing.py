"""Inducing points as features: SVGP is GPNet with this network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes, inherit_check_shapes
from gpflow import Parameter
from gpflow.base import TensorType
from gpflow.config import default_float, default_jitter
from gpflow.inducing_variables import InducingPoints
from gpflow.kernels import Kernel, MultioutputKernel
from gpflow.models import SVGP

from ..checks import check_finite
from ..gaussians import cholesky
from ..latent_prior import center, latent_covariance, latent_kernels, latent_variance
from .base import LinearNetwork
from .random_features import RFE
from .weights import weight_gaussian

__all__ = ["InducingFeatures"]


class InducingFeatures(LinearNetwork):
    r"""φ(x) = L⁻¹ k(Z, x), K_ZZ = L Lᵀ, plus the prior's residual k(x, x') - φ(x)ᵀ φ(x').

    The prior in these weights is N(0, I) exactly, and q(w) is SVGP's whitened q(u) (Titsias 2009;
    Hensman, Fusi and Lawrence 2013). Takes every kernel.

    >>> network = gpn.InducingFeatures(kernel, X[::4])  # five inducing inputs
    >>> mean, variance = network(X)
    >>> mean.shape, network.q_mu.shape
    (TensorShape([20, 1]), TensorShape([5, 1]))
    >>> bool(np.allclose(variance, kernel(X, full_cov=False)[:, None]))  # still the prior
    True
    """

    prior_frequencies: int = 2000
    """Random frequencies of a prior's function in :meth:`sample_functions`."""

    def __init__(
        self,
        kernel: Kernel,
        Z: TensorType,
        covariance: str | int = "full",
        *,
        num_latent_gps: int | None = None,
    ) -> None:
        """
        :param kernel: the prior's kernel itself, whose Parameters are then the features'.
        :param Z: inducing inputs [M, D], trainable.
        :param covariance: of the weights, as in :class:`RFE`.
        :param num_latent_gps: L; by default what the kernel says, else 1.
        :raises ValueError: if Z is not a matrix of finite numbers.
        """
        super().__init__()
        Z = np.asarray(Z, dtype=default_float())
        if Z.ndim != 2:
            raise ValueError(f"Z must be a matrix [M, D], got shape {Z.shape}.")
        check_finite("Z", Z)
        self.kernel = kernel
        self.Z = Parameter(Z)
        self.input_dim = Z.shape[1]
        if num_latent_gps is None:
            num_latent_gps = getattr(kernel, "num_latent_gps", 1)
        self.weights = weight_gaussian(covariance, len(Z), num_latent_gps)

    @property
    def shared_features(self) -> bool:  # type: ignore[override]
        return len(latent_kernels(self.kernel)) == 1

    def represents(self, kernel: Kernel) -> bool:
        return kernel is self.kernel

    @classmethod
    def from_svgp(cls, svgp: SVGP) -> InducingFeatures:
        """The network that is a trained SVGP's posterior, on its own kernel and inducing inputs.

        :raises NotImplementedError: unless all latent GPs share their inducing points.
        """
        given: Any = svgp.inducing_variable
        inducing = getattr(given, "inducing_variable", given)  # what the latent GPs share
        correlated = inducing is given and isinstance(svgp.kernel, MultioutputKernel)
        if correlated or not isinstance(inducing, InducingPoints):
            raise NotImplementedError(
                "from_svgp needs inducing points shared by all latent GPs, got "
                f"{type(given).__name__} with a {type(svgp.kernel).__name__} kernel."
            )
        independent = len(svgp.q_sqrt.shape) == 2
        diagonal = independent and svgp.whiten
        network = cls(
            svgp.kernel,
            inducing.Z,
            "diag" if diagonal else "full",
            num_latent_gps=svgp.num_latent_gps,
        )
        network.Z = inducing.Z  # itself, so that a frozen one stays frozen
        mean, root = tf.convert_to_tensor(svgp.q_mu), tf.convert_to_tensor(svgp.q_sqrt)
        if independent and not diagonal:
            root = tf.linalg.diag(tf.transpose(root))
        if not svgp.whiten:
            factors = tf.stack(
                [network.prior_root(kernel) for kernel in latent_kernels(svgp.kernel)]
            )
            factors = tf.broadcast_to(factors, tf.shape(root))
            root = tf.linalg.triangular_solve(factors, root)
            whitened = tf.linalg.triangular_solve(factors, tf.transpose(mean)[..., None])
            mean = tf.transpose(whitened[..., 0])
        network.q_mu.assign(mean)
        network.q_sqrt.assign(root)
        return network

    @inherit_check_shapes
    def features(self, X: TensorType) -> tf.Tensor:
        per_latent = [self._whitened(kernel, X) for kernel in latent_kernels(self.kernel)]
        return per_latent[0] if self.shared_features else tf.stack(per_latent, axis=-3)

    def _whitened(self, kernel: Kernel, X: TensorType) -> tf.Tensor:
        factor = self.prior_root(kernel)
        X = tf.convert_to_tensor(X)
        rows = tf.reshape(X, [-1, self.Z.shape[-1]])
        middle = center(kernel, self.Z)
        whitened = tf.linalg.triangular_solve(factor, kernel(self.Z - middle, rows - middle))
        return tf.reshape(
            tf.transpose(whitened), tf.concat([tf.shape(X)[:-1], [tf.shape(factor)[-1]]], axis=0)
        )

    @check_shapes("return: [M, M]")
    def prior_root(self, kernel: Kernel) -> tf.Tensor:
        """L, the Cholesky factor of a latent GP's prior covariance at Z.

        GPflow's jitter, but no less than the rounding of M products in the float type.
        """
        prior = kernel(self.Z - center(kernel, self.Z))
        diagonal = kernel(self.Z, full_cov=False)  # that of the matrix is rounded
        rounding = np.finfo(prior.dtype.as_numpy_dtype).eps * tf.reduce_sum(diagonal)
        jitter = tf.maximum(tf.cast(default_jitter(), prior.dtype), tf.stop_gradient(rounding))
        return cholesky(
            tf.linalg.set_diag(prior, diagonal + jitter), "the prior at the inducing inputs"
        )

    def residual_covariance(self, X: TensorType, features: tf.Tensor, full_cov: bool) -> tf.Tensor:
        if not full_cov:
            explained = tf.reduce_sum(tf.square(features), axis=-1)
            return tf.maximum(latent_variance(self.kernel, X) - explained, 0.0)
        prior = latent_covariance(self.kernel, X, around=self.Z)
        return prior - tf.matmul(features, features, transpose_b=True)

    def prior_functions(
        self, num_samples: int, seed: tf.Tensor
    ) -> tuple[Callable[[TensorType], tf.Tensor], tf.Tensor]:
        """Whole functions g from the prior, by random features, and L⁻¹ g(Z) [S, M, L].

        Exact for kernels of finite features, such as Linear. Drawn eagerly: g keeps the kernel's
        present parameters.

        :raises NotImplementedError: for kernels without random features.
        """
        first, second = np.asarray(seed)
        try:
            prior = RFE(
                self.kernel,
                self.Z.shape[1],
                self.prior_frequencies,
                "diag",
                num_latent_gps=self.num_latent_gps,
                seed=int(first),
            )
        except ValueError as error:
            raise NotImplementedError(
                f"{type(self.kernel).__name__} has no random features for whole functions; use "
                f"predict_f_samples. ({str(error).partition(';')[0]})"
            ) from error
        prior.initialise(self.Z.numpy())
        functions = prior.sample_functions(num_samples, tf.constant([first, second]))
        factors = tf.stack([self.prior_root(kernel) for kernel in latent_kernels(self.kernel)])
        values = tf.transpose(functions(self.Z), [0, 2, 1])[..., None]  # [S, L, M, 1]
        shape = tf.concat([tf.shape(values)[:-2], tf.shape(factors)[-2:]], axis=0)
        whitened = tf.linalg.triangular_solve(tf.broadcast_to(factors, shape), values)
        return functions, tf.transpose(whitened[..., 0], [0, 2, 1])
