"""The functional variational baseline of Sun, Zhang, Shi and Grosse (2019)."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from check_shapes import check_shapes, inherit_check_shapes
from gpflow.base import RegressionData
from gpflow.utilities import to_default_float

from . import gaussians
from .model import InferenceNetworkModel
from .random_numbers import normal
from .replicas import Share
from .stein_gradient import score

__all__ = ["FBNN"]


class FBNN(InferenceNetworkModel):
    r"""Maximises :math:`s \sum_B E_q[\log p(y|f)] - KL[q(f_J) ‖ p(f_J)]`, J batch and measured.

    With s = 1, as published, the fixed point is the posterior for a noise variance N / B times too
    large; with s = N / B it is the functional evidence lower bound at J.

    The density of a :class:`BNN` is intractable. With ``divergence="stein"`` the gradient of its
    divergence is :math:`E_q[(∇_f \log q - ∇_f \log p)^\top ∂f/∂γ]` on sampled functions, the first
    term by the spectral Stein gradient estimator; the objective's value is still that by moments.

    >>> network = gpn.RFE(kernel, input_dim=1, num_features=5)
    >>> model = gpn.FBNN(kernel, gpflow.likelihoods.Gaussian(0.1), network, num_data=20)
    >>> model.elbo((X[:5], Y[:5])).shape
    TensorShape([])
    """

    def __init__(
        self,
        *args: Any,
        scale_likelihood: bool = False,
        divergence: str = "moments",
        **kwargs: Any,
    ) -> None:
        """
        :param scale_likelihood: False: s = 1 (published); True: s = N / B.
        :param divergence: "moments": that of the Gaussian with the network's moments, exact for
            Gaussian networks; "stein": see above, as published for Bayesian neural networks.
        :raises ValueError: for another divergence, or "stein" with a network that does not sample.

        All other arguments are those of :class:`~gpflow_gpnet.GPNet`.
        """
        super().__init__(*args, **kwargs)
        if divergence not in ("moments", "stein"):
            raise ValueError(f'divergence must be "moments" or "stein", got {divergence!r}.')
        if divergence == "stein" and not hasattr(self.inference_network, "sampled_values"):
            raise ValueError(
                'divergence="stein" needs a network with sampled_values, such as BNN, got '
                f"{type(self.inference_network).__name__}."
            )
        self.scale_likelihood = scale_likelihood
        self.divergence = divergence

    def likelihood_scale(self, X: tf.Tensor) -> tf.Tensor:
        """N / B, or 1 as published."""
        return super().likelihood_scale(X) if self.scale_likelihood else to_default_float(1.0)

    @inherit_check_shapes
    def elbo(self, data: RegressionData) -> tf.Tensor:
        """The objective in nats; summed over the batch where ``scale_likelihood`` is False."""
        return super().elbo(data)

    @inherit_check_shapes
    def elbo_part(self, share: Share, X: tf.Tensor, Y: tf.Tensor) -> tf.Tensor:
        points = tf.concat([X, self.objective_points(X)], axis=0)
        return self.functional_elbo(X, Y, points, share)

    @inherit_check_shapes
    def functional_kl(self, points: tf.Tensor, mean: tf.Tensor, cov: tf.Tensor) -> tf.Tensor:
        value = super().functional_kl(points, mean, cov)
        if self.divergence == "moments":
            return value
        surrogate = self._stein_divergence(points)
        return tf.stop_gradient(value - surrogate) + surrogate

    @check_shapes("points: [J, D]", "return: []")
    def _stein_divergence(self, points: tf.Tensor) -> tf.Tensor:
        """A number whose gradient is that of KL[q(f_J) ‖ p(f_J)], both with a nugget."""
        prior = self.prior_covariance(points)
        jitter = gaussians.nugget(prior)
        values = tf.transpose(self.inference_network.sampled_values(points), [2, 0, 1])  # [L, S, J]
        noise = normal(tf.shape(values), tf.constant([0, 1]), values.dtype)
        values += tf.sqrt(jitter)[:, None, None] * noise
        factor = gaussians.cholesky(gaussians.add_diagonal(prior, jitter), "the prior at J")
        whitened = tf.linalg.triangular_solve(factor, tf.linalg.matrix_transpose(values))
        num_samples = tf.cast(tf.shape(values)[1], values.dtype)
        log_prior = -0.5 * tf.reduce_sum(tf.square(whitened)) / num_samples - tf.reduce_sum(
            tf.math.log(tf.linalg.diag_part(factor))
        )
        fixed = tf.stop_gradient(values)
        gradient = tf.stop_gradient(score(fixed, fixed))
        return tf.reduce_sum(gradient * values) / num_samples - log_prior
