"""GPNet: a GP posterior represented by an inference network (Shi, Khan and Zhu, 2019)."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import tensorflow as tf
from check_shapes import check_shapes, inherit_check_shapes
from gpflow.base import TensorType
from gpflow.models import SVGP

from . import gaussians
from .inference_networks import InducingFeatures, LinearNetwork
from .model import InferenceNetworkModel
from .replicas import Share

__all__ = ["GPNet"]

CORRECTION_POINTS = 200
"""Most measurement points that the prior correction uses by default."""


class GPNet(InferenceNetworkModel):
    r"""Scalable GP model for any GPflow kernel and likelihood; SVGP's interface.

    The objective is the functional evidence lower bound
    :math:`\frac{N}{B} \sum_B E_q[\log p(y|f)] - KL[q(f) ‖ p(f)]`, nats, summed over ``num_data``.
    The divergence is

    * for networks linear in their weights: the weights' own, plus
      :math:`E_q[\log p_φ(f_M) - \log p(f_M)]` at M measurement points, which corrects for features
      that do not reproduce the kernel and vanishes where they do (p_φ: the prior that the network
      has, residual covariance included). Where they do it is a bound; else M points see only part
      of the difference, and few features can lie above the evidence;
    * for all others: that of the function values at the batch and the measurement points. It is
      then a bound only where these include all training inputs, and not additive over batches.

    Trains under any optimiser through :meth:`training_loss`;
    :class:`~gpflow_gpnet.FunctionalMirrorDescent` does it best.

    >>> network = gpn.RFE(kernel, input_dim=1, num_features=5)
    >>> model = gpn.GPNet(kernel, gpflow.likelihoods.Gaussian(0.1), network, num_data=20)
    >>> model.elbo((X, Y)).shape
    TensorShape([])
    >>> mean, variance = model.predict_y(X)
    >>> mean.shape, variance.shape, model.predict_log_density((X, Y)).shape
    (TensorShape([20, 1]), TensorShape([20, 1]), TensorShape([20]))
    >>> model.predict_f_samples(X, 3).shape, model.sample_functions(3)(X).shape
    (TensorShape([3, 20, 1]), TensorShape([3, 20, 1]))
    """

    @classmethod
    def from_svgp(cls, svgp: SVGP, **kwargs: Any) -> GPNet:
        """A GPNet that starts from a trained SVGP and has its posterior, on a copy of its parts.

        :param svgp: its inducing points are then :class:`InducingFeatures`, and its prior and
            likelihood the model's.
        :param kwargs: measurement and num_measurement_points, as for the constructor.
        :raises NotImplementedError: unless all latent GPs share their inducing points.
        """
        svgp = deepcopy(svgp)
        return cls(
            svgp.kernel,
            svgp.likelihood,
            InducingFeatures.from_svgp(svgp),
            mean_function=svgp.mean_function,
            num_latent_gps=svgp.num_latent_gps,
            num_data=svgp.num_data,
            **kwargs,
        )

    @inherit_check_shapes
    def elbo_part(self, share: Share, X: TensorType, Y: TensorType) -> tf.Tensor:
        if isinstance(self.inference_network, LinearNetwork):
            return self._weight_space_elbo(share, X, Y)
        points = tf.concat([X, self.objective_points(X)], axis=0)
        return self.functional_elbo(X, Y, points, share)

    def _weight_space_elbo(self, share: Share, X: tf.Tensor, Y: tf.Tensor) -> tf.Tensor:
        network = self.inference_network
        own_X, own_Y = share.of((X, Y))
        mean, variance = network(own_X)
        fit = self.expected_log_likelihood(own_X, mean, variance, own_Y)
        objective = self.likelihood_scale(X) * fit - network.prior_kl() / share.number
        if network.represents(self.kernel):
            return objective
        points = self.objective_points(X)
        features = network.latent_features(points)
        factors = self.prior_factors(points, features)
        correction = self.prior_correction(features, factors, network.offset(points))
        return objective - correction / share.number

    def _objective_points(self, X: TensorType) -> tf.Tensor:
        linear = isinstance(self.inference_network, LinearNetwork)
        return self.correction_points(X) if linear else self.measurement_points(X)

    @check_shapes("X: [B, D]", "return: [M, D]")
    def correction_points(self, X: TensorType, seed: tf.Tensor | None = None) -> tf.Tensor:
        """Measurement points of the prior correction: fewer than features, so that all matter."""
        half = max(1, self.inference_network.q_mu.shape[0] // 2)
        return self.measurement_points(X, seed, limit=min(CORRECTION_POINTS, half))

    @check_shapes(
        "features: [K, M, F]",
        "factors[0]: [L, M, M]",
        "factors[1]: [K, M, M]",
        "factors[2]: [K, M, M]",
        "offset: [M, L]",
        "return: []",
    )
    def prior_correction(
        self,
        features: tf.Tensor,
        factors: tuple[tf.Tensor, tf.Tensor, tf.Tensor | None],
        offset: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """E_q[log p_φ(f_M) - log p(f_M)], nats: what weight space misses of KL[q ‖ p].

        :param features: φ of the M points; K is L, or 1 where latent GPs share features.
        :param factors: :meth:`prior_factors` of the M points.
        :param offset: the network's offset there, about which p_φ lies.
        """
        weights = self.inference_network.weights
        prior, features_prior, residual = factors
        mean = tf.transpose(weights.mean(features))
        if offset is not None:
            offset = tf.transpose(offset)
        root = weights.project(features)
        return tf.reduce_sum(
            gaussians.expected_log_ratio(mean, root, features_prior, prior, offset, residual)
        )

    @check_shapes(
        "points: [M, D]",
        "features: [K, M, F]",
        "return[0]: [L, M, M]",
        "return[1]: [K, M, M]",
        "return[2]: [K, M, M]",
    )
    def prior_factors(
        self, points: TensorType, features: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
        """Cholesky factors of the model's and of the network's prior at M points, and the residual.

        The network's is ΦΦᵀ + residual, what its features do not carry, or None. Both have the same
        nugget, so that it cancels where the network reproduces the kernel.

        :raises tf.errors.InvalidArgumentError: if either is not positive definite.
        """
        prior = self.prior_covariance(points)
        jitter = gaussians.nugget(prior)
        features_prior = tf.matmul(features, features, transpose_b=True)
        residual = self.inference_network.residual_covariance(points, features, full_cov=True)
        if residual is not None:
            features_prior += residual
        return (
            gaussians.cholesky(
                gaussians.add_diagonal(prior, jitter), "the prior at the measurement points"
            ),
            gaussians.cholesky(
                gaussians.add_diagonal(features_prior, jitter[: tf.shape(features)[0]]),
                "the features' prior at the measurement points",
            ),
            residual,
        )
