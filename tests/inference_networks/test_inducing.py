"""SVGP as a special case: identity 6, against GPflow's SVGP and SGPR."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow import kernels
from gpflow.likelihoods import Bernoulli, Gaussian

import gpflow_gpnet as gpn

N = 30
Z = np.linspace(-2.0, 2.0, 6)[:, None]
XNEW = np.linspace(-3.0, 3.0, 9)[:, None]


def make_data(rng, likelihood):
    X = rng.uniform(-2, 2, size=(N, 1))
    f = np.sin(3 * X)
    if isinstance(likelihood, Bernoulli):
        return X, (rng.uniform(size=f.shape) < 0.5 + 0.4 * f).astype(float)
    return X, f + 0.2 * rng.normal(size=f.shape)


def make_kernel():
    return kernels.Matern52(1.3, 0.7)


MATERN, PERIODIC = make_kernel(), kernels.Periodic(kernels.Matern12())


def make_pair(likelihood):
    """A GPNet and the SVGP that it should be."""
    kernel = make_kernel()
    network = gpn.InducingFeatures(kernel, Z)
    ours = gpn.GPNet(kernel, likelihood, network, num_data=N)
    return ours, gpflow.models.SVGP(kernel, likelihood, Z.copy(), num_data=N)


def set_random_weights(rng, *models):
    shape = models[0].inference_network.q_mu.shape
    q_mu = rng.normal(size=shape)
    q_sqrt = np.tril(0.3 * rng.normal(size=(shape[1], shape[0], shape[0])) + np.eye(shape[0]))
    for model in models:
        weights = getattr(model, "inference_network", model)
        weights.q_mu.assign(q_mu)
        weights.q_sqrt.assign(q_sqrt)


def assert_same_weights(ours, theirs, tolerance):
    network = ours.inference_network
    np.testing.assert_allclose(network.q_mu, theirs.q_mu, atol=tolerance)
    covariances = [q @ tf.linalg.matrix_transpose(q) for q in (network.q_sqrt, theirs.q_sqrt)]
    np.testing.assert_allclose(*covariances, atol=tolerance)


# ------------------------------------------------------------------ identity 6


@pytest.mark.parametrize("likelihood", [Gaussian(0.04), Bernoulli()])
@pytest.mark.parametrize("batch", [N, 7])
def test_identity_6_elbo_is_svgp_s(rng, likelihood, batch):
    X, Y = make_data(rng, likelihood)
    ours, theirs = make_pair(likelihood)
    for _ in range(3):
        set_random_weights(rng, ours, theirs)
        data = (X[:batch], Y[:batch])
        np.testing.assert_allclose(ours.elbo(data), theirs.elbo(data), rtol=1e-10)


def test_identity_6_gradients_are_svgp_s(rng):
    """Also of the inducing inputs and the kernel's parameters."""
    likelihood = Gaussian(0.04)
    data = make_data(rng, likelihood)
    ours, theirs = make_pair(likelihood)
    set_random_weights(rng, ours, theirs)
    network = ours.inference_network
    shared = [ours.kernel.lengthscales, ours.kernel.variance, likelihood.variance]
    pairs = [
        (ours, [network.Z, network.q_mu, network.q_sqrt, *shared]),
        (theirs, [theirs.inducing_variable.Z, theirs.q_mu, theirs.q_sqrt, *shared]),
    ]
    gradients = []
    for model, parameters in pairs:
        with tf.GradientTape() as tape:
            loss = model.training_loss(data)
        gradients.append(tape.gradient(loss, [p.unconstrained_variable for p in parameters]))
    for got, expected in zip(*gradients, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-8 * np.abs(expected).max())


@pytest.mark.parametrize(
    "likelihood, rho", [(Gaussian(0.04), 0.3), (Gaussian(0.04), 1.0), (Bernoulli(), 0.3)]
)
def test_identity_6_a_natural_step_is_gpflow_s(rng, likelihood, rho):
    """On all data, and on minibatches from where the last step ended; all but q held fixed.

    Steps of GPflow go through expectation parameters, hence the tolerance.
    """
    X, Y = make_data(rng, likelihood)
    ours, theirs = make_pair(likelihood)
    gpflow.set_trainable(ours, False)
    gpflow.set_trainable(ours.inference_network.weights, True)
    optimizer = gpn.FunctionalMirrorDescent(gpn.Constant(rho))
    natural_gradient = gpflow.optimizers.NaturalGradient(gamma=rho)
    for rows in (slice(None), slice(8), slice(8, 13)):
        batch = (X[rows], Y[rows])
        optimizer.minimize(ours, batch)
        natural_gradient.minimize(
            theirs.training_loss_closure(batch, compile=False), [(theirs.q_mu, theirs.q_sqrt)]
        )
        assert_same_weights(ours, theirs, tolerance=1e-7)
    assert np.abs(theirs.q_mu).max() > 0.1


def test_fixed_point_is_titsias_posterior(rng):
    """β = 1, full batch: the optimal q(u), whose predictions and bound are SGPR's."""
    likelihood = Gaussian(0.04)
    data = make_data(rng, likelihood)
    kernel = make_kernel()
    gpflow.set_trainable(kernel, False)
    gpflow.set_trainable(likelihood, False)
    network = gpn.InducingFeatures(kernel, Z)
    gpflow.set_trainable(network.Z, False)
    model = gpn.GPNet(kernel, likelihood, network, num_data=N)
    gpn.FunctionalMirrorDescent(gpn.Constant(1.0)).minimize(model, data)

    titsias = gpflow.models.SGPR(data, kernel, Z.copy(), noise_variance=0.04)
    mean, cov = titsias.compute_qu()
    root = np.linalg.cholesky(kernel(Z) + gpflow.default_jitter() * np.eye(len(Z)))
    np.testing.assert_allclose(root @ network.q_mu, mean, atol=1e-7)
    u_root = root @ network.q_sqrt[0]
    np.testing.assert_allclose(u_root @ tf.transpose(u_root), cov, atol=1e-7)
    np.testing.assert_allclose(model.elbo(data), titsias.elbo(), rtol=1e-7)
    for full_cov in (False, True):
        for got, expected in zip(
            model.predict_f(XNEW, full_cov), titsias.predict_f(XNEW, full_cov), strict=True
        ):
            np.testing.assert_allclose(got, expected, atol=1e-7)
    before = network.q_mu.numpy()
    gpn.FunctionalMirrorDescent(gpn.Constant(0.5)).minimize(model, data)
    np.testing.assert_allclose(network.q_mu, before, atol=1e-9)


# ------------------------------------------------------------------ predictions and features


@pytest.mark.parametrize("full_cov", [False, True])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_predictions_are_svgp_s(rng, full_cov, batch):
    ours, theirs = make_pair(Gaussian(0.04))
    set_random_weights(rng, ours, theirs)
    X = rng.uniform(-3, 3, size=(*batch, 5, 1))
    for got, expected in zip(
        ours.predict_f(X, full_cov), theirs.predict_f(X, full_cov), strict=True
    ):
        assert got.shape == expected.shape
        np.testing.assert_allclose(got, expected, atol=1e-10)


@pytest.mark.parametrize(
    "kernel, parts",
    [
        (kernels.SharedIndependent(MATERN, output_dim=2), [MATERN, MATERN]),
        (kernels.SeparateIndependent([MATERN, PERIODIC]), [MATERN, PERIODIC]),
    ],
    ids=["shared", "separate"],
)
def test_several_latents_are_as_many_svgps(rng, kernel, parts):
    likelihood = Gaussian(0.04)
    X, Y = make_data(rng, likelihood)
    Y = np.hstack([Y, -2.0 * Y])
    network = gpn.InducingFeatures(kernel, Z)
    ours = gpn.GPNet(kernel, likelihood, network, num_data=2 * N, num_latent_gps=2)
    set_random_weights(rng, ours)
    svgps = []
    for latent, part in enumerate(parts):
        svgp = gpflow.models.SVGP(part, likelihood, Z.copy(), num_data=2 * N)
        svgp.q_mu.assign(network.q_mu[:, latent : latent + 1])
        svgp.q_sqrt.assign(network.q_sqrt[latent : latent + 1])
        svgps.append(svgp)
    expected = sum(svgp.elbo((X, Y[:, k : k + 1])) for k, svgp in enumerate(svgps))
    np.testing.assert_allclose(ours.elbo((X, Y)), expected, rtol=1e-10)
    mean, variance = ours.predict_f(XNEW)
    _, cov = ours.predict_f(XNEW, full_cov=True)
    for latent, svgp in enumerate(svgps):
        one_mean, one_variance = svgp.predict_f(XNEW)
        np.testing.assert_allclose(mean[:, latent], one_mean[:, 0], atol=1e-10)
        np.testing.assert_allclose(variance[:, latent], one_variance[:, 0], atol=1e-10)
        np.testing.assert_allclose(cov[latent], svgp.predict_f(XNEW, True)[1][0], atol=1e-10)


def test_q_is_the_prior_before_training():
    """For any kernel, between the inducing inputs too."""
    kernel = kernels.Periodic(kernels.Matern32(0.8)) + kernels.White(0.1)
    network = gpn.InducingFeatures(kernel, Z)
    mean, variance = network(XNEW)
    np.testing.assert_array_equal(mean, np.zeros((9, 1)))
    np.testing.assert_allclose(variance, np.full((9, 1), 0.9), rtol=1e-10)
    np.testing.assert_allclose(network(XNEW, full_cov=True)[1][0], kernel(XNEW), atol=1e-10)


def test_features_reproduce_the_kernel_at_the_inducing_inputs():
    kernel = make_kernel()
    features = gpn.InducingFeatures(kernel, Z).features(Z)
    np.testing.assert_allclose(features @ tf.transpose(features), kernel(Z), atol=1e-5)


@pytest.mark.parametrize("covariance", ["diag", 2])
def test_other_covariances_of_the_weights(rng, covariance):
    kernel = make_kernel()
    network = gpn.InducingFeatures(kernel, Z, covariance)
    network.q_mu.assign(rng.normal(size=network.q_mu.shape))
    mean, variance = network(XNEW)
    _, cov = network(XNEW, full_cov=True)
    np.testing.assert_allclose(variance[:, 0], tf.linalg.diag_part(cov[0]), atol=1e-10)
    assert np.abs(mean).max() > 0.1


# ------------------------------------------------------------------ whole functions


def sampled(rng, kernel, number, covariance="full", X=XNEW):
    """A network with random weights, and functions of it at X."""
    network = gpn.InducingFeatures(kernel, Z, covariance)
    network.q_mu.assign(rng.normal(size=network.q_mu.shape))
    network.q_sqrt.assign(0.5 * network.q_sqrt)
    return network, network.sample_functions(number, tf.constant([3, 4]))(X).numpy()


def assert_moments(network, draws, bias):
    """Within six standard errors, and a bias of the prior's covariance by random features."""
    mean, cov = (moment.numpy() for moment in network(XNEW, full_cov=True))
    assert draws.shape == (len(draws), *mean.shape)
    for latent, exact in enumerate(cov):
        sample = draws[..., latent]
        variance = np.diag(exact)
        gap = np.abs(sample.mean(axis=0) - mean[:, latent])
        assert np.all(gap < 6.0 * np.sqrt((variance + bias) / len(draws)))
        error = 6.0 * np.sqrt((np.outer(variance, variance) + exact**2) / len(draws)) + bias
        assert np.all(np.abs(np.cov(sample.T) - exact) < error)


@pytest.mark.parametrize(
    "kernel, covariance",
    [
        (make_kernel(), "full"),
        (kernels.SquaredExponential() + kernels.Linear(), "diag"),
        (kernels.SharedIndependent(make_kernel(), output_dim=2), "full"),
        (kernels.SeparateIndependent([kernels.Matern12(), kernels.SquaredExponential()]), "full"),
    ],
    ids=["one", "sum", "shared", "separate"],
)
def test_sampled_functions_have_the_moments_of_predictions(rng, kernel, covariance):
    """Between and beyond the inducing inputs too, where the residual is."""
    network, draws = sampled(rng, kernel, 5_000, covariance)
    _, cov = network(XNEW, full_cov=True)
    features = network.latent_features(XNEW)
    residual = cov - tf.matmul(*[network.weights.project(features)] * 2, transpose_b=True)
    assert np.abs(residual).max() > 0.2, "or nothing is tested"
    assert_moments(network, draws, bias=0.01)


def test_sampled_functions_are_exact_for_a_kernel_of_finite_features(rng):
    """Lines through 0."""
    network, draws = sampled(rng, kernels.Linear(0.7), 1_000)
    assert_moments(network, draws, bias=1e-5)
    assert draws[:, 0].std() > 0.1
    np.testing.assert_allclose(draws[:, 0, 0], -draws[:, -1, 0], atol=1e-4)


def test_sampled_functions_are_functions(rng):
    """The same value wherever and however often an input comes, batched or not."""
    network, _ = sampled(rng, make_kernel(), 1)
    functions = network.sample_functions(3, tf.constant([3, 4]))
    X = rng.normal(size=(2, 5, 1))
    values = functions(X).numpy()
    assert values.shape == (3, 2, 5, 1)
    np.testing.assert_allclose(functions(X[1]), values[:, 1], atol=1e-10)
    np.testing.assert_allclose(functions(X[1, ::-1]), values[:, 1, ::-1], atol=1e-10)
    np.testing.assert_allclose(tf.function(functions)(tf.constant(X)), values, atol=1e-10)
    other = network.sample_functions(3, tf.constant([3, 5]))(X)
    assert np.abs(other - values).max() > 0.1


def test_sampled_functions_of_certain_weights_pass_through_their_values(rng):
    """At the inducing inputs nothing but q(u) is random."""
    network = gpn.InducingFeatures(make_kernel(), Z)
    network.q_mu.assign(rng.normal(size=network.q_mu.shape))
    network.q_sqrt.assign(1e-9 * network.q_sqrt)
    draws = network.sample_functions(4, tf.constant([3, 4]))(Z)
    np.testing.assert_allclose(draws, np.tile(network(Z)[0], (4, 1, 1)), atol=1e-4)


@pytest.mark.parametrize(
    "kernel, part",
    [
        (PERIODIC, "Periodic"),
        (kernels.ArcCosine(), "ArcCosine"),
        (MATERN + PERIODIC, "In Sum: Periodic"),
    ],
)
def test_samples_of_whole_functions_need_random_features(kernel, part):
    name = type(kernel).__name__
    message = rf"{name} has no random features .*use predict_f_samples.*{part}"
    with pytest.raises(NotImplementedError, match=message):
        gpn.InducingFeatures(kernel, Z).sample_functions(2, tf.constant([0, 1]))


def test_a_model_from_svgp_samples_whole_functions(rng):
    """With mean function and units; moments within six standard errors of 5,000, bias .01."""
    svgp = gpflow.models.SVGP(
        make_kernel(), Gaussian(0.04), Z.copy(), mean_function=gpflow.functions.Constant(3.0)
    )
    svgp.q_mu.assign(rng.normal(size=svgp.q_mu.shape))
    svgp.q_sqrt.assign(0.3 * svgp.q_sqrt)
    draws = gpn.GPNet.from_svgp(svgp).sample_functions(5_000, seed=1)(XNEW).numpy()
    mean, cov = svgp.predict_f(XNEW, full_cov=True)
    variance = np.diag(cov[0])
    gap = np.abs(draws[..., 0].mean(axis=0) - mean[:, 0])
    assert np.all(gap < 6.0 * np.sqrt((variance + 0.01) / 5_000))
    error = 6.0 * np.sqrt((np.outer(variance, variance) + cov[0] ** 2) / 5_000) + 0.01
    assert np.all(np.abs(np.cov(draws[..., 0].T) - cov[0]) < error)


@pytest.mark.parametrize("points", [Z[:, 0], Z[None]])
def test_inducing_inputs_must_be_a_matrix(points):
    with pytest.raises(ValueError, match=r"Z must be a matrix \[M, D\], got shape"):
        gpn.InducingFeatures(make_kernel(), points)


def test_default_float_is_followed(float_type):
    network = gpn.InducingFeatures(make_kernel(), Z)
    for value in network(XNEW.astype(float_type), full_cov=True):
        assert value.dtype == float_type


def test_jitter_is_no_less_than_rounding(float_type, rng):
    """In float32 a prior variance of 1e6 makes the default jitter nothing."""
    Z = rng.uniform(size=(50, 1))
    kernel = gpflow.kernels.SquaredExponential(variance=1e6)
    network = gpn.InducingFeatures(kernel, Z)
    root = np.asarray(network.prior_root(kernel), float)
    added = np.trace(root @ root.T) / 50 - 1e6
    eps = np.finfo(float_type).eps
    np.testing.assert_allclose(added, max(1e-6, 50e6 * eps), rtol=0.5)


def test_diagonal_of_the_prior_at_inducing_inputs_is_the_variance():
    """Far from 0 that of GPflow's ArcCosine matrix is rounded, and the matrix not positive."""
    Z = 1e6 + np.linspace(-2.0, 2.0, 20).reshape(10, 2) ** 3
    kernel = gpflow.kernels.ArcCosine(0, variance=1e6)
    root = gpn.InducingFeatures(kernel, Z).prior_root(kernel).numpy()
    np.testing.assert_allclose(np.diag(root @ root.T), 1e6 + 1e-6, rtol=1e-9)


def test_inducing_inputs_must_be_finite():
    with pytest.raises(ValueError, match="Z has NaN or infinite values in 1 rows, the first is"):
        gpn.InducingFeatures(make_kernel(), np.array([[0.0], [np.nan]]))


def test_features_follow_the_models_new_kernel_as_svgp_does(rng):
    X = rng.uniform(-2, 2, size=(20, 1))
    data, Z = (X, np.sin(2 * X)), X[:6]
    old, new = (gpflow.kernels.SquaredExponential(v, ls) for v, ls in ((1.0, 0.5), (0.01, 3.0)))
    model = gpn.GPNet(old, gpflow.likelihoods.Gaussian(0.1), gpn.InducingFeatures(old, Z))
    svgp = gpflow.models.SVGP(old, gpflow.likelihoods.Gaussian(0.1), Z)
    optimizer = gpn.FunctionalMirrorDescent(0.5, learning_rate=0.01)
    model.num_data = svgp.num_data = 20
    gpflow.set_trainable([old, new], False)
    optimizer.minimize(model, data)
    model.inference_network.q_mu.assign(np.zeros([6, 1]))
    model.inference_network.q_sqrt.assign(np.eye(6)[None])
    model.kernel = svgp.kernel = new
    svgp.inducing_variable.Z.assign(model.inference_network.Z)
    svgp.likelihood = model.likelihood
    assert model.inference_network.represents(new)
    bound = float(svgp.elbo(data))
    np.testing.assert_allclose(model.elbo(data), bound, rtol=1e-6)
    np.testing.assert_allclose(optimizer.minimize(model, data), -bound, rtol=1e-6)
    np.testing.assert_allclose(model.predict_f(X + 90.0)[1], 0.01, rtol=1e-3)
