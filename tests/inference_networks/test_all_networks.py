"""What every neural inference network must do: shapes, types, copies, checkpoints, steps."""

import copy
import io
import pickle
import sys
from contextlib import redirect_stdout

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow.likelihoods import Bernoulli, Gaussian
from gpflow.utilities import print_summary
from neural import keras_image_model, keras_model, snelson_gap

import gpflow_gpnet as gpn
from gpflow_gpnet.inference_networks.mlp import Standardisation

LATENTS = 2


def kernel(dim=2):
    return gpflow.kernels.SquaredExponential(1.3, [0.7] * dim)


def build(network, **kwargs):
    return lambda latents=LATENTS, dim=2: network(
        kernel=kernel(dim), num_latent_gps=latents, **kwargs
    )


NETWORKS = {
    "adaptive basis": build(gpn.AdaptiveBasis, hidden_units=(5, 4)),
    "adaptive basis, diag": build(gpn.AdaptiveBasis, hidden_units=(4,), covariance="diag"),
    "adaptive basis, mean": build(gpn.AdaptiveBasis, hidden_units=(4,), residual_mean=True),
    "adaptive basis, keras": lambda latents=LATENTS, dim=2: gpn.AdaptiveBasis(
        keras_model(5, 4, input_dim=dim), kernel=kernel(dim), num_latent_gps=latents
    ),
    "ntk": build(gpn.NTK, hidden_units=(5, 4)),
    "ntk, kronecker": build(gpn.NTK, hidden_units=(5,), covariance="kronecker"),
    "ntk, linearised": lambda latents=LATENTS, dim=2: gpn.LinearisedNTK(
        gpn.NTK((4,), kernel=kernel(dim), num_latent_gps=latents)
    ),
    "ntk, keras": lambda latents=LATENTS, dim=2: gpn.NTK(
        keras_model(4, latents, input_dim=dim), kernel=kernel(dim), num_latent_gps=latents
    ),
    "conv ntk": lambda latents=LATENTS, dim=2: gpn.ConvNTK(
        (1, dim, 1), latents, filters=(3, 4), features=5, hidden_units=4, kernel=kernel(dim)
    ),
    "conv ntk, keras": lambda latents=LATENTS, dim=2: gpn.ConvNTK(
        (1, dim, 1), latents, keras_image_model((1, dim, 1)), hidden_units=4, kernel=kernel(dim)
    ),
    "bnn": build(gpn.BNN, hidden_units=(5, 4), num_samples=9),
    "bnn, matrix": build(gpn.BNN, hidden_units=(5,), num_samples=9, covariance="matrix"),
}
SLOW = pytest.mark.slow
OWN = [name for name in NETWORKS if "keras" not in name]


def inputs(*shape):
    return np.random.default_rng(5).uniform(-1.0, 1.0, (*shape, 2))


def perturbed(network):
    """All parameters moved a little from the start."""
    rng = np.random.default_rng(0)
    for variable in network.trainable_variables:
        variable.assign_add(0.3 * rng.normal(size=variable.shape))
    return network


def data(likelihood=None, num=12):
    X = inputs(num)
    Y = np.sin(3 * X[:, :1]) + X[:, 1:]
    return X, (Y > 0).astype(float) if isinstance(likelihood, Bernoulli) else Y


@pytest.mark.parametrize("name", NETWORKS)
def test_marginals_are_the_diagonal_of_the_covariance(name):
    network = perturbed(NETWORKS[name]())
    assert network.num_latent_gps == LATENTS
    mean, variance = network(inputs(7))
    full_mean, cov = network(inputs(7), full_cov=True)
    assert mean.shape == variance.shape == (7, LATENTS) and cov.shape == (LATENTS, 7, 7)
    np.testing.assert_allclose(mean, full_mean, atol=1e-12)
    np.testing.assert_allclose(variance, tf.transpose(tf.linalg.diag_part(cov)), rtol=1e-9)
    assert np.linalg.eigvalsh(cov).min() > -1e-9
    assert np.abs(cov[0] - cov[1]).max() > 1e-3


@pytest.mark.parametrize("name", NETWORKS)
def test_batched_inputs_equal_a_loop(name):
    network, X = perturbed(NETWORKS[name]()), inputs(2, 3, 4)
    mean, variance = network(X)
    _, cov = network(X, full_cov=True)
    assert mean.shape == variance.shape == (2, 3, 4, LATENTS)
    assert cov.shape == (2, 3, LATENTS, 4, 4)
    for index in ((0, 0), (1, 2)):
        np.testing.assert_allclose(mean[index], network(X[index])[0], atol=1e-12)
        np.testing.assert_allclose(variance[index], network(X[index])[1], rtol=1e-9)
        np.testing.assert_allclose(cov[index], network(X[index], True)[1], atol=1e-9)


@pytest.mark.parametrize("name", OWN)
def test_default_float_is_followed(name, float_type):
    network = NETWORKS[name]()
    network.initialise(inputs(20))
    values = network(inputs(7).astype(float_type), full_cov=True)
    assert all(value.dtype == float_type for value in values)
    assert {v.dtype.as_numpy_dtype for v in network.trainable_variables} == {float_type}
    assert np.mean(tf.linalg.diag_part(values[1])) == pytest.approx(1.3, rel=1.0)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_parameter_has_a_gradient(name):
    network = perturbed(NETWORKS[name]())
    with tf.GradientTape() as tape:
        mean, cov = network(inputs(4), full_cov=True)
        loss = tf.reduce_sum(mean) + tf.reduce_sum(cov)
    assert network.trainable_variables
    gradients = tape.gradient(loss, network.trainable_variables)
    for gradient, variable in zip(gradients, network.trainable_variables, strict=True):
        if "keras" in name and gradient is None:
            assert "bias" in variable.name  # outputs' own biases are not in the covariance
            continue
        assert gradient is not None and np.all(np.isfinite(gradient)), variable.name


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda n: pickle.loads(pickle.dumps(n))])
@pytest.mark.parametrize("name", NETWORKS)
def test_copies_are_equal_and_independent(name, copier):
    network = perturbed(NETWORKS[name]())
    before = [value.numpy() for value in network(inputs(5))]
    twin = copier(network)
    for got, expected in zip(twin(inputs(5)), before, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-12)
    perturbed(twin)
    assert np.abs(twin(inputs(5))[0] - before[0]).max() > 1e-3, "the copy follows its variables"
    np.testing.assert_array_equal(network(inputs(5))[0], before[0])


@pytest.mark.parametrize("name", NETWORKS)
def test_checkpoint_restores_the_network(name, tmp_path):
    network = perturbed(NETWORKS[name]())
    path = tf.train.Checkpoint(network=network).save(str(tmp_path / "network"))
    again = NETWORKS[name]()
    tf.train.Checkpoint(network=again).restore(path).assert_existing_objects_matched()
    for got, expected in zip(again(inputs(5)), network(inputs(5)), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("name", ["ntk", "bnn", "bnn, matrix", "conv ntk, keras"])
def test_loaded_variances_are_not_started_anew(name, tmp_path):
    """Where the mean is frozen, nothing but they says that a network has been trained."""
    network, loaded = NETWORKS[name](), NETWORKS[name]()
    assert not network.is_trained
    network.initialise(inputs(20))
    gpn.save_arrays(network, tmp_path / "arrays.npz")
    gpn.load_into(loaded, tmp_path / "arrays.npz")
    assert loaded.is_trained


@pytest.mark.parametrize("name", OWN)
def test_summary_and_freezing(name):
    network = NETWORKS[name]()
    text = io.StringIO()
    with redirect_stdout(text):
        print_summary(network, fmt="plain")
    assert text.getvalue().count(type(network).__name__) >= len(network.trainable_parameters)
    gpflow.set_trainable(network, False)
    assert not network.trainable_variables


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("adaptive basis, mean", "ntk") else pytest.param(name, marks=SLOW)
        for name in NETWORKS
    ],
)
def test_steps_are_the_same_under_xla(name):
    losses = []
    for jit_compile in (False, True):
        network = NETWORKS[name](latents=1)
        model = gpn.GPNet(kernel(), Gaussian(0.1), network, num_data=12)
        optimizer = gpn.FunctionalMirrorDescent(jit_compile=jit_compile)
        losses.append([float(optimizer.minimize(model, data())) for _ in range(2)])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    assert losses[0][0] != losses[0][1]


@pytest.mark.parametrize("likelihood", [Gaussian(0.1), Bernoulli()])
@pytest.mark.parametrize("name", ["adaptive basis", "ntk", "bnn"])
def test_fit_lowers_the_loss(name, likelihood):
    """Of data seen in training, full batch, 60 steps."""
    network = NETWORKS[name](latents=1)
    model = gpn.GPNet(kernel(), likelihood, network, num_data=12)
    gpflow.set_trainable([model.kernel, model.likelihood], False)
    model.initialise(data()[0])
    before = float(model.training_loss(data(likelihood)))
    optimizer = gpn.FunctionalMirrorDescent(learning_rate=0.02)
    options = dict(optimizer=optimizer, num_steps=60, seed=0, progress=False)
    gpn.fit(model, data(likelihood), **options)
    assert float(model.training_loss(data(likelihood))) < before
    mean, _ = model.predict_y(data()[0])
    Y = data(likelihood)[1]
    assert np.mean((mean - Y) ** 2) < 0.8 * np.mean((Y.mean() - Y) ** 2)


class Offset(gpn.InferenceNetwork):
    """f(x) = c + the prior's own variations: nothing but ``__call__``."""

    def __init__(self, prior):
        super().__init__()
        self.level = gpflow.Parameter(0.0)
        self.shrinkage = gpflow.Parameter(1.0, transform=gpflow.utilities.positive())
        self._prior = prior.__class__(1.3, [0.7, 0.7])
        gpflow.set_trainable(self._prior, False)

    def __call__(self, X, full_cov=False):
        cov = self.shrinkage * self._prior(X, full_cov=full_cov)
        mean = self.level * tf.ones_like(X[..., :1])
        return mean, cov[None] if full_cov else cov[:, None]


@pytest.mark.parametrize("likelihood", [Gaussian(0.1), Bernoulli()])
def test_a_network_with_nothing_but_call_trains(likelihood):
    """Towards a level of targets far from 0, with less than the prior's variance."""
    X, _ = data()
    Y = np.full((12, 1), 1.0)
    model = gpn.GPNet(kernel(), likelihood, Offset(kernel()), num_data=12)
    gpflow.set_trainable([model.kernel, model.likelihood], False)
    before = float(model.training_loss((X, Y)))
    optimizer = gpn.FunctionalMirrorDescent(learning_rate=0.05)
    gpn.fit(model, (X, Y), optimizer=optimizer, num_steps=40, seed=0, progress=False)
    assert float(model.training_loss((X, Y))) < before
    assert model.inference_network.level > 0.3 and model.inference_network.shrinkage < 0.95


SNELSON = {
    "adaptive basis": (gpn.AdaptiveBasis, {}, 0.01, 600, 0.05),
    "ntk": (gpn.NTK, {"hidden_units": (50,)}, 0.03, 1500, 0.1),
    "ntk, kronecker": (
        gpn.NTK,
        {"hidden_units": (50,), "covariance": "kronecker"},
        0.03,
        1500,
        0.1,
    ),
    "ntk, linearised": (
        lambda **kw: gpn.LinearisedNTK(gpn.NTK(**kw)),
        {"hidden_units": (50,)},
        0.01,
        600,
        0.05,
    ),
    "bnn": (gpn.BNN, {}, 0.03, 1500, 0.1),
    "bnn, matrix": (gpn.BNN, {"covariance": "matrix"}, 0.03, 1500, 0.1),
}


@SLOW
@pytest.mark.parametrize("name", SNELSON)
def test_snelson(name):
    """Test log density within so many nats of the exact GP's."""
    network, arguments, rate, steps, tolerance = SNELSON[name]
    gap = snelson_gap(
        lambda prior: network(kernel=prior, input_dim=1, **arguments),
        optimizer=gpn.FunctionalMirrorDescent(learning_rate=gpn.LinearDecay(rate, steps)),
        num_steps=steps,
    )
    assert gap < tolerance


@pytest.mark.parametrize("name", ["adaptive basis", "ntk", "bnn"])
def test_scales_come_from_rows_all_over_the_inputs(name, monkeypatch, rng):
    """And from few of many, for whose passes memory would run out; standardisation is by all."""
    X = np.sort(rng.normal(size=(25, 2)), axis=0)
    network = NETWORKS[name]()
    monkeypatch.setattr(sys.modules[type(network).__module__], "_ROWS_TO_START_FROM", 10)
    network.initialise(X)
    np.testing.assert_allclose(np.mean(network(X[::3])[1]), 1.3, rtol=1e-6)
    assert not np.allclose(np.mean(network(X)[1]), 1.3, rtol=1e-3)
    [inputs] = [part for part in network.submodules if isinstance(part, Standardisation)]
    np.testing.assert_allclose(inputs.center, X.mean(axis=0))
