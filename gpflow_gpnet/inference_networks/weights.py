"""The Gaussian q(w) over the weights of a network f(x) = φ(x)ᵀ w, whose prior is N(0, I)."""

from __future__ import annotations

import abc

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes, inherit_check_shapes
from gpflow import Module, Parameter
from gpflow.config import default_float
from gpflow.kullback_leiblers import gauss_kl
from gpflow.utilities import positive, triangular

from .. import gaussians

__all__ = [
    "DiagonalGaussian",
    "FullGaussian",
    "KroneckerGaussian",
    "LowRankGaussian",
    "WeightGaussian",
    "weight_gaussian",
]


class WeightGaussian(Module, abc.ABC):
    """q(w) = N(q_mu, V), independent over L latent GPs, started at the prior N(0, I).

    >>> weights = gpn.weight_gaussian("full", 3, 2)  # F = 3, L = 2
    >>> weights.sample(5, seed=[0, 1]).shape, float(weights.prior_kl())
    (TensorShape([5, 3, 2]), 0.0)
    """

    q_mu: Parameter
    """Mean of the weights, [F, L]."""

    @abc.abstractmethod
    @check_shapes(
        "features: [batch..., K, N, F]",
        "return: [batch..., L, N, R]",
    )
    def project(self, features: tf.Tensor) -> tf.Tensor:
        """A root A of the function values' covariance: A Aᵀ = Φ V Φᵀ.

        :param features: Φ; K is L, or 1 where all latent GPs share their features.
        """

    @abc.abstractmethod
    @check_shapes("return: []")
    def prior_kl(self) -> tf.Tensor:
        """KL[q(w) ‖ N(0, I)] in nats, summed over latent GPs."""

    @check_shapes(
        "features: [batch..., K, N, F]",
        "return: [batch..., N, L]",
    )
    def mean(self, features: tf.Tensor) -> tf.Tensor:
        """Mean of the function values, Φ q_mu."""
        columns = tf.transpose(self.q_mu)[..., None]  # [L, F, 1]
        return tf.linalg.matrix_transpose(tf.matmul(features, columns)[..., 0])

    @check_shapes("return: [num_samples, F, L]")
    def sample(self, num_samples: int, seed: tf.Tensor) -> tf.Tensor:
        """Draws of w from q, deterministic in the stateless seed [2]."""
        num_features, num_latents = self.q_mu.shape
        identity = tf.eye(num_features, dtype=self.q_mu.dtype)[None]
        root = self.project(identity)  # [L, F, R]
        noise = tf.random.stateless_normal(
            [num_samples, num_latents, root.shape[-1], 1], seed, dtype=root.dtype
        )
        return self.q_mu + tf.linalg.matrix_transpose(tf.matmul(root, noise)[..., 0])


class FullGaussian(WeightGaussian):
    """Full covariance V = q_sqrt q_sqrtᵀ. Memory, and time per row, O(L F²).

    >>> weights = gpn.weight_gaussian("full", 3, 2)
    >>> weights.q_mu.shape, weights.q_sqrt.shape
    (TensorShape([3, 2]), TensorShape([2, 3, 3]))
    """

    def __init__(self, num_features: int, num_latent_gps: int) -> None:
        super().__init__()
        self.q_mu = Parameter(np.zeros((num_features, num_latent_gps), default_float()))
        identity: np.ndarray = np.eye(num_features, dtype=default_float())
        self.q_sqrt = Parameter(
            np.broadcast_to(identity, (num_latent_gps, num_features, num_features)),
            transform=triangular(),
        )

    @inherit_check_shapes
    def project(self, features: tf.Tensor) -> tf.Tensor:
        return gaussians.times_lower(features, tf.convert_to_tensor(self.q_sqrt))

    @inherit_check_shapes
    def prior_kl(self) -> tf.Tensor:
        return gauss_kl(self.q_mu, self.q_sqrt)


class DiagonalGaussian(WeightGaussian):
    """Diagonal covariance with standard deviations q_sqrt [F, L]. Memory, time per row O(L F).

    >>> weights = gpn.weight_gaussian("diag", 3, 2)
    >>> weights.q_mu.shape, weights.q_sqrt.shape
    (TensorShape([3, 2]), TensorShape([3, 2]))
    """

    def __init__(self, num_features: int, num_latent_gps: int) -> None:
        super().__init__()
        self.q_mu = Parameter(np.zeros((num_features, num_latent_gps), default_float()))
        self.q_sqrt = Parameter(
            np.ones((num_features, num_latent_gps), default_float()), transform=positive()
        )

    @inherit_check_shapes
    def project(self, features: tf.Tensor) -> tf.Tensor:
        return features * tf.transpose(self.q_sqrt)[:, None, :]

    @inherit_check_shapes
    def sample(self, num_samples: int, seed: tf.Tensor) -> tf.Tensor:
        shape = [num_samples, *self.q_mu.shape]
        return self.q_mu + self.q_sqrt * tf.random.stateless_normal(
            shape, seed, dtype=self.q_mu.dtype
        )

    @inherit_check_shapes
    def prior_kl(self) -> tf.Tensor:
        return gauss_kl(self.q_mu, self.q_sqrt)


class KroneckerGaussian(WeightGaussian):
    r"""Matrix-variate: :math:`V_l = s_l^2 R R^\top`, one factor R [F, F] for all L latent GPs.

    W [F, L] ~ MN(q_mu, R Rᵀ, diag(s²)). Memory O(F² + L) instead of the full one's O(L F²), time
    per row O(F² + L F) where latent GPs share their features.

    >>> weights = gpn.weight_gaussian("kronecker", 3, 2)
    >>> weights.root.shape, weights.scale.shape
    (TensorShape([3, 3]), TensorShape([2]))
    """

    def __init__(self, num_features: int, num_latent_gps: int) -> None:
        super().__init__()
        self.q_mu = Parameter(np.zeros((num_features, num_latent_gps), default_float()))
        self.root = Parameter(np.eye(num_features, dtype=default_float()), transform=triangular())
        self.scale = Parameter(np.ones(num_latent_gps, default_float()), transform=positive())

    @inherit_check_shapes
    def project(self, features: tf.Tensor) -> tf.Tensor:
        return tf.matmul(features, self.root) * self.scale[:, None, None]

    @inherit_check_shapes
    def prior_kl(self) -> tf.Tensor:
        num_features, num_latents = self.q_mu.shape
        trace = tf.reduce_sum(tf.square(self.root)) * tf.reduce_sum(tf.square(self.scale))
        # Of either sign, as GPflow's own roots.
        log_root = tf.reduce_sum(tf.math.log(tf.abs(tf.linalg.diag_part(self.root))))
        log_det = 2.0 * (
            num_latents * log_root + num_features * tf.reduce_sum(tf.math.log(self.scale))
        )
        size = float(num_features * num_latents)
        return 0.5 * (trace + tf.reduce_sum(tf.square(self.q_mu)) - size - log_det)


class LowRankGaussian(WeightGaussian):
    r"""Precision :math:`V^{-1} = D + R R^\top`, D diagonal, R [F, rank].

    Memory, and time per row, O(L F rank).

    With :math:`U = D^{-1/2} R` and :math:`I + U^\top U = G G^\top`, a root of the covariance is
    :math:`D^{-1/2} (I - U G^{-\top} (I + G)^{-1} U^\top)`: positive definite by construction.

    >>> weights = gpn.weight_gaussian(1, 3, 2)
    >>> weights.diagonal.shape, weights.low_rank.shape
    (TensorShape([2, 3]), TensorShape([2, 3, 1]))
    """

    def __init__(self, num_features: int, num_latent_gps: int, rank: int, seed: int = 0) -> None:
        super().__init__()
        self.q_mu = Parameter(np.zeros((num_features, num_latent_gps), default_float()))
        self.diagonal = Parameter(
            np.ones((num_latent_gps, num_features), default_float()), transform=positive()
        )
        # R = 0 is a stationary point of every objective, so it starts small instead.
        start = np.random.default_rng(seed).normal(size=(num_latent_gps, num_features, rank))
        self.low_rank = Parameter((1e-3 / np.sqrt(rank)) * start)

    @property
    def _scaled(self) -> tf.Tensor:
        return tf.convert_to_tensor(self.low_rank) / tf.sqrt(self.diagonal)[..., None]

    def _factor(self, scaled: tf.Tensor) -> tf.Tensor:
        identity = tf.eye(tf.shape(scaled)[-1], dtype=scaled.dtype)
        return tf.linalg.cholesky(identity + tf.matmul(scaled, scaled, transpose_a=True))

    @inherit_check_shapes
    def project(self, features: tf.Tensor) -> tf.Tensor:
        scaled = self._scaled
        factor = self._factor(scaled)
        identity = tf.eye(tf.shape(factor)[-1], dtype=factor.dtype)
        inner = tf.linalg.triangular_solve(
            identity + factor, tf.linalg.matrix_transpose(scaled)
        )  # [L, rank, F]
        inner = tf.linalg.triangular_solve(factor, inner, adjoint=True)
        whitened = features / tf.sqrt(self.diagonal)[:, None, :]
        return whitened - tf.matmul(tf.matmul(whitened, scaled), inner)

    @inherit_check_shapes
    def prior_kl(self) -> tf.Tensor:
        scaled = self._scaled
        factor = self._factor(scaled)
        explained = tf.linalg.triangular_solve(factor, tf.linalg.matrix_transpose(scaled))
        variances = (1.0 - tf.reduce_sum(tf.square(explained), axis=-2)) / self.diagonal
        log_det_precision = tf.reduce_sum(tf.math.log(self.diagonal)) + 2.0 * tf.reduce_sum(
            tf.math.log(tf.linalg.diag_part(factor))
        )
        return 0.5 * (
            tf.reduce_sum(variances)
            + tf.reduce_sum(tf.square(self.q_mu))
            - tf.cast(tf.size(self.q_mu), variances.dtype)
            + log_det_precision
        )


def weight_gaussian(
    covariance: str | int, num_features: int, num_latent_gps: int
) -> WeightGaussian:
    """The weights' Gaussian asked for.

    >>> type(gpn.weight_gaussian("diag", 100, 1)).__name__
    'DiagonalGaussian'

    :param covariance: ``"full"``, ``"diag"``, ``"kronecker"`` (full, shared by latent GPs up to a
        scale), or the rank of a low-rank plus diagonal precision.
    :raises ValueError: for anything else.
    """
    if covariance == "full":
        return FullGaussian(num_features, num_latent_gps)
    if covariance == "diag":
        return DiagonalGaussian(num_features, num_latent_gps)
    if covariance == "kronecker":
        return KroneckerGaussian(num_features, num_latent_gps)
    if isinstance(covariance, int) and not isinstance(covariance, bool) and covariance > 0:
        return LowRankGaussian(num_features, num_latent_gps, covariance)
    raise ValueError(
        'covariance must be "full", "diag", "kronecker" or a positive integer rank, got '
        f"{covariance!r}."
    )
