"""Bayesian linear regression on a neural network's last hidden layer."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow.keras import tf_keras
from gpflow.likelihoods import Bernoulli, Gaussian
from neural import keras_model

import gpflow_gpnet as gpn

NOISE = 0.04
KERNEL = gpflow.kernels.Matern52(1.7, 0.7)


def make_data(rng, num=30):
    X = rng.uniform(-2, 2, size=(num, 1))
    return X, np.sin(3 * X) + 0.2 * rng.normal(size=X.shape)


NETWORKS = {
    "mlp": lambda **kw: gpn.AdaptiveBasis((8, 6), kernel=KERNEL, input_dim=1, **kw),
    "keras": lambda **kw: gpn.AdaptiveBasis(keras_model(8, 6), kernel=KERNEL, **kw),
}


def freeze_all_but_weights(model):
    gpflow.set_trainable(model, False)
    network = model.inference_network
    gpflow.set_trainable([network.q_mu, network.q_sqrt], True)


@pytest.mark.parametrize("offset", [False, True], ids=["plain", "residual mean"])
@pytest.mark.parametrize("name", NETWORKS)
def test_natural_step_with_a_fixed_body_is_bayesian_linear_regression(rng, name, offset):
    """One step with β = 1 on all data; a residual mean is subtracted from the targets first."""
    X, Y = make_data(rng)
    network = NETWORKS[name](residual_mean=offset)
    model = gpn.GPNet(KERNEL, Gaussian(NOISE), network, num_data=30)
    if offset:
        last = network.residual_mean.W[-1]
        last.assign(rng.normal(size=last.shape))
    freeze_all_but_weights(model)
    gpn.FunctionalMirrorDescent(1.0, prior_correction=False).minimize(model, (X, Y))
    mean_function = network.residual_mean(X).numpy() if offset else 0.0
    features = network.features(X).numpy()
    precision = np.eye(features.shape[1]) + features.T @ features / NOISE
    expected = np.linalg.solve(precision, features.T @ (Y - mean_function) / NOISE)
    np.testing.assert_allclose(network.q_mu, expected, atol=1e-8)
    root = network.q_sqrt.numpy()[0]
    np.testing.assert_allclose(root @ root.T, np.linalg.inv(precision), atol=1e-9)
    mean, _ = model.predict_f(X)
    np.testing.assert_allclose(mean, mean_function + features @ expected, atol=1e-8)


@pytest.mark.parametrize("likelihood", [Gaussian(NOISE), Bernoulli()])
def test_natural_step_with_a_residual_mean_is_gpflow_s_natural_gradient(rng, likelihood):
    """The correction's pull of the residual mean included: both move along one objective."""
    X, Y = make_data(rng)
    data = X, (Y > 0).astype(float) if isinstance(likelihood, Bernoulli) else Y
    models = []
    for _ in range(2):
        network = NETWORKS["mlp"](residual_mean=True)
        model = gpn.GPNet(KERNEL, likelihood, network, num_data=60)
        model.initialise(X)
        last = network.residual_mean.W[-1]
        last.assign(np.linspace(-1.0, 1.0, last.shape[0])[:, None])
        freeze_all_but_weights(model)
        models.append(model)
    ours, theirs = models
    optimizer = gpn.FunctionalMirrorDescent(0.4)
    weights = theirs.inference_network
    theirs.num_measurement_points = ours.num_measurement_points = 3
    theirs.measurement = ours.measurement = lambda_points(X[:3])
    closure = theirs.training_loss_closure(data)
    for _ in range(2):
        optimizer.minimize(ours, data)
        gpflow.optimizers.NaturalGradient(0.4).minimize(closure, [(weights.q_mu, weights.q_sqrt)])
    for name in ("q_mu", "q_sqrt"):
        got, expected = (getattr(m.inference_network, name).numpy() for m in models)
        np.testing.assert_allclose(got, expected, atol=1e-6 * np.abs(expected).max())


def lambda_points(points):
    return gpn.measurement.as_measurement(lambda num: points)


def test_polishing_with_a_residual_mean_is_a_full_step(rng):
    X, Y = make_data(rng)
    roots = []
    for polished in (True, False):
        network = NETWORKS["mlp"](residual_mean=True)
        model = gpn.GPNet(KERNEL, Gaussian(NOISE), network, num_data=30)
        model.measurement, model.num_measurement_points = lambda_points(X[:3]), 3
        network.residual_mean.b[-1].assign([0.3])
        freeze_all_but_weights(model)
        optimizer = gpn.FunctionalMirrorDescent(1.0)
        optimizer.build(model)
        if polished:
            data = tuple(map(tf.constant, (X, Y)))
            optimizer.polish([tuple(v[i : i + 10] for v in data) for i in (0, 10, 20)])
        else:
            model.initialise = lambda X: None
            optimizer.minimize(model, (X, Y))
        roots.append((network.q_mu.numpy(), network.q_sqrt.numpy()))
    for got, expected in zip(*roots, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-7)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("hidden_units", [(50,), (30, 20)])
def test_variance_at_the_start_is_the_kernel_s(rng, activation, hidden_units):
    """Exactly on average over the inputs seen; at any of them within a factor of 3."""
    X = np.array([40.0, -3.0]) + np.array([7.0, 0.2]) * rng.normal(size=(200, 2))
    kernel = gpflow.kernels.Matern32(2.5, [1.0, 2.0])
    network = gpn.AdaptiveBasis(hidden_units, activation, kernel=kernel)
    network.initialise(X)
    mean, variance = network(X)
    np.testing.assert_array_equal(mean, np.zeros((200, 1)))
    np.testing.assert_allclose(np.mean(variance), 2.5, rtol=1e-8)
    if activation == "tanh":
        assert 2.5 / 3 < np.min(variance) and np.max(variance) < 2.5 * 3


def test_body_and_residual_mean_learn(rng):
    data = make_data(rng)
    for build in NETWORKS.values():
        network = build(residual_mean=True)
        model = gpn.GPNet(KERNEL, Gaussian(NOISE), network, num_data=30)
        before = [v.numpy() for v in network.body.trainable_variables]
        optimizer = gpn.FunctionalMirrorDescent(learning_rate=0.01)
        for _ in range(2):
            optimizer.minimize(model, data)
        for variable, old in zip(network.body.trainable_variables, before, strict=True):
            assert np.any(variable.numpy() != old), variable.name
        assert np.any(network.residual_mean(data[0]) != 0.0)


def test_a_trained_keras_model_can_be_the_fixed_mean(rng):
    """Post-hoc uncertainty: the mean away from data is the model's."""
    given = tf_keras.Sequential([tf_keras.layers.Dense(1, dtype="float64")])
    X, _ = make_data(rng)
    given(X)
    given.trainable = False
    network = gpn.AdaptiveBasis((6,), input_dim=1, residual_mean=given)
    np.testing.assert_array_equal(network(X)[0], given(X))
    assert not network.residual_mean.trainable_variables
    with pytest.raises(ValueError, match="residual_mean must give 2 columns"):
        gpn.AdaptiveBasis((6,), input_dim=1, residual_mean=given, num_latent_gps=2)


def test_float32_keras_models_work_in_a_float64_model(rng):
    X, Y = make_data(rng)
    network = gpn.AdaptiveBasis(keras_model(8, 6, dtype="float32"))
    assert network(X)[0].dtype == np.float64
    model = gpn.GPNet(KERNEL, Gaussian(NOISE), network, num_data=30)
    assert np.isfinite(gpn.FunctionalMirrorDescent().minimize(model, (X, Y)))


def test_keras_3_models_are_refused_by_name():
    keras = pytest.importorskip("keras", minversion="3.0")
    layers = keras.Sequential([keras.layers.Dense(3)])
    with pytest.raises(TypeError, match=r"Keras 3 Sequential.*tf_keras"):
        gpn.AdaptiveBasis(layers, input_dim=1)
    with pytest.raises(TypeError, match="Keras 3 Sequential"):
        gpn.AdaptiveBasis((3,), input_dim=1, residual_mean=layers)


def test_where_sizes_come_from():
    ard = gpflow.kernels.SquaredExponential(lengthscales=[1.0, 2.0])
    two = gpflow.kernels.SharedIndependent(ard, output_dim=3)
    assert gpn.AdaptiveBasis((5,), kernel=two).q_mu.shape == (6, 3)
    assert gpn.AdaptiveBasis((5,), input_dim=4, num_latent_gps=2).q_mu.shape == (6, 2)
    assert gpn.AdaptiveBasis(keras_model(8, 6)).q_mu.shape == (7, 1)
    assert gpn.AdaptiveBasis((5,), input_dim=1, covariance=2).weights.low_rank.shape == (1, 6, 2)
    with pytest.raises(ValueError, match="input_dim is needed"):
        gpn.AdaptiveBasis((5,))
    with pytest.raises(ValueError, match="input_dim is needed"):
        gpn.AdaptiveBasis(tf_keras.Sequential([tf_keras.layers.Dense(3)]))
    for widths in ((), (5, 0), 5, (2.5,)):
        with pytest.raises(ValueError, match="hidden_units must be"):
            gpn.AdaptiveBasis(widths, input_dim=1)
    with pytest.raises(ValueError, match="rows"):
        gpn.AdaptiveBasis(tf_keras.Sequential([tf_keras.layers.Reshape((1, 1))]), input_dim=1)


def test_weights_have_the_distribution_that_they_are_drawn_from_as_prior(rng):
    """The draws of a layer have the prior's mean and spread; the objective counts it."""
    kernel = gpflow.kernels.SquaredExponential(lengthscales=[0.5, 2.0])
    network = gpn.AdaptiveBasis((2000, 30), kernel=kernel)
    X = rng.normal(size=(500, 2)) * [1.0, 3.0]
    network.initialise(X)
    body = network.body
    for parameter in (*body.W, *body.b):
        whitened = parameter.numpy() / parameter.prior.stddev().numpy()
        tolerance = 4.0 / np.sqrt(whitened.size)
        assert abs(whitened.mean()) < tolerance
        assert abs(whitened.std() - 1.0) < tolerance
    np.testing.assert_allclose(
        body.W[0].prior.stddev()[:, 0], X.std(axis=0) / [0.5, 2.0] / np.sqrt(2.0)
    )
    expected = sum(
        -0.5 * np.sum((p / s) ** 2 + np.log(2.0 * np.pi * s**2))
        for p, s in (
            (parameter.numpy(), np.broadcast_to(parameter.prior.stddev(), parameter.shape))
            for parameter in (*body.W, *body.b)
        )
    )
    model = gpn.GPNet(kernel, gpflow.likelihoods.Gaussian(), network, num_data=500)
    np.testing.assert_allclose(model.log_prior_density(), expected)
    smooth = gpn.AdaptiveBasis((20,), kernel=gpflow.kernels.Matern52(lengthscales=[9.0, 9.0]))
    np.testing.assert_allclose(smooth.body.W[0].prior.stddev(), np.sqrt([[0.5], [0.5]]))
    plain = gpn.AdaptiveBasis((20,), kernel=kernel, weight_prior=False)
    assert all(parameter.prior is None for parameter in plain.parameters)
