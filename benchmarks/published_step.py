"""The paper's gradient step written down as it stands there, the baseline for ours.

Two copies of the network, the product of Gaussians by explicit inverses (Shi et al. 2019, equations
7 and 8), a divergence from TensorFlow Probability, and automatic differentiation through all of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf
import tensorflow_probability as tfp

from gpflow_gpnet import GPNet, InferenceNetwork


def published_gradients(
    model: GPNet,
    old: InferenceNetwork,
    batch: tuple[tf.Tensor, tf.Tensor],
    points: tf.Tensor,
    beta: tf.Tensor,
    jitter: tf.Tensor,
) -> Sequence[tf.Tensor]:
    """Gradients of KL[q_γ(f_M) ‖ q̂(f_M)] by the network's trainable variables.

    :param model: one latent GP, Gaussian likelihood.
    :param old: the copy of its network that holds γ_t.
    :param batch: X [B, D] and Y [B, 1].
    :param points: measurement points [M, D].
    :param beta: step size.
    :param jitter: added to the diagonals of prior and network covariance.
    """
    X, Y = batch
    joint = tf.concat([X, points], axis=0)
    size = tf.shape(X)[0]
    variables = model.inference_network.trainable_variables
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(variables)
        diagonal = jitter * tf.eye(tf.shape(joint)[0], dtype=X.dtype)
        prior = model.kernel(joint) + diagonal
        old_mean, old_cov = old(joint, full_cov=True)
        old_precision = tf.linalg.inv(old_cov[0] + diagonal)
        bridge_cov = tf.linalg.inv(beta * tf.linalg.inv(prior) + (1.0 - beta) * old_precision)
        bridge_mean = (1.0 - beta) * bridge_cov @ (old_precision @ old_mean)
        noise = model.likelihood.variance / (model.likelihood_scale(X) * beta)
        gain = bridge_cov[:, :size] @ tf.linalg.inv(
            bridge_cov[:size, :size] + noise * tf.eye(size, dtype=X.dtype)
        )
        target_mean = bridge_mean + gain @ (Y - bridge_mean[:size])
        target_cov = bridge_cov - gain @ bridge_cov[:size]
        mean, cov = model.inference_network(points, full_cov=True)
        network = tfp.distributions.MultivariateNormalTriL(
            mean[:, 0], tf.linalg.cholesky(cov[0] + diagonal[size:, size:])
        )
        target = tfp.distributions.MultivariateNormalTriL(
            tf.stop_gradient(target_mean[size:, 0]),
            tf.stop_gradient(tf.linalg.cholesky(target_cov[size:, size:])),
        )
        divergence = tfp.distributions.kl_divergence(network, target)
    return tape.gradient(divergence, variables)
