"""What an inference network is, and what networks that are linear in their weights share."""

from __future__ import annotations

import abc
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes, inherit_check_shapes
from gpflow import Module, Parameter
from gpflow.base import MeanAndVariance, TensorType
from gpflow.kernels import Kernel

from ..replicas import WHOLE, Share, size_of
from .weights import WeightGaussian

__all__ = ["InferenceNetwork", "LinearNetwork"]


class InferenceNetwork(Module, abc.ABC):
    """A Gaussian process q(f) given by its marginals (Shi et al. 2019, section 4).

    A subclass needs one method, ``network(X, full_cov=False)``. The model adds the prior's mean
    function to the mean that a network returns.

    >>> class Prior(gpn.InferenceNetwork):
    ...     def __call__(self, X, full_cov=False):
    ...         cov = kernel(X, full_cov=full_cov)
    ...         return tf.zeros_like(X[..., :1]), cov[None] if full_cov else cov[:, None]
    >>> mean, cov = Prior()(tf.constant(X), full_cov=True)
    >>> mean.shape, cov.shape
    (TensorShape([20, 1]), TensorShape([1, 20, 20]))
    """

    input_dim: int | None = None
    """D, or None where the network takes any; the model refuses inputs of other widths."""

    @abc.abstractmethod
    @check_shapes(
        "X: [batch..., N, D]",
        "return[0]: [batch..., N, L]",
        "return[1]: [batch..., N, L] if not full_cov",
        "return[1]: [batch..., L, N, N] if full_cov",
    )
    def __call__(self, X: TensorType, full_cov: bool = False) -> MeanAndVariance:
        """Mean and (co)variance of L latent GPs at X."""

    @check_shapes("X: [N, D]", "return[0]: [N, L]", "return[1]: [L, N, N]")
    def shared_moments(self, X: TensorType, share: Share) -> MeanAndVariance:
        """Mean and full covariance at X on each replica, for losses that count one
        ``share.number``-th on each.

        A network made of row-by-row quantities computes those of the share, and gathers them; here
        all replicas compute everything.
        """
        return self(X, full_cov=True)

    @check_shapes(
        "X: [B, D]",
        "points: [M, D]",
        "return[0]: [J, L]",
        "return[1]: [L, J, J]",
        "return[2]: [M, L]",
        "return[3]: [L, M, M]",
    )
    def joint_moments(
        self, X: TensorType, points: TensorType, share: Share = WHOLE
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Moments at X and points together, as constants, and at points, for gradients.

        :param share: as for :meth:`shared_moments`.
        """
        mean, cov = self.shared_moments(tf.concat([X, points], axis=0), share)
        return (tf.stop_gradient(mean), tf.stop_gradient(cov), *self.shared_moments(points, share))

    @property
    def num_latent_gps(self) -> int | None:
        """L, or None where the network leaves it to the model."""
        return None

    @property
    def is_trained(self) -> bool:
        """Whether the network has left its start, so that :meth:`initialise` is not called."""
        return False

    def __add__(self, other: InferenceNetwork) -> InferenceNetwork:
        """The sum of independent functions; linear in its weights where both are."""
        from .combinations import add

        return add(self, other)

    def initialise(self, X: np.ndarray) -> None:
        """Called once by training, before the first step, with (a batch of) the inputs [N, D]."""

    def redraw(self, number: tf.Tensor) -> None:
        """Called by training before each step, for networks whose moments are of samples."""

    def sample_functions(
        self, num_samples: int, seed: tf.Tensor
    ) -> Callable[[TensorType], tf.Tensor]:
        """Whole functions from q: a callable X [..., N, D] to [S, ..., N, L].

        :raises NotImplementedError: where a network has none.
        """
        raise NotImplementedError(
            f"{type(self).__name__} gives no function samples; use predict_f_samples."
        )


class LinearNetwork(InferenceNetwork):
    """f(x) = φ(x)ᵀ w with w ~ N(q_mu, V), so that natural steps and function samples exist.

    A subclass sets ``weights`` and writes ``features``. Where q is the prior, w ~ N(0, I).

    >>> class Line(gpn.LinearNetwork):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.weights = gpn.weight_gaussian("full", 2, 1)
    ...
    ...     def features(self, X):
    ...         return tf.concat([tf.ones_like(X), X], axis=-1)
    >>> mean, variance = Line()(tf.constant(X))
    >>> bool(np.allclose(variance, 1.0 + X**2))
    True
    """

    weights: WeightGaussian

    shared_features: bool = True
    """Whether all latent GPs have the same features, or each its own."""

    @abc.abstractmethod
    @check_shapes(
        "X: [batch..., N, D]",
        "return: [batch..., N, F] if self.shared_features",
        "return: [batch..., L, N, F] if not self.shared_features",
    )
    def features(self, X: TensorType) -> tf.Tensor:
        """φ at each row of X."""

    def represents(self, kernel: Kernel) -> bool:
        """Whether w ~ N(0, I) is the prior of this very kernel exactly: no correction is due."""
        return False

    def residual_covariance(
        self, X: TensorType, features: tf.Tensor, full_cov: bool
    ) -> tf.Tensor | None:
        """Covariance that features [..., K, N, F] do not carry: [..., K, N] or [..., K, N, N]."""
        return None

    def offset(self, X: TensorType) -> tf.Tensor | None:
        """A deterministic mean [..., N, L] that the weights do not carry."""
        return None

    @check_shapes(
        "X: [batch..., N, D]",
        "return: [batch..., K, N, F]",
    )
    def latent_features(self, X: TensorType) -> tf.Tensor:
        """:meth:`features` with a latent dimension K, which is 1 where all share them."""
        features = self.features(X)
        return features[..., None, :, :] if self.shared_features else features

    @property
    def q_mu(self) -> Parameter:
        """Mean of the weights [F, L]."""
        return self.weights.q_mu

    @property
    def q_sqrt(self) -> Parameter:
        """Root of the weights' covariance: [L, F, F] if full, [F, L] if diagonal."""
        return self.weights.q_sqrt

    @property
    def num_latent_gps(self) -> int:
        return int(self.weights.q_mu.shape[-1])

    @property
    def is_trained(self) -> bool:
        # Targets of 0 move the covariance alone; rounding makes a KL of this size at the prior.
        rounding = 1e-6 * self.weights.q_mu.shape.num_elements()
        return bool(np.any(self.weights.q_mu.numpy())) or float(self.prior_kl()) > rounding

    @check_shapes("return: []")
    def prior_kl(self) -> tf.Tensor:
        """KL of the weights' Gaussian from N(0, I), in nats, summed over latent GPs."""
        return self.weights.prior_kl()

    @inherit_check_shapes
    def __call__(self, X: TensorType, full_cov: bool = False) -> MeanAndVariance:
        features = self.latent_features(X)
        if not full_cov:
            return self.marginals(features, X)
        root = self.weights.project(features)
        cov = tf.matmul(root, root, transpose_b=True)
        residual = self.residual_covariance(X, features, full_cov=True)
        return self._mean(features, X), cov if residual is None else cov + residual

    @property
    def _has_residual(self) -> bool:
        return type(self).residual_covariance is not LinearNetwork.residual_covariance

    @inherit_check_shapes
    def shared_moments(self, X: TensorType, share: Share) -> MeanAndVariance:
        if self._has_residual:
            return super().shared_moments(X, share)
        mean, root = self._shared_root(X, share)
        return mean, tf.matmul(root, root, transpose_b=True)

    def _shared_root(self, X: TensorType, share: Share) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean [N, L], and root [L, N, R] of the covariance at X."""
        own = share.rows(X)
        features = self.latent_features(own)
        mean, root = self._mean(features, own), self.weights.project(features)
        size = size_of(X)
        return share.gather(mean, size), share.gather(root, size, axis=-2)

    @inherit_check_shapes
    def joint_moments(
        self, X: TensorType, points: TensorType, share: Share = WHOLE
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        if self._has_residual:
            return super().joint_moments(X, points, share)
        (rows_mean, rows_root), (mean, root) = (
            self._shared_root(values, share) for values in (X, points)
        )
        cov = tf.matmul(root, root, transpose_b=True)
        cross = tf.matmul(rows_root, root, transpose_b=True)
        joint = tf.concat(
            [
                tf.concat([tf.matmul(rows_root, rows_root, transpose_b=True), cross], axis=-1),
                tf.concat([tf.linalg.matrix_transpose(cross), cov], axis=-1),
            ],
            axis=-2,
        )
        joint_mean = tf.concat([rows_mean, mean], axis=0)
        return tf.stop_gradient(joint_mean), tf.stop_gradient(joint), mean, cov

    def _mean(self, features: tf.Tensor, X: TensorType) -> tf.Tensor:
        mean, offset = self.weights.mean(features), self.offset(X)
        return mean if offset is None else mean + offset

    @check_shapes(
        "features: [batch..., K, N, F]",
        "X: [batch..., N, D]",
        "return[0]: [batch..., N, L]",
        "return[1]: [batch..., N, L]",
    )
    def marginals(self, features: tf.Tensor, X: TensorType) -> MeanAndVariance:
        """Mean and variance of each function value from the :meth:`latent_features` of X."""
        variance = tf.reduce_sum(tf.square(self.weights.project(features)), axis=-1)
        residual = self.residual_covariance(X, features, full_cov=False)
        if residual is not None:
            variance = variance + residual
        return self._mean(features, X), tf.linalg.matrix_transpose(variance)

    def prior_functions(
        self, num_samples: int, seed: tf.Tensor
    ) -> tuple[Callable[[TensorType], tf.Tensor], tf.Tensor] | None:
        """Whole functions g from the prior and the weights [S, F, L] that their features carry.

        None where features carry all of the covariance, so that the weights are the function.

        :raises NotImplementedError: where part of it is not carried by the features.
        """
        if self._has_residual:
            raise NotImplementedError(
                f"{type(self).__name__} has covariance beyond its features, which whole-function "
                "samples would miss; use predict_f_samples."
            )
        return None

    def sample_functions(
        self, num_samples: int, seed: tf.Tensor
    ) -> Callable[[TensorType], tf.Tensor]:
        """Whole functions from q: a callable X [..., N, D] to [S, ..., N, L].

        Where features do not carry all of the covariance, by Matheron's rule: a function g from the
        prior, corrected by the difference of weights, f(x) = g(x) + φ(x)ᵀ (w - w_g) (Wilson et al.
        2020, "Efficiently sampling functions from Gaussian process posteriors").

        :raises NotImplementedError: as :meth:`prior_functions`.
        """
        weights = self.weights.sample(num_samples, seed)
        prior = self.prior_functions(num_samples, seed + 1)
        if prior is None:
            return lambda X: self._values(X, weights)
        functions, prior_weights = prior
        return lambda X: functions(X) + self._values(X, weights - prior_weights)

    def _values(self, X: TensorType, weights: tf.Tensor) -> tf.Tensor:
        """Functions [S, ..., N, L] that have weights [S, F, L], about the offset."""
        values = tf.einsum("...knf,sfk->s...nk", self._per_latent(X), weights)
        offset = self.offset(X)
        return values if offset is None else values + offset

    def _per_latent(self, X: TensorType) -> tf.Tensor:
        features = self.latent_features(X)
        shape = tf.concat(
            [tf.shape(features)[:-3], [self.num_latent_gps], tf.shape(features)[-2:]], axis=0
        )
        return tf.broadcast_to(features, shape)
