"""The tangent-kernel network against explicit Jacobians and Bayesian linear regression."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow.keras import tf_keras
from gpflow.likelihoods import Gaussian
from neural import keras_model

import gpflow_gpnet as gpn
from gpflow_gpnet.inference_networks import ntk

KERNEL = gpflow.kernels.Matern52(1.7, [0.7, 1.1])


def inputs(num=6, seed=5):
    return np.random.default_rng(seed).uniform(-1.0, 1.0, (num, 2))


def trained(network, seed=0):
    """The network with other weights and variances than at the start."""
    rng = np.random.default_rng(seed)
    for parameter in network.trainable_parameters:
        if parameter.transform is None:
            parameter.assign(0.5 * rng.normal(size=parameter.shape))
        else:
            parameter.assign(rng.uniform(0.2, 1.5, size=parameter.shape))
    return network


def explicit(network, X):
    """Mean [N, L] and covariance [L, N, N] by GradientTape, one weight matrix at a time."""
    mlp = network.tangents.body
    weights = [*mlp.W, *mlp.b]
    with tf.GradientTape() as tape:
        tape.watch([w.unconstrained_variable for w in weights])
        mean = mlp(X)
    jacobians = tape.jacobian(mean, [w.unconstrained_variable for w in weights])
    cov = 0.0
    for jacobian, V in zip(
        jacobians, [v for part in variances(network) for v in part], strict=True
    ):
        flat = jacobian.numpy().reshape(*mean.shape, -1)
        cov = cov + np.einsum("nlp,p,mlp->lnm", flat, V.ravel(), flat)
    return mean.numpy(), cov


def variances(network):
    """V of the weight matrices [in, out], and of the biases [out]."""
    full = [
        layer.V.numpy() if hasattr(layer, "V") else np.outer(layer.v_in, layer.v_out)
        for layer in network.tangents.layers
    ]
    return [V[:-1] for V in full], [V[-1] for V in full]


@pytest.mark.parametrize("covariance", ["diag", "kronecker"])
@pytest.mark.parametrize(
    "hidden_units, activation, latents",
    [((), "tanh", 2), ((4,), "tanh", 1), ((4, 3), "softplus", 3), ((5, 3, 4), "relu", 2)],
)
def test_covariance_is_the_jacobians_product(covariance, hidden_units, activation, latents):
    network = trained(
        gpn.NTK(
            hidden_units,
            activation,
            kernel=KERNEL,
            covariance=covariance,
            num_latent_gps=latents,
        )
    )
    network.initialise(3.0 + 7.0 * inputs(20))
    mean, cov = network(inputs(), full_cov=True)
    expected_mean, expected = explicit(network, inputs())
    np.testing.assert_allclose(mean, expected_mean, atol=1e-12)
    np.testing.assert_allclose(cov, expected, atol=1e-12 * np.abs(expected).max())
    _, variance = network(inputs())
    np.testing.assert_allclose(variance, np.einsum("lnn->nl", expected), rtol=1e-10)


def test_kronecker_with_equal_entries_is_a_variance_for_each_layer():
    networks = [
        gpn.NTK((4, 3), kernel=KERNEL, covariance=covariance)
        for covariance in ("diag", "kronecker")
    ]
    for number, (diagonal, kronecker) in enumerate(
        zip(*(network.tangents.layers for network in networks), strict=True)
    ):
        diagonal.V.assign(np.full(diagonal.V.shape, 0.1 + number))
        kronecker.v_in.assign(np.full(kronecker.v_in.shape, 0.2 + 2 * number))
        kronecker.v_out.assign(np.full(kronecker.v_out.shape, 0.5))
    covs = [network(inputs(), full_cov=True)[1] for network in networks]
    np.testing.assert_allclose(covs[0], covs[1], rtol=1e-10)


def test_identity_12_without_variance_the_mean_is_the_mlp(rng):
    network = trained(gpn.NTK((4,), kernel=KERNEL))
    network.tangents.multiply(1e-14)
    mean, variance = network(inputs())
    assert np.max(variance) < 1e-12
    hidden = np.tanh(inputs() @ network.tangents.body.W[0] + network.tangents.body.b[0])
    expected = hidden @ network.tangents.body.W[1] + network.tangents.body.b[1]
    np.testing.assert_allclose(mean, expected, atol=1e-12)


@pytest.mark.parametrize("covariance", ["diag", "kronecker"])
def test_identity_12_a_linear_mlp_is_bayesian_linear_regression(covariance):
    """f = xᵀw + b with independent weights: mean and covariance of any q(w, b)."""
    network = trained(gpn.NTK((), kernel=KERNEL, covariance=covariance))
    (W,), (b,) = network.tangents.body.W, network.tangents.body.b
    (V,), (v,) = variances(network)
    X = inputs()
    mean, cov = network(X, full_cov=True)
    np.testing.assert_allclose(mean, X @ W + b, atol=1e-12)
    np.testing.assert_allclose(cov[0], X @ np.diag(V[:, 0]) @ X.T + v, atol=1e-12)


def test_gradient_steps_on_a_linear_mlp_reach_bayesian_linear_regression(rng):
    """On x = ±1 twice, whose features are orthogonal, the posterior of (w, b) is factorised.

    Prior N(0, 1), noise 0.5: precision 1 + 4 / 0.5 = 9 for both.
    """
    X = np.array([[-1.0], [1.0], [-1.0], [1.0]])
    Y = np.array([[0.3], [1.0], [-0.4], [1.5]])
    kernel, likelihood = gpflow.kernels.Linear() + gpflow.kernels.Constant(), Gaussian(0.5)
    gpflow.set_trainable(kernel, False)
    gpflow.set_trainable(likelihood, False)
    network = gpn.NTK((), kernel=kernel, input_dim=1)
    points = np.array([[-1.0], [1.0]])
    model = gpn.GPNet(kernel, likelihood, network, num_data=4, measurement=lambda num: points[:num])
    model.num_measurement_points = 2
    optimizer = gpn.FunctionalMirrorDescent(0.5, gpn.LinearDecay(0.1, 300))
    gpn.fit(model, (X, Y), optimizer=optimizer, num_steps=300, seed=0, progress=False)
    body = network.tangents.body
    np.testing.assert_allclose(body.W[0][0, 0], (X * Y).sum() / 0.5 / 9.0, atol=2e-3)
    np.testing.assert_allclose(body.b[0][0], Y.sum() / 0.5 / 9.0, atol=2e-3)
    np.testing.assert_allclose(network.tangents.layers[0].V, np.full((2, 1), 1 / 9), rtol=0.02)


@pytest.mark.parametrize("hidden_units", [(50,), (21, 20), (1,), ()])
@pytest.mark.parametrize("covariance", ["diag", "kronecker"])
def test_start_is_zero_with_the_kernel_s_variance(rng, hidden_units, covariance):
    """Exactly on average over the inputs seen; at any of them within a factor of 5 if wide.

    Gradients by the hidden layers are there too, although the outputs are 0.
    """
    X = np.array([40.0, -3.0]) + np.array([7.0, 0.2]) * rng.normal(size=(200, 2))
    network = gpn.NTK(hidden_units, kernel=KERNEL, covariance=covariance, num_latent_gps=2)
    network.initialise(X)
    mean, variance = network(X)
    np.testing.assert_allclose(mean, np.zeros((200, 2)), atol=1e-12)
    np.testing.assert_allclose(np.mean(variance), 1.7, rtol=1e-8)
    if len(hidden_units) and hidden_units[0] > 1:
        assert 1.7 / 5 < np.min(variance) and np.max(variance) < 1.7 * 5
        _, _, signals = network.tangents.body.gradient_factors(X)
        assert all(np.abs(signal).max() > 0.01 for signal in signals)


def test_initialise_leaves_a_trained_network_alone():
    network = gpn.NTK((4,), kernel=KERNEL)
    model = gpn.GPNet(KERNEL, Gaussian(), network, num_data=6)
    model.initialise(inputs())
    before = network(inputs())[1].numpy()
    model.initialise(3.0 * inputs())
    np.testing.assert_array_equal(network(inputs())[1], before)
    other = gpn.NTK((4,), kernel=KERNEL)
    other.tangents.body.b[-1].assign([0.1])
    before = other(inputs())[1].numpy()
    gpn.GPNet(KERNEL, Gaussian(), other, num_data=6).initialise(inputs())
    np.testing.assert_array_equal(other(inputs())[1], before)


# ------------------------------------------------------------------ linearised


@pytest.mark.parametrize(
    "build",
    [
        lambda: gpn.NTK((4, 3), kernel=KERNEL, num_latent_gps=2),
        lambda: gpn.NTK((4,), kernel=KERNEL, num_latent_gps=2, covariance="kronecker"),
        lambda: gpn.NTK(keras_model(4, 2, input_dim=2)),
    ],
    ids=["diag", "kronecker", "keras"],
)
def test_linearised_network_starts_as_the_tangent_kernel(build):
    network = trained(build())
    linearised = gpn.LinearisedNTK(network)
    X = np.stack([inputs(), inputs(seed=6)])
    for full_cov in (False, True):
        pairs = zip(linearised(X, full_cov), network(X, full_cov), strict=True)
        for got, expected in pairs:
            np.testing.assert_allclose(got, expected, atol=1e-9)


@pytest.mark.parametrize("hidden_units", [(), (4,)])
def test_natural_step_is_the_linearised_model_s_exact_posterior(rng, hidden_units):
    """Ω and V frozen: GP regression on y - g(x) with the tangent kernel.

    Without hidden layers it is Bayesian linear regression in (w, b), whatever Ω (identity 12).
    """
    X, Y = inputs(12), rng.normal(size=(12, 1))
    network = trained(gpn.NTK(hidden_units, kernel=KERNEL))
    Xnew = inputs(5, seed=7)
    offset, prior = network(np.vstack([X, Xnew]), full_cov=True)
    linearised = gpn.LinearisedNTK(network)
    gpflow.set_trainable(network, False)
    model = gpn.GPNet(KERNEL, Gaussian(0.04), linearised, num_data=12)
    gpflow.set_trainable([model.kernel, model.likelihood], False)
    gpn.FunctionalMirrorDescent(1.0, prior_correction=False).minimize(model, (X, Y))
    gain = prior[0, 12:, :12] @ np.linalg.inv(prior[0, :12, :12] + 0.04 * np.eye(12))
    mean, cov = model.predict_f(Xnew, full_cov=True)
    np.testing.assert_allclose(mean, offset[12:] + gain @ (Y - offset[:12]), atol=1e-8)
    np.testing.assert_allclose(cov[0], prior[0, 12:, 12:] - gain @ prior[0, :12, 12:], atol=1e-8)


# ------------------------------------------------------------------ Keras models


@pytest.mark.parametrize("latents", [1, 2])
def test_keras_model_gives_what_the_same_mlp_gives(latents):
    model = keras_model(4, 3, latents, input_dim=2)
    network = trained(gpn.NTK(model))
    twin = trained(gpn.NTK((4, 3), input_dim=2, num_latent_gps=latents))
    V = network.tangents.V
    for index, (dense, layer) in enumerate(zip(model.layers, twin.tangents.layers, strict=True)):
        twin.tangents.body.W[index].assign(dense.kernel)
        twin.tangents.body.b[index].assign(dense.bias)
        layer.V.assign(tf.concat([V[2 * index], V[2 * index + 1][None]], axis=0))
    X = np.stack([inputs(), inputs(seed=6)])
    for full_cov in (False, True):
        for got, expected in zip(network(X, full_cov), twin(X, full_cov), strict=True):
            np.testing.assert_allclose(got, expected, atol=1e-10)


def test_frozen_keras_model_gets_uncertainty_and_keeps_its_predictions(rng):
    X, Y = inputs(), rng.normal(size=(6, 1))
    keras = keras_model(4, 1, input_dim=2)
    predictions = keras(X).numpy()
    network = gpn.NTK(keras, kernel=KERNEL)
    gpflow.set_trainable(network.tangents.body, False)
    model = gpn.GPNet(KERNEL, Gaussian(0.1), network, num_data=6)
    optimizer = gpn.FunctionalMirrorDescent(learning_rate=0.1)
    gpn.fit(model, (X, Y), optimizer=optimizer, num_steps=5, seed=0, progress=False)
    mean, variance = model.predict_f(X)
    np.testing.assert_array_equal(mean, predictions)
    assert np.all(variance < 1.7)


def test_arguments_that_make_no_network():
    with pytest.raises(ValueError, match="covariance must be"):
        gpn.NTK((4,), kernel=KERNEL, covariance="full")
    with pytest.raises(ValueError, match="covariance must be"):
        gpn.NTK(keras_model(4, 1), covariance="kronecker")
    with pytest.raises(ValueError, match="input_dim is needed"):
        gpn.NTK((4,))
    with pytest.raises(ValueError, match="hidden_units must be"):
        gpn.NTK((4, -1), kernel=KERNEL)
    with pytest.raises(ValueError, match="must give 1 columns"):
        gpn.NTK(keras_model(4, 2, input_dim=2), kernel=KERNEL)
    with pytest.raises(ValueError, match="no trainable weights"):
        gpn.NTK(tf_keras.Sequential([tf_keras.layers.Activation("tanh")]), input_dim=1)
    keras = pytest.importorskip("keras", minversion="3.0")
    with pytest.raises(TypeError, match="Keras 3 Sequential"):
        gpn.NTK(keras.Sequential([keras.layers.Dense(1)]), input_dim=1)


def test_variances_learn_at_ten_times_the_rate_of_weights():
    """A step of gradient descent of rate r moves log v by 100 r times its gradient."""
    parameter = ntk.log_variances(np.array([0.3, 2.0]))
    np.testing.assert_allclose(parameter, [0.3, 2.0], rtol=1e-12)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.math.log(parameter) * [1.0, -2.0])
    variable = parameter.unconstrained_variable
    variable.assign_sub(1e-3 * tape.gradient(loss, variable))
    moved = np.log(parameter.numpy() / [0.3, 2.0])
    np.testing.assert_allclose(moved, [-0.1, 0.2], rtol=1e-9)
