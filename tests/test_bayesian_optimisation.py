"""GPNet in trieste: its protocols, predictions against the model's, trajectories, and Branin."""
# ruff: noqa: E402

import copy

import gpflow
import numpy as np
import pytest
import tensorflow as tf

import gpflow_gpnet as gpn

trieste = pytest.importorskip("trieste")

import dill
from trieste.acquisition.function import (
    ExpectedImprovement,
    GreedyContinuousThompsonSampling,
)
from trieste.acquisition.function.continuous_thompson_sampling import negate_trajectory_function
from trieste.acquisition.rule import EfficientGlobalOptimization
from trieste.bayesian_optimizer import BayesianOptimizer
from trieste.data import Dataset
from trieste.models import interfaces
from trieste.models.gpflow.interface import SupportsCovarianceBetweenPoints
from trieste.objectives import ScaledBranin
from trieste.objectives.utils import mk_observer
from trieste.space import Box, DiscreteSearchSpace

from gpflow_gpnet.bayesian_optimisation import GPNetModel, build_gpnet

# trieste and GPflux call what newer TensorFlow and Keras deprecate.
pytestmark = pytest.mark.filterwarnings("default")

SPACE = Box([0.0, -1.0], [1.0, 3.0])
NUM_FEATURES = 15


def make_data(rng, num=12):
    X = rng.uniform([0.0, -1.0], [1.0, 3.0], size=(num, 2))
    return Dataset(tf.constant(X), tf.constant(5.0 + np.sin(4 * X[:, :1]) + X[:, 1:]))


def make_model(rng, dataset=None, **kwargs):
    dataset = make_data(rng) if dataset is None else dataset
    gpnet = build_gpnet(dataset, SPACE, num_features=NUM_FEATURES)
    return set_random_weights(rng, GPNetModel(gpnet, **kwargs))


def set_random_weights(rng, model):
    network = model.model.inference_network
    features, latents = network.q_mu.shape
    network.q_mu.assign(rng.normal(size=(features, latents)))
    root = 0.1 * rng.normal(size=(latents, features, features)) + 0.5 * np.eye(features)
    network.q_sqrt.assign(np.tril(root))
    return model


def make_two_outputs(rng):
    """A linear model of coregionalisation of two latent GPs and three outputs."""
    parts = [gpflow.kernels.SquaredExponential(lengthscales=[0.4, 0.9]) for _ in range(2)]
    kernel = gpflow.kernels.LinearCoregionalization(parts, W=rng.normal(size=(3, 2)))
    network = gpn.RFE(kernel, 2, NUM_FEATURES)
    likelihood = gpflow.likelihoods.Gaussian(0.1)
    mean = gpflow.mean_functions.Constant(np.array([1.0, 2.0, 3.0]))
    gpnet = gpn.GPNet(
        kernel, likelihood, network, num_latent_gps=2, num_data=12, mean_function=mean
    )
    return set_random_weights(rng, GPNetModel(gpnet))


# ------------------------------------------------------------------ protocols


@pytest.mark.parametrize(
    "protocol",
    [
        interfaces.ProbabilisticModel,
        interfaces.TrainableProbabilisticModel,
        interfaces.SupportsPredictJoint,
        interfaces.SupportsPredictY,
        interfaces.SupportsGetKernel,
        interfaces.SupportsGetMeanFunction,
        interfaces.SupportsGetObservationNoise,
        interfaces.HasReparamSampler,
        interfaces.HasTrajectorySampler,
    ],
)
def test_a_model_has_the_protocol(rng, protocol):
    assert isinstance(make_model(rng), protocol)


def test_covariances_between_points_are_declared():
    assert SupportsCovarianceBetweenPoints in GPNetModel.__mro__


@pytest.mark.parametrize("make", [make_model, make_two_outputs])
def test_predictions_are_the_models_with_leading_batch_dimensions(rng, make):
    model = make(rng)
    X = rng.uniform(size=(4, 3, 2))
    mean, variance = model.predict(X)
    joint_mean, joint = model.predict_joint(X)
    noisy_mean, noisy = model.predict_y(X)
    outputs = mean.shape[-1]
    assert mean.shape == variance.shape == (4, 3, outputs)
    assert joint.shape == (4, outputs, 3, 3)
    for i in range(4):
        expected_mean, expected = model.model.predict_f(X[i])
        _, expected_joint = model.model.predict_f(X[i], full_cov=True)
        for values in (mean, joint_mean, noisy_mean):
            np.testing.assert_allclose(values[i], expected_mean, rtol=1e-9)
        np.testing.assert_allclose(variance[i], expected, rtol=1e-9)
        np.testing.assert_allclose(joint[i], expected_joint, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(noisy[i], expected + model.get_observation_noise(), rtol=1e-9)


@pytest.mark.parametrize("make", [make_model, make_two_outputs])
def test_covariances_between_points_are_blocks_of_the_joint_covariance(rng, make):
    model = make(rng)
    first, second = rng.uniform(size=(4, 3, 2)), rng.uniform(size=(5, 2))
    cov = model.covariance_between_points(first, second)
    for i in range(4):
        _, joint = model.model.predict_f(np.vstack([first[i], second]), full_cov=True)
        np.testing.assert_allclose(cov[i], joint[:, :3, 3:], rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(model.covariance_between_points(first[0], second), cov[0])


@pytest.mark.parametrize("make", [make_model, make_two_outputs])
def test_samples_have_the_joint_moments(rng, make):
    model = make(rng)
    X = rng.uniform(size=(2, 3, 2))
    samples = model.sample(X, 20_000).numpy()
    mean, cov = model.predict_joint(X)
    assert samples.shape == (2, 20_000, 3, mean.shape[-1])
    scale = np.sqrt(np.max(cov))
    np.testing.assert_allclose(samples.mean(axis=1), mean, atol=0.04 * scale)
    for i in range(2):
        for p in range(mean.shape[-1]):
            empirical = np.cov(samples[i, :, :, p], rowvar=False)
            np.testing.assert_allclose(empirical, cov[i, p], atol=0.05 * scale**2)
    assert np.max(np.abs(model.sample(X, 1) - model.sample(X, 1))) > 0


def test_samples_of_a_network_without_functions_are_the_models(rng):
    dataset = make_data(rng)
    gpnet = build_gpnet(dataset, SPACE)
    gpnet.inference_network = gpn.InducingFeatures(gpnet.kernel, dataset.query_points[:4])
    model = GPNetModel(gpnet)
    assert model.sample(rng.uniform(size=(2, 3, 2)), 5).shape == (2, 5, 3, 1)
    with pytest.raises(NotImplementedError, match="InducingFeatures"):
        model.trajectory_sampler()


# ------------------------------------------------------------------ trajectories


@pytest.mark.parametrize("make", [make_model, make_two_outputs])
def test_trajectories_have_the_models_moments_and_are_functions(rng, make):
    model = make(rng)
    trajectory = model.trajectory_sampler().get_trajectory()
    X = rng.uniform(size=(3, 2))
    x = np.repeat(X[:, None, :], 20_000, axis=1)
    values = trajectory(x).numpy()  # [N, B, L]
    np.testing.assert_array_equal(trajectory(x), values)
    mean, cov = model.predict_joint(X)
    scale = np.sqrt(np.max(cov))
    np.testing.assert_allclose(values.mean(axis=1), mean, atol=0.04 * scale)
    for p in range(mean.shape[-1]):
        np.testing.assert_allclose(np.cov(values[:, :, p]), cov[p], atol=0.05 * scale**2)


def test_a_function_is_the_same_wherever_it_is_asked(rng):
    trajectory = make_model(rng).trajectory_sampler().get_trajectory()
    x = rng.uniform(size=(6, 4, 2))
    values = trajectory(x)
    np.testing.assert_allclose(trajectory(x[2:3]), values[2:3], rtol=1e-12)
    swapped = trajectory(x[:, ::-1])
    assert np.max(np.abs(swapped - values[:, ::-1])) > 1e-3  # column b goes through function b


def test_a_compiled_trajectory_sees_other_functions_and_a_trained_model(rng):
    model = make_model(rng)
    sampler = model.trajectory_sampler()
    trajectory = sampler.get_trajectory()
    traces = []

    @tf.function(reduce_retracing=True)
    def compiled(x):
        traces.append(x)
        return trajectory(x)

    x = tf.constant(rng.uniform(size=(5, 3, 2)))
    first = compiled(x)
    assert sampler.resample_trajectory(trajectory) is trajectory
    assert np.min(np.abs(compiled(x) - first)) > 0
    network = model.model.inference_network
    network.q_sqrt.assign(1e-9 * network.q_sqrt)
    network.q_mu.assign(2.0 * network.q_mu)
    assert sampler.update_trajectory(trajectory) is trajectory
    mean, _ = model.predict(x)
    np.testing.assert_allclose(compiled(x), mean, rtol=1e-6)
    assert len(traces) == 1


def test_a_trajectory_keeps_its_number_of_functions(rng):
    trajectory = make_model(rng).trajectory_sampler().get_trajectory()
    trajectory(rng.uniform(size=(5, 3, 2)))
    with pytest.raises(tf.errors.InvalidArgumentError, match="number of functions B"):
        trajectory(rng.uniform(size=(5, 2, 2)))


def test_a_sampler_takes_only_its_own_trajectories(rng):
    with pytest.raises(ValueError, match="this sampler"):
        make_model(rng).trajectory_sampler().resample_trajectory(lambda x: x)


def test_trieste_negates_and_differentiates_trajectories(rng):
    x = tf.constant(rng.uniform(size=(5, 3, 2)))
    trajectory = make_model(rng).trajectory_sampler().get_trajectory()
    values = trajectory(x)
    negated = negate_trajectory_function(trajectory)
    np.testing.assert_allclose(negated(x), -values, rtol=1e-12)
    with tf.GradientTape() as tape:
        tape.watch(x)
        total = tf.reduce_sum(negated(x))
    assert np.all(np.abs(tape.gradient(total, x)) > 0)


# ------------------------------------------------------------------ training


@pytest.mark.slow
def test_training_finds_the_exact_gp_as_the_data_grow(rng):
    """Twice, so that the second goes on from the first with other num_data and one optimiser."""
    dataset = make_data(rng, 8)
    model = GPNetModel(build_gpnet(dataset, SPACE, num_features=100), num_steps=3)
    optimizers = []
    for number in (0, 6):
        dataset = dataset + make_data(rng, number) if number else dataset
        model.update(dataset)
        history = model.optimize(dataset)
        assert history["step"][-1] == 3
        optimizers.append(model.optimizer)
        assert int(model.model.num_data) == len(dataset) == 8 + number
        gpnet = model.model
        exact = gpflow.models.GPR(
            dataset.astuple(), gpnet.kernel, gpnet.mean_function, likelihood=gpnet.likelihood
        )
        X = rng.uniform([0.0, -1.0], [1.0, 3.0], size=(50, 2))
        mean, variance = model.predict(X)
        exact_mean, exact_variance = exact.predict_f(X)
        assert np.sqrt(np.mean((mean - exact_mean) ** 2 / exact_variance)) < 0.4
        assert 0.7 < np.median(np.sqrt(variance / exact_variance)) < 1.2
    assert optimizers[0] is optimizers[1] is not None


def test_hyperparameters_of_a_model_that_scales_are_about_scaled_data(rng):
    plain = make_data(rng, 30)
    units = Dataset(1000.0 + 50.0 * plain.query_points, 500.0 + 1000.0 * plain.observations)
    kernel = gpflow.kernels.SquaredExponential(lengthscales=[1.0, 1.0])
    model = gpn.GPNet(
        kernel,
        gpflow.likelihoods.Gaussian(0.1),
        gpn.RFE(kernel, 2, 100),
        num_data=30,
        scaling=gpn.Scaling.from_data(units.astuple()),
    )
    GPNetModel(model, num_steps=3).optimize(units)
    fitted, likelihood = (
        gpflow.kernels.SquaredExponential(lengthscales=[1.0, 1.0]),
        gpflow.likelihoods.Gaussian(0.1),
    )
    gpn.fit_hyperparameters(fitted, likelihood, model.scaling(units.astuple()))
    np.testing.assert_allclose(kernel.lengthscales, fitted.lengthscales, rtol=0.1)
    error = model.predict_y(units.query_points)[0] - units.observations
    assert np.sqrt(np.mean(error**2)) < 0.1 * np.std(units.observations)


def test_functions_compiled_for_fewer_data_see_the_new_number(rng):
    dataset = make_data(rng)
    model = make_model(rng, dataset)
    elbo = tf.function(lambda: model.model.elbo(dataset.astuple()))
    before = elbo()
    model.update(dataset + make_data(rng))
    np.testing.assert_allclose(elbo(), model.model.elbo(dataset.astuple()), rtol=1e-9)
    assert abs(elbo() - before) > 1.0


def test_settings_reach_the_training(rng):
    made = []

    def make_optimizer():
        made.append(gpn.FunctionalMirrorDescent(gpn.Constant(0.5)))
        return made[-1]

    dataset = make_data(rng)
    model = make_model(
        rng, dataset, num_steps=2, batch_size=5, optimizer=make_optimizer, hyperparameter_points=0
    )
    for _ in range(2):
        assert model.optimize(dataset)["step"][-1] == 2
    assert len(made) == 1 and int(made[0].t) == 2 and model.optimizer is made[0]


def test_wrong_data_are_refused(rng):
    model = make_model(rng)
    good = make_data(rng)
    with pytest.raises(ValueError, match="NaN"):
        model.update(Dataset(good.query_points, good.observations * np.nan))
    with pytest.raises(ValueError, match="2 columns"):
        model.update(Dataset(good.query_points, tf.repeat(good.observations, 2, axis=1)))


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda model: dill.loads(dill.dumps(model))])
def test_copies_predict_alike_and_train_on_their_own(rng, clone):
    dataset = make_data(rng)
    model = make_model(rng, dataset, num_steps=1, hyperparameter_points=0)
    model.optimize(dataset)
    twin = clone(model)
    X = rng.uniform(size=(5, 2))
    before = model.predict(X)
    np.testing.assert_array_equal(twin.predict(X), before)
    more = dataset + make_data(rng)
    twin.update(more)
    twin.optimize(more)
    np.testing.assert_array_equal(model.predict(X), before)
    assert int(model.model.num_data) == 12 and int(twin.model.num_data) == 24
    assert np.max(np.abs(twin.predict(X)[0] - before[0])) > 1e-3


# ------------------------------------------------------------------ the builder


def test_the_builder_starts_where_triestes_does(rng):
    dataset = make_data(rng)
    ours = build_gpnet(dataset, SPACE, likelihood_variance=0.3, seed=1)
    theirs = trieste.models.gpflow.build_svgp(dataset, SPACE, likelihood_variance=0.3)
    for one, other in (
        (ours.kernel.variance, theirs.kernel.variance),
        (ours.kernel.lengthscales, theirs.kernel.lengthscales),
        (ours.mean_function.c, theirs.mean_function.c),
        (ours.likelihood.variance, theirs.likelihood.variance),
    ):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    np.testing.assert_allclose(ours.log_prior_density(), theirs.log_prior_density(), rtol=1e-6)
    assert type(ours.kernel) is type(theirs.kernel)
    assert not ours.likelihood.variance.trainable
    default = build_gpnet(dataset, SPACE, trainable_likelihood=True, kernel_priors=False)
    assert default.likelihood.variance.trainable and default.log_prior_density() == 0
    expected = trieste.models.gpflow.build_svgp(dataset, SPACE).likelihood.variance
    np.testing.assert_allclose(default.likelihood.variance, expected, rtol=1e-6)


def test_the_builder_measures_in_the_search_space_and_at_the_data(rng):
    dataset = make_data(rng)
    gpnet = build_gpnet(dataset, SPACE)
    points = gpnet.measurement_points(dataset.query_points).numpy()
    inside = (points >= [0.0, -1.0]) & (points <= [1.0, 3.0])
    assert inside.all()
    at_data = (points[:, None] == dataset.query_points.numpy()).all(axis=2).any(axis=1)
    assert at_data.sum() == len(points) // 2
    assert len(np.unique(points[~at_data, 1])) == len(points) - len(points) // 2


def test_the_builder_takes_discrete_spaces_and_refuses_what_it_cannot_scale(rng):
    dataset = make_data(rng)
    points = tf.constant([[0.0, 1.0], [1.0, 1.0], [3.0, 1.0]], tf.float64)
    gpnet = build_gpnet(dataset, DiscreteSearchSpace(points))
    np.testing.assert_allclose(gpnet.kernel.lengthscales, [0.2 * np.sqrt(2) * 3, 1.0])
    with pytest.raises(ValueError, match="bounds"):
        build_gpnet(dataset, trieste.space.CategoricalSearchSpace(["a", "b"]))
    flat = Dataset(dataset.query_points, tf.ones_like(dataset.observations))
    with pytest.raises(ValueError, match="vary"):
        build_gpnet(flat, SPACE)


# ------------------------------------------------------------------ minimising


@pytest.mark.slow
@pytest.mark.parametrize("name", ["expected improvement", "Thompson sampling"])
def test_branin_is_minimised(name):
    """From 10 points by 20 more, of a function with minimum -1.0474 and standard deviation 1."""
    space = ScaledBranin.search_space
    observer = mk_observer(ScaledBranin.objective)
    dataset = observer(space.sample_sobol(10, skip=0))
    if name == "expected improvement":
        rule, steps = EfficientGlobalOptimization(ExpectedImprovement()), 20
    else:
        greedy = GreedyContinuousThompsonSampling()
        rule, steps = EfficientGlobalOptimization(greedy, num_query_points=4), 5
    model = GPNetModel(build_gpnet(dataset, space))
    result = BayesianOptimizer(observer, space).optimize(steps, dataset, model, rule)
    found = result.try_get_final_dataset()
    best = float(np.min(found.observations))
    regret = best - float(ScaledBranin.minimum[0])
    print(f"\nBranin, {name}: {len(found)} evaluations, regret {regret:.2g}")
    assert len(found) == 30
    assert regret < 0.02


def test_other_models_are_named():
    svgp = gpflow.models.SVGP(
        gpflow.kernels.RBF(), gpflow.likelihoods.Gaussian(), np.zeros((1, 2)), num_data=3
    )
    with pytest.raises(TypeError, match="model must be a GPNet, got SVGP"):
        GPNetModel(svgp)
