"""The convolutional tangent-kernel network against explicit Jacobians, and its inputs and start."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow.keras import tf_keras
from neural import keras_image_model

import gpflow_gpnet as gpn
from gpflow_gpnet.kernels import ConvNetKernel

IMAGES = (5, 6, 2)
CLASSES = 3


def build(**kwargs):
    settings = {"filters": (3, 4), "features": 7, "hidden_units": 6} | kwargs
    return gpn.ConvNTK(IMAGES, CLASSES, settings.pop("body", None), **settings)


def images(num, seed=1):
    return np.random.default_rng(seed).normal(size=(num, *IMAGES)).reshape(num, -1)


def trained(network):
    """Other weights and variances than at the start, so that classes differ in all."""
    rng = np.random.default_rng(0)
    for parameter in network.heads.trainable_parameters:
        if parameter.transform is None:
            parameter.assign(0.7 * rng.normal(size=parameter.shape))
        else:
            parameter.assign(rng.uniform(0.2, 1.5, size=parameter.shape))
    return network


def test_covariance_is_that_of_the_jacobian():
    """A head at a time, by GradientTape: J diag(vec(v_in v_outᵀ)) Jᵀ, and the last layer's."""
    network, X = trained(build()), images(4)
    heads, features = network.heads, network.body(images(4))
    mean, cov = network(X, full_cov=True)
    for l in range(CLASSES):  # noqa: E741
        weights = [tf.constant(p[l]) for p in (heads.W1, heads.b1, heads.W2, heads.b2)]
        with tf.GradientTape() as tape:
            tape.watch(weights)
            W1, b1, W2, b2 = weights
            output = tf.linalg.matvec(tf.tanh(features @ W1 + b1), W2) + b2
        jacobians = tape.jacobian(output, weights)
        first = heads.v_in[l][:, None] * heads.v_out[l]
        variances = first[:-1], first[-1], heads.v_last[l][:-1], heads.v_last[l][-1]
        expected = 0.0
        for jacobian, V in zip(jacobians, variances, strict=True):
            J = tf.reshape(jacobian, [4, -1])
            expected += (J * tf.reshape(V, [-1])) @ tf.transpose(J)
        np.testing.assert_allclose(mean[:, l], output, rtol=1e-12)
        np.testing.assert_allclose(cov[l], expected, rtol=1e-10)


def test_without_weight_variance_it_is_its_mean():
    network, X = trained(build()), images(4)
    mean, _ = network(X)
    network.heads.multiply(1e-30)
    same, variance = network(X)
    np.testing.assert_array_equal(same, mean)
    assert np.max(variance) < 1e-25
    _, cov = network(X, full_cov=True)
    assert np.abs(cov).max() < 1e-25


def test_start_is_the_priors_variance_and_no_mean(float_type):
    kernel = ConvNetKernel(IMAGES, 2, 3)
    network, X = build(kernel=kernel), (3.0 + images(40)).astype(float_type)
    assert not network.is_trained
    network.initialise(X)
    mean, variance = network(X)
    prior = np.mean(kernel(X, full_cov=False))
    np.testing.assert_allclose(np.mean(variance), prior, rtol=1e-4)
    assert np.abs(mean).max() < 1e-5 and network.is_trained
    np.testing.assert_allclose(np.mean(np.square(network.body(X))), 1.0, rtol=1e-4)
    assert np.std(variance / np.mean(variance, axis=0)) < 0.5, "no image far from the prior"
    assert {v.dtype for v in network.trainable_variables} == {tf.as_dtype(float_type)}


def test_body_in_float32_and_algebra_in_float64():
    """The same to float32's accuracy, and every variable still has a gradient."""
    narrow, wide, X = build(body_float=np.float32), build(), images(4)
    with tf.GradientTape() as tape:
        mean, cov = trained(narrow)(X, full_cov=True)
        loss = tf.reduce_sum(mean) + tf.reduce_sum(cov)
    assert mean.dtype == cov.dtype == tf.float64
    assert narrow.body.first.W.dtype == tf.float32 and narrow.heads.W1.dtype == tf.float64
    np.testing.assert_allclose(cov, trained(wide)(X, full_cov=True)[1], rtol=1e-4)
    assert np.abs(cov - wide(X, full_cov=True)[1]).max() > 1e-12
    gradients = tape.gradient(loss, narrow.trainable_variables)
    assert all(np.isfinite(g).all() for g in gradients)


def test_images_and_rows():
    network, X = trained(build()), images(6)
    mean, variance = network(X)
    for got, expected in zip(network(X.reshape(6, *IMAGES)), (mean, variance), strict=True):
        np.testing.assert_array_equal(got, expected)
    mean, cov = network(X.reshape(2, 3, *IMAGES), full_cov=True)
    assert mean.shape == (2, 3, CLASSES) and cov.shape == (2, CLASSES, 3, 3)
    np.testing.assert_allclose(cov[1], network(X[3:], full_cov=True)[1], rtol=1e-10)
    assert network(X[:0])[0].shape == (0, CLASSES)


def test_images_are_halved_where_filters_grow():
    network = build(filters=(8, 8, 16, 16, 32, 32), width=0.1)
    assert [block.inner.stride for block in network.body.blocks] == [1, 1, 2, 1, 2, 1]
    assert [block.inner.W.shape[-1] for block in network.body.blocks] == [1, 1, 2, 2, 3, 3]
    assert network.body.W.shape == (2 * 2 * 3, 7)
    assert build(pooling=True).body.W.shape == (4, 7)
    assert build(pooling=True)(images(2))[0].shape == (2, CLASSES)


def test_any_keras_model_is_a_body():
    """Its features are taken as they are; batch normalisation as for prediction."""
    model = keras_image_model(IMAGES)
    model.add(tf_keras.layers.BatchNormalization(dtype="float64"))
    network = build(body=model)
    X = images(4)
    np.testing.assert_allclose(network.body(X), model(X.reshape(4, *IMAGES)), rtol=1e-12)
    np.testing.assert_allclose(network(X)[0][:1], network(X[:1])[0], atol=1e-12)
    gpflow.set_trainable(network.body, False)
    assert len(network.trainable_variables) == 7


@pytest.mark.parametrize("likelihood", ["softmax", "robust max"])
def test_trains_and_saves(likelihood, tmp_path):
    """Bright against dark images: the loss falls, classes are told apart, a copy goes on."""
    rng = np.random.default_rng(0)
    Y = rng.integers(0, CLASSES, size=(30, 1))
    X = images(30) * 0.3 + 2.0 * (Y - 1.0)
    kernel = ConvNetKernel(IMAGES, 1, 3)
    classes = (
        gpflow.likelihoods.Softmax(CLASSES)
        if likelihood == "softmax"
        else gpflow.likelihoods.MultiClass(CLASSES)
    )
    model = gpn.GPNet(
        kernel,
        classes,
        build(kernel=kernel),
        num_latent_gps=CLASSES,
        num_data=30,
        measurement=gpn.measurement.Empirical(X),
    )
    gpflow.set_trainable([kernel, classes], False)
    optimizer = gpn.FunctionalMirrorDescent(learning_rate=0.02)
    options = {"batch_size": 10, "seed": 0, "progress": False, "log_every": 1}
    history = gpn.fit(model, (X, Y), optimizer=optimizer, num_steps=80, **options)
    assert np.mean(history["loss"][-5:]) < 0.7 * np.mean(history["loss"][:5])
    assert np.mean(np.argmax(model.predict_y(X)[0], axis=1) == Y[:, 0]) > 0.8
    model.save(tmp_path / "model")
    again = gpn.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_f(X)[1], model.predict_f(X)[1])
    for twin in (model, again):
        gpn.fit(twin, (X, Y), num_steps=1, **options)
    np.testing.assert_allclose(again.predict_f(X)[0], model.predict_f(X)[0], atol=1e-9)


@pytest.mark.slow
def test_a_step_under_xla_with_its_own_prior():
    X, Y = images(8), np.arange(8)[:, None] % CLASSES
    losses = []
    for jit_compile in (False, True):
        kernel = ConvNetKernel(IMAGES, 1, 3)
        likelihood = gpflow.likelihoods.Softmax(CLASSES)
        likelihood.num_monte_carlo_points = 10_000  # drawn in other ways under XLA
        network = build(kernel=kernel)
        model = gpn.GPNet(
            kernel,
            likelihood,
            network,
            num_latent_gps=CLASSES,
            num_data=8,
            measurement=gpn.measurement.Empirical(X),
        )
        optimizer = gpn.FunctionalMirrorDescent(jit_compile=jit_compile)
        losses.append([float(optimizer.minimize(model, (X, Y))) for _ in range(2)])
    np.testing.assert_allclose(losses[1], losses[0], rtol=0.02)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (((5, 5), 3), "image_shape must be"),
        (((5, 5, 0), 3), "image_shape's sizes must be a positive integer, got 0"),
        (((5, 5, 1), 0), "num_classes must be a positive integer, got 0"),
        (((5, 5, 1), 2.0), "num_classes must be a positive integer, got 2.0"),
    ],
)
def test_shape_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        gpn.ConvNTK(*arguments)


@pytest.mark.parametrize("name", ["features", "hidden_units"])
def test_sizes_are_named(name):
    with pytest.raises(ValueError, match=f"{name} must be a positive integer, got 0"):
        build(**{name: 0})


def test_other_errors():
    for width in (0.0, np.inf):
        with pytest.raises(ValueError, match=f"width must be positive and finite, got {width}"):
            build(width=width)
    with pytest.raises(TypeError, match="body must be a tf_keras model, got str"):
        build(body="resnet")
    with pytest.raises(ValueError, match=r"X must have rows of 60 pixels .* got shape \(2, 59\)"):
        build()(np.ones((2, 59)))


def test_prior_of_the_weights_of_the_mean():
    """N(0, 2 / fan-in), biases N(0, 1), variances none; a Keras body none."""
    network = build()
    body, heads = network.body, network.heads
    second = body.blocks[0].second.W
    fan_ins = [(heads.W1, heads.W1.shape[1]), (heads.W2, heads.W2.shape[1])]
    fan_ins += [(body.W, body.W.shape[0]), (second, 9 * second.shape[2])]
    for parameter, fan_in in fan_ins:
        assert float(parameter.prior.stddev()) == pytest.approx(np.sqrt(2.0 / fan_in))
    for bias in (heads.b1, heads.b2, body.b, body.first.b):
        assert float(bias.prior.stddev()) == 1.0
    without = {id(p) for p in network.trainable_parameters if p.prior is None}
    assert without == {id(p) for p in (heads.v_in, heads.v_out, heads.v_last)}
    assert all(p.prior is None for p in build(weight_prior=False).trainable_parameters)


def test_priors_of_a_body_of_another_float_type_are_added():
    kernel, likelihood = ConvNetKernel(IMAGES, 1, 3), gpflow.likelihoods.Softmax(CLASSES)
    densities = []
    for body_float in (np.float32, None):
        network = build(kernel=kernel, body_float=body_float)
        model = gpn.GPNet(kernel, likelihood, network, num_latent_gps=CLASSES, num_data=8)
        densities.append(model.log_prior_density().numpy())
    assert densities[0].dtype == np.float64
    assert densities[0] == pytest.approx(densities[1], rel=1e-5)
