"""Methods of the regression tables: exact limits, and what they are told to do."""

from types import SimpleNamespace

import gpflow
import numpy as np
import pytest

import gpflow_gpnet as gpn
from gpflow_gpnet.experiments import methods, published
from gpflow_gpnet.experiments.methods import Task

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2))
Y = np.sin(2.0 * X[:, :1]) + 0.1 * RNG.normal(size=(60, 1))


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(published, "NUM_FREQUENCIES", 5)
    monkeypatch.setattr(published, "FIT_ROWS", 30)


def log_marginal(kernel, likelihood):
    model = gpflow.models.GPR((X, Y), kernel, likelihood=likelihood)
    return model.log_marginal_likelihood().numpy()


def test_exact_gp_is_at_the_maximum_for_all_rows():
    task = Task(X, Y, "any", seed=3)
    model, history = methods.exact(task)
    assert history is None and len(model.data[0]) == 60
    best = log_marginal(model.kernel, model.likelihood)
    assert best > log_marginal(*methods.fitted_prior(task)) + 0.1
    gpflow.optimizers.Scipy().minimize(model.training_loss, model.trainable_variables)
    np.testing.assert_allclose(-model.training_loss(), best, atol=0.01)


def test_a_full_natural_step_is_the_optimal_svgp():
    """γ = 1, all rows, Gaussian noise: Titsias' collapsed bound; Adam at rate 0 moves nothing."""
    kernel, likelihood = gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(0.1)
    model = gpflow.models.SVGP(kernel, likelihood, X[:10].copy(), num_data=60)
    optimizer = methods.NaturalGradientAndAdam(gamma=1.0, learning_rate=0.0)
    gpn.fit(model, (X, Y), optimizer=optimizer, num_steps=1, batch_size=60, progress=False)
    collapsed = gpflow.models.SGPR((X, Y), kernel, X[:10].copy(), noise_variance=0.1)
    np.testing.assert_allclose(model.elbo((X, Y)), collapsed.elbo(), rtol=1e-6)
    assert not model.q_mu.trainable and kernel.lengthscales.numpy() == 1.0


def test_kmeans_centres_are_the_means_of_clusters():
    """Of a subset of the rows, each distinct one once."""
    near = np.repeat(RNG.normal(size=(20, 2)), 3, axis=0)
    rows = np.concatenate([near, near + 100.0])
    centres = methods.kmeans_centres(rows, 2, seed=0)
    centres = centres[np.argsort(centres[:, 0])]
    np.testing.assert_allclose(centres[0], near.mean(axis=0))
    np.testing.assert_allclose(centres[1], near.mean(axis=0) + 100.0)
    few = methods.kmeans_centres(rows, 1000, seed=0)
    np.testing.assert_array_equal(few, np.unique(rows, axis=0))


@pytest.mark.parametrize(
    "dataset, fitted, learned, fbnn_learned",
    [("boston", True, False, False), ("wine", False, True, True), ("airline_us2001", True, 1, 0)],
)
def test_published_settings_are_followed(dataset, fitted, learned, fbnn_learned, monkeypatch):
    """Which hyperparameters start fitted, which of them training moves, and c(x)."""
    task = Task(X, Y, dataset, seed=1, steps=2)
    start = methods.fitted_prior(task) if fitted else (methods.kernel_of(task), None)
    start = start[0].lengthscales.numpy()
    model, history = methods.gradient_gpnet(task, 7)
    moved = not np.array_equal(model.kernel.lengthscales, start)
    assert moved == learned and history["step"][-1] == 2
    np.testing.assert_allclose(model.kernel.lengthscales, start, rtol=0.02)
    optimizer, settings = model.optimizer, task.settings
    assert not optimizer.takes_natural_steps and not optimizer.scale_hyper_bound
    assert optimizer.noise == "objective"
    np.testing.assert_allclose(optimizer.step_size(0), settings.beta0)
    np.testing.assert_allclose(optimizer.step_size(1), settings.beta0 / (1 + settings.xi))
    points = model.measurement_points(X)
    assert len(points) == 7
    assert (points.numpy()[:, None] == X).all(axis=2).any(axis=1).all() == (not fitted)

    model, _ = methods.fbnn(task, 500)
    assert (not np.array_equal(model.kernel.lengthscales, start)) == fbnn_learned
    assert len(model.measurement_points(X)) == 60 and not model.scale_likelihood


def test_c_of_x_stays_when_the_kernel_moves():
    model, _ = methods.gradient_gpnet(Task(X, Y, "airline_us2001", seed=0, steps=1), 20)
    before = model.measurement_points(X)
    model.kernel.lengthscales.assign([50.0, 50.0])
    np.testing.assert_array_equal(model.measurement_points(X), before)


def test_other_likelihoods_start_as_wide_as_a_gaussian_fit():
    zero = np.zeros((1, 2))
    likelihood = methods.heteroskedastic(0.04)
    np.testing.assert_allclose(likelihood.conditional_variance(X[:1], zero), [[0.04]])
    np.testing.assert_allclose(
        likelihood.conditional_variance(X[:1], np.array([[0.0, 1.0]])), [[0.04 * np.e**2]]
    )
    np.testing.assert_allclose(methods.student_t(0.04).scale, 0.2)


@pytest.mark.parametrize("name", ["student-t", "heteroskedastic"])
def test_svgp_takes_other_likelihoods(name):
    task = Task(X, Y, "any", seed=0, steps=2)
    model, history = methods.METHODS[f"SVGP-500-{name}"].train(task)
    assert history["step"][-1] == 2
    assert model.q_mu.shape == (60, 2 if name == "heteroskedastic" else 1)
    assert np.isfinite(model.predict_log_density((X[:5], Y[:5]))).all()


def test_a_budget_stands_in_place_of_steps():
    task = Task(X, Y, "any", seed=0, steps=10**6, seconds=0.0)
    assert task.seconds_left == 0.0 and Task(X, Y, "any", seed=0).seconds_left is None
    _, history = methods.svgp(task, 5)
    assert history["step"][-1] == 1


def test_the_default_gets_the_rest_of_the_budget_and_the_seed(monkeypatch):
    told = {}

    def fit(**kwargs):
        told.update(kwargs)
        return gpn.History()

    def defaults(kernel, X, Y, *, likelihood, seed):
        told.update(likelihood=likelihood, seed=seed)
        return SimpleNamespace(model=kernel, fit=fit)

    monkeypatch.setattr(gpn, "defaults", defaults, raising=False)
    methods.natural_gpnet(Task(X, Y, "any", seed=4, seconds=1e6))
    assert told["seed"] == 4 and told["likelihood"] is None
    assert 0.9e6 < told["seconds"] < 1e6 and told["progress"] is False
    model, _ = methods.METHODS["natural-heteroskedastic"].train(Task(X, Y, "any", seed=4))
    assert told["seconds"] is None and told["likelihood"].latent_dim == 2
    assert model.num_latent_gps == 2
