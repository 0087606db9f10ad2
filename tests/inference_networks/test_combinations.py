"""Sums of networks: moments add up, joint weights are one Bayesian linear regression."""

from __future__ import annotations

import pickle
from copy import deepcopy

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow.keras import tf_keras
from gpflow.kernels import Linear, Matern32, SquaredExponential

import gpflow_gpnet as gpn

RNG = np.random.default_rng(0)
X = RNG.uniform(-1.0, 1.0, size=(12, 1))
Y = np.sin(3.0 * X) + 0.1 * RNG.normal(size=X.shape)
XNEW = np.linspace(-1.5, 1.5, 5)[:, None]
SHORT, LONG = SquaredExponential(lengthscales=0.2), Matern32(lengthscales=2.0)


def rfe(kernel=SHORT, **kwargs) -> gpn.RFE:
    return gpn.RFE(kernel, 1, 6, **kwargs)


def frozen_gaussian() -> gpflow.likelihoods.Gaussian:
    likelihood = gpflow.likelihoods.Gaussian(0.1)
    gpflow.set_trainable(likelihood, False)
    return likelihood


def exact_step(network, data=(X, Y), kernel=SHORT, **kwargs) -> gpn.GPNet:
    """A model after one natural step with β = 1 on all data, features as they were."""
    model = gpn.GPNet(kernel, frozen_gaussian(), network, num_data=len(X), **kwargs)
    optimizer = gpn.FunctionalMirrorDescent(1.0, learning_rate=0.0, prior_correction=False)
    optimizer.minimize(model, data)
    return model


def assert_same_moments(one, other, rtol=1e-9) -> None:
    for full_cov in (False, True):
        for moment, wanted in zip(one(XNEW, full_cov), other(XNEW, full_cov), strict=True):
            np.testing.assert_allclose(moment, wanted, rtol=rtol, atol=1e-10)


def random_weights(network):
    F, L = network.q_mu.shape
    network.q_mu.assign(RNG.normal(size=(F, L)))
    network.q_sqrt.assign(np.tril(RNG.normal(size=(L, F, F))))
    return network


@pytest.mark.parametrize("latents", [1, 2])
def test_a_sum_starts_from_its_parts(latents) -> None:
    parts = [
        random_weights(rfe(num_latent_gps=latents)),
        random_weights(gpn.InducingFeatures(LONG, X[:4], num_latent_gps=latents)),
    ]
    apart = gpn.Sum(*deepcopy(parts))
    means, covs = zip(*(part(XNEW, True) for part in parts), strict=True)
    np.testing.assert_allclose(apart(XNEW, True)[0], sum(means), rtol=1e-12)
    np.testing.assert_allclose(apart(XNEW, True)[1], sum(covs), rtol=1e-12)
    together = parts[0] + parts[1]
    assert isinstance(together, gpn.LinearSum) and together.num_latent_gps == latents
    assert not together.represents(SHORT + LONG)
    assert_same_moments(together, apart)
    batched = together(tf.stack([XNEW, XNEW + 1.0]))[0]
    np.testing.assert_allclose(batched[0], together(XNEW)[0], rtol=1e-12)
    # The parts' own weights are gone, so that every trainable parameter has a gradient.
    with tf.GradientTape() as tape:
        loss = sum(tf.reduce_sum(moment) for moment in together(XNEW))
    gradients = tape.gradient(loss, together.trainable_variables)
    assert len(gradients) > 4 and all(gradient is not None for gradient in gradients)


def test_latent_gps_with_features_of_their_own() -> None:
    kernel = gpflow.kernels.SeparateIndependent([SHORT, LONG])
    separate = random_weights(gpn.RFE(kernel, 1, 5))
    shared = random_weights(rfe(num_latent_gps=2))
    apart = gpn.Sum(*deepcopy([separate, shared]))
    assert_same_moments(separate + shared, apart)


def test_natural_steps_are_the_joint_regression() -> None:
    network = rfe() + rfe(LONG)
    model = exact_step(network)
    phi, phi_new = network.features(X).numpy(), network.features(XNEW).numpy()
    precision = np.eye(phi.shape[1]) + phi.T @ phi / 0.1
    mean = phi_new @ np.linalg.solve(precision, phi.T @ Y / 0.1)
    cov = phi_new @ np.linalg.solve(precision, phi_new.T)
    np.testing.assert_allclose(model.predict_f(XNEW)[0], mean, rtol=1e-8)
    np.testing.assert_allclose(model.predict_f(XNEW, full_cov=True)[1][0], cov, rtol=1e-8)


def test_inducing_features_of_a_sum_of_kernels_match_its_prior() -> None:
    line = Linear()
    network = gpn.InducingFeatures(SHORT, X[:4]) + gpn.InducingFeatures(line, X[:2])
    kernel = SHORT + line
    assert network.represents(kernel)
    np.testing.assert_allclose(network(XNEW, True)[1][0], kernel(XNEW), rtol=1e-5, atol=1e-6)


def test_a_deterministic_part_is_the_mean_that_the_rest_is_about() -> None:
    mean = gpflow.mean_functions.Linear([[2.0]], [1.0])
    network = gpn.Deterministic(mean) + rfe()
    model = exact_step(network)
    about = exact_step(rfe(), (X, Y - (2.0 * X + 1.0)))
    moments, wanted = model.predict_f(XNEW), about.predict_f(XNEW)
    np.testing.assert_allclose(moments[0], wanted[0] + 2.0 * XNEW + 1.0, rtol=1e-8)
    np.testing.assert_allclose(moments[1], wanted[1], rtol=1e-8)
    functions = model.sample_functions(2000, seed=0)(XNEW).numpy()
    error = np.abs(functions.mean(axis=0) - moments[0])
    np.testing.assert_array_less(error, 5.0 * np.sqrt(moments[1] / 2000) + 1e-9)


def test_post_hoc_uncertainty_keeps_a_trained_keras_models_predictions() -> None:
    keras_model = tf_keras.Sequential([tf_keras.layers.Dense(4, "tanh", input_shape=(1,))])
    keras_model.add(tf_keras.layers.Dense(1))
    deterministic = gpn.Deterministic(keras_model)
    network = deterministic + rfe()
    gpflow.set_trainable([deterministic, network.q_mu], False)
    model = gpn.GPNet(SHORT, frozen_gaussian(), network, num_data=len(X))
    optimizer = gpn.FunctionalMirrorDescent(1.0, learning_rate=0.0, prior_correction=False)
    gpn.fit(model, (X, Y), optimizer=optimizer, num_steps=3, progress=False)
    mean, variance = model.predict_f(XNEW)
    np.testing.assert_allclose(mean, keras_model(XNEW), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(variance, exact_step(rfe()).predict_f(XNEW)[1], rtol=1e-8)


def test_other_networks_add_up_and_take_gradient_steps() -> None:
    network = rfe(covariance="diag") + rfe(LONG)
    assert isinstance(network, gpn.Sum)
    model = gpn.GPNet(SHORT, frozen_gaussian(), network, num_data=len(X))
    before = float(model.training_loss((X, Y)))
    optimizer = gpn.FunctionalMirrorDescent(learning_rate=0.02)
    gpn.fit(model, (X, Y), optimizer=optimizer, num_steps=30, progress=False)
    assert not optimizer.takes_natural_steps
    assert float(model.training_loss((X, Y))) < before
    with pytest.raises(ValueError, match="use Sum"):
        gpn.LinearSum(network, rfe())


def test_whole_functions_of_a_sum_have_its_moments() -> None:
    network = random_weights(rfe() + gpn.InducingFeatures(LONG, X[:4]))
    samples = network.sample_functions(4000, tf.constant([0, 1]))(XNEW).numpy()[..., 0]
    mean, cov = (moment.numpy() for moment in network(XNEW, full_cov=True))
    sd = np.sqrt(np.diag(cov[0]))
    np.testing.assert_array_less(np.abs(samples.mean(axis=0) - mean[:, 0]), 5.0 * sd / 4000**0.5)
    # 4,000 samples: correlations' standard error is at most .016; features' error .02 of k.
    error = (np.cov(samples.T) - cov[0]) / np.outer(sd, sd)
    assert np.abs(error).max() < 0.1


@pytest.mark.parametrize("copy", [deepcopy, lambda network: pickle.loads(pickle.dumps(network))])
def test_copies_are_their_own(copy) -> None:
    network = random_weights(gpn.Deterministic(gpflow.mean_functions.Constant(1.0)) + rfe())
    other = copy(network)
    assert_same_moments(network, other)
    other.q_mu.assign(0.0 * other.q_mu)
    assert np.abs(network(XNEW)[0] - other(XNEW)[0]).max() > 1e-3


def test_errors() -> None:
    with pytest.raises(ValueError, match="same number of latent GPs"):
        rfe() + rfe(num_latent_gps=2)
    with pytest.raises(ValueError, match="at least one network"):
        gpn.Sum()
    with pytest.raises(ValueError, match="input_dim is needed"):
        gpn.Deterministic(tf_keras.Sequential([tf_keras.layers.Dense(1)]))


def test_parameters_have_one_path() -> None:
    paths = gpflow.utilities.parameter_dict(rfe() + rfe(LONG))
    assert len({id(parameter) for parameter in paths.values()}) == len(paths)
    assert not any("_parts" in path for path in paths)


def test_adding_zero_changes_neither_bound_nor_steps() -> None:
    """The residual that inducing features carry is part of the network's prior in a sum too."""
    bounds, means = [], []
    for zero in (False, True):
        network = gpn.InducingFeatures(SHORT, X[:4])
        if zero:
            nothing = gpn.Deterministic(gpflow.functions.Constant(np.zeros(1)))
            gpflow.set_trainable(nothing, False)
            network = nothing + network
        model = gpn.GPNet(SHORT, frozen_gaussian(), network, num_data=len(X))
        bounds.append(float(model.elbo((X, Y))))
        optimizer = gpn.FunctionalMirrorDescent(0.5, learning_rate=0.0)
        for _ in range(2):
            optimizer.minimize(model, (X, Y))
        means.append(model.predict_f(XNEW)[0])
    np.testing.assert_allclose(*bounds, rtol=1e-7)
    np.testing.assert_allclose(*means, atol=1e-5)


def test_correction_of_a_sum_counts_the_residual_of_inducing_features() -> None:
    kernel = SHORT + LONG
    network = random_weights(rfe() + gpn.InducingFeatures(LONG, X[:4]))
    model = gpn.GPNet(kernel, frozen_gaussian(), network, num_data=len(X))
    points = tf.constant(np.linspace(-1.0, 1.0, 5)[:, None])
    features = network.latent_features(points)
    factors = model.prior_factors(points, features)
    residual = network.residual_covariance(points, features, True)
    got = float(model.prior_correction(features, factors))
    mean, cov = (moment.numpy() for moment in network(points, full_cov=True))
    phi = features[0].numpy()
    nugget = (factors[0][0].numpy() @ factors[0][0].numpy().T - kernel(points))[0, 0]
    priors = phi @ phi.T + residual[0].numpy(), kernel(points).numpy()
    wanted = []
    for prior in priors:
        prior = prior + nugget * np.eye(5)
        second = cov[0] + mean @ mean.T
        wanted.append(np.linalg.slogdet(prior)[1] + np.trace(np.linalg.solve(prior, second)))
    np.testing.assert_allclose(got, 0.5 * (wanted[1] - wanted[0]), rtol=1e-6)


def test_a_sum_represents_the_sum_of_its_parts_kernels_alone() -> None:
    def inducing(kernel) -> gpn.InducingFeatures:
        return gpn.InducingFeatures(kernel, X[:4])

    assert inducing(SHORT).represents(SHORT)
    assert not inducing(SHORT).represents(SquaredExponential())
    total = inducing(SHORT) + inducing(LONG)
    assert total.represents(SHORT + LONG) and total.represents(LONG + SHORT)
    assert not total.represents(SHORT)
    twice = inducing(SHORT) + inducing(SHORT)
    assert not twice.represents(SHORT) and twice.represents(SHORT + SHORT)
    assert not (rfe() + inducing(LONG)).represents(SHORT + LONG)


def test_a_part_still_predicts_alone_its_share_of_the_sum() -> None:
    part = random_weights(rfe())
    alone = deepcopy(part)
    total = part + rfe(LONG)
    assert_same_moments(part, alone)
    functions = part.sample_functions(3000, tf.constant([0, 1]))(XNEW).numpy()
    spread = functions[..., 0].std(axis=0)
    np.testing.assert_allclose(spread, np.sqrt(alone(XNEW)[1][:, 0]), rtol=0.1)
    total.q_mu.assign(0.0 * total.q_mu)
    np.testing.assert_allclose(part(XNEW)[0], 0.0)
