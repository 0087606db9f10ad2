"""p(y | f) is the likelihood's own, and samples have its moments."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow import likelihoods
from scipy import stats

from gpflow_gpnet.likelihoods import MissingTargets
from gpflow_gpnet.observations import (
    conditional_distribution,
    predict_mean_and_var,
    sample_observations,
)

X = np.linspace(-1.0, 1.0, 3)[:, None]
SCALE = gpflow.functions.Linear(A=[[0.4]], b=0.6)

SCALAR = {
    "gaussian": (likelihoods.Gaussian(0.3), [[-0.4], [1.2]]),
    "gaussian, function": (likelihoods.Gaussian(scale=SCALE), [[-0.4], [1.2]]),
    "student": (likelihoods.StudentT(SCALE, df=5.0), [[-0.4], [1.2]]),
    "exponential": (likelihoods.Exponential(), [[0.2], [3.0]]),
    "gamma": (likelihoods.Gamma(shape=SCALE), [[0.2], [3.0]]),
    "beta": (likelihoods.Beta(scale=3.0), [[0.2], [0.7]]),
    "bernoulli": (likelihoods.Bernoulli(), [[0.0], [1.0]]),
    "bernoulli, logit": (likelihoods.Bernoulli(tf.sigmoid), [[0.0], [1.0]]),
    "poisson": (likelihoods.Poisson(binsize=2.5), [[0.0], [3.0]]),
    "poisson, softplus": (likelihoods.Poisson(tf.math.softplus), [[0.0], [3.0]]),
    "ordinal": (likelihoods.Ordinal(np.array([-1.0, 0.2, 1.0])), [[1.0], [2.0]]),
}
OTHERS = {
    "heteroskedastic": (likelihoods.HeteroskedasticTFPConditional(), [[-0.4], [1.2]]),
    "two latents": (
        likelihoods.MultiLatentTFPConditional(
            2, lambda F: tfp.distributions.Gamma(tf.exp(F[..., :1]), tf.exp(F[..., 1:]))
        ),
        [[0.4], [1.2]],
    ),
}


@pytest.mark.parametrize("likelihood, values", [*SCALAR.values(), *OTHERS.values()])
def test_density_is_the_likelihood_s(rng, likelihood, values) -> None:
    F = rng.normal(size=(3, likelihood.latent_dim or 1))
    for value in values:
        Y = np.tile(value, (3, 1))
        ours = conditional_distribution(likelihood, X, F).log_prob(Y)
        # GPflow's ordinal probabilities sum to .998, and have 1e-6 added.
        tolerance = 3e-3 if isinstance(likelihood, likelihoods.Ordinal) else 1e-10
        np.testing.assert_allclose(ours[:, 0], likelihood.log_prob(X, F, Y), atol=tolerance)


def test_ordinal_probabilities_are_gpflow_s_normalised(rng) -> None:
    likelihood, _ = SCALAR["ordinal"]
    F = rng.normal(size=(3, 1))
    expected = likelihood._make_phi(F) / 0.998
    ours = conditional_distribution(likelihood, X, F).probs_parameter()[:, 0]
    np.testing.assert_allclose(tf.reduce_sum(ours, axis=-1), 1.0, rtol=1e-12)
    # Of the end classes GPflow's are NaN where TensorFlow's erf(inf) is.
    np.testing.assert_allclose(ours[:, 1:-1], expected[:, 1:-1], atol=1e-12)


@pytest.mark.parametrize("likelihood, values", [*SCALAR.values(), *OTHERS.values()])
def test_samples_have_the_moments_of_predict_mean_and_var(rng, likelihood, values) -> None:
    """Within six standard errors of 20,000 samples (those of the variance estimated)."""
    if isinstance(likelihood, likelihoods.Ordinal):
        pytest.skip("GPflow's probabilities sum to .998, or are NaN where TensorFlow's erf(inf) is")
    latents = likelihood.latent_dim or 1
    mean, variance = rng.normal(size=(3, latents)), 0.2 * np.ones((3, latents))
    number = 20_000
    draws = sample_observations(likelihood, X, mean, variance, number, [1, 2]).numpy()
    assert draws.shape == (number, 3, 1) and draws.dtype == np.float64
    expected, spread = (m.numpy() for m in likelihood.predict_mean_and_var(X, mean, variance))
    slack = 1e-3  # GPflow's 20 quadrature points
    error = 6.0 * np.sqrt(spread / number) + slack * (1.0 + np.abs(expected))
    assert np.all(np.abs(draws.mean(axis=0) - expected) < error)
    square = np.square(draws - draws.mean(axis=0))
    error = 6.0 * square.std(axis=0) / np.sqrt(number) + 2.0 * slack * (1.0 + spread)
    assert np.all(np.abs(square.mean(axis=0) - spread) < error)


@pytest.mark.parametrize("likelihood, values", [*SCALAR.values(), *OTHERS.values()])
@pytest.mark.parametrize("wrap", [lambda base: base, MissingTargets])
def test_moments_are_the_likelihood_s(rng, likelihood, values, wrap) -> None:
    latents = likelihood.latent_dim or 1
    f = rng.normal(size=(3, latents)), 0.2 * np.ones((3, latents))
    ours = predict_mean_and_var(wrap(likelihood), X, *f)
    for mine, theirs in zip(ours, likelihood.predict_mean_and_var(X, *f), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-7, atol=1e-9)


def test_variances_of_large_targets_do_not_cancel(float_type) -> None:
    """GPflow's E[y²] - E[y]² is negative here in float32."""
    mean, variance = np.array([[1e6, 0.0]], float_type), np.array([[4.0, 0.0]], float_type)
    likelihood = likelihoods.HeteroskedasticTFPConditional()  # sd exp(0)
    inputs = np.zeros((1, 1), float_type)
    predicted, spread = predict_mean_and_var(likelihood, inputs, mean, variance)
    np.testing.assert_allclose(predicted, 1e6, rtol=1e-6)
    np.testing.assert_allclose(spread, 5.0, rtol=0.05 if float_type == np.float32 else 1e-9)


@pytest.mark.parametrize("size", [1e2, 0.9e5, 1.1e5, 1e8])
def test_cdfs_of_large_parameters(float_type, size) -> None:
    """TensorFlow's incomplete gamma function fails there."""
    # In float32 y and its distance to the mean are known to 1e-7 of y only.
    tolerance = 3e-7 if float_type == np.float64 else 1e-5 + 1e-6 * np.sqrt(size)
    deviations = np.array([[-3.0], [0.1], [2.0]])
    y = np.floor(size + deviations * np.sqrt(size)).astype(float_type)
    inputs = np.zeros((3, 1), float_type)
    f = tf.constant(np.full((3, 1), np.log(size)), float_type)
    rate = np.exp(f.numpy().astype(float))
    poisson = conditional_distribution(likelihoods.Poisson(), inputs, f).cdf(y)
    np.testing.assert_allclose(poisson, stats.poisson.cdf(y, rate), rtol=0, atol=tolerance)
    likelihood = likelihoods.Gamma(shape=size)
    gamma = conditional_distribution(likelihood, inputs, 0.0 * f).cdf(y)
    np.testing.assert_allclose(gamma, stats.gamma.cdf(y, size), rtol=0, atol=tolerance)


def test_samples_follow_the_seed_and_rows_are_independent() -> None:
    likelihood, mean, variance = likelihoods.Gaussian(0.1), np.zeros((3, 1)), np.ones((3, 1))
    first, again, other = (
        sample_observations(likelihood, X, mean, variance, 5000, [0, seed])[..., 0].numpy()
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.1
    assert np.abs(np.corrcoef(first.T) - np.eye(3)).max() < 6 / np.sqrt(5000)


@pytest.mark.parametrize("likelihood", [likelihoods.Softmax(3), likelihoods.MultiClass(3)])
def test_labels_come_as_often_as_predicted(likelihood) -> None:
    mean = np.array([[0.0, 1.0, -1.0], [2.0, 0.0, 0.0]])
    F = tf.constant(mean)
    number = 20_000
    draws = sample_observations(likelihood, X[:2], F, 0.0 * F, number, [1, 2]).numpy()
    assert draws.shape == (number, 2, 1)
    shares = np.stack([(draws[..., 0] == label).mean(axis=0) for label in range(3)], axis=1)
    assert np.abs(shares - likelihood.conditional_mean(X[:2], F)).max() < 3 / np.sqrt(number)


def test_samples_are_finite_or_infinite_for_huge_latents() -> None:
    mean = np.array([[800.0], [-800.0], [0.0]])
    for name in ("exponential", "gamma", "poisson", "beta"):
        draws = sample_observations(SCALAR[name][0], X, mean, 0.0 * mean, 10, [1, 2]).numpy()
        assert not np.isnan(draws).any() and (draws >= 0.0).all(), name


def test_unknown_likelihoods_say_how_to_register_them() -> None:
    switched = likelihoods.SwitchedLikelihood([likelihoods.Gaussian()])
    message = r"SwitchedLikelihood has no conditional_distribution.*Gaussian.*register\(Switched"
    with pytest.raises(NotImplementedError, match=message):
        conditional_distribution(switched, X, X)


def test_default_float_is_followed(float_type) -> None:
    x = X.astype(float_type)
    ordinal = likelihoods.Ordinal(np.array([-1.0, 0.2]))
    for likelihood in (likelihoods.Poisson(binsize=2.5), likelihoods.StudentT(), ordinal):
        draws = sample_observations(likelihood, x, tf.constant(x), tf.ones_like(x), 2, [1, 2])
        assert draws.dtype == float_type
