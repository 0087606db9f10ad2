"""The functional-variational baseline (section 8 of the algorithm)."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow.kernels import Linear, SquaredExponential
from gpflow.likelihoods import Gaussian, Poisson

import gpflow_gpnet as gpn

NOISE, PRIOR_VARIANCE, PRIOR_OFFSET = 0.04, 0.8, 0.5


class Exact(gpn.InferenceNetwork):
    """q(f) with the given mean and covariance at the rows it was made for."""

    def __init__(self, mean, cov):
        super().__init__()
        self.mean = gpflow.Parameter(mean)
        self.root = gpflow.Parameter(
            np.linalg.cholesky(cov), transform=gpflow.utilities.triangular()
        )

    def __call__(self, X, full_cov=False):
        cov = self.root @ tf.linalg.matrix_transpose(self.root)
        return self.mean, cov if full_cov else tf.transpose(tf.linalg.diag_part(cov))


def make_data(rng, num):
    X = np.linspace(-2, 2, num)[:, None]
    return X, np.sin(3 * X) + 0.2 * rng.normal(size=X.shape)


def posterior(kernel, data, points, noise):
    """Exact GP posterior, mean [J, 1] and covariance [1, J, J]."""
    mean, cov = gpflow.models.GPR(data, kernel, noise_variance=noise).predict_f(points, True)
    return mean.numpy(), cov.numpy()


@pytest.mark.parametrize("scaled, factor", [(False, 5.0), (True, 1.0)])
def test_fixed_point_on_a_batch_is_the_posterior_for_its_share_of_the_noise(rng, scaled, factor):
    """A batch that stands for five of its size: published, its noise is 5 times too large.

    The objective on one batch, repeated 5 times in the data, is that of all data, so the exact
    posterior for noise σ² f / 5 · (N/B) is stationary: f = 5 without the scale N / B, else 1.
    """
    batch = make_data(rng, 6)
    points = np.vstack([batch[0], [[-1.9], [0.1], [2.5]]])
    kernel = SquaredExponential(1.3, 0.7)
    # With N / B = 5 each row of the batch is seen 5 times, as if its noise were a fifth.
    mean, cov = posterior(kernel, batch, points, NOISE * factor / 5.0)
    network = Exact(mean, cov + 1e-9 * np.eye(9))
    gpflow.set_trainable(kernel, False)
    model = gpn.FBNN(
        kernel,
        Gaussian(NOISE),
        network,
        num_data=30,
        scale_likelihood=scaled,
        measurement=lambda num: points[6:],
        num_measurement_points=3,
    )
    variables = [network.mean.unconstrained_variable, network.root.unconstrained_variable]

    def gradient_size():
        with tf.GradientTape() as tape:
            loss = model.training_loss(batch)
        return max(np.abs(g).max() for g in tape.gradient(loss, variables))

    at_fixed_point = gradient_size()
    elsewhere, _ = posterior(kernel, batch, points, NOISE * (6.0 - factor) / 5.0)
    network.mean.assign(elsewhere)
    assert at_fixed_point < 1e-3 * gradient_size()


def linear_posterior(X, Y, noise):
    """Bayesian linear regression with the prior's variances on slope and offset."""
    features = np.hstack([np.sqrt(PRIOR_VARIANCE) * X, np.full_like(X, np.sqrt(PRIOR_OFFSET))])
    precision = np.eye(2) + features.T @ features / noise
    return np.linalg.solve(precision, features.T @ Y / noise), np.linalg.inv(precision)


@pytest.mark.parametrize("scaled, factor", [(False, 5.0), (True, 1.0)])
def test_average_over_batches_is_stationary_at_the_posterior_for_noise_n_over_b(
    rng, scaled, factor
):
    """20 points, batches of 4; a linear kernel, whose posterior the network can be exactly.

    Two measured points besides make every KL on J that of the two weights, whatever the batch.
    """
    X, Y = make_data(rng, 20)
    X, Y = (values[rng.permutation(20)] for values in (X, X + Y))
    kernel = Linear(PRIOR_VARIANCE) + gpflow.kernels.Constant(PRIOR_OFFSET)
    network = gpn.RFE(kernel, 1)
    model = gpn.FBNN(
        kernel,
        Gaussian(NOISE),
        network,
        num_data=20,
        scale_likelihood=scaled,
        measurement=lambda num: np.array([[-1.0], [1.0]]),
        num_measurement_points=2,
    )

    def gradient(noise):
        mean, cov = linear_posterior(X, Y, noise)
        network.q_mu.assign(mean)
        network.q_sqrt.assign(np.linalg.cholesky(cov)[None])
        with tf.GradientTape() as tape:
            loss = sum(model.training_loss((X[i : i + 4], Y[i : i + 4])) for i in range(0, 20, 4))
        variables = [p.unconstrained_variable for p in (network.q_mu, network.q_sqrt)]
        return max(np.abs(g).max() for g in tape.gradient(loss, variables))

    # The nugget of the divergence, 1e-6 of the prior's variance, is what is left.
    assert gradient(NOISE * factor) < 1e-2 * gradient(NOISE * (6.0 - factor))


@pytest.mark.parametrize("likelihood", [Gaussian(NOISE), Poisson()])
def test_scaled_objective_is_the_functional_elbo(rng, likelihood):
    X, Y = make_data(rng, 8)
    Y = np.abs(np.round(Y))
    kernel = SquaredExponential(1.3, 0.7)
    network = gpn.RFE(kernel, 1, 15)
    network.q_mu.assign(rng.normal(size=network.q_mu.shape))
    gpnet = gpn.GPNet(kernel, likelihood, network, num_data=40)
    scaled, published = (
        gpn.FBNN(kernel, likelihood, network, num_data=40, scale_likelihood=flag)
        for flag in (True, False)
    )
    points = tf.concat([X, gpnet.measurement_points(X)], axis=0)
    expected = gpnet.functional_elbo(tf.constant(X), tf.constant(Y), points)
    np.testing.assert_allclose(scaled.elbo((X, Y)), expected, rtol=1e-10)
    mean, variance = network(X)
    fit = gpnet.expected_log_likelihood(X, mean, variance, Y)
    np.testing.assert_allclose(published.elbo((X, Y)), expected - 4.0 * fit, rtol=1e-8)
    np.testing.assert_allclose(
        scaled.training_loss((X, Y)), -expected - scaled.log_prior_density(), rtol=1e-10
    )


def test_published_objective_is_the_default_and_needs_no_num_data(rng):
    X, Y = make_data(rng, 8)
    kernel = SquaredExponential(1.3, 0.7)
    network = gpn.RFE(kernel, 1, 15)
    model = gpn.FBNN(kernel, Gaussian(NOISE), network)
    assert model.scale_likelihood is False
    with_number = gpn.FBNN(kernel, Gaussian(NOISE), network, num_data=40)
    np.testing.assert_array_equal(model.elbo((X, Y)), with_number.elbo((X, Y)))


def test_trains_under_a_plain_loop_and_under_fit(rng):
    """Adam, full batch: near the exact posterior, which the scaled bound has."""
    data = make_data(rng, 20)
    kernel = SquaredExponential(1.3, 0.7)
    network = gpn.RFE(kernel, 1, 20)
    model = gpn.FBNN(kernel, Gaussian(NOISE), network, num_data=20, scale_likelihood=True)
    gpflow.set_trainable(kernel, False)
    gpflow.set_trainable(model.likelihood, False)
    adam = gpflow.keras.tf_keras.optimizers.Adam(0.05)
    start = float(model.training_loss(data))
    gpn.fit(model, data, optimizer=adam, num_steps=300, batch_size=20, seed=0, progress=False)
    exact = gpflow.models.GPR(data, kernel, noise_variance=NOISE)
    assert -model.elbo(data) < 0.5 * start
    mean, variance = exact.predict_f(data[0])
    gap = (model.predict_f(data[0])[0] - mean) / np.sqrt(variance)
    assert np.sqrt(np.mean(gap**2)) < 0.5


def test_mirror_descent_is_gpnet_s(rng):
    data = make_data(rng, 8)
    kernel = SquaredExponential()
    model = gpn.FBNN(kernel, Gaussian(), gpn.RFE(kernel, 1, 5), num_data=8)
    with pytest.raises(TypeError, match="FBNN"):
        gpn.FunctionalMirrorDescent().minimize(model, data)


# ------------------------------------------------------------------ Bayesian neural networks


def test_stein_gradient_of_a_gaussian_divergence_is_the_closed_form(rng):
    """A linear BNN, whose q is Gaussian, 400 samples, q apart from p and wider.

    The gradient by means and deviations has the closed form's direction (cosine above .95) and
    size (within a third); the value is the same.
    """
    kernel = Linear(PRIOR_VARIANCE) + gpflow.kernels.Constant(PRIOR_OFFSET)
    network = gpn.BNN((), 400, kernel=kernel, input_dim=1)
    network.means.W[0].assign([[1.5]])
    network.means.b[0].assign([-1.0])
    network.layers[0].sd.assign([[1.6], [1.2]])
    points = tf.constant(np.linspace(-2.0, 2.0, 7)[:, None])
    variables, gradients, values = network.trainable_variables, [], []
    for divergence in ("stein", "moments"):
        model = gpn.FBNN(kernel, Gaussian(NOISE), network, divergence=divergence)
        with tf.GradientTape() as tape:
            value = model.functional_kl(points, *network(points, full_cov=True))
        gradients.append(
            np.concatenate([g.numpy().ravel() for g in tape.gradient(value, variables)])
        )
        values.append(float(value))
    got, expected = gradients
    sizes = np.linalg.norm(got), np.linalg.norm(expected)
    assert got @ expected / (sizes[0] * sizes[1]) > 0.95
    assert 0.67 < sizes[0] / sizes[1] < 1.5
    assert values[0] == pytest.approx(values[1])


def test_stein_gradient_by_the_prior_s_parameters_is_the_closed_form(rng):
    """E_q[log p] by samples: within a tenth (the kernel is wide, so that J is well conditioned)."""
    network = gpn.BNN((5,), 300, input_dim=1)
    points = tf.constant(np.linspace(-2.0, 2.0, 4)[:, None])
    kernel, gradients = SquaredExponential(1.3, 0.7), []
    for divergence in ("stein", "moments"):
        model = gpn.FBNN(kernel, Gaussian(NOISE), network, divergence=divergence)
        with tf.GradientTape() as tape:
            value = model.functional_kl(points, *network(points, full_cov=True))
        gradients.append(tape.gradient(value, kernel.trainable_variables))
    for got, expected in zip(*gradients, strict=True):
        assert float(got) == pytest.approx(float(expected), rel=0.1)


@pytest.mark.parametrize("divergence", ["moments", "stein"])
def test_bayesian_neural_networks_train(rng, divergence):
    data = make_data(rng, 20)
    kernel = SquaredExponential(1.3, 0.7)
    network = gpn.BNN((20,), 50, kernel=kernel, input_dim=1)
    model = gpn.FBNN(kernel, Gaussian(NOISE), network, num_data=20, divergence=divergence)
    gpflow.set_trainable([kernel, model.likelihood], False)
    before = float(tf.reduce_mean(tf.square(data[1] - model.predict_f(data[0])[0])))
    adam = gpflow.keras.tf_keras.optimizers.Adam(0.02)
    gpn.fit(model, data, optimizer=adam, num_steps=100, batch_size=20, seed=0, progress=False)
    after = float(tf.reduce_mean(tf.square(data[1] - model.predict_f(data[0])[0])))
    assert after < 0.5 * before


def test_divergences_that_do_not_fit():
    kernel = SquaredExponential()
    with pytest.raises(ValueError, match="divergence must be"):
        gpn.FBNN(kernel, Gaussian(), gpn.RFE(kernel, 1, 5), divergence="kl")
    with pytest.raises(ValueError, match="sampled_values, such as BNN, got RFE"):
        gpn.FBNN(kernel, Gaussian(), gpn.RFE(kernel, 1, 5), divergence="stein")


@pytest.mark.slow
def test_bayesian_neural_network_reaches_the_posterior_for_noise_n_over_b(rng):
    """Published objective, Stein gradients, batches of 20 of 100: the noise is 5 times too large.

    Means within .3 standard deviations (rms, of which .1 by S = 100 alone) of the exact GP for 5
    times the noise, and bands wider than the exact GP's.
    """
    X = rng.uniform(-2, 2, size=(100, 1))
    data = X, np.sin(3 * X) + 0.2 * rng.normal(size=X.shape)
    kernel = SquaredExponential(1.3, 0.7)
    network = gpn.BNN(kernel=kernel, input_dim=1)
    model = gpn.FBNN(
        kernel,
        Gaussian(NOISE),
        network,
        num_data=100,
        divergence="stein",
        measurement=gpn.measurement.Uniform(-2.3, 2.3),
    )
    gpflow.set_trainable([model.kernel, model.likelihood], False)
    rate = gpflow.keras.tf_keras.optimizers.schedules.PolynomialDecay(0.03, 1500, 0.0)
    adam = gpflow.keras.tf_keras.optimizers.Adam(rate)
    gpn.fit(model, data, optimizer=adam, num_steps=1500, batch_size=20, seed=0, progress=False)
    Xnew = np.linspace(-2, 2, 50)[:, None]
    (mean, variance), (exact_mean, exact), (noisy_mean, noisy) = (
        m.predict_f(Xnew)
        for m in (
            model,
            gpflow.models.GPR(data, kernel, noise_variance=NOISE),
            gpflow.models.GPR(data, kernel, noise_variance=5 * NOISE),
        )
    )
    gaps = [
        np.sqrt(np.mean((mean - m) ** 2 / v)) for m, v in ((exact_mean, exact), (noisy_mean, noisy))
    ]
    assert gaps[1] < 0.3 and gaps[1] < gaps[0]
    assert 1.2 < np.mean(np.sqrt(variance / exact)) < 2.5
