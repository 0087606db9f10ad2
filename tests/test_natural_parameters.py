"""Natural parameters against V⁻¹ and V⁻¹ m, sites against those of a Gaussian likelihood."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import gpflow_gpnet as gpn
from gpflow_gpnet.natural_parameters import NaturalParameters, Site, longest_step, plus_prior
from gpflow_gpnet.replicas import WHOLE


@pytest.fixture
def network(rng):
    kernel = gpflow.kernels.SquaredExponential()
    network = gpn.RFE(kernel, 1, 3, num_latent_gps=2)
    size = network.q_mu.shape[0]
    network.q_mu.assign(rng.normal(size=(size, 2)))
    network.q_sqrt.assign(np.tril(rng.normal(size=(2, size, size))) + 3.0 * np.eye(size))
    return network


def moments(network):
    """m [L, F] and V [L, F, F]."""
    root = network.q_sqrt.numpy()
    return network.q_mu.numpy().T, root @ np.swapaxes(root, 1, 2)


def test_present_parameters_are_those_of_the_weights(network):
    mean, cov = moments(network)
    precision, shift = NaturalParameters(network).present()
    np.testing.assert_allclose(precision, np.linalg.inv(cov), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(shift, np.linalg.solve(cov, mean[..., None])[..., 0], rtol=1e-9)


@pytest.mark.parametrize("beta", [0.3, 1.0])
def test_mixture_is_read_off_by_the_weights(network, rng, beta):
    old_mean, old_cov = moments(network)
    root = rng.normal(size=old_cov.shape)
    target = root @ np.swapaxes(root, 1, 2) + np.eye(root.shape[-1])
    shift = rng.normal(size=old_mean.shape)
    step = tf.constant(beta, tf.float64)
    NaturalParameters(network).mix(step, tf.constant(target), tf.constant(shift))
    old_precision = np.linalg.inv(old_cov)
    precision = (1.0 - beta) * old_precision + beta * target
    pull = (1.0 - beta) * (old_precision @ old_mean[..., None])[..., 0] + beta * shift
    mean, cov = moments(network)
    np.testing.assert_allclose(cov, np.linalg.inv(precision), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(mean, (cov @ pull[..., None])[..., 0], rtol=1e-8)


def test_unfrozen_covariance_is_made_anew_however_stale_it_may_be(network, rng):
    target = tf.constant(np.tile(4.0 * np.eye(network.q_mu.shape[0]), [2, 1, 1]))
    parameters, shift = NaturalParameters(network), tf.zeros([2, target.shape[-1]], tf.float64)
    gpflow.set_trainable(network.q_sqrt, False)
    parameters.mix(1.0, target, shift, staleness=0.5)
    gpflow.set_trainable(network.q_sqrt, True)
    parameters.mix(0.1, target, shift, staleness=0.5)
    np.testing.assert_allclose(network.q_sqrt, np.tile(0.5 * np.eye(6), [2, 1, 1]), atol=1e-9)


def test_site_of_a_gaussian_likelihood_is_the_likelihood(rng):
    """Whatever the marginals, precision 1 / σ² and mean y."""
    likelihood, Y = gpflow.likelihoods.Gaussian(0.3), rng.normal(size=(5, 2))
    mean, variance = tf.constant(rng.normal(size=(5, 2))), tf.constant(rng.uniform(size=(5, 2)))
    with tf.GradientTape() as tape:
        tape.watch([mean, variance])
        loss = -tf.reduce_sum(likelihood.variational_expectations(None, mean, variance, Y))
    site = Site.from_gradients(mean, *tape.gradient(loss, [mean, variance]))
    np.testing.assert_allclose(site.precision, np.full((5, 2), 1.0 / 0.3), rtol=1e-12)
    np.testing.assert_allclose(site.shift / site.precision, Y, rtol=1e-10)


def test_precision_of_a_site_is_never_negative():
    one = tf.ones([1, 1])
    assert Site.from_gradients(one, one, -one).precision.numpy() == 0.0
    assert Site.from_gradients(one, one, None).precision.numpy() == 0.0


def test_sites_add_what_linear_regression_adds(rng):
    features = rng.normal(size=(1, 5, 3))
    precision, Y = rng.uniform(size=(5, 2)), rng.normal(size=(5, 2))
    site = Site(tf.constant(precision), tf.constant(precision * Y))
    both = site.parameters(tf.constant(features))
    for latent in range(2):
        R = np.diag(precision[:, latent])
        np.testing.assert_allclose(both[0][latent], features[0].T @ R @ features[0], rtol=1e-12)
        np.testing.assert_allclose(both[1][latent], features[0].T @ R @ Y[:, latent], rtol=1e-12)


def test_replicas_parts_of_the_prior_add_up(rng):
    precision = tf.constant(rng.normal(size=(2, 3, 3)))
    whole = plus_prior(precision, WHOLE.number)
    np.testing.assert_allclose(whole, precision + np.eye(3))
    np.testing.assert_allclose(4 * plus_prior(precision / 4.0, 4), whole, rtol=1e-12)


def test_longest_step_keeps_mixed_latent_gps_from_overshooting(rng):
    assert longest_step(tf.eye(3, dtype=tf.float64)) == 1.0
    np.testing.assert_allclose(longest_step(tf.ones([1, 6], tf.float64)), 1 / 6)
    for W in rng.normal(size=[5, 2, 4]):
        columns = W / np.linalg.norm(W, axis=0)
        largest = np.linalg.eigvalsh(columns.T @ columns).max()
        assert longest_step(tf.constant(W)) <= 1.0 / largest
    assert longest_step(tf.zeros([2, 3], tf.float64)) == 1.0


def test_divergence_is_that_of_gaussians_up_to_a_constant(network, rng):
    size = network.q_mu.shape[0]
    root = rng.normal(size=[2, size, size]) + 3.0 * np.eye(size)
    precision, shift = root @ np.swapaxes(root, 1, 2), rng.normal(size=[2, size])
    parameters, differences = NaturalParameters(network), []
    for _ in range(2):
        network.q_mu.assign(rng.normal(size=[size, 2]))
        mean, cov = moments(network)
        ours = float(parameters.divergence(tf.constant(precision), tf.constant(shift)))
        theirs = sum(
            float(
                tfp.distributions.kl_divergence(
                    tfp.distributions.MultivariateNormalFullCovariance(mean[latent], cov[latent]),
                    tfp.distributions.MultivariateNormalFullCovariance(
                        np.linalg.solve(precision[latent], shift[latent]),
                        np.linalg.inv(precision[latent]),
                    ),
                )
            )
            for latent in range(2)
        )
        differences.append(ours - theirs)
        network.q_sqrt.assign(np.tril(rng.normal(size=(2, size, size))) + 2.0 * np.eye(size))
    np.testing.assert_allclose(*differences, rtol=1e-9)
