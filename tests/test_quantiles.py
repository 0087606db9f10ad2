"""Quantiles of new observations, against closed forms and brute force."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow import kernels, likelihoods
from scipy import special, stats

import gpflow_gpnet as gpn
from gpflow_gpnet.observations import conditional_distribution
from gpflow_gpnet.quantiles import predictive_quantiles

LEVELS = [0.9, 0.025, 0.5]
MEAN = np.array([[-0.7], [0.4], [1.1], [0.3]])
VARIANCE = np.array([[0.0], [0.01], [0.5], [4.0]])
X = np.zeros((4, 1))
EDGES = np.array([-1.0, 0.2, 1.0])


def quantiles(likelihood, mean=MEAN, variance=VARIANCE, levels=LEVELS, jit_compile=False, X=X):
    """Traced, since eager loops take seconds."""

    @tf.function(autograph=False, jit_compile=jit_compile)
    def compiled(X, mean, variance):
        return predictive_quantiles(likelihood, X, mean, variance, levels)

    return compiled(*(tf.constant(value) for value in (X, mean, variance))).numpy()


def probit(f):
    return special.ndtr(f) * 0.998 + 1e-3


SCALAR = {
    "student": (likelihoods.StudentT(0.4, df=3.0), lambda f: stats.t(3.0, f, 0.4)),
    "exponential": (likelihoods.Exponential(), lambda f: stats.expon(scale=np.exp(f))),
    "gamma": (likelihoods.Gamma(shape=2.5), lambda f: stats.gamma(2.5, scale=np.exp(f))),
    "beta": (
        likelihoods.Beta(tf.sigmoid, scale=30.0),
        lambda f: stats.beta(30.0 * special.expit(f), 30.0 * special.expit(-f)),
    ),
    "narrow gamma": (likelihoods.Gamma(shape=1e5), lambda f: stats.gamma(1e5, scale=np.exp(f))),
    "bernoulli": (likelihoods.Bernoulli(), lambda f: stats.bernoulli(probit(f))),
    "poisson": (likelihoods.Poisson(binsize=2.5), lambda f: stats.poisson(2.5 * np.exp(f))),
    "many counts": (likelihoods.Poisson(binsize=1e6), lambda f: stats.poisson(1e6 * np.exp(f))),
    "ordinal": (likelihoods.Ordinal(EDGES), None),
}


def ordinal_cdf(y, f):
    edges = np.concatenate([EDGES, [np.inf]])
    return np.where(y < 0, 0.0, special.ndtr(edges[np.clip(y, 0, 3).astype(int)] - f))


def brute_force_cdf(conditional, y):
    """P(Y ≤ y) at each row by a fine sum over f; y [Q, N, 1]."""
    z = np.linspace(-9.0, 9.0, 80_001)
    weights = stats.norm.pdf(z) / stats.norm.pdf(z).sum()
    f = MEAN + np.sqrt(VARIANCE) * z
    values = ordinal_cdf(y, f) if conditional is None else conditional(f).cdf(y)
    return np.sum(weights * values, axis=-1, keepdims=True)


@pytest.mark.parametrize("name", SCALAR)
def test_scalar_likelihoods_against_brute_force(name) -> None:
    """Also where f is known, and where the noise is far narrower than f."""
    likelihood, conditional = SCALAR[name]
    got = quantiles(likelihood)
    assert got.shape == (3, 4, 1)
    level = np.array(LEVELS)[:, None, None] * np.ones((1, 4, 1))
    if np.array_equal(got, np.round(got)):
        slack = 2e-6 if name == "many counts" else 1e-12
        assert np.all(brute_force_cdf(conditional, got) >= level - slack)
        assert np.all(brute_force_cdf(conditional, got - 1.0) < level + slack)
    else:
        assert name not in ("bernoulli", "poisson", "many counts", "ordinal")
        np.testing.assert_allclose(brute_force_cdf(conditional, got), level, rtol=0, atol=2e-6)
        expected = conditional(MEAN[0]).ppf(LEVELS)
        np.testing.assert_allclose(got[:, 0, 0], expected, rtol=1e-7)


@pytest.mark.parametrize(
    "likelihood",
    [
        likelihoods.Gaussian(0.3),
        likelihoods.Gaussian(gpflow.functions.Linear(A=[[0.4]], b=0.6)),
        likelihoods.Gaussian(scale=gpflow.functions.Linear(A=[[0.4]], b=0.6)),
    ],
    ids=["constant", "variance of x", "scale of x"],
)
def test_gaussian_is_the_closed_form(likelihood) -> None:
    inputs = np.linspace(-1.0, 1.0, 4)[:, None]
    sd = np.sqrt(VARIANCE + likelihood.variance_at(inputs))
    expected = [stats.norm.ppf(level, MEAN, sd) for level in LEVELS]
    got = predictive_quantiles(likelihood, inputs, tf.constant(MEAN), VARIANCE, LEVELS)
    np.testing.assert_allclose(got, expected, atol=1e-10)


def test_student_s_with_many_degrees_is_gaussian() -> None:
    """To the excess kurtosis, 6 / ν, and Cauchy's has closed-form quantiles."""
    got = quantiles(likelihoods.StudentT(0.4, df=1e6))
    expected = [stats.norm.ppf(level, MEAN, np.sqrt(VARIANCE + 0.16)) for level in LEVELS]
    np.testing.assert_allclose(got, expected, atol=1e-5)
    got = quantiles(likelihoods.StudentT(0.4, df=1.0), variance=0.0 * VARIANCE)
    expected = [stats.cauchy.ppf(level, MEAN, 0.4) for level in LEVELS]
    np.testing.assert_allclose(got, expected, rtol=1e-7)


# ------------------------------------------------------------------ several latents

MEANS = np.array([[0.3, -1.0], [1.0, 0.5], [-0.5, -3.0]])
VARIANCES = np.array([[0.5, 0.2], [0.1, 0.8], [1.0, 0.0]])


def two_latent_cdf(y, cdf):
    z = np.linspace(-8.0, 8.0, 801)
    weights = stats.norm.pdf(z) / stats.norm.pdf(z).sum()
    result = np.zeros_like(y)
    for q, row in np.ndindex(y.shape[:2]):
        loc, log_scale = (MEANS[row] + np.sqrt(VARIANCES[row]) * z[:, None]).T
        values = cdf((y[q, row, 0] - loc[:, None]) / np.exp(log_scale))
        result[q, row] = weights @ values @ weights
    return result


def test_heteroskedastic_against_brute_force() -> None:
    got = quantiles(likelihoods.HeteroskedasticTFPConditional(), MEANS, VARIANCES, X=X[:3])
    level = np.array(LEVELS)[:, None, None] * np.ones((1, 3, 1))
    np.testing.assert_allclose(two_latent_cdf(got, special.ndtr), level, rtol=0, atol=1e-6)
    expected = stats.norm.ppf(LEVELS, -0.5, np.sqrt(1.0 + np.exp(-6.0)))
    np.testing.assert_allclose(got[:, 2, 0], expected, rtol=1e-9)


def test_other_conditionals_of_two_latents_go_by_a_grid() -> None:
    """Rows in which the noise is not narrower than the grid of f."""

    def logistic(loc, scale):
        return tfp.distributions.Logistic(loc, scale)

    likelihood = likelihoods.HeteroskedasticTFPConditional(logistic)
    got = quantiles(likelihood, MEANS, VARIANCES, X=X[:3])[:, :2]
    level = np.array(LEVELS)[:, None, None] * np.ones((1, 2, 1))
    np.testing.assert_allclose(two_latent_cdf(got, special.expit), level, rtol=0, atol=1e-4)


# ------------------------------------------------------------------ all likelihoods


def test_quantiles_rise_with_the_level() -> None:
    levels = np.linspace(0.01, 0.99, 15)
    for name, least in (("exponential", 1e-6), ("poisson", 0.0)):
        got = quantiles(SCALAR[name][0], levels=levels)
        assert np.all(np.diff(got, axis=0) >= least), name


def test_huge_latents_give_no_nan(float_type) -> None:
    mean = np.array([[800.0], [-800.0], [60.0], [0.0]], float_type)
    variance, inputs = np.array([[0.3], [0.3], [1.0], [4.0]], float_type), X.astype(float_type)
    for likelihood in (likelihoods.Gamma(shape=2.0), likelihoods.Poisson()):
        got = quantiles(likelihood, mean, variance, X=inputs)
        assert got.dtype == float_type and not np.isnan(got).any() and (got >= 0.0).all()
        assert np.all(got[:, 0] > 1e35) and np.all(got[:, 1] < 1e-30)
        assert np.isfinite(got[:, 2:]).all()
    np.testing.assert_allclose(np.log(got[2, 2, 0]), 60.0, atol=1e-2)  # the median count


def test_float32_is_as_float64(float_type) -> None:
    values = (value.astype(float_type) for value in (MEAN, VARIANCE, X))
    mean, variance, inputs = values
    got = quantiles(likelihoods.StudentT(0.4), mean, variance, X=inputs)
    assert got.dtype == float_type
    cdf = brute_force_cdf(lambda f: stats.t(3.0, f, 0.4), got.astype(float))
    np.testing.assert_allclose(cdf, np.array(LEVELS)[:, None, None] + 0.0 * cdf, atol=2e-5)


@pytest.mark.parametrize("name", ["student", "exponential"])
def test_xla_gives_the_same(name) -> None:
    likelihood, _ = SCALAR[name]
    got = quantiles(likelihood, jit_compile=True)
    np.testing.assert_allclose(got, quantiles(likelihood), rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bernoulli", "gamma", "beta", "poisson", "ordinal"])
def test_xla_gives_the_same_for_the_others(name) -> None:
    test_xla_gives_the_same(name)


class Laplace(likelihoods.ScalarLikelihood):
    def _scalar_log_prob(self, X, F, Y):
        return -tf.abs(Y - F) - np.log(2.0)

    def _conditional_mean(self, X, F):
        return F

    def _conditional_variance(self, X, F):
        return 2.0 * tf.ones_like(F)


def test_your_own_likelihood_can_be_registered() -> None:
    with pytest.raises(NotImplementedError, match=r"register\(Laplace\)"):
        quantiles(Laplace())

    @conditional_distribution.register(Laplace)
    def _laplace(likelihood, X, F):
        return tfp.distributions.Laplace(F, tf.ones_like(F))

    got = quantiles(Laplace())
    cdf = brute_force_cdf(lambda f: stats.laplace(f), got)
    np.testing.assert_allclose(cdf, np.array(LEVELS)[:, None, None] + 0.0 * cdf, atol=2e-6)


@pytest.mark.parametrize("levels", [[0.0, 0.5], [1.0], [-0.1], [np.nan], [], 0.5, [[0.5]]])
def test_levels_are_numbers_between_0_and_1(levels) -> None:
    with pytest.raises(ValueError, match="levels must be a list of numbers strictly between 0 and"):
        predictive_quantiles(likelihoods.Gaussian(), X, MEAN, VARIANCE, levels)


@pytest.mark.parametrize("likelihood", [likelihoods.Softmax(3), likelihoods.MultiClass(3)])
def test_unordered_classes_have_no_quantiles(likelihood) -> None:
    name = type(likelihood).__name__
    with pytest.raises(ValueError, match=f"{name}: unordered classes .* predict_y gives"):
        predictive_quantiles(likelihood, X, np.zeros((4, 3)), np.ones((4, 3)), LEVELS)


# ------------------------------------------------------------------ of a model


def make_model(rng, likelihood, kernel=None, latents=1):
    kernel = kernel or kernels.SquaredExponential()
    network = gpn.RFE(kernel, 1, 5, num_latent_gps=latents)
    network.q_mu.assign(rng.normal(size=network.q_mu.shape))
    return gpn.GPNet(kernel, likelihood, network, num_latent_gps=latents)


def test_the_model_s_are_those_of_its_marginals_in_any_chunks(rng) -> None:
    model = make_model(rng, likelihoods.Exponential())
    inputs = rng.normal(size=(5, 1))
    whole = model.predict_quantiles(inputs.tolist(), LEVELS)
    assert whole.shape == (3, 5, 1)
    mean, variance = model.predict_f(inputs)
    expected = quantiles(model.likelihood, mean, variance, X=inputs)
    np.testing.assert_allclose(whole, expected, rtol=1e-9)
    model.prediction_rows = 2
    np.testing.assert_allclose(model.predict_quantiles(inputs, LEVELS), whole, rtol=1e-12)


def test_the_model_s_for_mixed_latents_and_batches(rng) -> None:
    kernel = kernels.LinearCoregionalization(
        [kernels.SquaredExponential(), kernels.Matern12()], W=rng.normal(size=(3, 2))
    )
    model = make_model(rng, likelihoods.Gaussian(0.2), kernel, latents=2)
    inputs = rng.normal(size=(2, 4, 1))
    got = model.predict_quantiles(inputs, LEVELS)
    mean, variance = model.predict_y(inputs)
    expected = [stats.norm.ppf(level, mean, np.sqrt(variance)) for level in LEVELS]
    np.testing.assert_allclose(got, expected, atol=1e-10)


def test_the_model_s_samples_have_the_moments_of_predict_y(rng) -> None:
    """Within six standard errors of 20,000; in any chunks the same."""
    model = make_model(rng, likelihoods.Gaussian(0.2), latents=2)
    inputs, number = rng.normal(size=(4, 1)), 20_000
    draws = model.predict_y_samples(inputs, number, seed=3).numpy()
    assert draws.shape == (number, 4, 2)
    mean, variance = (moment.numpy() for moment in model.predict_y(inputs))
    assert np.all(np.abs(draws.mean(axis=0) - mean) < 6.0 * np.sqrt(variance / number))
    assert np.all(np.abs(draws.var(axis=0) / variance - 1.0) < 6.0 * np.sqrt(2.0 / number))
    shares = (draws <= model.predict_quantiles(inputs, LEVELS).numpy()[:, None]).mean(axis=1)
    assert np.abs(shares - np.array(LEVELS)[:, None, None]).max() < 3.0 / np.sqrt(number)
    model.prediction_rows = 3
    np.testing.assert_allclose(model.predict_y_samples(inputs, number, seed=3), draws, rtol=1e-12)
    again, other = (model.predict_y_samples(inputs, 2) for _ in range(2))
    assert np.abs(again - other).max() > 1e-3, "no seed should mean new draws"


def test_levels_are_in_the_model_s_float_type():
    """Not in the default's, as it may be by the time of predictions."""
    kernel = kernels.SquaredExponential()
    model = gpn.GPNet(kernel, likelihoods.Gaussian(0.1), gpn.RFE(kernel, 1, 4), num_data=4)
    expected = model.predict_quantiles(X, LEVELS)
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32, jitter=1e-4)):
        np.testing.assert_array_equal(model.predict_quantiles(X, LEVELS), expected)
