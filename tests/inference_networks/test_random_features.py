"""The random feature network against its kernel's prior, and its manners."""

import copy

import numpy as np
import pytest
import tensorflow as tf
from gpflow import kernels, likelihoods

import gpflow_gpnet as gpn

STATIONARY = [
    kernels.SquaredExponential,
    kernels.Matern12,
    kernels.Matern32,
    kernels.Matern52,
    kernels.Exponential,
    kernels.RationalQuadratic,
]


def inputs(num=7, dim=2, seed=5):
    return np.random.default_rng(seed).uniform(-1.0, 1.0, (num, dim))


def ard(kernel_class=kernels.Matern32, variance=2.5):
    return kernel_class(variance, [0.3, 4.0])


def trained(network, seed=0):
    """The network with another q than the prior."""
    rng = np.random.default_rng(seed)
    num_features, num_latents = network.q_mu.shape
    network.q_mu.assign(rng.normal(size=(num_features, num_latents)))
    if network.q_sqrt.shape.rank == 3:
        noise = rng.normal(size=network.q_sqrt.shape) / np.sqrt(num_features)
        network.q_sqrt.assign(np.tril(0.5 * noise + 0.3 * np.eye(num_features)))
    else:
        network.q_sqrt.assign(rng.uniform(0.2, 1.0, size=network.q_sqrt.shape))
    return network


# ------------------------------------------------------------------ q is the prior at the start


@pytest.mark.parametrize("kernel_class", STATIONARY)
def test_variance_is_exactly_the_prior_s_before_training(kernel_class):
    network = gpn.RFE(ard(kernel_class), num_features=10)
    mean, variance = network(inputs())
    np.testing.assert_array_equal(mean, np.zeros((7, 1)))
    np.testing.assert_allclose(variance, np.full((7, 1), 2.5), rtol=1e-12)


@pytest.mark.parametrize("kernel_class", STATIONARY)
def test_covariance_nears_the_prior_s_before_training(kernel_class):
    """4,000 frequencies: entries have a standard error of 2.5 / sqrt(8,000) = 0.028 at most.

    A diagonal q, since the start is the same and 8,000² numbers of a full one are many.
    """
    kernel, X = ard(kernel_class), inputs(15)
    network = gpn.RFE(kernel, num_features=4_000, covariance="diag")
    mean, cov = network(X, full_cov=True)
    assert cov.shape == (1, 15, 15)
    np.testing.assert_array_equal(mean, np.zeros((15, 1)))
    np.testing.assert_allclose(cov[0], kernel(X), atol=5 * 0.028)


@pytest.mark.parametrize(
    "kernel",
    [
        kernels.Linear([1.3, 0.4]),
        kernels.Polynomial(3, [1.3, 0.4], offset=0.7),
        kernels.Constant(1.7),
        kernels.Linear(active_dims=[1]) + kernels.Constant(0.5),
        kernels.Linear([1.3, 0.4]) * kernels.Polynomial(2, active_dims=[0]),
    ],
    ids=lambda kernel: type(kernel).__name__,
)
def test_kernels_of_finite_rank_are_reproduced_exactly(kernel):
    X = inputs()
    _, cov = gpn.RFE(kernel, 2, 3)(X, full_cov=True)
    np.testing.assert_allclose(cov[0], kernel(X), rtol=1e-10)


@pytest.mark.parametrize("covariance", ["full", "diag", 3])
def test_marginals_are_the_diagonal_of_the_covariance(covariance):
    network = gpn.RFE(ard(), num_features=6, covariance=covariance, num_latent_gps=2)
    if covariance != 3:
        trained(network)
    mean, variance = network(inputs())
    full_mean, cov = network(inputs(), full_cov=True)
    assert mean.shape == variance.shape == (7, 2) and cov.shape == (2, 7, 7)
    np.testing.assert_allclose(mean, full_mean, atol=1e-12)
    np.testing.assert_allclose(variance, tf.transpose(tf.linalg.diag_part(cov)), atol=1e-12)
    assert np.linalg.eigvalsh(cov).min() > -1e-12


def test_different_seeds_draw_different_frequencies():
    grams = [gpn.RFE(ard(), num_features=5, seed=seed)(inputs(), True)[1] for seed in (0, 0, 1)]
    np.testing.assert_array_equal(grams[0], grams[1])
    assert np.abs(grams[0] - grams[2]).max() > 0.1


# ------------------------------------------------------------------ shapes and several latents


def test_weights_have_gpflow_s_shapes():
    network = gpn.RFE(ard(), num_features=6, num_latent_gps=3)
    assert network.num_features == 12 and network.num_latent_gps == 3
    assert network.q_mu.shape == (12, 3)
    assert network.q_sqrt.shape == (3, 12, 12)
    diagonal = gpn.RFE(ard(), num_features=6, covariance="diag", num_latent_gps=3)
    assert diagonal.q_sqrt.shape == (12, 3)
    assert gpn.RFE(ard(), num_features=6, covariance=4).weights.low_rank.shape == (1, 12, 4)


@pytest.mark.parametrize("batch", [(2,), (2, 3)])
@pytest.mark.parametrize("several", [False, True], ids=["shared", "per latent"])
@pytest.mark.parametrize("warp", [None, (4,)], ids=["plain", "warped"])
def test_batched_inputs_equal_a_loop(batch, several, warp):
    kernel = kernels.SeparateIndependent([ard(), ard(kernels.Matern12)]) if several else ard()
    network = trained(gpn.RFE(kernel, 2, 6, warp=warp))
    X = np.random.default_rng(3).normal(size=(*batch, 5, 2))
    mean, variance = network(X)
    _, cov = network(X, full_cov=True)
    latents = 2 if several else 1
    assert mean.shape == variance.shape == (*batch, 5, latents)
    assert cov.shape == (*batch, latents, 5, 5)
    for index in np.ndindex(*batch):
        one_mean, one_variance = network(X[index])
        np.testing.assert_allclose(mean[index], one_mean, atol=1e-12)
        np.testing.assert_allclose(variance[index], one_variance, atol=1e-12)
        np.testing.assert_allclose(cov[index], network(X[index], True)[1], atol=1e-12)


def test_independent_kernels_give_each_latent_its_features():
    parts = [kernels.Matern12(0.5, 0.4), kernels.Linear(1.5)]
    network = gpn.RFE(kernels.SeparateIndependent(parts), 2, 4_000, "diag")
    assert network.num_latent_gps == 2 and not network.shared_features
    X = inputs(15)
    _, cov = network(X, full_cov=True)
    np.testing.assert_allclose(cov[0], parts[0](X), atol=5 * 0.5 / np.sqrt(8_000))
    np.testing.assert_allclose(cov[1], parts[1](X), atol=1e-10)


@pytest.mark.parametrize("covariance", ["full", "diag"])
def test_features_that_one_latent_lacks_are_zeros(covariance):
    parts = [ard(), kernels.Constant(0.7)]
    network = trained(gpn.RFE(kernels.SeparateIndependent(parts), 2, 4, covariance))
    features = network.features(inputs())
    assert features.shape == (2, 7, 8)
    np.testing.assert_array_equal(features[1, :, 1:], np.zeros((7, 7)))
    mean, _ = network(inputs())
    expected = np.sqrt(0.7) * network.q_mu.numpy()[0, 1]
    np.testing.assert_allclose(mean[:, 1], np.full(7, expected), rtol=1e-10)


def test_a_shared_kernel_shares_features_but_not_weights():
    network = gpn.RFE(kernels.SharedIndependent(ard(), output_dim=3), 2, 5)
    assert network.num_latent_gps == 3 and network.shared_features
    assert network.features(inputs()).shape == (7, 10)
    _, cov = trained(network)(inputs(), full_cov=True)
    assert np.abs(cov[0] - cov[1]).max() > 0.01


def test_coregionalisation_gives_features_of_the_latents():
    parts = [ard(), ard(kernels.Matern12, 0.6)]
    kernel = kernels.LinearCoregionalization(parts, W=np.ones((4, 2)))
    network = gpn.RFE(kernel, 2, 5)
    assert network.num_latent_gps == 2
    _, variance = network(inputs())
    np.testing.assert_allclose(variance, np.tile([2.5, 0.6], (7, 1)), rtol=1e-10)


# ------------------------------------------------------------------ warp and initialise


def test_warp_is_the_identity_at_the_start():
    plain, warped = (gpn.RFE(ard(), num_features=6, warp=warp) for warp in (None, (5, 4)))
    for network in (plain, warped):
        network.initialise(3.0 + 7.0 * inputs(50))
    np.testing.assert_allclose(warped.features(inputs()), plain.features(inputs()), atol=1e-12)


def test_warp_s_weights_have_a_prior():
    """Standard deviations 1 / sqrt(fan-in) and 1, which the model's objective counts."""
    warp = gpn.RFE(ard(), num_features=6, warp=(5, 4)).warp
    for W, b in zip(warp.W, warp.b, strict=True):
        np.testing.assert_allclose(W.prior.stddev(), W.shape[0] ** -0.5)
        np.testing.assert_allclose(b.prior.stddev(), 1.0)
    kernel = ard()
    models = [
        gpn.GPNet(
            kernel,
            likelihoods.Gaussian(),
            gpn.RFE(kernel, num_features=6, warp=(5, 4), weight_prior=weight_prior),
            num_data=10,
        )
        for weight_prior in (True, False)
    ]
    expected = sum(
        float(tf.reduce_sum(parameter.prior.log_prob(parameter)))
        for parameter in (*warp.W, *warp.b)
    )
    np.testing.assert_allclose(models[0].log_prior_density(), expected)
    np.testing.assert_allclose(models[1].log_prior_density(), 0.0)


def test_warp_deforms_inputs_once_trained(rng):
    network = gpn.RFE(ard(), num_features=6, warp=(5, 4))
    before = network.features(inputs()).numpy()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(network.features(inputs()) * rng.normal(size=before.shape))
    last = network.warp.W[-1]
    gradient = tape.gradient(loss, last.unconstrained_variable)
    assert np.abs(gradient).max() > 1e-3, "the last layer would never leave 0"
    last.assign(0.5 * rng.normal(size=last.shape))
    assert np.abs(network.features(inputs()) - before).max() > 0.01
    np.testing.assert_allclose(network(inputs())[1], np.full((7, 1), 2.5), rtol=1e-10)


@pytest.mark.parametrize("warp", [None, (5,)], ids=["plain", "warped"])
def test_initialise_centres_without_changing_the_prior(warp):
    X = np.array([1e6, -40.0]) + inputs()
    kernel = ard()
    network = gpn.RFE(kernel, num_features=2_000, covariance="diag", warp=warp)
    network.initialise(X)
    np.testing.assert_allclose(network.center, X.mean(axis=0))
    centred = gpn.RFE(kernel, num_features=2_000, covariance="diag")
    features = centred.features(X - X.mean(axis=0))
    np.testing.assert_allclose(network.features(X), features, atol=1e-7)
    expected = centred(X - X.mean(axis=0), full_cov=True)[1]
    np.testing.assert_allclose(network(X, full_cov=True)[1], expected, atol=1e-7)
    np.testing.assert_allclose(expected[0], kernel(inputs()), atol=5 * 0.04)


def test_initialise_leaves_kernels_with_an_origin_alone():
    kernel = kernels.Linear([1.3, 0.4])
    network, X = gpn.RFE(kernel, 2), 3.0 + inputs()
    network.initialise(X)
    np.testing.assert_allclose(network(X, full_cov=True)[1][0], kernel(X), rtol=1e-10)


def test_centre_and_scale_are_not_trained():
    network = gpn.RFE(ard(), num_features=5, warp=(4,))
    ids = {id(variable) for variable in network.trainable_variables}
    for parameter in (network.center, network.scale):
        assert id(parameter.unconstrained_variable) not in ids
    constant = np.hstack([inputs(), np.full((7, 1), 3.0)])
    network = gpn.RFE(kernels.Matern32(), 3, 5, warp=(4,))
    network.initialise(constant)
    assert np.all(np.isfinite(network.features(constant)))


# ------------------------------------------------------------------ hyperparameters


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kernel_class", STATIONARY[:4])
def test_h9_features_follow_a_kernel_that_shares_its_hyperparameters(kernel_class, seed):
    """Case H9 for the whole network."""
    X = inputs(25)
    kernel = ard(kernel_class)
    network = gpn.RFE(
        kernel,
        num_features=20_000,
        covariance="diag",
        share_hyperparameters=True,
        seed=seed,
    )
    assert np.abs(network(X, full_cov=True)[1][0] - kernel(X)).max() <= 0.06
    kernel.lengthscales.assign([1.0, 1.0])
    assert np.abs(network(X, full_cov=True)[1][0] - kernel(X)).max() <= 0.06
    kernel.variance.assign(0.1)
    np.testing.assert_allclose(network(X)[1], np.full((25, 1), 0.1), rtol=1e-10)


def test_own_hyperparameters_are_apart_from_the_kernel_s():
    kernel = ard()
    network = gpn.RFE(kernel, num_features=5)
    kernel.variance.assign(9.0)
    np.testing.assert_allclose(network(inputs())[1], np.full((7, 1), 2.5), rtol=1e-10)
    ids = {id(variable) for variable in network.trainable_variables}
    assert not ids & {id(variable) for variable in kernel.trainable_variables}


def test_frequencies_can_be_frozen():
    counts = [
        len(gpn.RFE(ard(), num_features=5, trainable_frequencies=flag).trainable_variables)
        for flag in (True, False)
    ]
    assert counts[0] == counts[1] + 2, "frequencies and their powers"


# ------------------------------------------------------------------ samples, copies, dtypes


def test_sampled_functions_have_the_moments_of_predictions():
    """Within six standard errors of 40,000 functions; two inputs of one function covary."""
    network = trained(gpn.RFE(ard(), num_features=5, num_latent_gps=2))
    X = inputs(4)
    number = 40_000
    draws = network.sample_functions(number, tf.constant([3, 4]))(X).numpy()
    assert draws.shape == (number, 4, 2)
    mean, cov = network(X, full_cov=True)
    for latent in range(2):
        exact, sample = cov[latent].numpy(), draws[..., latent]
        variance = np.diag(exact)
        gap = np.abs(sample.mean(axis=0) - mean[:, latent])
        assert np.all(gap < 6 * np.sqrt(variance / number))
        error = np.sqrt((np.outer(variance, variance) + exact**2) / number)
        assert np.all(np.abs(np.cov(sample.T) - exact) < 6 * error)


@pytest.mark.parametrize("several", [False, True], ids=["shared", "per latent"])
def test_sampled_functions_are_functions(several):
    """The same value wherever and however often an input comes, batched or not."""
    kernel = kernels.SeparateIndependent([ard(), ard(kernels.Matern12)]) if several else ard()
    functions = gpn.RFE(kernel, 2, 5).sample_functions(3, tf.constant([3, 4]))
    X = np.random.default_rng(3).normal(size=(2, 5, 2))
    values = functions(X).numpy()
    assert values.shape == (3, 2, 5, 2 if several else 1)
    np.testing.assert_allclose(functions(X[1]), values[:, 1], atol=1e-12)
    np.testing.assert_allclose(functions(X[1, ::-1]), values[:, 1, ::-1], atol=1e-12)


def test_deepcopy_is_independent():
    network = trained(gpn.RFE(ard(), num_features=5, warp=(4,)))
    twin = copy.deepcopy(network)
    before = network(inputs())[0].numpy()
    np.testing.assert_array_equal(twin(inputs())[0], before)
    twin.q_mu.assign(tf.zeros_like(twin.q_mu))
    twin.maps[0].frequencies.assign(2.0 * twin.maps[0].frequencies)
    np.testing.assert_array_equal(network(inputs())[0], before)
    np.testing.assert_array_equal(twin(inputs())[0], np.zeros((7, 1)))


def test_default_float_is_followed(float_type):
    network = gpn.RFE(ard(), num_features=5, warp=(4,))
    network.initialise(inputs())
    for X in (inputs().astype(float_type), tf.constant(inputs(), float_type)):
        mean, cov = network(X, full_cov=True)
        assert mean.dtype == cov.dtype == float_type
    assert {v.dtype.as_numpy_dtype for v in network.trainable_variables} == {float_type}


def test_every_parameter_has_a_gradient():
    network = trained(gpn.RFE(ard(), num_features=5, warp=(4,)))
    with tf.GradientTape() as tape:
        mean, variance = network(inputs())
        loss = tf.reduce_sum(mean) + tf.reduce_sum(variance) + network.prior_kl()
    for gradient in tape.gradient(loss, network.trainable_variables):
        assert gradient is not None and np.all(np.isfinite(gradient))


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    "kernel, name",
    [
        (kernels.Periodic(kernels.SquaredExponential()), "Periodic"),
        (kernels.White(), "White"),
        (kernels.ArcCosine(), "ArcCosine"),
        (kernels.ChangePoints([kernels.Matern12(), kernels.Matern12()], [0.0]), "ChangePoints"),
        (kernels.Matern12() + kernels.White(), "White"),
        (kernels.SeparateIndependent([kernels.Matern12(), kernels.White()]), "White"),
    ],
)
def test_kernels_without_features_are_named_with_a_way_out(kernel, name):
    with pytest.raises(ValueError, match=name) as failure:
        gpn.RFE(kernel, 1)
    assert "InducingFeatures" in str(failure.value)


def test_arguments_that_make_no_network():
    for number in (0, -3):
        with pytest.raises(ValueError, match=f"num_features must be at least 1, got {number}"):
            gpn.RFE(ard(), num_features=number)
    with pytest.raises(ValueError, match="warp needs a stationary kernel, got Linear"):
        gpn.RFE(kernels.Linear(), 1, warp=(5,))
    for warp in ((), (5, 0)):
        with pytest.raises(ValueError, match="positive layer widths"):
            gpn.RFE(ard(), warp=warp)
    with pytest.raises(ValueError, match="input_dim"):
        gpn.RFE(kernels.Matern12())
    with pytest.raises(ValueError, match="covariance"):
        gpn.RFE(ard(), covariance="dense")
    with pytest.raises(ValueError, match="num_latent_gps must be 2"):
        gpn.RFE(kernels.SeparateIndependent([ard(), ard()]), num_latent_gps=3)


def test_inputs_of_another_dimension_are_refused():
    network = gpn.RFE(ard(), num_features=5)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        network(inputs(dim=3))


@pytest.mark.parametrize("make", [gpn.RFE, gpn.AdaptiveBasis])
def test_a_constant_column_is_not_scaled_by_the_rounding_of_its_mean(make):
    X = np.hstack([np.linspace(0.0, 1.0, 7)[:, None], np.full((7, 1), 1e6 + 0.1)])
    assert X.std(axis=0)[1] > 0.0  # what the test is about
    network = make(kernel=kernels.SquaredExponential(), input_dim=2)
    network.initialise(X)
    inputs = network if make is gpn.RFE else network.body.inputs
    np.testing.assert_allclose(inputs.scale, [X[:, 0].std(), 1.0], rtol=1e-6)
