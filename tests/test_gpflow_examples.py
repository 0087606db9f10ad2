"""GPflow's own examples with SVGP and with GPNet: predictions must be as good.

Each test is a notebook of GPflow on data made as the notebook makes them. SVGP has as many
inducing points as a batch has rows, and both take as many steps.

    python -m pytest -m slow -s tests/test_gpflow_examples.py

prints the held-out negative log predictive density of both.
"""

from copy import deepcopy

import gpflow
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow.inducing_variables import (
    InducingPoints,
    SeparateIndependentInducingVariables,
    SharedIndependentInducingVariables,
)
from gpflow.keras import tf_keras
from gpflow.kernels import (
    Linear,
    LinearCoregionalization,
    Matern32,
    Matern52,
    SeparateIndependent,
    SharedIndependent,
    SquaredExponential,
    White,
)
from gpflow.likelihoods import Bernoulli, Gaussian, MultiClass, Poisson
from gpflow.models import SVGP
from gpflow.monitor import ExecuteCallback, Monitor, MonitorTaskGroup
from gpflow.optimizers import NaturalGradient, Scipy
from gpflow.utilities import set_trainable

import gpflow_gpnet as gpn

pytestmark = pytest.mark.slow

TOLERANCE = 0.01
"""Nats per datum. Both are approximations of one posterior; that much separates seeds of either."""


def nlpd(model, data):
    """Mean negative log predictive density, nats per datum."""
    return -float(tf.reduce_mean(model.predict_log_density(data)))


def assert_as_good(name, svgp, gpnet, held_out):
    scores = nlpd(svgp, held_out), nlpd(gpnet, held_out)
    print(f"\n{name}: held-out NLPD, nats: SVGP {scores[0]:.4f}, GPNet {scores[1]:.4f}")
    assert scores[1] <= scores[0] + TOLERANCE


def natural_gradient_and_adam(model, q, data, batch_size, num_steps=2000):
    """GPflow's usual way: NaturalGradient on (q_mu, q_sqrt), Adam on the rest, minibatches."""
    num_data = len(data[0])
    batches = tf.data.Dataset.from_tensor_slices(data).shuffle(num_data, seed=0).repeat()
    loss = model.training_loss_closure(iter(batches.batch(batch_size)))
    natural = NaturalGradient(gamma=0.1)
    rate = tf_keras.optimizers.schedules.PolynomialDecay(0.01, num_steps, 0.0)
    adam = tf_keras.optimizers.Adam(rate)
    for parameter in q:
        set_trainable(parameter, False)

    @tf.function
    def step():
        natural.minimize(loss, [q])
        adam.minimize(loss, model.trainable_variables)

    for _ in range(num_steps):
        step()
    # No minibatch noise in the end.
    loss = model.training_loss_closure(data)
    for _ in range(50):
        natural.minimize(loss, [q])


def train_svgp(model, data, batch_size, num_steps=2000):
    natural_gradient_and_adam(model, (model.q_mu, model.q_sqrt), data, batch_size, num_steps)


def fit_gpnet(model, data, batch_size, num_steps=2000, learning_rate=0.01, **kwargs):
    optimizer = gpn.FunctionalMirrorDescent(learning_rate=gpn.LinearDecay(learning_rate, num_steps))
    return gpn.fit(
        model,
        data,
        optimizer=optimizer,
        num_steps=num_steps,
        batch_size=batch_size,
        seed=0,
        **kwargs,
    )


def split(X, Y, num_train):
    return (X[:num_train], Y[:num_train]), (X[num_train:], Y[num_train:])


# ------------------------------------------------------------------ getting_started


def test_classification_one_input(rng):
    """getting_started/classification_and_other_data_distributions."""
    X = rng.random((2100, 1))
    f = np.sin(6.5 * X)
    probability = 0.5 + 0.5 * np.sign(f) * np.sqrt(np.abs(f))
    Y = (rng.random(X.shape) < probability).astype(float)
    data, held_out = split(X, Y, 100)

    def train_generic_model(model):
        loss = gpflow.models.training_loss_closure(model, data)
        Scipy().minimize(loss, model.trainable_variables)

    Z = np.linspace(0.0, 1.0, 100)[:, None]
    svgp = SVGP(SquaredExponential(), Bernoulli(), Z)
    set_trainable(svgp.inducing_variable, False)
    train_generic_model(svgp)

    kernel = SquaredExponential()
    gpnet = gpn.GPNet(kernel, Bernoulli(), gpn.RFE(kernel, 1, 20), num_data=100)
    fit_gpnet(gpnet, data, batch_size=100)
    assert_as_good("classification, one input", svgp, gpnet, held_out)


# ------------------------------------------------------------------ advanced


def test_gps_for_big_data(rng):
    """advanced/gps_for_big_data: 10,000 data in batches of 100."""
    X = rng.uniform(-1, 1, (12_000, 1))
    f = np.sin(3 * np.pi * X) + 0.3 * np.cos(9 * np.pi * X) + 0.5 * np.sin(7 * np.pi * X)
    data, held_out = split(X, f + 0.2 * rng.normal(size=X.shape), 10_000)

    # From lengthscale 1, 20 times too long, neither learns the function in 2,000 steps.
    kernel, likelihood = SquaredExponential(), Gaussian()
    gpn.fit_hyperparameters(kernel, likelihood, data)

    svgp = SVGP(deepcopy(kernel), deepcopy(likelihood), data[0][:100], num_data=10_000)
    set_trainable(svgp.inducing_variable, False)
    train_svgp(svgp, data, batch_size=100)

    gpnet = gpn.GPNet(kernel, likelihood, gpn.RFE(kernel, 1, 50), num_data=10_000)
    fit_gpnet(gpnet, data, batch_size=100)
    assert_as_good("gps_for_big_data", svgp, gpnet, held_out)


def test_natural_gradients(rng):
    """advanced/natural_gradients: NaturalGradient on (q_mu, q_sqrt) and Adam, by hand for both."""
    X = rng.uniform(-1, 1, (1500, 1))
    data, held_out = split(X, np.sin(10 * X) + 0.2 * rng.normal(size=X.shape), 500)

    svgp = SVGP(Matern52(lengthscales=0.3), Gaussian(0.1), data[0][:100], num_data=500)
    train_svgp(svgp, data, batch_size=100)

    kernel = Matern52(lengthscales=0.3)
    network = gpn.RFE(kernel, 1, 50)
    gpnet = gpn.GPNet(kernel, Gaussian(0.1), network, num_data=500)
    weights = (network.q_mu, network.q_sqrt)
    natural_gradient_and_adam(gpnet, weights, data, batch_size=100)
    assert_as_good("natural_gradients", svgp, gpnet, held_out)


def test_multiclass_classification(rng):
    """advanced/multiclass_classification: three classes, the largest of three functions."""
    X = rng.random((1100, 1))
    jitter = 1e-6 * np.eye(len(X))
    covariance = SquaredExponential(lengthscales=0.1)(X).numpy() + jitter
    functions = np.linalg.cholesky(covariance) @ rng.normal(size=(len(X), 3))
    Y = np.argmax(functions, axis=1)[:, None].astype(float)
    data, held_out = split(X, Y, 100)

    svgp = SVGP(
        Matern32() + White(variance=0.01), MultiClass(3), data[0], num_latent_gps=3, num_data=100
    )
    set_trainable(svgp.kernel.kernels[1].variance, False)
    set_trainable(svgp.inducing_variable, False)
    loss = svgp.training_loss_closure(data)
    Scipy().minimize(loss, svgp.trainable_variables, options={"maxiter": 500})

    kernel = Matern32()  # White noise has no features; the robust likelihood has its own
    network = gpn.RFE(kernel, 1, 50, num_latent_gps=3)
    gpnet = gpn.GPNet(kernel, MultiClass(3), network, num_latent_gps=3, num_data=100)
    fit_gpnet(gpnet, data, batch_size=100)
    assert_as_good("multiclass_classification", svgp, gpnet, held_out)


def test_heteroskedastic(rng):
    """advanced/heteroskedastic: the noise's scale is a second latent GP."""
    X = rng.uniform(0, 4 * np.pi, (2000, 1))
    scale = 0.05 + 0.45 * np.exp(-0.5 * (X - 2 * np.pi) ** 2)
    data, held_out = split(X, np.sin(X) + scale * rng.normal(size=X.shape), 1000)

    def likelihood():
        return gpflow.likelihoods.HeteroskedasticTFPConditional(
            distribution_class=tfp.distributions.Normal, scale_transform=tfp.bijectors.Exp()
        )

    kernels = [SeparateIndependent([SquaredExponential(), SquaredExponential()]) for _ in range(2)]
    Z = np.linspace(X.min(), X.max(), 100)[:, None]
    inducing = SeparateIndependentInducingVariables([InducingPoints(Z), InducingPoints(Z)])
    svgp = SVGP(kernels[0], likelihood(), inducing, num_latent_gps=2, num_data=1000)
    train_svgp(svgp, data, batch_size=100)

    network = gpn.RFE(kernels[1], 1, 50)
    gpnet = gpn.GPNet(kernels[1], likelihood(), network, num_latent_gps=2, num_data=1000)
    fit_gpnet(gpnet, data, batch_size=100)
    assert_as_good("heteroskedastic", svgp, gpnet, held_out)


@pytest.mark.parametrize("kind", ["shared", "separate", "coregionalisation"])
def test_multioutput(rng, kind):
    """advanced/multioutput: three outputs that are mixtures of two functions."""
    X = rng.random((1000, 1)) * 10.0 - 5.0
    functions = np.hstack([0.5 * np.sin(3 * X) + X, 3.0 * np.cos(X) - X])
    W = np.array([[0.5, -0.3, 1.5], [-0.4, 0.43, 0.0]])
    Y = functions @ W + 0.2 * rng.normal(size=(len(X), 3))
    data, held_out = split(X, Y, 500)

    def part():
        return SquaredExponential() + Linear()

    def make_kernel():
        if kind == "shared":
            return SharedIndependent(part(), output_dim=3)
        if kind == "separate":
            return SeparateIndependent([part() for _ in range(3)])
        return LinearCoregionalization([part() for _ in range(2)], W=np.ones((3, 2)) + W.T)

    latents = 2 if kind == "coregionalisation" else 3
    Z = np.linspace(-5.0, 5.0, 100)[:, None]
    inducing = SharedIndependentInducingVariables(InducingPoints(Z))
    svgp = SVGP(make_kernel(), Gaussian(), inducing, num_latent_gps=latents, num_data=500)
    train_svgp(svgp, data, batch_size=100)

    kernel = make_kernel()
    network = gpn.RFE(kernel, 1, 30)
    gpnet = gpn.GPNet(kernel, Gaussian(), network, num_latent_gps=latents, num_data=500)
    fit_gpnet(gpnet, data, batch_size=100)
    assert_as_good(f"multioutput, {kind}", svgp, gpnet, held_out)


def test_monitoring(rng):
    """getting_started/monitoring: GPflow's monitor sees fit's steps."""
    X = rng.uniform(-3, 3, (1300, 1))
    data, held_out = split(X, np.sin(X) + 0.1 * rng.normal(size=X.shape), 300)
    svgp = SVGP(SquaredExponential(), Gaussian(), data[0][:100], num_data=300)
    train_svgp(svgp, data, batch_size=100)

    kernel = SquaredExponential()
    gpnet = gpn.GPNet(kernel, Gaussian(), gpn.RFE(kernel, 1, 30), num_data=300)
    seen = []
    task = ExecuteCallback(lambda: seen.append(gpnet.likelihood.variance.numpy()))
    monitor = Monitor(MonitorTaskGroup([task], period=400))
    fit_gpnet(gpnet, data, batch_size=100, callbacks=[monitor])
    assert len(seen) == 5 and seen[-1] < seen[0]
    assert_as_good("monitoring", svgp, gpnet, held_out)


# ------------------------------------------------------------------ minibatches, other likelihoods


@pytest.mark.parametrize("likelihood", [Bernoulli, Poisson])
def test_minibatches_of_labels_and_counts(rng, likelihood):
    """Two inputs, minibatches of 100, labels by the probit or counts by the exponential link."""
    X = rng.uniform(-2, 2, (4000, 2))
    f = 1.5 * np.sin(2.0 * X[:, :1]) * np.cos(X[:, 1:])
    if likelihood is Bernoulli:
        Y = (f + rng.normal(size=f.shape) > 0).astype(float)
    else:
        Y = rng.poisson(np.exp(f)).astype(float)
    data, held_out = split(X, Y, 2000)
    Z = data[0][:100]
    svgp = SVGP(SquaredExponential(lengthscales=[1.0, 1.0]), likelihood(), Z, num_data=2000)
    train_svgp(svgp, data, batch_size=100)

    kernel = SquaredExponential(lengthscales=[1.0, 1.0])
    gpnet = gpn.GPNet(kernel, likelihood(), gpn.RFE(kernel, 2, 50), num_data=2000)
    fit_gpnet(gpnet, data, batch_size=100)
    assert_as_good(f"minibatches, {likelihood.__name__}", svgp, gpnet, held_out)
