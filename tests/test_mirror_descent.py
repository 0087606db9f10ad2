"""Identities of the natural and gradient steps (4, 5, 7, 9, 10) and the optimiser's manners."""

import subprocess
import sys
from copy import deepcopy
from dataclasses import dataclass

import gpflow
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow.likelihoods import Bernoulli, Gaussian, Poisson, StudentT

import gpflow_gpnet as gpn

RBF = gpflow.kernels.SquaredExponential


def make_data(rng, likelihood=None, num=30):
    X = rng.uniform(-2, 2, size=(num, 1))
    f = np.sin(3 * X)
    if isinstance(likelihood, Poisson):
        return X, rng.poisson(np.exp(f)).astype(float)
    if isinstance(likelihood, Bernoulli):
        return X, (rng.uniform(size=f.shape) < 0.5 + 0.4 * f).astype(float)
    return X, f + 0.2 * rng.normal(size=f.shape)


def make_model(likelihood, num_data, frozen=True, num_features=15, **kwargs):
    """A GPNet on fixed measurement points; everything but the weights frozen."""
    kernel = RBF(1.3, 0.7)
    network = gpn.RFE(kernel, 1, num_features)
    model = gpn.GPNet(
        kernel,
        likelihood,
        network,
        num_data=num_data,
        measurement=fixed_points,
        num_measurement_points=7,
        **kwargs,
    )
    if frozen:
        freeze_all_but_weights(model)
    return model


def fixed_points(num):
    return tf.linspace(tf.constant(-2.0, tf.float64), 2.0, num)[:, None]


def freeze_all_but_weights(model):
    gpflow.set_trainable(model, False)
    gpflow.set_trainable(model.inference_network.q_mu, True)
    gpflow.set_trainable(model.inference_network.q_sqrt, True)


def weights(model):
    network = model.inference_network
    return network.q_mu.numpy(), network.q_sqrt.numpy()


def natural_parameters(model):
    q_mu, q_sqrt = weights(model)
    precision = np.linalg.inv(q_sqrt @ np.swapaxes(q_sqrt, 1, 2))
    return precision, precision @ q_mu.T[..., None]


def constant_step(beta, **kwargs):
    return gpn.FunctionalMirrorDescent(gpn.Constant(beta), **kwargs)


# ------------------------------------------------------------------ identities


@pytest.mark.parametrize("beta", [0.3, 1.0])
def test_identity_4_non_conjugate_gradient_is_beta_times_the_bounds(rng, beta):
    """L_t written down, with two copies of q, against the functional ELBO on J."""
    data = make_data(rng, Poisson(), num=8)
    model = make_model(Poisson(), num_data=40, frozen=False)
    model.inference_network.q_mu.assign(rng.normal(size=model.inference_network.q_mu.shape))
    X = tf.constant(data[0])
    points = tf.concat([X, model.measurement_points(X)], axis=0)
    variables = model.trainable_variables

    def log_density(mean, cov, expected_mean, expected_cov):
        """E over N(expected_mean, expected_cov) of log N(f; mean, cov), without constants."""
        inverse = tf.linalg.inv(cov)
        gap = expected_mean - mean
        quadratic = tf.linalg.trace(inverse @ expected_cov) + tf.reduce_sum(gap * (inverse @ gap))
        return -0.5 * (tf.linalg.logdet(cov) + quadratic)

    with tf.GradientTape(persistent=True) as tape:
        mean, cov = model.inference_network(points, full_cov=True)
        jitter = 1e-6 * model.kernel.variance * np.eye(len(points))
        cov = cov[0] + jitter
        prior = model.kernel(points) + jitter
        old_mean, old_cov = tf.stop_gradient(mean), tf.stop_gradient(cov)
        variance = tf.linalg.diag_part(cov - jitter)[:8, None]
        fit = model.expected_log_likelihood(X, mean[:8], variance, tf.constant(data[1]))
        objective = (
            beta * 5.0 * fit
            + beta * log_density(tf.zeros_like(mean), prior, mean, cov)
            + (1 - beta) * log_density(old_mean, old_cov, mean, cov)
            - log_density(mean, cov, mean, cov)
        )
        bound = model.functional_elbo(X, tf.constant(data[1]), points)
    gradients = (tape.gradient(value, variables) for value in (objective, bound))
    for got, expected in zip(*gradients, strict=True):
        scale = np.abs(expected).max()
        np.testing.assert_allclose(got, beta * expected, atol=1e-6 * scale)


@pytest.mark.parametrize("dtype, tolerance", [(np.float64, 1e-8), (np.float32, 5e-3)])
def test_identity_5_same_frozen_features_give_bayesian_linear_regression(rng, dtype, tolerance):
    """= GP regression with the kernel ΦΦᵀ."""
    with gpflow.config.as_context(gpflow.config.Config(float=dtype)):
        X, Y = make_data(rng)
        Xnew = np.linspace(-3, 3, 11)[:, None]
        model = make_model(Gaussian(0.04), 30)
        constant_step(1.0, prior_correction=False).minimize(model, (X, Y))
        features = model.inference_network.features(X.astype(dtype)).numpy().astype(float)
        at_new = model.inference_network.features(Xnew.astype(dtype)).numpy().astype(float)
        precision = np.eye(30) + features.T @ features / 0.04
        _, q_sqrt = weights(model)
        np.testing.assert_allclose(
            q_sqrt[0] @ q_sqrt[0].T, np.linalg.inv(precision), atol=tolerance
        )
        gain = at_new @ features.T @ np.linalg.inv(features @ features.T + 0.04 * np.eye(30))
        mean, cov = model.predict_f(Xnew, full_cov=True)
        np.testing.assert_allclose(mean, gain @ Y, atol=10 * tolerance)
        np.testing.assert_allclose(
            cov[0], at_new @ at_new.T - gain @ features @ at_new.T, atol=10 * tolerance
        )


def test_identity_7_natural_parameters_contract_by_one_minus_beta(rng):
    data = make_data(rng)
    fixed_point = make_model(Gaussian(0.04), 30)
    constant_step(1.0).minimize(fixed_point, data)
    model, optimizer = make_model(Gaussian(0.04), 30), constant_step(0.25)
    goal = natural_parameters(fixed_point)
    start = natural_parameters(model)
    for step in range(1, 4):
        optimizer.minimize(model, data)
        for now, first, last in zip(natural_parameters(model), start, goal, strict=True):
            np.testing.assert_allclose(
                now - last, 0.75**step * (first - last), atol=1e-8 * np.abs(last).max()
            )


def test_stale_covariance_ends_at_the_same_posterior(rng):
    """Natural parameters are the same at every step; the mean trails them by little."""
    data = make_data(rng)
    models = [make_model(Gaussian(0.04), 30) for _ in range(2)]
    optimizers = [constant_step(0.1, staleness=staleness) for staleness in (0.0, 0.35)]
    means, ages = [], []
    for _ in range(100):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.minimize(model, data)
        means.append([model.inference_network.q_mu.numpy() for model in models])
        ages.append(optimizers[1]._natural_parameters.age.numpy().item())
    np.testing.assert_allclose(ages[:8], [0.0, 0.1, 0.2, 0.3] * 2, atol=1e-12)
    parameters = [optimizer._natural_parameters for optimizer in optimizers]
    for name in ("precision", "shift"):
        exact, stale = (getattr(each, name).numpy() for each in parameters)
        np.testing.assert_allclose(stale, exact, atol=1e-10 * np.abs(exact).max())
    scale = np.abs(means[-1][0]).max()
    assert max(np.abs(exact - stale).max() for exact, stale in means) < 0.3 * scale
    np.testing.assert_allclose(means[-1][1], means[-1][0], atol=1e-3 * scale)
    for exact, stale in zip(*map(weights, models), strict=True):
        np.testing.assert_allclose(stale, exact, atol=1e-3 * np.abs(exact).max())


def test_stale_covariance_is_made_anew_when_somebody_moves_the_weights(rng):
    data = make_data(rng)
    model, optimizer = make_model(Gaussian(0.04), 30), constant_step(0.1, staleness=0.9)
    optimizer.minimize(model, data)
    before = model.inference_network.q_sqrt.numpy()
    optimizer.minimize(model, data)
    np.testing.assert_array_equal(model.inference_network.q_sqrt, before)
    model.inference_network.q_mu.assign(model.inference_network.q_mu + 1.0)
    optimizer.minimize(model, data)
    assert np.abs(model.inference_network.q_sqrt - before).max() > 1e-6
    assert optimizer._natural_parameters.age.numpy() == 0.0


@pytest.mark.parametrize("likelihood", [Gaussian(0.04), Poisson()])
def test_identity_9_minibatches_average_to_the_full_increment(rng, likelihood):
    """The ragged last batch included."""
    X, Y = map(tf.constant, make_data(rng, likelihood))
    models = [make_model(likelihood, 30) for _ in range(2)]
    batches = [[(X, Y)], [(X[i : i + 8], Y[i : i + 8]) for i in range(0, 30, 8)]]
    for model, split in zip(models, batches, strict=True):
        optimizer = constant_step(1.0)
        optimizer.build(model)
        optimizer.polish(split)
    for whole, parts in zip(*map(natural_parameters, models), strict=True):
        np.testing.assert_allclose(parts, whole, atol=1e-8 * np.abs(whole).max())


def test_identity_10_units_of_the_targets(rng):
    """y, prior and noise scaled by s: means scale by s, log densities shift by -ln s."""
    s = 250.0
    X, Y = make_data(rng)
    models = []
    for scale in (1.0, s):
        kernel = RBF(1.3 * scale**2, 0.7)
        network = gpn.RFE(kernel, 1, 15)
        model = gpn.GPNet(kernel, Gaussian(0.04 * scale**2), network, num_data=30)
        freeze_all_but_weights(model)
        gpn.fit(
            model,
            (X, scale * Y),
            optimizer=constant_step(0.5),
            num_steps=9,
            batch_size=12,
            seed=0,
            progress=False,
        )
        models.append(model)
    Xnew, Ynew = make_data(rng, num=12)
    (mean, variance), (scaled_mean, scaled_variance) = (m.predict_y(Xnew) for m in models)
    np.testing.assert_allclose(scaled_mean, s * mean, rtol=1e-7)
    np.testing.assert_allclose(scaled_variance, s**2 * variance, rtol=1e-7)
    density, scaled = (
        m.predict_log_density((Xnew, k * Ynew)).numpy()
        for m, k in zip(models, (1.0, s), strict=True)
    )
    np.testing.assert_allclose(scaled, density - np.log(s), atol=1e-7)


@pytest.mark.parametrize("likelihood", [Gaussian(0.04), Poisson(), Bernoulli()])
def test_natural_step_is_gpflows_natural_gradient_of_the_training_loss(rng, likelihood):
    """The prior correction included: both move along the same objective."""
    data = make_data(rng, likelihood)
    ours, gpflows = make_model(likelihood, 30), make_model(likelihood, 30)
    optimizer = constant_step(0.4)
    network = gpflows.inference_network
    gpflows.initialise(data[0])  # as the optimiser's first step does for ours
    for _ in range(3):
        optimizer.minimize(ours, data)
        gpflow.optimizers.NaturalGradient(gamma=0.4).minimize(
            gpflows.training_loss_closure(data), [(network.q_mu, network.q_sqrt)]
        )
    for got, expected in zip(natural_parameters(ours), natural_parameters(gpflows), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-5 * np.abs(expected).max())


def test_full_natural_step_is_where_the_objective_is_stationary(rng):
    data = make_data(rng)
    model = make_model(Gaussian(0.04), 30)
    constant_step(1.0).minimize(model, data)
    network = model.inference_network
    with tf.GradientTape() as tape:
        loss = model.training_loss(data)
    for gradient in tape.gradient(
        loss, [network.q_mu.unconstrained_variable, network.q_sqrt.unconstrained_variable]
    ):
        np.testing.assert_allclose(gradient, 0.0, atol=1e-8)


def test_conjugate_gradient_steps_reach_the_exact_posterior(rng):
    """Published steps, full batch: within a twentieth of an exact standard deviation."""
    data = make_data(rng)
    kernel, likelihood = RBF(1.3, 0.7), Gaussian(0.04)
    gpflow.set_trainable(kernel, False)
    gpflow.set_trainable(likelihood, False)
    network = gpn.RFE(kernel, 1, 40)
    model = gpn.GPNet(
        kernel, likelihood, network, num_data=30, measurement=gpn.measurement.Uniform(-2, 2)
    )
    gpn.fit(
        model,
        data,
        optimizer=gpn.FunctionalMirrorDescent(
            gpn.InverseSqrt(1.0, 0.1), gpn.LinearDecay(0.03, 1500), natural=False
        ),
        num_steps=1500,
        batch_size=30,
        seed=0,
        progress=False,
    )
    Xnew = np.linspace(-2, 2, 40)[:, None]
    exact = gpflow.models.GPR(data, kernel, likelihood=likelihood)
    (mean, variance), (exact_mean, exact_variance) = (m.predict_f(Xnew) for m in (model, exact))
    gap = (mean - exact_mean) / np.sqrt(exact_variance)
    assert np.sqrt(np.mean(gap**2)) < 0.15
    ratio = np.sqrt(variance / exact_variance)
    assert 0.85 < np.min(ratio) and np.max(ratio) < 1.1


# ------------------------------------------------------------------ manners


def test_steps_follow_the_weights_when_others_change_them(rng):
    """Λ and θ are read off q_mu and q_sqrt again after somebody else assigned these."""
    data = make_data(rng)
    model, optimizer = make_model(Gaussian(0.04), 30), constant_step(0.5)
    optimizer.minimize(model, data)
    start = make_model(Gaussian(0.04), 30)
    for parameter in ("q_mu", "q_sqrt"):
        value = getattr(start.inference_network, parameter).numpy()
        getattr(model.inference_network, parameter).assign(value)
    optimizer.minimize(model, data)
    constant_step(0.5).minimize(start, data)
    for got, expected in zip(weights(model), weights(start), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-9)


@pytest.mark.parametrize("natural", [True, False])
@pytest.mark.parametrize("likelihood", [Gaussian, StudentT])
def test_step_compiles_under_xla(rng, natural, likelihood):
    data = make_data(rng)
    losses = []
    for jit_compile in (False, True):
        model = make_model(likelihood(), 30, frozen=False)
        optimizer = gpn.FunctionalMirrorDescent(natural=natural, jit_compile=jit_compile)
        losses.append([float(optimizer.minimize(model, data)) for _ in range(2)])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-6)


def test_xla_takes_batches_of_several_sizes(rng):
    """As the last one of a pass is smaller: its trace without shapes could not be compiled."""
    X, Y = make_data(rng)
    losses = []
    for jit_compile in (False, True):
        model = make_model(Gaussian(0.1), 30, frozen=False)
        optimizer = gpn.FunctionalMirrorDescent(jit_compile=jit_compile)
        losses.append([optimizer.minimize(model, (X[:n], Y[:n])) for n in (12, 6)])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-6)


HOST_OPERATIONS = ("infeed", "outfeed", "send(", "recv(", "custom-call", "callback")


STEPS = {
    "natural": (Gaussian, lambda kernel: gpn.RFE(kernel, 1, 15), True),
    "gradient": (Gaussian, lambda kernel: gpn.RFE(kernel, 1, 15), False),
    "held-out noise, warp": (Gaussian, lambda kernel: gpn.RFE(kernel, 1, 5, warp=(4,)), True),
    "StudentT, InducingFeatures": (
        StudentT,
        lambda kernel: gpn.InducingFeatures(kernel, np.linspace(-2, 2, 7)[:, None]),
        True,
    ),
    "Bernoulli, AdaptiveBasis": (
        Bernoulli,
        lambda kernel: gpn.AdaptiveBasis((6, 5), kernel=kernel, input_dim=1),
        True,
    ),
    "Poisson, NTK": (Poisson, lambda kernel: gpn.NTK((6,), kernel=kernel, input_dim=1), False),
    "BNN": (Gaussian, lambda kernel: gpn.BNN((6,), 10, kernel=kernel, input_dim=1), False),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (i > 1)) for i, name in enumerate(STEPS)]
)
def test_compiled_step_is_one_program_that_never_leaves_the_device(rng, name):
    """What XLA is given has no transfer, callback or call of the host, and in a float32 model not
    one number of float64."""
    likelihood, network, natural = STEPS[name]
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32, jitter=1e-4)):
        kernel = RBF(1.3, 0.7)
        model = gpn.GPNet(kernel, likelihood(), network(kernel), num_data=30)
        data = make_data(rng, likelihood(), num=12)
        batch = tuple(tf.constant(values, tf.float32) for values in data)
        optimizer = gpn.FunctionalMirrorDescent(natural=natural, jit_compile=True)
        optimizer.build(model)
        held_out = batch if "held-out" in name else None
        step = optimizer.compiled_step(held_out is not None)
        program = step.experimental_get_compiler_ir(batch, held_out)(stage="hlo")
    assert "cholesky" in program and program.count("ENTRY") == 1
    assert not [operation for operation in HOST_OPERATIONS if operation in program.lower()]
    assert "f64" not in program


PLACEMENT = """
import gpflow, numpy as np, tensorflow as tf
import gpflow_gpnet as gpn

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, 2 * [tf.config.LogicalDeviceConfiguration()])
X = np.linspace(-1.0, 1.0, 12)[:, None]
with tf.device("CPU:1"):
    kernel = gpflow.kernels.SquaredExponential()
    for network, natural in ((gpn.RFE(kernel, 1, 4), True), (gpn.RFE(kernel, 1, 4, "diag"), False)):
        model = gpn.GPNet(kernel, gpflow.likelihoods.Gaussian(0.1), network, num_data=12)
        gpn.fit(model, (X, np.sin(X)), num_steps=2, batch_size=5, progress=False, seed=0)
        assert model.optimizer.takes_natural_steps == natural
        state = [*model.variables, *model.optimizer.state_variables().values()]
        batch = tuple(map(tf.constant, (X, np.sin(X))))
        loss = model.optimizer.compiled_step()(batch)
        mean, _ = model.predict_f(X)
        devices = {tensor.device[-5:] for tensor in (*state, *batch, loss, mean)}
        assert devices == {"CPU:1"}, devices
print("placed")
"""


def test_model_optimiser_and_steps_are_where_tf_device_says():
    """On the second of two logical devices, natural and gradient steps."""
    done = subprocess.run([sys.executable, "-c", PLACEMENT], capture_output=True, text=True)
    assert done.stdout == "placed\n", done.stderr


@pytest.mark.parametrize("noise", ["objective", "training", "held-out"])
def test_at_most_two_traces_with_ragged_batches(rng, noise):
    X, Y = map(tf.constant, make_data(rng))
    model = make_model(Gaussian(0.04), 30, frozen=False)
    optimizer = gpn.FunctionalMirrorDescent(noise=noise)
    held_out = (X[:5], Y[:5]) if noise == "held-out" else None
    for size in (10, 10, 7, 3, 9, 1):
        optimizer.minimize(model, (X[:size], Y[:size]), held_out)
    assert optimizer.compiled_step().experimental_get_tracing_count() <= 2


@pytest.mark.parametrize("natural", [True, False])
def test_number_of_data_may_grow_between_steps(rng, natural):
    """The second step is that of an optimiser that has known the larger number from the start."""
    data, results = make_data(rng), []
    for first, second in ((30, 90), (30, 30), (90, 90)):
        model = make_model(Gaussian(0.04), first)
        optimizer = gpn.FunctionalMirrorDescent(natural=natural, step_size=1.0, learning_rate=0.1)
        optimizer.minimize(model, data)
        model.num_data = second
        optimizer.minimize(model, data)
        if natural:
            optimizer.polish([tuple(map(tf.constant, data))])
        results.append(weights(model)[0])
    assert not np.allclose(results[0], results[1], rtol=1e-3)
    if natural:
        np.testing.assert_allclose(results[0], results[2], rtol=1e-8)


def test_freezing_and_unfreezing_between_steps(rng):
    data = make_data(rng)
    model = make_model(Gaussian(0.04), 30, frozen=False)
    optimizer = gpn.FunctionalMirrorDescent()
    gpflow.set_trainable(model.kernel, False)
    optimizer.minimize(model, data)
    assert model.kernel.lengthscales.numpy() == pytest.approx(0.7)
    gpflow.set_trainable(model.kernel, True)
    optimizer.minimize(model, data)
    assert model.kernel.lengthscales.numpy() != pytest.approx(0.7, abs=1e-5)


def test_checkpoint_holds_the_whole_state(rng, tmp_path):
    data = make_data(rng)

    def make():
        model = make_model(Gaussian(0.04), 30, frozen=False)
        optimizer = gpn.FunctionalMirrorDescent()
        optimizer.build(model)
        return model, optimizer, tf.train.Checkpoint(model=model, optimizer=optimizer)

    model, optimizer, checkpoint = make()
    for _ in range(3):
        optimizer.minimize(model, data)
    path = checkpoint.save(str(tmp_path / "state"))
    loss = optimizer.minimize(model, data)
    again, resumed, checkpoint = make()
    resumed.compiled_step()
    checkpoint.restore(path).assert_consumed()
    np.testing.assert_array_equal(resumed.minimize(again, data), loss)
    for got, expected in zip(again.variables, model.variables, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_prior_counts_once(rng):
    """A prior on a shared Parameter enters the loss once."""

    data = make_data(rng)
    losses = []
    for prior in (None, tfp.distributions.Gamma(np.float64(2.0), np.float64(3.0))):
        model = make_model(Gaussian(0.04), 30, frozen=False)
        model.kernel.lengthscales.prior = prior
        losses.append(
            [model.training_loss(data), gpn.FunctionalMirrorDescent().minimize(model, data)]
        )
    expected = -tfp.distributions.Gamma(np.float64(2.0), np.float64(3.0)).log_prob(0.7)
    np.testing.assert_allclose(np.subtract(losses[1], losses[0]), expected, rtol=1e-9)


def test_tracked_noise_is_the_bounds_maximiser(rng):
    data = make_data(rng)
    model = make_model(Gaussian(0.5), 30)
    gpflow.set_trainable(model.likelihood, True)
    optimizer = constant_step(1.0, noise="training", noise_decay=0.0)
    for _ in range(30):
        optimizer.minimize(model, data)
    with tf.GradientTape() as tape:
        loss = model.training_loss(data)
    gradient = tape.gradient(loss, model.likelihood.variance.unconstrained_variable)
    np.testing.assert_allclose(gradient, 0.0, atol=1e-3)
    assert 0.02 < model.likelihood.variance.numpy() < 0.08


@pytest.mark.parametrize(
    "arguments, part",
    [
        ({"natural": "yes"}, "natural"),
        ({"conjugate": "yes"}, "conjugate"),
        ({"noise": "guess"}, "noise"),
        ({"noise_decay": 1.0}, "noise_decay"),
    ],
)
def test_arguments_out_of_range(arguments, part):
    with pytest.raises(ValueError, match=part):
        gpn.FunctionalMirrorDescent(**arguments)


def test_settings_that_do_not_fit_the_model(rng):
    data = make_data(rng)
    with pytest.raises(ValueError, match="num_data"):
        gpn.FunctionalMirrorDescent().minimize(make_model(Gaussian(), None), data)
    with pytest.raises(ValueError, match="Gaussian"):
        gpn.FunctionalMirrorDescent(noise="training").minimize(make_model(Poisson(), 30), data)
    with pytest.raises(ValueError, match="conjugate"):
        gpn.FunctionalMirrorDescent(conjugate=True).minimize(make_model(Poisson(), 30), data)
    optimizer = gpn.FunctionalMirrorDescent()
    optimizer.minimize(make_model(Gaussian(), 30), data)
    with pytest.raises(ValueError, match="another model"):
        optimizer.minimize(make_model(Gaussian(), 30), data)
    kernel = RBF()
    diagonal = gpn.GPNet(kernel, Gaussian(), gpn.RFE(kernel, 1, 5, "diag"), num_data=30)
    with pytest.raises(ValueError, match="full covariance"):
        gpn.FunctionalMirrorDescent(natural=True).minimize(diagonal, data)
    with pytest.raises(ValueError, match="held_out"):
        gpn.FunctionalMirrorDescent(noise="held-out").minimize(
            make_model(Gaussian(), 30, frozen=False), data
        )


def test_mean_of_a_frozen_covariance_follows_minibatches_as_if_it_were_free(rng):
    """For Gaussian noise: sites do not depend on the covariance, so all that differs is q_sqrt."""
    X = rng.uniform(-1.0, 1.0, size=(60, 1))
    Y = np.sin(3.0 * X) + 0.1 * rng.normal(size=X.shape)
    networks = []
    for free in (True, False):
        kernel, likelihood = gpflow.kernels.SquaredExponential(), Gaussian(0.1)
        network = gpn.RFE(kernel, 1, 4)
        gpflow.set_trainable((likelihood, kernel, network.maps), False)
        gpflow.set_trainable(network.q_sqrt, free)
        model = gpn.GPNet(kernel, likelihood, network, num_data=60)
        gpn.fit(model, (X, Y), num_steps=20, batch_size=10, seed=0, progress=False, polish=False)
        networks.append(network)
    np.testing.assert_allclose(networks[0].q_mu, networks[1].q_mu, rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(networks[1].q_sqrt[0], np.eye(8))
    assert np.abs(networks[0].q_sqrt[0] - np.eye(8)).max() > 0.1


@pytest.mark.parametrize("frozen", ["network", "mean", "covariance"])
def test_frozen_weights_stay_under_natural_steps(rng, frozen):
    X = rng.uniform(-1.0, 1.0, size=(30, 1))
    Y = np.sin(3.0 * X)
    kernel = gpflow.kernels.SquaredExponential()

    def make() -> gpn.GPNet:
        likelihood = Gaussian(0.1)
        gpflow.set_trainable(likelihood, False)
        network = gpn.RFE(kernel, 1, 4)
        network.initialise(X)
        return gpn.GPNet(kernel, likelihood, network, num_data=30)

    def step(model, number: int = 1) -> None:
        optimizer = gpn.FunctionalMirrorDescent(1.0, learning_rate=0.0, prior_correction=False)
        gpn.fit(model, (X, Y), optimizer=optimizer, num_steps=number, progress=False)

    exact, model = make(), make()
    step(exact)
    network = model.inference_network
    start = rng.normal(size=network.q_mu.shape)
    network.q_mu.assign(start)
    if frozen == "network":
        gpflow.set_trainable(network, False)
        step(model)
        np.testing.assert_array_equal(network.q_mu, start)
        np.testing.assert_array_equal(network.q_sqrt[0], np.eye(8))
        # Unfrozen, the same optimiser's next step is the exact one.
        gpflow.set_trainable(network, True)
        step(model)
        np.testing.assert_allclose(network.q_mu, exact.inference_network.q_mu, rtol=1e-6)
    elif frozen == "mean":
        gpflow.set_trainable(network.q_mu, False)
        step(model)
        np.testing.assert_array_equal(network.q_mu, start)
        np.testing.assert_allclose(network.q_sqrt, exact.inference_network.q_sqrt, rtol=1e-6)
    else:
        # The prior's, ten times wider than the posterior's: natural gradients would diverge.
        gpflow.set_trainable(network.q_sqrt, False)
        step(model)
        np.testing.assert_array_equal(network.q_sqrt[0], np.eye(8))
        np.testing.assert_allclose(network.q_mu, exact.inference_network.q_mu, rtol=1e-6)


@pytest.mark.parametrize("num", [40, 1000])
def test_a_prior_of_the_noise_is_heard_however_many_the_rows(rng, num):
    X = rng.uniform(-2, 2, size=(num, 1))
    Y = np.sin(2 * X) + 0.5 * rng.normal(size=X.shape)
    likelihood, kernel = Gaussian(0.01), gpflow.kernels.SquaredExponential()
    prior = tfp.distributions.LogNormal(np.float64(np.log(0.01)), np.float64(0.001))
    likelihood.variance.prior = prior
    model = gpn.GPNet(kernel, likelihood, gpn.RFE(kernel, 1, 5), num_data=num)
    gpn.fit(model, (X, Y), num_steps=40, seed=0, progress=False)
    np.testing.assert_allclose(likelihood.variance, 0.01, rtol=0.05)


@pytest.mark.parametrize("noise", ["training", "held-out"])
def test_noise_that_would_not_hear_its_prior_is_refused(noise):
    likelihood, kernel = Gaussian(0.01), gpflow.kernels.SquaredExponential()
    likelihood.variance.prior = tfp.distributions.Gamma(np.float64(2.0), np.float64(3.0))
    model = gpn.GPNet(kernel, likelihood, gpn.RFE(kernel, 1, 5), num_data=20)
    optimizer = gpn.FunctionalMirrorDescent(noise=noise)
    with pytest.raises(ValueError, match=f'noise="{noise}" follows .* would ignore the prior'):
        optimizer.build(model)
    gpflow.set_trainable(likelihood, False)
    optimizer.build(model)  # nothing to follow


def test_gradient_steps_take_each_outputs_own_noise(rng):
    """Two outputs with noises of their own against a model of each alone."""
    X = rng.uniform(-2, 2, size=(10, 1))
    Y = np.concatenate([np.sin(X), np.cos(X)], axis=1)
    kernel, noises = gpflow.kernels.SquaredExponential(), (0.1, 1.0)
    gpflow.set_trainable(kernel, False)

    def trained(noise, Y):
        likelihood = Gaussian(variance=noise)
        gpflow.set_trainable(likelihood, False)
        network = gpn.RFE(kernel, 1, 5, "diag", num_latent_gps=Y.shape[1])
        gpflow.set_trainable(network.maps, False)
        model = gpn.GPNet(
            kernel, likelihood, network, num_latent_gps=Y.shape[1], num_data=10,
            measurement=X, num_measurement_points=10,
        )  # fmt: skip
        optimizer = gpn.FunctionalMirrorDescent(0.5, learning_rate=0.1)
        for _ in range(3):
            optimizer.minimize(model, (X, Y))
        return network.q_mu.numpy()

    together = trained(np.array([noises]), Y)
    for output, noise in enumerate(noises):
        alone = trained(noise, Y[:, [output]])
        np.testing.assert_allclose(together[:, [output]], alone, rtol=1e-6)


def test_steps_see_a_kernel_that_takes_anothers_place(rng):
    X = rng.uniform(-2, 2, size=(10, 1))
    old, new = (gpflow.kernels.SquaredExponential(variance) for variance in (1.0, 3.0))
    gpflow.set_trainable([old, new], False)
    losses = []
    for kernels in ((old, new), (new,)):
        model = gpn.GPNet(kernels[0], Gaussian(0.1), gpn.RFE(old, 1, 5), num_data=10)
        optimizer = gpn.FunctionalMirrorDescent(1.0, learning_rate=0.0)
        if len(kernels) == 2:
            optimizer.minimize(model, (X, np.sin(X)))
            network = gpn.RFE(old, 1, 5)
            network.initialise(X)
            model.inference_network.q_mu.assign(network.q_mu)
            model.inference_network.q_sqrt.assign(network.q_sqrt)
            optimizer.t.assign(0)
            model.likelihood.variance.assign(0.1)
            model.kernel = new
        losses.append(float(optimizer.minimize(model, (X, np.sin(X)))))
    np.testing.assert_allclose(*losses, rtol=1e-6)


@pytest.mark.parametrize(
    "part, name, value",
    [
        ("model", "inference_network", lambda: gpn.RFE(RBF(), 1, 8)),
        ("model", "measurement", lambda: np.linspace(5, 6, 9)[:, None]),
        ("model", "scaling", lambda: gpn.Scaling(0.5, 2.0, 0.1, 3.0)),
        ("optimizer", "prior_correction", lambda: False),
        ("optimizer", "learning_rate", lambda: 1e-5),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_steps_see_what_is_assigned_between_them(rng, part, name, value):
    """As a copy does, whose steps are compiled anew, and otherwise than without."""
    X = rng.uniform(-2, 2, size=(10, 1))
    batch = X, np.sin(X)
    ours = gpn.GPNet(RBF(), Gaussian(0.1), gpn.RFE(RBF(), 1, 5, seed=0), num_data=10)
    optimizer = gpn.FunctionalMirrorDescent(learning_rate=0.1)
    optimizer.minimize(ours, batch)
    fresh, unchanged = deepcopy(ours), deepcopy(ours)
    for model in (ours, fresh):
        model.optimizer.build(model)  # the copy's state is taken up here
        setattr(model if part == "model" else model.optimizer, name, value())
    for model in (ours, fresh, unchanged):
        for _ in range(2):
            model.optimizer.minimize(model, batch)
    assert np.any(ours.inference_network.q_mu)
    for got, expected in zip(ours.variables, fresh.variables, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)
    moments = [np.concatenate(model.predict_y(X + 0.3)) for model in (ours, unchanged)]
    assert np.max(np.abs(moments[0] - moments[1])) > 1e-7


def test_a_copy_may_get_another_network_before_its_first_step(rng):
    X = rng.uniform(-2, 2, size=(10, 1))
    model = gpn.GPNet(RBF(), Gaussian(0.1), gpn.RFE(RBF(), 1, 5), num_data=10)
    gpn.FunctionalMirrorDescent().minimize(model, (X, np.sin(X)))
    copy = deepcopy(model)
    copy.inference_network = gpn.RFE(RBF(), 1, 8)
    copy.optimizer.minimize(copy, (X, np.sin(X)))
    assert np.any(copy.inference_network.q_mu) and int(copy.optimizer.t) == 2


def test_a_network_without_natural_steps_can_take_anothers_place(rng):
    X = rng.uniform(-2, 2, size=(10, 1))
    model = gpn.GPNet(RBF(), Gaussian(0.1), gpn.RFE(RBF(), 1, 5), num_data=10)
    optimizer = gpn.FunctionalMirrorDescent(natural="auto")
    optimizer.minimize(model, (X, np.sin(X)))
    model.inference_network = gpn.NTK((4,), kernel=RBF(), input_dim=1)
    before = model.predict_f(X)[0].numpy()
    optimizer.minimize(model, (X, np.sin(X)))
    assert not optimizer.takes_natural_steps
    assert np.max(np.abs(model.predict_f(X)[0] - before)) > 1e-4


class _Named(gpn.FunctionalMirrorDescent):
    def __init__(self, label="", **kwargs):
        super().__init__(**kwargs)
        self.label = label


def test_a_subclass_that_hands_settings_on_is_copied_with_them():
    copy = deepcopy(_Named("mine", noise_decay=0.5, learning_rate=0.25))
    assert (copy.label, copy.noise_decay) == ("mine", 0.5)
    assert float(copy.learning_rate(copy.t)) == 0.25


@dataclass
class _Halving:
    """Not frozen, so that it has no hash."""

    start: float

    def __call__(self, t):
        return self.start * tf.constant(0.5, tf.float64) ** tf.cast(t, tf.float64)


def test_schedules_need_no_hash(rng):
    X = rng.uniform(-2, 2, size=(10, 1))
    model = make_model(Gaussian(0.1), 10)
    optimizer = gpn.FunctionalMirrorDescent(_Halving(1.0), learning_rate=0.0)
    for _ in range(2):
        optimizer.minimize(model, (X, np.sin(X)))
    assert int(optimizer.t) == 2
