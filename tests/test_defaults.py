"""A GPNet whose settings come from the training data."""

import sys

import gpflow
import numpy as np
import pytest
import tensorflow_probability as tfp
from gpflow.likelihoods import Gaussian, HeteroskedasticTFPConditional, StudentT

import gpflow_gpnet as gpn

MODULE = sys.modules["gpflow_gpnet.defaults"]


def make_data(rng, rows=80):
    """A sine far from standard units: noise of sd 10 about amplitude 100."""
    X = 1000.0 + 5.0 * rng.uniform(-2, 2, size=(rows, 1))
    Y = 500.0 + 100.0 * np.sin(0.6 * (X - 1000.0)) + 10.0 * rng.normal(size=X.shape)
    return X, Y


def candidate(name, make, steps):
    return MODULE.Candidate(name, make, 0.01, True, steps)


def random_features(number):
    return lambda kernel, X, latents, seed: gpn.RFE(
        kernel, X.shape[1], number, num_latent_gps=latents, seed=seed
    )


@pytest.fixture
def small(monkeypatch):
    """Two candidates, one of which can only draw straight lines."""

    def line(kernel, X, latents, seed):
        return gpn.RFE(gpflow.kernels.Linear(), X.shape[1], 1, num_latent_gps=latents)

    candidates = candidate("line", line, 5), candidate("features", random_features(20), 20)
    monkeypatch.setattr(MODULE, "FEW", candidates)
    monkeypatch.setattr(MODULE, "MANY", candidates)


@pytest.mark.parametrize("rows", [80, 1000])
def test_keeps_the_candidate_that_predicts_held_out_rows_best(rng, small, rows):
    """And is trained on all rows in the end."""
    X, Y = make_data(rng, rows)
    kernel, likelihood = gpflow.kernels.SquaredExponential(), Gaussian(0.5)
    recipe = gpn.defaults(kernel, X, Y, likelihood=likelihood)
    seen = []
    history = recipe.fit(progress=False, callbacks=[seen.append])
    assert recipe.network == "features"
    assert recipe.validation_nlpd["features"] < recipe.validation_nlpd["line"] - 0.5
    model = recipe.model
    assert model.num_data == rows
    mean, variance = model.predict_y(X)
    assert np.sqrt(np.mean((mean - Y) ** 2)) < 12.0
    assert 8.0 < np.sqrt(np.mean(variance)) < 12.0
    nlpd = -np.mean(model.predict_log_density((X, Y)))
    np.testing.assert_allclose(recipe.validation_nlpd["features"], nlpd, atol=0.4)
    assert history["step"][-1] == 20 and len(seen) == 5 + 20 + 20 * (rows == 80)
    np.testing.assert_allclose(kernel.lengthscales, 1.0)
    np.testing.assert_allclose(likelihood.variance, 0.5)


def test_same_seed_same_model(rng, small):
    X, Y = make_data(rng)
    predictions = []
    for _ in range(2):
        recipe = gpn.defaults(gpflow.kernels.SquaredExponential(), X, Y, seed=4)
        recipe.fit(progress=False)
        predictions.append(recipe.model.predict_f(X)[0].numpy())
    np.testing.assert_array_equal(*predictions)


def test_a_heteroskedastic_likelihood_gets_two_latent_gps(rng, small):
    X, Y = make_data(rng)
    likelihood = HeteroskedasticTFPConditional(
        distribution_class=tfp.distributions.Normal, scale_transform=tfp.bijectors.Exp()
    )
    kernels = [gpflow.kernels.SquaredExponential() for _ in range(2)]
    recipe = gpn.defaults(
        gpflow.kernels.SeparateIndependent(kernels), X, (Y - 500.0) / 100.0, likelihood=likelihood
    )
    candidates = recipe.candidates
    assert [each.name for each in candidates] == ["line", "features"]
    assert recipe._network(candidates[1], recipe.kernel).num_latent_gps == 2


def test_student_t_targets_are_scaled_and_time_is_kept(rng, small):
    X, Y = make_data(rng)
    recipe = gpn.defaults(
        gpflow.kernels.SquaredExponential(), X, Y, likelihood=StudentT(0.1, df=3.0)
    )
    assert recipe.scaling.scales_targets
    history = recipe.fit(seconds=0.0, progress=False)
    assert history["step"][-1] == 1  # one is always taken
    assert np.isfinite(recipe.model.predict_y(X)[0]).all()


def test_few_rows_of_a_gaussian_likelihood_give_the_exact_gp(rng, monkeypatch):
    """Of the hyperparameters found, but for the noise, which is tracked from there."""
    X, Y = make_data(rng)
    monkeypatch.setattr(MODULE, "FEW", MODULE.FEW[:1])
    recipe = gpn.defaults(gpflow.kernels.Matern32(), X, Y)
    recipe.fit(progress=False)
    model = recipe.model
    scaled = recipe.scaling((X, Y), model.likelihood)
    exact = gpflow.models.GPR(scaled[:2], model.kernel, likelihood=model.likelihood)
    new = np.linspace(X.min() - 1.0, X.max() + 1.0, 30)[:, None]
    mean, variance = exact.predict_f(recipe.scaling.inputs(new))
    got = model.predict_f(new)
    np.testing.assert_allclose(got[0], recipe.scaling.original_mean(mean), atol=0.1)
    np.testing.assert_allclose(got[1], variance * np.std(Y) ** 2, rtol=1e-3)
    np.testing.assert_allclose(model.likelihood.variance, recipe.likelihood.variance, rtol=0.02)


def test_duplicated_rows_do_not_lead_to_no_noise():
    """From lengthscales 1 in five dimensions the fit ends at noise 1e-6, and at no correlation."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(150, 5))
    Y = np.sin(X[:, :1]) + 0.5 * rng.normal(size=(150, 1))
    X, Y = np.vstack([X, X[:50]]), np.vstack([Y, Y[:50]])
    kernel = gpflow.kernels.SquaredExponential(lengthscales=np.ones(5))
    recipe = gpn.defaults(kernel, X, Y)
    assert 0.2 < recipe.likelihood.variance.numpy() < 0.45  # the truth is .36 of var Y
    np.testing.assert_allclose(kernel.lengthscales, 1.0)


def test_of_candidates_within_a_standard_error_the_one_nearest_to_the_kernel_is_kept(rng):
    first = rng.normal(size=100)
    noise = rng.normal(size=100)
    noise = (noise - noise.mean()) / noise.std()  # a standard error of .1
    for gain, kept in ((-1.0, 0), (0.05, 0), (0.2, 1)):
        assert MODULE._nearest_to_best([first, first + gain + noise]) == kept
    # Nearest to the best of all, not to the one before.
    assert MODULE._nearest_to_best([first, first + 0.05 + noise, first + 1.0 + noise]) == 2
    with pytest.raises(ValueError, match="not finite"):
        MODULE._nearest_to_best([np.full(5, np.nan)])


def test_candidates_are_those_that_take_the_kernel():
    X = np.linspace(0, 1, 20)[:, None]
    for kernel, names in (
        (gpflow.kernels.SquaredExponential(), ["inducing features", "warped random features"]),
        (gpflow.kernels.Linear(), ["inducing features"]),
        (gpflow.kernels.ArcCosine(), ["inducing features"]),
    ):
        recipe = gpn.defaults(kernel, X, np.sin(X))
        assert [each.name for each in recipe.candidates] == names


def test_no_model_before_fit_and_bad_data_are_refused():
    X = np.linspace(0, 1, 20)[:, None]
    recipe = gpn.defaults(gpflow.kernels.SquaredExponential(), X, X)
    with pytest.raises(ValueError, match="call fit first"):
        _ = recipe.model
    with pytest.raises(ValueError, match="Y must"):
        gpn.defaults(gpflow.kernels.SquaredExponential(), X, X[:, 0])
    with pytest.raises(ValueError, match="Y"):
        gpn.defaults(gpflow.kernels.SquaredExponential(), X, np.full_like(X, np.inf))


@pytest.mark.parametrize("which", ["X", "Y"])
def test_values_that_are_not_finite_are_named_at_once(rng, which):
    X, Y = make_data(rng)
    (X if which == "X" else Y)[3] = np.nan
    with pytest.raises(ValueError, match=f"{which} has NaN or infinite values in 1 rows.* row 3"):
        gpn.defaults(gpflow.kernels.SquaredExponential(), X, Y)


@pytest.mark.parametrize(
    "wrap",
    [pytest.param(lambda base: base, marks=pytest.mark.slow), gpn.likelihoods.MissingTargets],
)
def test_the_index_of_a_switched_likelihood_is_no_output(rng, wrap):
    X, Y = make_data(rng, 20)
    Y = np.concatenate([Y / 100.0, np.arange(20.0)[:, None] % 2], axis=1)
    likelihood = wrap(gpflow.likelihoods.SwitchedLikelihood([Gaussian(0.1), StudentT(0.3)]))
    recipe = gpn.defaults(gpflow.kernels.SquaredExponential(), X, Y, likelihood=likelihood)
    recipe.fit(seconds=0.1, progress=False)
    assert recipe.model.num_latent_gps == 1
    mean, variance = recipe.model.predict_f(X)
    density = recipe.likelihood.predict_log_density(X, mean, variance, Y)
    assert recipe.model.predict_log_density((X, Y)).shape == density.shape


def test_mixed_latent_gps_keep_the_kernel_they_were_given(rng, small):
    X, Y = make_data(rng, 20)
    kernels = [gpflow.kernels.SquaredExponential(lengthscales=0.4) for _ in range(2)]
    kernel = gpflow.kernels.LinearCoregionalization(kernels, W=np.eye(2))
    recipe = gpn.defaults(kernel, X, np.tile(Y, 2))
    assert recipe.kernel.trainable_variables
    for each in recipe.kernel.kernels:
        np.testing.assert_allclose(each.lengthscales, 0.4)


@pytest.mark.parametrize("settled", ["frozen", "prior"])
def test_rows_that_choose_the_network_are_not_trained_on(rng, small, monkeypatch, settled):
    """Not even where training needs no rows of its own for the noise."""
    X, Y = make_data(rng, 1000)
    likelihood = Gaussian(0.01)
    if settled == "frozen":
        gpflow.set_trainable(likelihood, False)
    else:
        likelihood.variance.prior = tfp.distributions.LogNormal(np.float64(-4.0), np.float64(1.0))
    recipe = gpn.defaults(gpflow.kernels.SquaredExponential(), X, Y, likelihood=likelihood)
    rows = []
    monkeypatch.setattr(
        MODULE.Recipe,
        "_train",
        lambda self, candidate, data, *_: rows.append(len(data[0])) or _stop(),
    )
    with pytest.raises(_StopError):
        recipe.fit(progress=False)
    assert rows == [900]


class _StopError(Exception):
    pass


def _stop():
    raise _StopError


def test_weights_are_not_taken_for_targets(rng):
    X, Y = make_data(rng)
    kernel, weights = gpflow.kernels.SquaredExponential(), rng.uniform(1.0, 9.0, size=Y.shape)
    weighted = gpn.likelihoods.Weighted(Gaussian())
    recipe = gpn.defaults(kernel, X, np.hstack([Y, weights]), likelihood=weighted)
    plain = gpn.defaults(kernel, X, Y, likelihood=Gaussian())
    np.testing.assert_allclose(recipe.scaling.target_scale, plain.scaling.target_scale)
    np.testing.assert_allclose(recipe.kernel.lengthscales, plain.kernel.lengthscales, rtol=1e-6)


def test_known_noise_is_in_the_units_of_the_targets(rng):
    """Hyperparameters near those of the exact GP with that noise, which is the same in all rows."""
    X, Y = make_data(rng)
    kernel, noise = gpflow.kernels.SquaredExponential(), np.full_like(Y, 100.0)
    known = gpn.likelihoods.KnownNoise()
    recipe = gpn.defaults(kernel, X, np.hstack([Y, noise]), likelihood=known)
    np.testing.assert_allclose(recipe.scaling.target_center, np.mean(Y), rtol=1e-9)
    gaussian = Gaussian(100.0 / np.var(Y))
    gpflow.set_trainable(gaussian, False)
    plain = gpn.defaults(kernel, X, Y, likelihood=gaussian)
    np.testing.assert_allclose(recipe.kernel.lengthscales, plain.kernel.lengthscales, rtol=1e-4)
    np.testing.assert_allclose(recipe.kernel.variance, plain.kernel.variance, rtol=1e-4)


def test_a_mean_function_is_copied(rng):
    X, Y = make_data(rng)
    mean_function = gpflow.mean_functions.Linear()
    recipe = gpn.defaults(gpflow.kernels.SquaredExponential(), X, Y, mean_function=mean_function)
    np.testing.assert_array_equal(mean_function.A, 1.0)
    assert np.abs(recipe.mean_function.A.numpy() - 1.0) > 1e-3


def test_output_indices_stay_as_they_are(rng):
    X, Y = make_data(rng, 30)
    X = np.hstack([X, rng.integers(2, size=(30, 1))])
    kernel = gpflow.kernels.RBF(active_dims=[0]) * gpflow.kernels.Coregion(2, 1, active_dims=[1])
    scaling = gpn.defaults(kernel, X, Y).scaling
    assert (scaling.input_center.numpy()[1], scaling.input_scale.numpy()[1]) == (0.0, 1.0)


def test_one_row_is_too_few():
    with pytest.raises(ValueError, match="defaults needs 2 rows or more"):
        gpn.defaults(gpflow.kernels.SquaredExponential(), np.ones((1, 1)), np.ones((1, 1)))
