"""Warnings that training makes, each with a case beside it that must not be warned of."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow.keras import tf_keras
from gpflow.likelihoods import Bernoulli, Gaussian
from line_model import Line

import gpflow_gpnet as gpn
from gpflow_gpnet.diagnostics import WatchedRows, warn_of_overfitting


def make_data(rng, num=10):
    X = rng.uniform(-2, 2, size=(num, 1))
    return X, X + np.sin(2 * X) + 0.1 * rng.normal(size=X.shape)


def make_gpnet(num_data, num_features=4, **kwargs):
    kernel = gpflow.kernels.SquaredExponential()
    network = gpn.RFE(kernel, 1, num_features)
    return gpn.GPNet(kernel, Gaussian(0.1), network, num_data=num_data, **kwargs)


def fit(model, data, num_steps=5, **kwargs):
    kwargs = {"batch_size": 4, "progress": False, "seed": 3, **kwargs}
    return gpn.fit(model, data, num_steps=num_steps, **kwargs)


def adam(rate=0.1):
    return tf_keras.optimizers.Adam(rate)


def test_targets_far_beyond_the_prior_are_warned_of(rng):
    X, Y = make_data(rng)
    with pytest.warns(UserWarning, match=r"prior's standard deviation is 1: standardise Y") as seen:
        gpn.fit(
            Line(10), (X, 1e4 * Y), optimizer=adam(), num_steps=1, batch_size=10, progress=False
        )
    assert seen[0].filename == __file__
    fit(Line(10), (X, 10 * Y), 1, optimizer=adam())  # warnings are errors in these tests
    fit(Line(10, likelihood=gpflow.likelihoods.Poisson()), (X, np.full((10, 1), 900)), 1)


def test_inputs_far_wider_than_the_lengthscales_are_warned_of(rng):
    X, Y = make_data(rng)
    with pytest.warns(UserWarning, match=r"columns \[0\] are very wide .* lengthscale 1\)") as seen:
        gpn.fit(
            make_gpnet(10), (1e6 * X, Y), num_steps=1, batch_size=10, progress=False
        )  # fmt: skip
    assert seen[0].filename == __file__
    scaling = gpn.Scaling.from_data((1e6 * X, Y))
    fit(make_gpnet(10, scaling=scaling), (1e6 * X, Y), 1)  # warnings are errors in these tests


def test_over_fitting_is_warned_of_unless_early_stopping_looks_out_for_it(rng):
    """Training targets are noise-free multiples of what validation sees: fitting them is wrong."""
    X, Y = make_data(rng, num=12)
    settings = dict(validation_data=(X, 0.0 * Y), validate_every=2, batch_size=12, polish=False)

    def train(**kwargs):
        optimizer = gpn.FunctionalMirrorDescent(0.1, learning_rate=0.0, noise="objective")
        return fit(make_gpnet(12), (X, 3 * Y), 30, optimizer=optimizer, **settings, **kwargs)

    with pytest.warns(UserWarning, match="over-fits: its validation NLPD was .* at step 2 and"):
        history = train()
    assert history["loss"][-1] < history["loss"][0]
    train(callbacks=[gpn.callbacks.EarlyStopping()])  # warnings are errors in these tests


def test_validation_scores_may_all_be_infinite():
    history = gpn.History()
    for step in (1, 2):
        history.append(step=step, loss=1.0, validation_nlpd=np.inf)
    warn_of_overfitting(history)


@pytest.mark.parametrize("likelihood, too_fast", [("Gaussian", 1.0), ("Bernoulli", 3.0)])
@pytest.mark.parametrize("diverges", [False, True], ids=["converges", "diverges"])
def test_divergence_is_warned_of(rng, likelihood, too_fast, diverges):
    X, Y = make_data(rng, num=60)
    Y = Y if likelihood == "Gaussian" else (Y > 0).astype(float)
    rate, kernel = too_fast if diverges else 0.01, gpflow.kernels.SquaredExponential()
    likelihood = Gaussian(0.01) if likelihood == "Gaussian" else Bernoulli()
    network = gpn.NTK((20,), kernel=kernel, input_dim=1)
    model = gpn.GPNet(kernel, likelihood, network, num_data=60)
    optimizer = gpn.FunctionalMirrorDescent(learning_rate=rate)
    settings = dict(optimizer=optimizer, num_steps=60, batch_size=20, seed=0, progress=False)
    if not diverges:
        gpn.fit(model, (X, Y), **settings)  # warnings are errors in these tests
        return
    with pytest.warns(UserWarning, match="Training has diverged") as seen:
        gpn.fit(model, (X, Y), **settings)
    assert seen[-1].filename == __file__


@pytest.mark.parametrize("scaled", [False, True])
def test_divergence_is_judged_by_expected_log_likelihoods_of_the_rows(rng, scaled):
    """Of f = 3 everywhere, up to the features' variance, against the prior: by hand."""
    X, Y = make_data(rng)
    scaling = gpn.Scaling.from_data((X, Y)) if scaled else None
    model = make_gpnet(10, scaling=scaling)
    watched = WatchedRows(model, model.checked((X, Y)))
    watched.warn_of_divergence()  # warnings are errors in these tests
    model.inference_network.q_mu.assign(np.full((8, 1), 20.0))
    Xs, Ys = model.scaled(model.checked((X, Y)))
    density = -np.log(scaling.target_scale.numpy()[0]) if scaled else 0.0

    def expected(mean):
        squares = np.mean((Ys - mean) ** 2 + 1.0) / 0.1  # features and prior have variance 1
        return density - 0.5 * (np.log(2 * np.pi * 0.1) + squares)

    now, before = expected(model.inference_network(Xs)[0]), expected(0.0)
    message = rf"likelihood {now:.4g} nats per datum, {before:.4g} without".replace("+", r"\+")
    with pytest.warns(UserWarning, match=message):
        watched.warn_of_divergence()


def test_going_back_from_a_good_start_to_the_prior_is_no_divergence(rng):
    X, Y = make_data(rng)
    model = make_gpnet(10)
    fit(model, (X, Y), batch_size=10)
    watched = WatchedRows(model, model.checked((X, Y)))
    model.inference_network.q_mu.assign(np.zeros((8, 1)))
    model.inference_network.q_sqrt.assign(np.eye(8)[None])
    watched.warn_of_divergence()  # warnings are errors in these tests


def test_mixed_latent_gps_and_missing_targets_are_judged_too(rng):
    X, Y = make_data(rng)
    kernels = [gpflow.kernels.SquaredExponential() for _ in range(2)]
    kernel = gpflow.kernels.LinearCoregionalization(kernels, W=rng.normal(size=(3, 2)))
    network = gpn.RFE(kernel, 1, 5, num_latent_gps=2)
    model = gpn.GPNet(kernel, Gaussian(0.1), network, num_data=10, num_latent_gps=2)
    fit(model, (X, Y + np.zeros(3)))
    watched = WatchedRows(model, model.checked((X, Y + np.zeros(3))))
    model.inference_network.q_mu.assign(tf.fill(model.inference_network.q_mu.shape, 30.0))
    with pytest.warns(UserWarning, match="has diverged"):
        watched.warn_of_divergence()
