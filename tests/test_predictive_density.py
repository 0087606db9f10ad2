"""Log densities of observations against integrals on fine grids, narrow noise included."""

import sys

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow import likelihoods
from scipy import special

import gpflow_gpnet as gpn
from gpflow_gpnet.predictive_density import predictive_log_density

GRID = np.linspace(-12.0, 12.0, 400_001)


def at(value):
    return np.array([[float(value)]])


def by_grid(likelihood, mean, variance, y):
    """The trapezoidal rule on f, steps of 6e-5 standard deviations."""
    F = (mean + np.sqrt(variance) * GRID)[:, None]
    logs = likelihood.log_prob(np.zeros_like(F), F, np.full_like(F, y)).numpy()
    logs = np.where(np.isnan(logs), -np.inf, logs) - 0.5 * GRID**2 - 0.5 * np.log(2 * np.pi)
    return special.logsumexp(logs) + np.log(GRID[1] - GRID[0])


@pytest.mark.parametrize(
    "likelihood, mean, variance, y",
    [
        (likelihoods.StudentT(scale=0.05, df=4.0), 0.0, 1.0, 0.37),
        (likelihoods.StudentT(scale=0.01, df=2.1), 0.0, 1.0, 5.0),  # between peak and tail
        (likelihoods.StudentT(scale=0.1), 0.0, 0.25, 3.0),
        (likelihoods.Gamma(shape=1000.0), 0.0, 1.0, 1.0),
        (likelihoods.Gamma(shape=0.3), 0.0, 1.0, 1e-6),
        (likelihoods.Beta(scale=1000.0), 0.0, 1.0, 0.4),
        (likelihoods.Beta(scale=0.5), 0.0, 1.0, 0.99),
        (likelihoods.Poisson(), 6.0, 1.0, 484.0),
        (likelihoods.Poisson(), -3.0, 4.0, 5000.0),  # five standard deviations away
        (likelihoods.Poisson(), 0.0, 1.0, 0.0),  # highest at f = -∞
        (likelihoods.Exponential(), 0.0, 1.0, 2.0),
        (likelihoods.Exponential(), 1.0, 9.0, 1e-3),
        (gpn.likelihoods.Ordinal(np.array([-1.0, 0.0, 1.0])), 0.0, 4.0, 0),
        (likelihoods.Bernoulli(), 0.3, 2.0, 1.0),
        (likelihoods.Gaussian(0.01), 0.3, 2.0, 1.0),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "log_prob") else str(value),
)
def test_is_the_integral_over_f(likelihood, mean, variance, y):
    got = predictive_log_density(likelihood, at(0), at(mean), at(variance), at(y))
    assert got.shape == (1,)
    np.testing.assert_allclose(got[0], by_grid(likelihood, mean, variance, y), atol=2e-5)


@pytest.mark.parametrize(
    "likelihood", [likelihoods.Poisson(), likelihoods.StudentT(0.1), likelihoods.Exponential()]
)
def test_without_variance_is_the_likelihood_itself(likelihood):
    got = predictive_log_density(likelihood, at(0), at(0.7), at(0.0), at(2.0))
    np.testing.assert_allclose(got, likelihood.log_prob(at(0), at(0.7), at(2.0)), rtol=1e-9)


def test_noise_that_varies_is_integrated_out_with_its_latent(rng):
    """Two latent GPs: the location in closed form, the noise by nodes."""
    likelihood = likelihoods.HeteroskedasticTFPConditional()
    mean, variance = np.array([[0.3, -3.0]]), np.array([[1.0, 0.5]])
    F = mean + np.sqrt(variance) * rng.normal(size=[4_000_000, 2])
    noise = np.exp(F[:, 1])
    width = np.sqrt(variance[0, 0] + noise**2)
    expected = np.mean(np.exp(-0.5 * ((0.4 - 0.3) / width) ** 2) / width) / np.sqrt(2 * np.pi)
    got = predictive_log_density(likelihood, at(0), mean, variance, at(0.4))
    np.testing.assert_allclose(got, np.log(expected), atol=1e-4)


def test_outputs_and_observed_cells_add_up_whatever_the_weight(rng):
    base = likelihoods.StudentT(0.02)
    wrapped = gpn.likelihoods.Weighted(gpn.likelihoods.MissingTargets(base))
    X, Y = np.zeros([3, 1]), rng.normal(size=[3, 2])
    mean, variance = rng.normal(size=[3, 2]), rng.uniform(0.5, 1.0, size=[3, 2])
    cells = [
        [
            float(predictive_log_density(base, at(0), at(m), at(v), at(y))[0])
            for m, v, y in zip(*rows, strict=True)
        ]
        for rows in zip(mean, variance, Y, strict=True)
    ]
    Y[1, 0] = np.nan
    cells[1][0] = 0.0
    data = tf.constant(np.concatenate([Y, [[1.0], [2.0], [3.0]]], axis=1))
    got = predictive_log_density(wrapped, X, mean, variance, data)
    np.testing.assert_allclose(got, np.sum(cells, axis=1), rtol=1e-9)
    gamma = gpn.likelihoods.MissingTargets(likelihoods.Gamma(shape=50.0))
    gap = predictive_log_density(gamma, X[:1], mean[:1], variance[:1], np.array([[np.nan, 1.0]]))
    alone = predictive_log_density(gamma.base, X[:1], mean[:1, 1:], variance[:1, 1:], at(1.0))
    np.testing.assert_allclose(gap, alone, rtol=1e-9)


@pytest.mark.usefixtures("float_type")
def test_float_types_batches_and_xla():
    float_type = gpflow.default_float()
    likelihood = likelihoods.Poisson()
    X, mean = np.zeros([2, 3, 1], float_type), np.linspace(-1, 1, 6).reshape(2, 3, 1)
    mean, variance = mean.astype(float_type), np.full([2, 3, 1], 0.3, float_type)
    Y = np.arange(6, dtype=float_type).reshape(2, 3, 1)

    @tf.function(autograph=False, jit_compile=True)
    def compiled(*arguments):
        return predictive_log_density(likelihood, *arguments)

    got = compiled(*(tf.constant(value) for value in (X, mean, variance, Y)))
    assert got.dtype == float_type and got.shape == (2, 3)
    expected = [
        by_grid(likelihoods.Poisson(), float(m), 0.3, float(y))
        for m, y in zip(mean.ravel(), Y.ravel(), strict=True)
    ]
    tolerance = 2e-5 if float_type == np.float64 else 1e-4
    np.testing.assert_allclose(np.ravel(got), expected, atol=tolerance)


def test_an_f_that_is_nan_stays_so():
    density = predictive_log_density(likelihoods.Poisson(), at(0), at(np.nan), at(1.0), at(2.0))
    assert np.isnan(density[0])


def test_models_and_comparisons_of_gpflows_models_use_it(rng):
    X = rng.uniform(-1, 1, size=(6, 1))
    kernel, likelihood = gpflow.kernels.SquaredExponential(), likelihoods.StudentT(0.02)
    model = gpn.GPNet(kernel, likelihood, gpn.InducingFeatures(kernel, X[:2]), num_data=6)
    svgp = gpflow.models.SVGP(kernel, likelihood, X[:2])
    data = X, np.sin(X)
    moments = model.predict_f(X)
    expected = predictive_log_density(likelihood, X, *moments, data[1])
    np.testing.assert_allclose(model.predict_log_density(data), expected)
    for each in (model, svgp):
        scores = sys.modules["gpflow_gpnet.compare"].scores(each, data)
        np.testing.assert_allclose(scores["nlpd"], -np.mean(expected), rtol=1e-5)
