"""GPNet's objective, predictions and doors, against SVGP and exact Gaussian processes."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow import kernels
from gpflow.likelihoods import Bernoulli, Gaussian, Poisson

import gpflow_gpnet as gpn

RBF = kernels.SquaredExponential
XNEW = np.linspace(-2.5, 2.5, 6)[:, None]
POINTS = np.linspace(-2.0, 2.0, 7)[:, None]


def fixed_points(num):
    return POINTS[:num]


def make_data(rng, num=30, outputs=1):
    X = rng.uniform(-2, 2, size=(num, 1))
    Y = np.sin(3 * X + np.arange(outputs)) + 0.2 * rng.normal(size=(num, outputs))
    return X, Y


def make_model(likelihood=None, num_data=30, num_features=15, **kwargs):
    kernel = RBF(1.3, 0.7)
    kwargs = {"measurement": fixed_points, "num_measurement_points": 7} | kwargs
    return gpn.GPNet(
        kernel,
        likelihood or Gaussian(0.04),
        gpn.RFE(kernel, 1, num_features, num_latent_gps=kwargs.get("num_latent_gps", 1)),
        num_data=num_data,
        **kwargs,
    )


def set_random_weights(rng, *networks):
    features, latents = networks[0].q_mu.shape
    q_mu = rng.normal(size=(features, latents))
    q_sqrt = 0.1 * rng.normal(size=(latents, features, features)) + 0.5 * np.eye(features)
    for network in networks:
        network.q_mu.assign(q_mu)
        network.q_sqrt.assign(np.tril(q_sqrt))


class Tower(gpn.InferenceNetwork):
    """A user's network: the one method, and no weights of its own."""

    def __init__(self, variance=0.3):
        super().__init__()
        self.variance = gpflow.Parameter(variance, transform=gpflow.utilities.positive())
        self.slope = gpflow.Parameter(0.5)
        self.shape = RBF(1.0, 0.5)
        gpflow.set_trainable(self.shape, False)

    def __call__(self, X, full_cov=False):
        cov = self.variance * self.shape(X)[None]
        mean = self.slope * tf.cast(X, gpflow.default_float())
        return mean, cov if full_cov else tf.transpose(tf.linalg.diag_part(cov))


# ------------------------------------------------------------------ the objective


def test_elbo_is_its_definition_written_down(rng):
    """Dense formulas, inverses and all."""
    X, Y = make_data(rng, 10)
    model = make_model(num_data=40)
    network = model.inference_network
    set_random_weights(rng, network)
    V = network.q_sqrt[0].numpy() @ network.q_sqrt[0].numpy().T
    m = network.q_mu.numpy()
    phi, phi_M = network.features(X).numpy(), network.features(POINTS).numpy()
    variance = np.sum((phi @ V) * phi, axis=1, keepdims=True)
    fit = np.sum(-0.5 * np.log(2 * np.pi * 0.04) - ((Y - phi @ m) ** 2 + variance) / (2 * 0.04))
    kl = 0.5 * (np.trace(V) + np.sum(m**2) - len(m) - np.linalg.slogdet(V)[1])
    jitter = 1e-6 * 1.3 * np.eye(7)
    second_moment = phi_M @ (V + m @ m.T) @ phi_M.T

    def expected_log_density(cov):
        cov = cov + jitter
        return -0.5 * (np.linalg.slogdet(cov)[1] + np.trace(np.linalg.solve(cov, second_moment)))

    correction = expected_log_density(phi_M @ phi_M.T) - expected_log_density(
        model.kernel(POINTS).numpy()
    )
    assert abs(correction) > 1.0
    np.testing.assert_allclose(model.elbo((X, Y)), 4 * fit - kl - correction, rtol=1e-9)


def test_elbo_of_any_other_network_takes_the_divergence_at_batch_and_measured_points(rng):
    X, Y = make_data(rng, 5)
    kernel = RBF(1.3, 0.7)
    model = gpn.GPNet(
        kernel,
        Gaussian(0.04),
        Tower(),
        num_data=20,
        measurement=fixed_points,
        num_measurement_points=3,
    )
    points = np.vstack([X, POINTS[:3]])
    mean, cov = (value.numpy() for value in Tower()(points, full_cov=True))
    nugget = 1e-6 * 1.3 * np.eye(8)
    q = tfp.distributions.MultivariateNormalTriL(mean[:, 0], np.linalg.cholesky(cov[0] + nugget))
    p = tfp.distributions.MultivariateNormalTriL(
        np.zeros(8), np.linalg.cholesky(kernel(points) + nugget)
    )
    fit = np.sum(tfp.distributions.Normal(Y, 0.2).log_prob(mean[:5]) - 0.3 / (2 * 0.04))
    expected = 4 * fit - tfp.distributions.kl_divergence(q, p)
    np.testing.assert_allclose(model.elbo((X, Y)), expected, rtol=1e-8)


@pytest.mark.parametrize("likelihood", [Gaussian(0.04), Bernoulli(), Poisson()])
def test_elbo_is_additive_over_ragged_batches(rng, likelihood):
    X, Y = make_data(rng, 30)
    Y = (Y > 0).astype(float)
    model = make_model(likelihood)
    set_random_weights(rng, model.inference_network)
    batches = [(X[i : i + 8], Y[i : i + 8]) for i in range(0, 30, 8)]
    total = sum(len(batch[0]) / 30 * model.elbo(batch) for batch in batches)
    np.testing.assert_allclose(total, model.elbo((X, Y)), rtol=1e-10)
    plain = np.mean([model.elbo(batch) for batch in batches])
    assert abs(plain / total - 1.0) > 1e-4


def test_without_num_data_the_batch_is_all_there_is(rng):
    data = make_data(rng, 10)
    np.testing.assert_allclose(
        make_model(num_data=None).elbo(data), make_model(num_data=10).elbo(data), rtol=1e-12
    )


@pytest.mark.parametrize(
    "kernel",
    [
        kernels.Linear(1.3) + kernels.Constant(0.4),
        kernels.Polynomial(2, 0.7, 0.5),
        kernels.Cosine(0.8, 1.7),
    ],
    ids=lambda kernel: type(kernel).__name__,
)
def test_prior_correction_vanishes_for_features_that_are_the_kernel_s(rng, kernel):
    network = gpn.RFE(kernel, 1)
    set_random_weights(rng, network)
    model = gpn.GPNet(kernel, Gaussian(), network, num_data=30)
    features = network.latent_features(POINTS)
    np.testing.assert_allclose(
        model.prior_correction(features, model.prior_factors(POINTS, features)), 0.0, atol=1e-7
    )
    network.q_mu.assign(10.0 * network.q_mu)
    kernel.variance = 2.0 * kernel.variance if hasattr(kernel, "variance") else None
    model.kernel = RBF()
    assert abs(model.prior_correction(features, model.prior_factors(POINTS, features))) > 1.0


def test_prior_correction_falls_with_the_number_of_frequencies():
    """Expected under the prior's q, where it is the divergence of the two priors."""
    kernel = kernels.Matern12(1.3, 0.7)
    corrections = []
    for number in (100, 20_000):
        network = gpn.RFE(kernel, 1, number, covariance="diag")
        model = gpn.GPNet(kernel, Gaussian(), network, num_data=30)
        features = network.latent_features(POINTS)
        corrections.append(
            float(model.prior_correction(features, model.prior_factors(POINTS, features)))
        )
    assert 0.0 < corrections[1] < 0.05 * corrections[0] and corrections[0] > 0.01


def test_a_network_of_the_exact_prior_measures_nothing(rng):
    """InducingFeatures: no correction, so no measurement points either."""

    def fail(num):
        raise AssertionError("measured")

    kernel = RBF()
    network = gpn.InducingFeatures(kernel, POINTS)
    model = gpn.GPNet(kernel, Gaussian(), network, num_data=30, measurement=fail)
    assert np.isfinite(model.elbo(make_data(rng)))


@pytest.mark.parametrize("network", ["linear", "other"])
def test_elbo_is_a_function_of_the_batch(rng, network):
    """The same batch measures the same points, compiled too; another batch measures others."""
    kernel = RBF(1.3, 0.7)
    q = gpn.RFE(kernel, 1, 15) if network == "linear" else Tower()
    model = gpn.GPNet(kernel, Gaussian(0.04), q, num_data=30)
    X, Y = make_data(rng)
    first = model.elbo((X[:10], Y[:10]))
    tf.random.normal([3])
    np.testing.assert_array_equal(model.elbo((X[:10], Y[:10])), first)
    closure = model.training_loss_closure((X[:10], Y[:10]))
    np.testing.assert_array_equal(closure(), closure())
    np.testing.assert_allclose(closure(), -first, rtol=1e-9)
    here, there = (model.measurement_points(X[rows]) for rows in (slice(10), slice(10, 20)))
    assert here.shape == there.shape == (10, 1)
    noise = [np.abs(points - x.T).min(axis=1) for points, x in ((here, X[:10]), (there, X[10:20]))]
    assert not np.allclose(*noise)


def test_nothing_changes_the_model_s_state(rng):
    model = make_model()
    before = [variable.numpy() for variable in model.variables]
    data = make_data(rng)
    model.elbo(data)
    model.training_loss_closure(data, compile=False)()
    model.predict_y(XNEW)
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)


def test_training_loss_is_minus_elbo_minus_log_prior(rng):
    data = make_data(rng)
    model = make_model()
    model.kernel.lengthscales.prior = tfp.distributions.Gamma(np.float64(2.0), np.float64(3.0))
    log_prior = model.kernel.lengthscales.log_prior_density()
    assert abs(log_prior) > 0.01
    expected = -model.elbo(data) - log_prior
    np.testing.assert_allclose(model.training_loss(data), expected, rtol=1e-12)
    stream = iter(tf.data.Dataset.from_tensors(data).repeat())
    for source in (data, stream):
        closure = model.training_loss_closure(source, compile=False)
        np.testing.assert_allclose(closure(), expected, rtol=1e-12)
    np.testing.assert_array_equal(model.maximum_log_likelihood_objective(data), model.elbo(data))


def test_elbo_is_below_the_marginal_likelihood_and_reaches_it(rng):
    """Features of the kernel itself: the posterior is in the family."""
    data = make_data(rng)
    kernel = kernels.Polynomial(3, 0.7, 0.5)
    network = gpn.RFE(kernel, 1)
    model = gpn.GPNet(kernel, Gaussian(0.04), network, num_data=30)
    evidence = gpflow.models.GPR(data, kernel, noise_variance=0.04).log_marginal_likelihood()
    for _ in range(10):
        set_random_weights(rng, network)
        assert model.elbo(data) < evidence
    gpn.FunctionalMirrorDescent(gpn.Constant(1.0), learning_rate=0.0).minimize(model, data)
    np.testing.assert_allclose(model.elbo(data), evidence, atol=1e-4)


def test_functional_elbo_on_all_inputs_is_a_bound(rng):
    data = make_data(rng, 12)
    kernel = RBF(1.3, 0.7)
    model = gpn.GPNet(kernel, Gaussian(0.04), Tower(), num_data=12)
    evidence = gpflow.models.GPR(data, kernel, noise_variance=0.04).log_marginal_likelihood()
    for slope, variance in rng.uniform(0.1, 1.0, size=(10, 2)):
        model.inference_network.slope.assign(slope)
        model.inference_network.variance.assign(variance)
        assert model.elbo(data) < evidence


# ------------------------------------------------------------------ an array as the network


def test_an_array_becomes_random_features_measured_at_its_rows(rng):
    kernel = RBF(1.3, 0.7)
    model = gpn.GPNet(kernel, Gaussian(0.04), POINTS, num_data=30)
    assert isinstance(model.inference_network, gpn.RFE)
    measured = model.measurement_points(make_data(rng)[0]).numpy()
    assert np.all(np.isin(measured, POINTS))
    assert np.isfinite(model.elbo(make_data(rng)))
    assert gpn.GPNet(kernel, Gaussian(), POINTS.tolist()).inference_network.num_latent_gps == 1


def test_an_array_becomes_inducing_features_where_the_kernel_has_no_others():
    kernel = kernels.Periodic(RBF())
    model = gpn.GPNet(kernel, Gaussian(), POINTS, num_latent_gps=2)
    assert isinstance(model.inference_network, gpn.InducingFeatures)
    np.testing.assert_array_equal(model.inference_network.Z, POINTS)
    assert model.inference_network.num_latent_gps == 2


def test_an_array_of_measurement_points_is_kept_beside_an_array_as_the_network():
    model = gpn.GPNet(RBF(), Gaussian(), POINTS, measurement=np.array([[7.0]]))
    np.testing.assert_array_equal(model.measurement_points(POINTS), np.full((7, 1), 7.0))


@pytest.mark.parametrize("array", [POINTS[:, 0], POINTS[None]])
def test_other_arrays_are_refused(array):
    with pytest.raises(ValueError, match="inference_network must have two dimensions"):
        gpn.GPNet(RBF(), Gaussian(), array)


# ------------------------------------------------------------------ predictions


FLAGS = [(False, False), (False, True), (True, False), (True, True)]


def pair(rng, kernel, latents, **kwargs):
    """InducingFeatures and SVGP with the same q."""
    network = gpn.InducingFeatures(kernel, POINTS, num_latent_gps=latents)
    kwargs |= {"num_latent_gps": latents, "num_data": 30}
    ours = gpn.GPNet(kernel, Gaussian(0.04), network, **kwargs)
    Z = gpflow.inducing_variables.InducingPoints(POINTS.copy())
    if isinstance(kernel, kernels.MultioutputKernel):
        Z = gpflow.inducing_variables.SharedIndependentInducingVariables(Z)
    theirs = gpflow.models.SVGP(kernel, Gaussian(0.04), Z, **kwargs)
    set_random_weights(rng, network, theirs)
    return ours, theirs


@pytest.mark.parametrize("full_cov, full_output_cov", FLAGS)
@pytest.mark.parametrize("latents", [1, 2])
def test_predict_f_has_svgp_s_shapes_and_values(rng, full_cov, full_output_cov, latents):
    mean = gpflow.mean_functions.Linear(np.ones((1, latents)), 0.3)
    ours, theirs = pair(rng, RBF(1.3, 0.7), latents, mean_function=mean)
    batched = rng.normal(size=(2, 4, 1))
    # SVGP cannot predict both full covariances for batched inputs: one batch at a time, then.
    stacked = [theirs.predict_f(X, full_cov, full_output_cov) for X in batched]
    for X, wanted in (
        (XNEW, theirs.predict_f(XNEW, full_cov, full_output_cov)),
        (batched, [tf.stack(moments) for moments in zip(*stacked, strict=True)]),
    ):
        for got, expected in zip(ours.predict_f(X, full_cov, full_output_cov), wanted, strict=True):
            assert got.shape == expected.shape
            np.testing.assert_allclose(got, expected, atol=1e-8)


@pytest.mark.parametrize("full_cov, full_output_cov", FLAGS)
def test_predict_f_mixes_latents_of_a_coregionalisation(rng, full_cov, full_output_cov):
    """f = W g written down: covariances of outputs o, o' are sums of W_ol W_o'l cov_l."""
    W = rng.normal(size=(3, 2))
    parts = [RBF(1.3, 0.7), kernels.Matern12(0.8, 1.5)]
    kernel = kernels.LinearCoregionalization(parts, W=W)
    network = gpn.InducingFeatures(kernel, POINTS)
    set_random_weights(rng, network)
    mean = gpflow.mean_functions.Linear(np.ones((1, 3)), np.arange(3.0))
    model = gpn.GPNet(kernel, Gaussian(), network, num_latent_gps=2, mean_function=mean)
    X = rng.normal(size=(2, 4, 1))
    for inputs, batch in ((X[0], ""), (X, "b")):
        latent_mean, latent_cov = network(inputs, full_cov=True)
        mu, cov = model.predict_f(inputs, full_cov, full_output_cov)
        np.testing.assert_allclose(mu, latent_mean @ W.T + mean(inputs), atol=1e-10)
        wanted = {
            (False, False): "no",
            (False, True): "nop",
            (True, False): "onm",
            (True, True): "nomp",
        }[full_cov, full_output_cov]
        every = np.einsum(f"ol,pl,{batch}lnm->{batch}nomp", W, W, latent_cov)
        if not full_output_cov:
            every = np.einsum(f"{batch}nomo->{batch}onm", every)
            expected = every if full_cov else np.einsum(f"{batch}onn->{batch}no", every)
        else:
            expected = every if full_cov else np.einsum(f"{batch}nonp->{batch}nop", every)
        assert cov.shape == expected.shape and len(cov.shape) == len(wanted) + len(batch)
        np.testing.assert_allclose(cov, expected, atol=1e-10)


def test_predictions_through_the_likelihood_are_svgp_s(rng):
    ours, theirs = pair(rng, RBF(1.3, 0.7), 1)
    data = make_data(rng)
    for got, expected in zip(ours.predict_y(XNEW), theirs.predict_y(XNEW), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-8)
    np.testing.assert_allclose(
        ours.predict_log_density(data), theirs.predict_log_density(data), atol=1e-7
    )
    samples = ours.predict_f_samples(XNEW, 5, full_cov=True)
    assert samples.shape == theirs.predict_f_samples(XNEW, 5, full_cov=True).shape


def test_mean_function_shifts_predictions_and_residuals(rng):
    """Data moved by the prior's mean: the objective stays, predictions move along."""
    X, Y = make_data(rng)
    slope = 2.0
    mean = gpflow.mean_functions.Linear([[slope]], [5.0])
    plain, shifted = make_model(), make_model(mean_function=mean)
    data, moved = (X, Y), (X, Y + slope * X + 5.0)
    np.testing.assert_allclose(shifted.elbo(moved), plain.elbo(data), rtol=1e-10)
    for model, values in ((plain, data), (shifted, moved)):
        gpn.FunctionalMirrorDescent(gpn.Constant(0.5), learning_rate=0.0).minimize(model, values)
    plain_mean, plain_variance = plain.predict_f(XNEW)
    moved_mean, moved_variance = shifted.predict_f(XNEW)
    np.testing.assert_allclose(moved_mean, plain_mean + slope * XNEW + 5.0, atol=1e-9)
    np.testing.assert_allclose(moved_variance, plain_variance, atol=1e-12)


def test_one_mean_for_several_latents(rng):
    """A column of constants broadcasts over latents, as in SVGP."""
    model = make_model(num_latent_gps=2, mean_function=gpflow.mean_functions.Constant([3.0]))
    assert model.predict_f(XNEW)[0].shape == (6, 2)
    assert np.isfinite(model.elbo(make_data(rng, outputs=2)))


def test_predictions_take_lists_and_float32(rng):
    model = make_model()
    set_random_weights(rng, model.inference_network)
    expected = model.predict_f(XNEW)[0]
    np.testing.assert_allclose(model.predict_f(XNEW.tolist())[0], expected)
    np.testing.assert_allclose(model.predict_f(tf.constant(XNEW))[0], expected)


# ------------------------------------------------------------------ whole functions


def test_sampled_functions_add_the_mean_and_mix_latents(rng):
    kernel = kernels.LinearCoregionalization(
        [RBF(1.3, 0.7), kernels.Matern12(0.8, 1.5)], W=rng.normal(size=(3, 2))
    )
    mean = gpflow.mean_functions.Linear(np.ones((1, 3)), np.arange(3.0))
    network = gpn.RFE(kernel, 1, 10)
    set_random_weights(rng, network)
    model = gpn.GPNet(kernel, Gaussian(), network, num_latent_gps=2, mean_function=mean)
    draws = model.sample_functions(40_000, seed=0)(XNEW).numpy()
    assert draws.shape == (40_000, 6, 3)
    mu, variance = model.predict_f(XNEW)
    assert np.all(np.abs(draws.mean(axis=0) - mu) < 6 * np.sqrt(variance / 40_000))
    assert np.all(np.abs(draws.var(axis=0) / variance - 1.0) < 6 * np.sqrt(2 / 40_000))


def test_sampled_functions_depend_on_the_seed():
    model = make_model()
    first, again, other = (model.sample_functions(2, seed=s)(XNEW).numpy() for s in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.1
    drawn = [model.sample_functions(2)(XNEW).numpy() for _ in range(2)]
    assert np.abs(drawn[0] - drawn[1]).max() > 0.01, "no seed should mean a new draw"


def test_networks_not_linear_in_weights_have_no_function_samples():
    with pytest.raises(NotImplementedError, match="Tower"):
        gpn.GPNet(RBF(), Gaussian(), Tower()).sample_functions(1)


# ------------------------------------------------------------------ doors


@pytest.mark.parametrize(
    "kernel, likelihood, network_latents, latents, part",
    [
        (RBF(), Gaussian(), 2, 1, "inference_network RFE has 2"),
        (RBF(), Gaussian(), 1, 3, "inference_network RFE has 1"),
        (kernels.SharedIndependent(RBF(), 2), Gaussian(), 2, 1, "SharedIndependent has 2"),
        (RBF(), gpflow.likelihoods.MultiClass(3), 1, 1, "MultiClass has 3"),
        (RBF(), gpflow.likelihoods.Softmax(3), 2, 2, "Softmax has 3"),
        (RBF(), gpflow.likelihoods.HeteroskedasticTFPConditional(), 1, 1, "has 2"),
    ],
)
def test_numbers_of_latents_that_differ(kernel, likelihood, network_latents, latents, part):
    network = gpn.RFE(kernel, 1, 5, num_latent_gps=network_latents)
    with pytest.raises(ValueError, match=part) as failure:
        gpn.GPNet(kernel, likelihood, network, num_latent_gps=latents)
    assert f"num_latent_gps is {latents}" in str(failure.value)


@pytest.mark.parametrize(
    "arguments, part",
    [
        ({"num_data": 0}, "num_data must be positive, got 0"),
        ({"num_data": -3}, "num_data must be positive, got -3"),
        ({"num_measurement_points": 0}, "num_measurement_points must be at least 1, got 0"),
    ],
)
def test_numbers_out_of_range(arguments, part):
    with pytest.raises(ValueError, match=part):
        gpn.GPNet(RBF(), Gaussian(), gpn.RFE(RBF(), 1, 5), **arguments)


def test_what_is_no_network_is_refused():
    for thing in (tf.Module(), lambda X, full_cov=False: (X, X)):
        with pytest.raises(TypeError, match="inference_network must be") as failure:
            gpn.GPNet(RBF(), Gaussian(), thing)
        assert type(thing).__name__ in str(failure.value)


def test_minibatches_without_num_data_are_refused(rng):
    data = iter(tf.data.Dataset.from_tensors(make_data(rng)).repeat())
    with pytest.raises(ValueError, match="pass num_data=N"):
        make_model(num_data=None).training_loss_closure(data)


@pytest.mark.parametrize(
    "change, part",
    [
        (lambda X, Y: (X[:-1], Y), "same number of rows"),
        (lambda X, Y: (X, np.hstack([Y, Y])), "Y has 2 columns, but the model has 1 outputs"),
        (lambda X, Y: (X[:, 0], Y), r"X\[:, None\]"),
        (lambda X, Y: (X, np.where(np.arange(30)[:, None] == 4, np.nan, Y)), "first is row 4"),
        (lambda X, Y: (np.where(np.arange(30)[:, None] == 4, np.inf, X), Y), "first is row 4"),
        (lambda X, Y: (X[:0], Y[:0]), "no rows"),
    ],
)
@pytest.mark.parametrize("door", ["training_loss", "training_loss_closure"])
def test_data_that_do_not_fit(rng, change, part, door):
    with pytest.raises(ValueError, match=part):
        getattr(make_model(), door)(change(*make_data(rng)))


def test_mean_function_with_other_columns_is_refused(rng):
    mean = gpflow.mean_functions.Linear(np.ones((1, 3)), np.zeros(3))
    model = make_model(num_latent_gps=2, mean_function=mean)
    with pytest.raises(ValueError, match="mean_function gives 3 columns"):
        model.training_loss(make_data(rng, outputs=2))


# ------------------------------------------------------------------ Keras layers inside networks


class Wrapped(gpn.InferenceNetwork):
    """Variance 1, mean from the layers given."""

    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def __call__(self, X, full_cov=False):
        mean = tf.convert_to_tensor(X)
        for layer in self.layers if isinstance(self.layers, list) else self.layers.values():
            mean = layer(mean)
        rows = tf.shape(X)[0]
        return mean, tf.eye(rows, dtype=mean.dtype)[None] if full_cov else tf.ones_like(mean)


@pytest.mark.parametrize(
    "container",
    [
        list,
        lambda layers: dict(enumerate(layers)),
        lambda layers: [layers],
        lambda layers: layers[0],
    ],
    ids=["list", "dictionary", "blocks", "alone"],
)
def test_keras_3_layers_are_refused_by_name(container):
    keras = pytest.importorskip("keras", minversion="3.0")
    layers = [keras.layers.Dense(4, dtype="float64"), keras.layers.Dense(1, dtype="float64")]
    with pytest.raises(TypeError, match=r"Wrapped\.layers is a Keras 3 Dense") as failure:
        gpn.GPNet(RBF(), Gaussian(), Wrapped(container(layers)), num_data=30)
    assert "tf_keras" in str(failure.value)


def test_a_keras_3_model_as_the_network_is_refused_by_name():
    keras = pytest.importorskip("keras", minversion="3.0")
    with pytest.raises(TypeError, match="got Sequential"):
        gpn.GPNet(RBF(), Gaussian(), keras.Sequential([keras.layers.Dense(1)]), num_data=30)


@pytest.mark.parametrize("source", ["dataset", "dataset iterator", "generator"])
def test_training_loss_closure_takes_any_source_of_batches(rng, source):
    """A new batch each call."""
    model, (X, Y) = make_model(), make_data(rng)
    batches = [(X[:10], Y[:10]), (X[10:], Y[10:])]
    expected = [float(model.training_loss(batch)) for batch in batches]
    dataset = tf.data.Dataset.from_generator(
        lambda: iter(batches),
        output_signature=(
            tf.TensorSpec([None, 1], tf.float64),
            tf.TensorSpec([None, 1], tf.float64),
        ),
    )
    data = {"dataset": dataset, "dataset iterator": iter(dataset), "generator": iter(batches)}
    closure = model.training_loss_closure(data[source])
    np.testing.assert_allclose([float(closure()) for _ in batches], expected, rtol=1e-9)


# ------------------------------------------------------------------ from a trained SVGP


def trained_svgp(kernel, num_latents, whiten, q_diag):
    rng = np.random.default_rng(3)
    num = 6
    q_sqrt = rng.uniform(0.5, 1.5, (num, num_latents))
    if not q_diag:
        q_sqrt = np.tril(rng.normal(size=(num_latents, num, num))) + 2.0 * np.eye(num)
    Z = rng.uniform(-1.0, 1.0, (num, 1))
    if isinstance(kernel, gpflow.kernels.MultioutputKernel):
        Z = gpflow.inducing_variables.SharedIndependentInducingVariables(
            gpflow.inducing_variables.InducingPoints(Z)
        )
    return gpflow.models.SVGP(
        kernel,
        gpflow.likelihoods.Gaussian(0.3),
        Z,
        mean_function=gpflow.mean_functions.Constant(2.0),
        num_latent_gps=num_latents,
        q_mu=rng.normal(size=(num, num_latents)),
        q_sqrt=q_sqrt,
        q_diag=q_diag,
        whiten=whiten,
        num_data=100,
    )


@pytest.mark.parametrize("q_diag", [False, True])
@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize(
    "kernel, num_latents",
    [
        (lambda: gpflow.kernels.Matern32(), 2),
        (
            lambda: gpflow.kernels.SeparateIndependent(
                [gpflow.kernels.Matern32(), gpflow.kernels.SquaredExponential(lengthscales=0.5)]
            ),
            2,
        ),
    ],
    ids=["one kernel", "separate kernels"],
)
def test_from_svgp_has_its_posterior_and_bound(kernel, num_latents, whiten, q_diag):
    svgp = trained_svgp(kernel(), num_latents, whiten, q_diag)
    model = gpn.GPNet.from_svgp(svgp)
    X = np.linspace(-1.2, 1.2, 7)[:, None]
    Y = np.concatenate([np.sin(X)] * num_latents, axis=1)
    for full_cov in (False, True):
        for ours, theirs in zip(
            model.predict_f(X, full_cov), svgp.predict_f(X, full_cov), strict=True
        ):
            np.testing.assert_allclose(ours, theirs, atol=1e-8)
    np.testing.assert_allclose(model.elbo((X, Y)), svgp.elbo((X, Y)), rtol=1e-8)


def test_from_svgp_trains_a_copy():
    svgp = trained_svgp(gpflow.kernels.Matern32(), 1, True, False)
    gpflow.set_trainable(svgp.inducing_variable, False)
    model = gpn.GPNet.from_svgp(svgp)
    assert not model.inference_network.Z.trainable
    assert model.inference_network.Z is not svgp.inducing_variable.Z
    model.kernel.variance.assign(5.0)
    assert svgp.kernel.variance.numpy() == 1.0
    assert model.inference_network.kernel is model.kernel


def test_from_svgp_refuses_correlated_latents():
    """Bare inducing points of a multi-output kernel: q of all values together, [M P, 1]."""
    kernel = kernels.SharedIndependent(kernels.Matern32(), 2)
    q = dict(q_mu=np.zeros((12, 1)), q_sqrt=np.eye(12)[None])
    svgp = gpflow.models.SVGP(kernel, Gaussian(), np.ones((6, 1)), num_latent_gps=2, **q)
    with pytest.raises(NotImplementedError, match="InducingPoints with a SharedIndependent kernel"):
        gpn.GPNet.from_svgp(svgp)


def test_from_svgp_refuses_separate_inducing_points():
    svgp = trained_svgp(gpflow.kernels.Matern32(), 1, True, False)
    svgp.inducing_variable = gpflow.inducing_variables.SeparateIndependentInducingVariables(
        [gpflow.inducing_variables.InducingPoints(np.ones((6, 1)))]
    )
    with pytest.raises(NotImplementedError, match="SeparateIndependentInducingVariables"):
        gpn.GPNet.from_svgp(svgp)


@pytest.mark.parametrize("wrap", ["own", "shared", "fallback"])
def test_gpflows_inducing_points_are_taken_as_their_array(wrap):
    Z = fixed_points(4)
    points = gpflow.inducing_variables.InducingPoints(Z)
    if wrap == "shared":
        points = gpflow.inducing_variables.SharedIndependentInducingVariables(points)
    if wrap == "fallback":
        points = gpflow.inducing_variables.FallbackSharedIndependentInducingVariables(points)
    model, same = (
        gpn.GPNet(gpflow.kernels.Matern32(), Gaussian(), each, num_data=30) for each in (points, Z)
    )
    np.testing.assert_array_equal(model.measurement.X, Z)
    np.testing.assert_array_equal(
        model.inference_network.features(Z), same.inference_network.features(Z)
    )


@pytest.mark.parametrize("model_class", [gpn.GPNet, gpn.FBNN])
def test_svgp_s_name_of_the_third_argument(model_class):
    kernel, Z = gpflow.kernels.Matern32(), fixed_points(4)
    model = model_class(kernel=kernel, likelihood=Gaussian(), inducing_variable=Z, num_data=30)
    np.testing.assert_array_equal(model.measurement.X, Z)
    name = model_class.__name__
    with pytest.raises(TypeError, match=f"{name} takes inference_network or.*: got neither"):
        model_class(kernel, Gaussian())
    with pytest.raises(TypeError, match=f"{name} takes inference_network or.*: got both"):
        model_class(kernel, Gaussian(), Z, inducing_variable=Z)


def test_points_that_are_not_finite_are_named():
    Z = np.where(np.arange(4) == 2, np.nan, 0.0)[:, None]
    with pytest.raises(ValueError, match=r"inference_network has NaN.* row 2"):
        gpn.GPNet(gpflow.kernels.Matern32(), Gaussian(), Z, num_data=30)
    with pytest.raises(ValueError, match=r"measurement points, has NaN.* row 2"):
        make_model(measurement=Z)


def test_num_data_is_a_number():
    with pytest.raises(TypeError, match="num_data must be a number, got '30'"):
        make_model(num_data="30")


def test_log_density_outside_the_support_is_refused():
    model = make_model(gpflow.likelihoods.Exponential())
    X = fixed_points(2)
    assert np.isfinite(model.predict_log_density((X, np.ones((2, 1))))).all()
    with pytest.raises(ValueError, match="Exponential needs targets of at least 0"):
        model.predict_log_density((X, np.array([[1.0], [-1.0]])))


def test_samples_follow_tensorflows_seed():
    X, model = fixed_points(3), make_model()
    for draw in (
        lambda: model.sample_functions(2)(X),
        lambda: model.predict_y_samples(X, 2),
    ):
        tf.random.set_seed(1)
        first, other = draw().numpy(), draw().numpy()
        tf.random.set_seed(1)
        np.testing.assert_array_equal(draw(), first)
        assert (other != first).all()


@pytest.mark.parametrize("make", ["features", "inducing", "neural"])
@pytest.mark.parametrize("shape", [[None, None], None], ids=["width", "rank"])
def test_signatures_may_leave_shapes_open(rng, make, shape):
    X = rng.uniform(-2, 2, size=(8, 2))
    Y = np.sin(X[:, :1])
    kernel = gpflow.kernels.SquaredExponential(lengthscales=[1.0, 2.0])
    network = {
        "features": lambda: gpn.RFE(kernel, 2, 5),
        "inducing": lambda: gpn.InducingFeatures(kernel, X[:4]),
        "neural": lambda: gpn.NTK((3,), kernel=kernel),
    }[make]()
    model = gpn.GPNet(kernel, gpflow.likelihoods.Gaussian(), network, num_data=8)
    spec = tf.TensorSpec(shape, tf.float64)
    predict = tf.function(model.predict_y, input_signature=[spec])
    for got, expected in zip(predict(X), model.predict_y(X), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12)
    elbo = tf.function(lambda X, Y: model.elbo((X, Y)), input_signature=[spec, spec])
    np.testing.assert_allclose(elbo(X, Y), model.elbo((X, Y)), rtol=1e-12)


@pytest.mark.parametrize(
    "model_class, network",
    [(gpn.GPNet, "linear"), (gpn.GPNet, "diag"), (gpn.GPNet, "neural"), (gpn.FBNN, "linear")],
)
def test_closure_of_a_batch_is_one_function_of_the_kernel_s_parameters(rng, model_class, network):
    """By default points follow the lengthscales, which the gradient does not know of: a line search
    then stopped far from the minimum and called it a success."""
    kernel, data = RBF(1.3, 0.7), make_data(rng, 12)
    networks = {
        "linear": lambda: gpn.RFE(kernel, 1, 4),
        "diag": lambda: gpn.RFE(kernel, 1, 4, covariance="diag"),
        "neural": lambda: gpn.NTK((3,), kernel=kernel, input_dim=1),
    }
    model = model_class(kernel, Gaussian(0.04), networks[network](), num_data=12)
    model.initialise(data[0])
    closure = model.training_loss_closure(data)
    np.testing.assert_allclose(closure(), model.training_loss(data), rtol=1e-10)
    for parameter in kernel.trainable_variables:
        with tf.GradientTape() as tape:
            value = closure()
        gradient, start, step = tape.gradient(value, parameter), parameter.numpy(), 1e-4
        ends = []
        for end in (start + step, start - step):
            parameter.assign(end)
            ends.append(float(closure()))
        parameter.assign(start)
        assert float(gradient) == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-3)


def test_seeds_of_samples_may_be_large():
    model = make_model()
    one, same, other = (model.predict_y_samples(XNEW, 2, seed) for seed in (2**40, 2**40, 2))
    np.testing.assert_array_equal(one, same)
    assert (one.numpy() != other.numpy()).all()


def test_samples_without_a_seed_are_new_at_each_call_of_a_compiled_function():
    model = make_model()
    draw = tf.function(lambda X: model.predict_y_samples(X, 2), autograph=False)
    assert (draw(XNEW).numpy() != draw(XNEW).numpy()).all()
