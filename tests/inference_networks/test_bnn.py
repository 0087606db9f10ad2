"""The Bayesian neural network's moments against closed forms."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf

import gpflow_gpnet as gpn

KERNEL = gpflow.kernels.Matern52(1.7, [0.7, 1.1])
SAMPLES = 4_000


def inputs(num=6, seed=5):
    return np.random.default_rng(seed).uniform(-1.0, 1.0, (num, 2))


def trained(network, seed=0):
    """The network with another q than at the start."""
    rng = np.random.default_rng(seed)
    for parameter in network.trainable_parameters:
        if parameter.shape.rank == 2 and type(parameter.transform).__name__ == "FillTriangular":
            noise = 0.3 * rng.normal(size=parameter.shape) + 0.5 * np.eye(parameter.shape[0])
            parameter.assign(np.tril(noise))
        elif parameter.transform is not None:
            parameter.assign(rng.uniform(0.2, 0.8, size=parameter.shape))
        else:
            parameter.assign(0.5 * rng.normal(size=parameter.shape))
    return network


def weight_covariance(layer, output):
    """Covariance [in + 1, in + 1] of the weights to one output."""
    if hasattr(layer, "sd"):
        return np.diag(layer.sd.numpy()[:, output] ** 2)
    A, B = layer.A.numpy(), layer.B.numpy()
    return (B @ B.T)[output, output] * (A @ A.T)


@pytest.mark.parametrize("covariance", ["diag", "matrix"])
def test_without_hidden_layers_it_is_the_linear_model(covariance):
    """Mean and covariance of f = xᵀw + b within six standard errors of 4,000 samples."""
    network = trained(gpn.BNN((), SAMPLES, kernel=KERNEL, covariance=covariance, num_latent_gps=2))
    X = inputs()
    (W,), (b,), (layer,) = network.means.W, network.means.b, network.layers
    mean, cov = network(X, full_cov=True)
    assert mean.shape == (6, 2) and cov.shape == (2, 6, 6)
    rows = np.hstack([X, np.ones((6, 1))])
    for output in range(2):
        exact = rows @ weight_covariance(layer, output) @ rows.T
        variance = np.diag(exact)
        error = np.abs(mean[:, output] - (X @ W + b)[:, output])
        assert np.all(error < 6 * np.sqrt(variance / SAMPLES))
        standard_error = np.sqrt((np.outer(variance, variance) + exact**2) / SAMPLES)
        assert np.all(np.abs(cov[output] - exact) < 6 * standard_error)


@pytest.mark.parametrize("covariance", ["diag", "matrix"])
def test_one_hidden_layer_against_samples_drawn_by_numpy(rng, covariance):
    """The weights of all layers drawn anew, 4,000 of them: within six standard errors of both."""
    network = trained(gpn.BNN((3,), SAMPLES, "relu", kernel=KERNEL, covariance=covariance))
    X = inputs(4)
    hidden = np.broadcast_to(X, (SAMPLES, *X.shape))
    for index, layer in enumerate(network.layers):
        mean = np.vstack([network.means.W[index], network.means.b[index].numpy()[None]])
        noise = rng.normal(size=(SAMPLES, *mean.shape))
        if covariance == "diag":
            W = mean + layer.sd.numpy() * noise
        else:
            W = mean + layer.A.numpy() @ noise @ layer.B.numpy().T
        hidden = np.concatenate([hidden, np.ones((SAMPLES, 4, 1))], axis=-1) @ W
        hidden = np.maximum(hidden, 0.0) if index == 0 else hidden
    draws = hidden[..., 0]
    mean, variance = network(X)
    spread = draws.std(axis=0)
    error = np.abs(draws.mean(axis=0) - mean[:, 0])
    assert np.all(error < 6 * spread * np.sqrt(2 / SAMPLES))
    fourth = ((draws - draws.mean(axis=0)) ** 4).mean(axis=0)
    error = np.abs(draws.var(axis=0) - variance[:, 0])
    assert np.all(error < 6 * np.sqrt(2 * fourth / SAMPLES))


def test_moments_are_those_of_the_sampled_values():
    network = trained(gpn.BNN((4,), 7, kernel=KERNEL, num_latent_gps=2))
    values = network.sampled_values(inputs()).numpy()
    assert values.shape == (7, 6, 2)
    mean, cov = network(inputs(), full_cov=True)
    np.testing.assert_allclose(mean, values.mean(axis=0), atol=1e-12)
    for output in range(2):
        np.testing.assert_allclose(cov[output], np.cov(values[..., output].T), atol=1e-12)


def test_predictions_are_deterministic_and_function_samples_are_functions():
    network = trained(gpn.BNN((4,), 7, kernel=KERNEL))
    np.testing.assert_array_equal(network(inputs())[1], network(inputs())[1])
    np.testing.assert_allclose(network(inputs())[1][::-1], network(inputs()[::-1])[1], rtol=1e-10)
    functions = network.sample_functions(3, tf.constant([3, 4]))
    values = functions(inputs())
    assert values.shape == (3, 6, 1)
    np.testing.assert_allclose(functions(inputs()[::-1]), values[:, ::-1], atol=1e-12)
    other = network.sample_functions(3, tf.constant([4, 4]))(inputs())
    assert np.min(np.abs(values - other)) > 0.0
    model = gpn.GPNet(KERNEL, gpflow.likelihoods.Gaussian(), network, num_data=6)
    assert model.sample_functions(3, seed=0)(inputs()).shape == (3, 6, 1)


@pytest.mark.parametrize("hidden_units", [(50,), (21, 20), ()])
@pytest.mark.parametrize("covariance", ["diag", "matrix"])
def test_start_has_the_kernel_s_variance(rng, hidden_units, covariance):
    """Exactly on average over the inputs seen; the mean is 0 up to the sampling error."""
    X = np.array([40.0, -3.0]) + np.array([7.0, 0.2]) * rng.normal(size=(100, 2))
    network = gpn.BNN(hidden_units, 400, kernel=KERNEL, covariance=covariance)
    network.initialise(X)
    mean, variance = network(X)
    np.testing.assert_allclose(np.mean(variance), 1.7, rtol=1e-8)
    assert np.all(np.abs(mean) < 6 * np.sqrt(variance / 400))


def test_initialise_leaves_a_trained_network_alone():
    network = gpn.BNN((4,), 7, kernel=KERNEL)
    model = gpn.GPNet(KERNEL, gpflow.likelihoods.Gaussian(), network, num_data=6)
    model.initialise(inputs())
    before = network(inputs())[1].numpy()
    model.initialise(3.0 * inputs())
    np.testing.assert_array_equal(network(inputs())[1], before)


def test_arguments_that_make_no_network():
    with pytest.raises(ValueError, match="num_samples must be at least 2, got 1"):
        gpn.BNN((4,), 1, kernel=KERNEL)
    with pytest.raises(ValueError, match="covariance must be"):
        gpn.BNN((4,), kernel=KERNEL, covariance="full")
    with pytest.raises(ValueError, match="input_dim is needed"):
        gpn.BNN((4,))
    with pytest.raises(ValueError, match="hidden_units must be"):
        gpn.BNN((0,), kernel=KERNEL)


@pytest.mark.parametrize("optimizer", ["mirror descent", "keras"])
def test_training_draws_other_functions_at_each_step(rng, optimizer):
    """So that q is fitted, and not the S functions that stand for it.

    Standard deviations of fewer samples than weights, full batches: within a fifth of those of
    1,000 fresh functions. (With the same functions at all steps they are half of these.)
    """
    X = rng.uniform(-2, 2, size=(40, 1))
    kernel = gpflow.kernels.SquaredExponential()
    network = gpn.BNN((20,), 20, kernel=kernel, input_dim=1)
    model = gpn.GPNet(kernel, gpflow.likelihoods.Gaussian(0.01), network, num_data=40)
    chosen = {
        "mirror descent": gpn.FunctionalMirrorDescent(learning_rate=0.01),
        "keras": gpflow.keras.tf_keras.optimizers.Adam(0.01),
    }[optimizer]
    gpn.fit(
        model,
        (X, np.sin(2 * X)),
        optimizer=chosen,
        num_steps=200,
        batch_size=40,
        seed=0,
        progress=False,
    )
    assert int(network.draw) == 199
    predicted = np.sqrt(model.predict_f(X)[1])
    functions = network.sample_functions(1000, tf.constant([3, 4]))(tf.constant(X))
    ratio = np.mean(predicted) / np.mean(np.std(functions, axis=0))
    assert 0.8 < ratio < 1.25, ratio


def test_moments_stay_until_functions_are_drawn_anew():
    networks = [gpn.BNN((4,), 9, kernel=KERNEL, seed=seed) for seed in (0, 0, 1)]
    first, again, other = (trained(network) for network in networks)
    model = gpn.GPNet(KERNEL, gpflow.likelihoods.Gaussian(), first + other, num_data=1)
    before = first(inputs())[1].numpy()
    np.testing.assert_array_equal(first(inputs())[1], before)
    model.redraw(tf.constant(7))
    assert int(first.draw) == int(other.draw) == 7
    assert np.mean(np.abs(first(inputs())[1] / before - 1.0)) > 0.1
    again.redraw(7)
    np.testing.assert_array_equal(again(inputs())[1], first(inputs())[1])
    assert np.mean(np.abs(other(inputs())[1] / first(inputs())[1] - 1.0)) > 0.1
