"""Hyperparameters from an exact GP on a subset."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow.likelihoods import Gaussian

import gpflow_gpnet as gpn
from gpflow_gpnet import hyperparameters

RBF = gpflow.kernels.SquaredExponential


def make_data(rng, num=20):
    X = rng.uniform(-2, 2, size=(num, 1))
    return X, 3.0 + np.sin(3 * X) + 0.2 * rng.normal(size=X.shape)


def test_maximises_the_exact_marginal_likelihood(rng):
    X, Y = make_data(rng)
    kernel, likelihood = RBF(), Gaussian()
    mean_function = gpflow.mean_functions.Constant(0.0)
    gpn.fit_hyperparameters(kernel, likelihood, (X.tolist(), Y), mean_function=mean_function)
    model = gpflow.models.GPR((X, Y), kernel, mean_function, likelihood=likelihood)
    start = gpflow.models.GPR((X, Y), RBF(), gpflow.mean_functions.Constant(0.0))
    assert model.log_marginal_likelihood() > start.log_marginal_likelihood() + 5.0
    with tf.GradientTape() as tape:
        loss = model.training_loss()
    assert len(model.trainable_variables) == 4
    for gradient in tape.gradient(loss, model.trainable_variables):
        np.testing.assert_allclose(gradient, 0.0, atol=1e-2)


def test_takes_a_random_subset_and_leaves_frozen_parameters(rng):
    """A subset of one row says nothing of the lengthscale, so its rows must be few to matter."""
    data = make_data(rng)
    fitted = []
    for seed in (0, 0, 1):
        kernel, likelihood = RBF(), Gaussian(0.05)
        gpflow.set_trainable(likelihood, False)
        gpn.fit_hyperparameters(kernel, likelihood, data, num_points=6, max_iterations=5, seed=seed)
        assert likelihood.variance.numpy() == pytest.approx(0.05)
        fitted.append(kernel.lengthscales.numpy())
    assert fitted[0] == fitted[1] != fitted[2]


def test_needs_a_gaussian_likelihood(rng):
    with pytest.raises(TypeError, match="likelihood must be Gaussian, got Poisson"):
        gpn.fit_hyperparameters(RBF(), gpflow.likelihoods.Poisson(), make_data(rng))


def test_leaves_out_rows_without_targets_and_sees_through_wrapped_likelihoods(rng):
    X, Y = make_data(rng)
    X, gaps = np.vstack([X, X + 0.1]), np.vstack([Y, np.full_like(Y, np.nan)])
    kernels = RBF(), RBF()
    wrapped = gpn.likelihoods.Weighted(gpn.likelihoods.MissingTargets(Gaussian()))
    gpn.fit_hyperparameters(kernels[0], wrapped, (X, gaps, np.ones(len(X))), max_iterations=5)
    gpn.fit_hyperparameters(kernels[1], Gaussian(), (X[: len(Y)], Y), max_iterations=5)
    np.testing.assert_allclose(kernels[0].lengthscales, kernels[1].lengthscales, rtol=1e-6)
    with pytest.raises(ValueError, match="no row without NaN"):
        gpn.fit_hyperparameters(kernels[0], wrapped, (X, np.full_like(gaps, np.nan)))


def test_from_starts_goes_back_to_the_given_ones_where_no_noise_is_left(rng, monkeypatch):
    """As when the search has gone astray from √D; settings reach both searches."""
    seen = []

    def search(kernel, likelihood, data, **settings):
        seen.append((kernel.lengthscales.numpy(), likelihood.variance.numpy(), settings))
        likelihood.variance.assign(0.2 if len(seen) == 2 else 2e-6)
        kernel.lengthscales.assign([7.0] * 4)

    monkeypatch.setattr(hyperparameters, "fit_hyperparameters", search)
    kernel, likelihood = RBF(lengthscales=np.ones(4)), Gaussian(0.3)
    data = rng.normal(size=(5, 4)), rng.normal(size=(5, 1))
    hyperparameters.fit_from_starts(kernel, likelihood, data, seed=3)
    for (lengthscales, noise, settings), expected in zip(seen, (2.0, 1.0), strict=True):
        np.testing.assert_allclose(lengthscales, expected)
        np.testing.assert_allclose(noise, 0.3)
        assert settings == {"seed": 3}
    np.testing.assert_allclose(likelihood.variance, 0.2)
    # From lengthscales of the user's own there is no other start, noise or not.
    kernel.lengthscales.assign([0.5] * 4)
    hyperparameters.fit_from_starts(kernel, likelihood, data)
    assert len(seen) == 3
    np.testing.assert_allclose(seen[2][0], 0.5)


def test_lengthscales_stop_where_all_values_are_told_apart(rng):
    """Seven levels with unrelated means, as months can be: the likelihood's maximum is at 0."""
    level = rng.permutation(np.repeat(np.arange(7.0), 20))[:, None]
    X = np.hstack([level, rng.normal(size=level.shape)])
    Y = rng.normal(size=7)[level.astype(int)] + 0.1 * rng.normal(size=level.shape)
    kernel, likelihood = RBF(lengthscales=[1e-7, 2.0]), Gaussian(0.01)
    gpflow.set_trainable((kernel.variance, likelihood), False)
    gpn.fit_hyperparameters(kernel, likelihood, (X, Y), max_iterations=1)
    assert kernel.lengthscales.numpy()[0] == pytest.approx(0.1)
    prior = kernel(X[:, :1] * [1.0, 0.0]).numpy()
    np.testing.assert_allclose(prior, level == level.T, atol=1e-12)
    frozen = RBF(lengthscales=1e-7)
    gpflow.set_trainable(frozen.lengthscales, False)
    gpn.fit_hyperparameters(frozen, Gaussian(), (X[:, :1], Y), max_iterations=1)
    assert frozen.lengthscales.numpy() == pytest.approx(1e-7)


@pytest.mark.parametrize("shared", [True, False])
def test_lengthscales_keep_half_the_digits_of_squared_distances(shared, float_type):
    """Where values are nearer to each other than that; a constant input says nothing."""
    X = np.array([[0.0, 1.0], [1e-9, 1.0], [8.0, 1.0], [8.0, 1.0]], float_type)
    kernel = RBF(lengthscales=float_type(1e-7) if shared else np.full(2, 1e-7, float_type))
    hyperparameters._keep_resolvable(kernel, X)
    least = 8.0 * np.finfo(float_type).eps ** 0.25
    np.testing.assert_allclose(kernel.lengthscales, least if shared else [least, 1e-7], rtol=1e-5)


def test_kernels_whose_lengthscales_mean_something_else_are_left(rng):
    """Cosine's are those of a frequency, which may be higher than the rows' own."""
    kernel = gpflow.kernels.Cosine(lengthscales=1e-7)
    gpn.fit_hyperparameters(kernel, Gaussian(), make_data(rng), max_iterations=1)
    assert kernel.lengthscales.numpy() < 1e-6


def test_columns_are_the_kernels(rng):
    X, Y = make_data(rng)
    with pytest.raises(ValueError, match=r"SquaredExponential: expected 2 active .* got 1 with"):
        gpn.fit_hyperparameters(RBF(lengthscales=[1.0, 1.0]), Gaussian(), (X, Y))


@pytest.mark.parametrize("which", ["X", "Y"])
def test_values_that_are_not_finite_are_named(rng, which):
    """NaN targets are left out; a NaN input made L-BFGS return where it began."""
    X, Y = make_data(rng)
    bad = X.copy() if which == "X" else Y.copy()
    Y[0] = np.nan  # of a row that is left out, and whose inputs do not matter
    X[0] = bad[0] = np.nan
    bad[2] = np.nan if which == "X" else np.inf
    data = (bad, Y) if which == "X" else (X, bad)
    with pytest.raises(ValueError, match=f"{which} has NaN or infinite values in 1 rows.* row 2"):
        gpn.fit_hyperparameters(RBF(), Gaussian(), data)


def test_outputs_that_share_a_kernel_or_have_their_own(rng):
    X, Y = make_data(rng)
    Y = np.concatenate([Y, np.cos(X) + 0.2 * rng.normal(size=X.shape)], axis=1)
    shared, direct = gpflow.kernels.SharedIndependent(RBF(), 2), RBF()
    noises = [Gaussian(), Gaussian()]
    for kernel, noise in zip((shared, direct), noises, strict=True):
        gpn.fit_hyperparameters(kernel, noise, (X, Y))
    np.testing.assert_allclose(shared.kernel.lengthscales, direct.lengthscales)
    np.testing.assert_allclose(noises[0].variance, noises[1].variance)
    separate = gpflow.kernels.SeparateIndependent([RBF(), gpflow.kernels.Matern52()])
    noise = Gaussian(0.05)
    gpflow.set_trainable(noise, False)
    mean_function = gpflow.mean_functions.Constant(np.array([3.0, 0.0]))
    gpflow.set_trainable(mean_function, False)
    gpn.fit_hyperparameters(separate, noise, (X, Y), mean_function=mean_function)
    for output, alone in enumerate((RBF(), gpflow.kernels.Matern52())):
        about = Y[:, [output]] - (3.0, 0.0)[output]
        gpn.fit_hyperparameters(alone, noise, (X, about))
        fitted = separate.kernels[output].lengthscales
        np.testing.assert_allclose(fitted, alone.lengthscales, rtol=1e-2)
    with pytest.raises(ValueError, match="Y has 1 columns, but the kernel has 2 outputs"):
        gpn.fit_hyperparameters(separate, noise, (X, Y[:, :1]))
    mixed = gpflow.kernels.LinearCoregionalization([RBF()], W=np.ones([2, 1]))
    with pytest.raises(TypeError, match="got LinearCoregionalization: fit its parts"):
        gpn.fit_hyperparameters(mixed, noise, (X, Y))


def test_a_prior_counts_once_however_many_outputs_share_it(rng):
    X, Y = make_data(rng)
    Y, noises, free = np.tile(Y, 2), [Gaussian(), Gaussian()], Gaussian()
    for noise in noises:
        noise.variance.prior = tfp.distributions.LogNormal(np.float64(-6.0), np.float64(0.3))
    kernel = RBF(1.0, 0.5)
    gpflow.set_trainable(kernel, False)
    for each, noise in zip(
        (gpflow.kernels.SeparateIndependent([kernel, kernel]), kernel), noises, strict=True
    ):
        gpn.fit_hyperparameters(each, noise, (X, Y))
    np.testing.assert_allclose(noises[0].variance, noises[1].variance, rtol=1e-4)
    gpn.fit_hyperparameters(kernel, free, (X, Y))
    assert noises[1].variance.numpy() < 0.9 * free.variance.numpy()


@pytest.mark.parametrize("likelihood", ["weighted", "weighted, missing"])
def test_row_data_in_columns_of_y_are_no_outputs(rng, likelihood):
    X, Y = make_data(rng)
    weights = rng.uniform(1.0, 200.0, size=Y.shape)
    fitted = []
    for data in ((X, Y, weights[:, 0]), (X, np.hstack([Y, weights])), (X, Y)):
        base, kernel = Gaussian(), RBF()
        wrapped = gpn.likelihoods.MissingTargets(base) if "missing" in likelihood else base
        gpn.fit_hyperparameters(kernel, gpn.likelihoods.Weighted(wrapped), data, max_iterations=5)
        fitted.append([kernel.lengthscales.numpy(), base.variance.numpy()])
    np.testing.assert_allclose(fitted[1:], [fitted[0]] * 2, rtol=1e-9)
