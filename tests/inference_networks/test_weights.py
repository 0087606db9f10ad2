"""The weights' Gaussians against dense linear algebra."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from gpflow_gpnet.inference_networks import (
    DiagonalGaussian,
    FullGaussian,
    KroneckerGaussian,
    LowRankGaussian,
)
from gpflow_gpnet.inference_networks.weights import weight_gaussian

FEATURES, LATENTS = 5, 3
COVARIANCES = ["full", "diag", 2, "kronecker"]
COVARIANCE_IDS = ["full", "diag", "low-rank", "kronecker"]


def random_weights(rng, covariance):
    """A Gaussian far from the prior, another one for each latent GP."""
    weights = weight_gaussian(covariance, FEATURES, LATENTS)
    weights.q_mu.assign(rng.normal(size=(FEATURES, LATENTS)))
    if covariance == "full":
        root = 0.5 * rng.normal(size=(LATENTS, FEATURES, FEATURES)) + np.eye(FEATURES)
        weights.q_sqrt.assign(np.tril(root))
    elif covariance == "diag":
        weights.q_sqrt.assign(rng.uniform(0.3, 2.0, size=(FEATURES, LATENTS)))
    elif covariance == "kronecker":
        weights.root.assign(np.tril(0.5 * rng.normal(size=(FEATURES, FEATURES)) + np.eye(FEATURES)))
        weights.scale.assign(rng.uniform(0.3, 2.0, size=LATENTS))
    else:
        weights.diagonal.assign(rng.uniform(0.3, 3.0, size=(LATENTS, FEATURES)))
        weights.low_rank.assign(rng.normal(size=(LATENTS, FEATURES, covariance)))
    return weights


def dense_covariance(weights):
    """V [L, F, F] by its definition."""
    if isinstance(weights, FullGaussian):
        root = weights.q_sqrt.numpy()
        return root @ np.swapaxes(root, 1, 2)
    if isinstance(weights, DiagonalGaussian):
        return np.stack([np.diag(column**2) for column in weights.q_sqrt.numpy().T])
    if isinstance(weights, KroneckerGaussian):
        root = weights.root.numpy()
        return np.stack([scale**2 * root @ root.T for scale in weights.scale.numpy()])
    low_rank = weights.low_rank.numpy()
    diagonal = np.stack([np.diag(row) for row in weights.diagonal.numpy()])
    return np.linalg.inv(diagonal + low_rank @ np.swapaxes(low_rank, 1, 2))


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per latent"])
@pytest.mark.parametrize("covariance", COVARIANCES, ids=COVARIANCE_IDS)
def test_project_is_a_root_of_the_dense_covariance(rng, covariance, shared):
    weights = random_weights(rng, covariance)
    features = rng.normal(size=(1 if shared else LATENTS, 7, FEATURES))
    root = weights.project(tf.constant(features)).numpy()
    expected = features @ dense_covariance(weights) @ np.swapaxes(features, 1, 2)
    np.testing.assert_allclose(root @ np.swapaxes(root, 1, 2), expected, atol=1e-12)


@pytest.mark.parametrize("covariance", COVARIANCES, ids=COVARIANCE_IDS)
def test_mean_is_features_times_q_mu(rng, covariance):
    weights = random_weights(rng, covariance)
    features = rng.normal(size=(LATENTS, 7, FEATURES))
    expected = np.stack([features[k] @ weights.q_mu.numpy()[:, k] for k in range(LATENTS)], axis=-1)
    np.testing.assert_allclose(weights.mean(tf.constant(features)), expected, atol=1e-12)
    shared = weights.mean(tf.constant(features[:1]))
    np.testing.assert_allclose(shared, features[0] @ weights.q_mu.numpy(), atol=1e-12)


@pytest.mark.parametrize("covariance", COVARIANCES, ids=COVARIANCE_IDS)
def test_leading_dimensions_equal_a_loop(rng, covariance):
    weights = random_weights(rng, covariance)
    features = rng.normal(size=(2, 4, 1, 7, FEATURES))
    mean, root = weights.mean(tf.constant(features)), weights.project(tf.constant(features))
    assert mean.shape == (2, 4, 7, LATENTS)
    for index in np.ndindex(2, 4):
        one = tf.constant(features[index])
        np.testing.assert_allclose(mean[index], weights.mean(one), atol=1e-12)
        np.testing.assert_allclose(root[index], weights.project(one), atol=1e-12)


@pytest.mark.parametrize("covariance", COVARIANCES, ids=COVARIANCE_IDS)
def test_prior_kl_is_the_divergence_from_a_standard_normal(rng, covariance):
    weights = random_weights(rng, covariance)
    posterior = tfp.distributions.MultivariateNormalTriL(
        weights.q_mu.numpy().T, np.linalg.cholesky(dense_covariance(weights))
    )
    prior = tfp.distributions.MultivariateNormalTriL(
        np.zeros((LATENTS, FEATURES)), np.eye(FEATURES)
    )
    expected = np.sum(tfp.distributions.kl_divergence(posterior, prior))
    np.testing.assert_allclose(weights.prior_kl(), expected, rtol=1e-12)


@pytest.mark.parametrize(
    "covariance, tolerance",
    [("full", 0.0), ("diag", 1e-12), (2, 1e-4), ("kronecker", 1e-12)],
    ids=COVARIANCE_IDS,
)
def test_start_is_the_prior(covariance, tolerance):
    """Low rank only nearly: its R must not start at the stationary point 0."""
    weights = weight_gaussian(covariance, FEATURES, LATENTS)
    np.testing.assert_array_equal(weights.q_mu, np.zeros((FEATURES, LATENTS)))
    expected = np.broadcast_to(np.eye(FEATURES), (LATENTS, FEATURES, FEATURES))
    root = weights.project(tf.eye(FEATURES, dtype=tf.float64)[None])
    cov = root @ tf.linalg.matrix_transpose(root)
    np.testing.assert_allclose(cov, expected, atol=tolerance)
    np.testing.assert_allclose(weights.prior_kl(), 0.0, atol=tolerance)


def test_low_rank_part_learns_from_the_start(rng):
    weights = weight_gaussian(2, FEATURES, LATENTS)
    features = tf.constant(rng.normal(size=(1, 7, FEATURES)))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(weights.project(features))) + weights.prior_kl()
    gradient = tape.gradient(loss, weights.low_rank.unconstrained_variable)
    assert np.all(np.abs(gradient) > 0.0)


@pytest.mark.parametrize("covariance", COVARIANCES, ids=COVARIANCE_IDS)
def test_samples_have_the_gaussian_s_moments(rng, covariance):
    """Within six standard errors of 40,000 draws."""
    weights = random_weights(rng, covariance)
    number = 40_000
    draws = weights.sample(number, tf.constant([1, 2])).numpy()
    assert draws.shape == (number, FEATURES, LATENTS)
    for latent, cov in enumerate(dense_covariance(weights)):
        sample = draws[:, :, latent]
        variance = np.diag(cov)
        error = np.abs(sample.mean(axis=0) - weights.q_mu.numpy()[:, latent])
        assert np.all(error < 6 * np.sqrt(variance / number))
        standard_error = np.sqrt((np.outer(variance, variance) + cov**2) / number)
        assert np.all(np.abs(np.cov(sample.T) - cov) < 6 * standard_error)


def test_samples_depend_on_the_seed_alone(rng):
    weights = random_weights(rng, "full")
    first, again, other = (weights.sample(3, tf.constant([seed, 0])) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.min(np.abs(first - other)) > 0.0
    for left, right in ((0, 1), (0, 2), (1, 2)):
        noise = tf.linalg.triangular_solve(
            weights.q_sqrt, tf.transpose(first - weights.q_mu, [2, 1, 0])
        )
        assert np.min(np.abs(noise[left] - noise[right])) > 0.0, "latent GPs share their noise"


@pytest.mark.parametrize("covariance", COVARIANCES, ids=COVARIANCE_IDS)
def test_default_float_is_followed(float_type, rng, covariance):
    weights = random_weights(rng, covariance)
    features = tf.constant(rng.normal(size=(1, 7, FEATURES)), float_type)
    root = weights.project(features)
    for value in (root, weights.mean(features), weights.prior_kl(), weights.sample(2, [0, 1])):
        assert value.dtype == float_type
    expected = features @ dense_covariance(weights) @ tf.linalg.matrix_transpose(features)
    np.testing.assert_allclose(root @ tf.linalg.matrix_transpose(root), expected, atol=1e-4)


@pytest.mark.parametrize(
    "covariance, kind",
    [
        ("full", FullGaussian),
        ("diag", DiagonalGaussian),
        (2, LowRankGaussian),
        ("kronecker", KroneckerGaussian),
    ],
)
def test_all_parameters_are_trainable_and_in_gpflow_s_shapes(covariance, kind):
    weights = weight_gaussian(covariance, FEATURES, LATENTS)
    assert type(weights) is kind
    assert weights.q_mu.shape == (FEATURES, LATENTS)
    if covariance == "full":
        assert weights.q_sqrt.shape == (LATENTS, FEATURES, FEATURES)
    if covariance == "diag":
        assert weights.q_sqrt.shape == (FEATURES, LATENTS)
    with tf.GradientTape() as tape:
        loss = weights.prior_kl()
    assert all(g is not None for g in tape.gradient(loss, weights.trainable_variables))
    gpflow.set_trainable(weights, False)
    assert not weights.trainable_variables


@pytest.mark.parametrize("covariance", ["dense", 0, -1, 1.5, True, None])
def test_other_covariances_are_refused(covariance):
    with pytest.raises(ValueError, match=r'"kronecker" or a positive integer rank') as failure:
        weight_gaussian(covariance, FEATURES, LATENTS)
    assert repr(covariance) in str(failure.value)
