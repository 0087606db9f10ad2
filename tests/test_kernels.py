"""Kernels of infinite ConvNets against finite ones, neural-tangents and their own identities."""

import copy
import pickle
from pathlib import Path

import gpflow
import kernels_reference as reference
import numpy as np
import pytest
import tensorflow as tf
from gpflow.likelihoods import Bernoulli

import gpflow_gpnet as gpn
from gpflow_gpnet import kernels
from gpflow_gpnet.kernels import ConvNetKernel, ResNetKernel
from gpflow_gpnet.spectral import NoSpectralMeasureError

IMAGES = reference.IMAGES
VARIANCES = {"weight_variance": reference.WEIGHTS, "bias_variance": reference.BIASES}
KERNELS = {
    "relu": lambda **kw: ConvNetKernel(IMAGES, 3, 3, **kw),
    "relu, no biases": lambda **kw: ConvNetKernel(IMAGES, 2, 3, **(kw | {"bias_variance": 0.0})),
    "relu, even filters": lambda **kw: ConvNetKernel(IMAGES, 2, 4, strides=(1, 3), **kw),
    "erf, same": lambda **kw: ConvNetKernel(IMAGES, 2, 3, (2, 1), activation="erf", **kw),
    "erf, valid": lambda **kw: ConvNetKernel(IMAGES, 2, 3, (1, 2), "valid", "erf", **kw),
    "residual": lambda **kw: ResNetKernel(IMAGES, **kw),
}
SMALL = ("relu", "erf, same", "residual")


def build(name):
    return KERNELS[name](**VARIANCES)


def images(num, seed=1):
    return np.random.default_rng(seed).normal(size=(num, *IMAGES)).reshape(num, -1)


# ------------------------------------------------------------------ other implementations


@pytest.mark.parametrize("name", KERNELS)
def test_equals_neural_tangents(name, float_type):
    """To 1e-5 relative in float32, 1e-10 in float64, at an image's own double too."""
    X, X2 = (values.astype(float_type) for values in reference.inputs())
    kernel = build(name)
    tables = np.load(Path(reference.__file__).with_suffix(".npz"))
    tolerance = {"rtol": 1e-5} if float_type == np.float32 else {"rtol": 1e-10}
    np.testing.assert_allclose(kernel(X, X2), tables[name], **tolerance)
    symmetric = tables[f"{name}, symmetric"]
    np.testing.assert_allclose(kernel(X), symmetric, **tolerance)
    np.testing.assert_allclose(kernel(X, full_cov=False), np.diag(symmetric), **tolerance)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64])
def test_integer_images_are_numbers(dtype, float_type):
    """Products of bytes overflow, and of integers do not divide."""
    kernel = build("residual")
    X = np.random.default_rng(0).integers(0, 256, (4, *IMAGES)).astype(dtype)
    rows, numbers = X.reshape(4, -1), X.reshape(4, -1).astype(float_type)
    for kernel_of in (kernel, kernel * gpflow.kernels.Constant(), kernel + kernel):
        np.testing.assert_array_equal(kernel_of(rows), kernel_of(numbers))
        np.testing.assert_array_equal(kernel_of(rows, numbers), kernel_of(numbers, numbers))
        np.testing.assert_array_equal(
            kernel_of(rows, full_cov=False), kernel_of(numbers, full_cov=False)
        )
    np.testing.assert_array_equal(kernel(X), kernel(numbers))


def test_other_types_are_named():
    with pytest.raises(ValueError, match=r"must be integers or float64, .* got float32"):
        build("relu")(images(2).astype(np.float32))
    with pytest.raises(ValueError, match=r"must be integers or float64, .* got float32"):
        build("relu")(images(2), images(2).astype(np.float32))


def test_large_images_and_erf(float_type):
    """Where rounding takes the sine to 1 and beyond."""
    kernel, size = build("erf, same"), {np.float32: 1e4, np.float64: 1e8}[float_type]
    X = tf.Variable((size * images(6)).astype(float_type))
    with tf.GradientTape() as tape:
        K = kernel(X)
        value = tf.reduce_sum(K) + tf.reduce_sum(kernel(X, full_cov=False))
    assert np.isfinite(tape.gradient(value, X)).all()
    np.testing.assert_allclose(np.diag(K), kernel(X, full_cov=False), rtol=1e-3)


def finite_network_outputs(kernel, X, channels, rng):
    """One output each of `channels` random networks that share their last hidden layer."""
    w, b = kernel.weight_variance.numpy(), kernel.bias_variance.numpy()
    activation = {"relu": tf.nn.relu, "erf": tf.math.erf}

    def dense(Z, outputs):
        Z = tf.reshape(Z, [Z.shape[0], -1])
        W = rng.normal(size=(Z.shape[1], outputs)) * np.sqrt(w / Z.shape[1])
        return tf.matmul(Z, W) + np.sqrt(b) * rng.normal(size=outputs)

    def through(layers, Z):
        for layer in layers:
            if isinstance(layer, kernels._Convolution):
                shape = (layer.size, layer.size, Z.shape[-1], channels)
                filters = rng.normal(size=shape) * np.sqrt(w / np.prod(shape[:3]))
                Z = tf.nn.conv2d(Z, filters, layer.stride, layer.padding.upper())
                Z += np.sqrt(b) * rng.normal(size=channels)
            elif isinstance(layer, kernels._Activation):
                Z = activation[layer.function](Z)
            elif isinstance(layer, kernels._Residual):
                Z = through(layer.branch, Z) + through(layer.shortcut, Z)
            else:
                Z = dense(Z, channels)
        return Z

    return through(kernel.network.layers, tf.reshape(X, [-1, *IMAGES])).numpy()


@pytest.mark.parametrize("name", SMALL)
def test_is_the_covariance_of_wide_random_networks(name):
    """Within 4 standard errors over networks, each of 64 channels, and 5 % for the finite width."""
    kernel, rng = build(name), np.random.default_rng(2)
    if name == "residual":
        kernel = ResNetKernel(IMAGES, (1, 1), **VARIANCES)
    X, networks = images(3), 60
    products = []
    for _ in range(networks):
        outputs = finite_network_outputs(kernel, X, 64, rng)
        products.append(outputs @ outputs.T / outputs.shape[1])
    error = np.std(products, axis=0) / np.sqrt(networks)
    exact = kernel(X).numpy()
    gap = np.abs(np.mean(products, axis=0) - exact)
    assert (gap < 4.0 * error + 0.05 * np.abs(exact)).all()
    assert (error < 0.15 * np.diag(exact).max()).all(), "a test that would miss nothing"


# ------------------------------------------------------------------ identities


@pytest.mark.parametrize("name", SMALL)
def test_matrix_properties(name):
    kernel, X, X2 = build(name), images(9), images(4, seed=7)
    K = kernel(X).numpy()
    np.testing.assert_allclose(K, K.T, rtol=1e-14)
    assert np.linalg.eigvalsh(K).min() > 0.0
    np.testing.assert_allclose(np.diag(K), kernel(X, full_cov=False), rtol=1e-13)
    np.testing.assert_allclose(kernel(X, X), K, rtol=1e-13)
    np.testing.assert_allclose(kernel(X, X2), np.transpose(kernel(X2, X)), rtol=1e-13)
    order = np.random.default_rng(0).permutation(9)
    np.testing.assert_allclose(kernel(X[order]), K[order][:, order], rtol=1e-13)
    flipped = X.reshape(9, *IMAGES)[..., ::-1].reshape(9, -1)  # colours
    np.testing.assert_allclose(kernel(flipped), K, rtol=1e-13)
    upright = X.reshape(9, *IMAGES)[:, :, ::-1].reshape(9, -1)  # left to right; odd width
    if name == "relu":
        np.testing.assert_allclose(kernel(upright), K, rtol=1e-13)


def test_without_biases_relu_is_homogeneous():
    kernel, X = build("relu, no biases"), images(5)
    np.testing.assert_allclose(kernel(3.0 * X), 9.0 * kernel(X), rtol=1e-12)
    assert not kernel.bias_variance.trainable


def test_a_constant_image_by_hand():
    """Interior patches only: v = σ_b² + σ_w² s, s = v / 2, at every position."""
    kernel = ConvNetKernel((5, 5, 1), 2, 3, padding="valid", **VARIANCES)
    w, b = reference.WEIGHTS, reference.BIASES
    expected = b + w * 0.5 * (b + w * 0.5 * (b + w * 4.0))
    np.testing.assert_allclose(kernel(2.0 * np.ones((1, 25))), [[expected]], rtol=1e-13)


def test_inputs_as_images_batches_and_columns():
    kernel, X = build("relu"), images(6)
    K = kernel(X)
    np.testing.assert_array_equal(kernel(X.reshape(6, *IMAGES)), K)
    np.testing.assert_array_equal(
        kernel(X.reshape(6, *IMAGES), full_cov=False), kernel(X, full_cov=False)
    )
    batched = kernel(X.reshape(2, 3, -1))
    np.testing.assert_allclose(batched, [K[:3, :3], K[3:, 3:]], rtol=1e-13)
    crossed = kernel(X.reshape(2, 3, -1), X[:4])
    assert crossed.shape == (2, 3, 4)
    np.testing.assert_allclose(crossed, tf.reshape(K, [2, 3, 6])[..., :4], rtol=1e-13)
    assert kernel(X.reshape(2, 3, *IMAGES), full_cov=False).shape == (2, 3)
    some = ConvNetKernel((2, 2, 1), 1, 3, active_dims=[0, 1, 2, 3])
    np.testing.assert_array_equal(some(X), ConvNetKernel((2, 2, 1), 1, 3)(X[:, :4]))
    assert kernel(X[:0]).shape == (0, 0) and kernel(X, X[:0]).shape == (6, 0)


# ------------------------------------------------------------------ blocks and gradients


@pytest.mark.parametrize("symmetric", [True, False])
def test_blocks_make_no_difference(symmetric, monkeypatch):
    """Values and gradients of all inputs, several compiled blocks against one that is not."""
    X, X2 = images(7), images(6, seed=3)
    weights = np.random.default_rng(5).normal(size=(7, 7 if symmetric else 6))
    results = []
    for elements in (10**9, 9 * np.prod(IMAGES[:2])):
        monkeypatch.setattr(kernels, "_BLOCK_ELEMENTS", int(elements))
        kernel = ConvNetKernel(IMAGES, 1, 3, **VARIANCES)
        inputs = [tf.constant(X)] + ([] if symmetric else [tf.constant(X2)])
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            K = kernel(*inputs)
            loss = tf.reduce_sum(weights * K)
        results.append([K, *tape.gradient(loss, [*inputs, *kernel.trainable_variables])])
    for one, several in zip(*results, strict=True):
        np.testing.assert_allclose(several, one, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["relu", "erf, valid", "residual"])
def test_gradients_by_finite_differences(name):
    kernel, X, X2 = build(name), tf.constant(images(4)), tf.constant(images(3, seed=3))
    if name == "residual":
        kernel = ResNetKernel(IMAGES, (1, 1), **VARIANCES)
    variables = [tf.Variable(X), tf.Variable(X2), *kernel.trainable_variables]
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(4, 3)), rng.normal(size=(4, 4)), rng.normal(size=4)

    def loss():
        X, X2 = variables[:2]
        values = kernel(X, X2), kernel(X), kernel(X, full_cov=False)
        return tf.add_n([tf.reduce_sum(w * v) for w, v in zip(weights, values, strict=True)])

    with tf.GradientTape() as tape:
        value = loss()
    gradients = tape.gradient(value, variables)
    step = 1e-5
    for variable, gradient in zip(variables, gradients, strict=True):
        start, direction = variable.numpy(), rng.normal(size=variable.shape)
        variable.assign(start + step * direction)
        upper = loss()
        variable.assign(start - step * direction)
        lower = loss()
        variable.assign(start)
        np.testing.assert_allclose(
            np.sum(gradient * direction), (upper - lower) / (2 * step), rtol=1e-7, atol=1e-7
        )


@pytest.mark.parametrize("name", ["relu", "relu, no biases", "residual"])
def test_coincident_and_empty_images(name, float_type):
    """Equal, opposite, doubled and all-zero images: finite values and gradients, one variance."""
    first = images(1)[0]
    X = tf.constant(np.stack([first, first, 2 * first, -first, 0 * first]).astype(float_type))
    kernel = build(name)
    with tf.GradientTape() as tape:
        tape.watch(X)
        K = kernel(X)
        loss = K[0, 1]
    gradients = tape.gradient(loss, [X, kernel.weight_variance.unconstrained_variable])
    assert all(np.isfinite(g).all() for g in (K, *gradients))
    tolerance = 1e-12 if float_type == np.float64 else 1e-5
    np.testing.assert_allclose(K[0, 1], K[0, 0], rtol=tolerance)
    # By symmetry both images carry half of what moves the variance.
    with tf.GradientTape() as tape:
        tape.watch(X)
        variance = kernel(X, full_cov=False)[0]
    half = 0.5 * tape.gradient(variance, X)[0]
    np.testing.assert_allclose(gradients[0][0], half, rtol=100 * tolerance, atol=tolerance)
    np.testing.assert_allclose(gradients[0][1], half, rtol=100 * tolerance, atol=tolerance)


def test_arc_cosine_function(float_type):
    """To the last digits over [-1, 1], also relative to J → 0 at -1; a straight line beyond 1."""
    c = tf.constant(np.linspace(-1.0, 1.0, 2001).astype(float_type))
    with tf.GradientTape() as tape:
        tape.watch(c)
        value = kernels._arc_cosine(c)
    theta = np.arccos(c.numpy().astype(np.longdouble))
    exact = np.sin(theta) + (np.pi - theta) * np.cos(theta)
    epsilon = np.finfo(float_type).eps
    np.testing.assert_allclose(value, exact.astype(float), atol=10 * epsilon)
    near = np.array([1e-6, 1e-4], float_type)  # J = (2 sqrt 2 / 3) e^(3/2) (1 + e / 20 + ...)
    small = kernels._arc_cosine(tf.constant(near - 1))
    near = 1.0 + (near - 1).astype(float)
    leading = np.sqrt(8.0) / 3.0 * near**1.5 * (1.0 + near / 20.0)
    np.testing.assert_allclose(small, leading, rtol=max(1e-7, 20 * epsilon))
    slope = (np.pi - theta).astype(float)
    np.testing.assert_allclose(tape.gradient(value, c), slope, atol=20 * epsilon)
    beyond = tf.constant(np.array([1.0 + 4 * epsilon], float_type))
    assert np.pi <= kernels._arc_cosine(beyond)[0] < np.pi * (1 + 20 * epsilon)


def test_unknown_numbers_of_rows(monkeypatch):
    monkeypatch.setattr(kernels, "_BLOCK_ELEMENTS", 4 * 3 * 3)
    rng = np.random.default_rng(0)
    kernel, X, X2 = ConvNetKernel((3, 3, 1), 1, 3), rng.normal(size=(3, 9)), rng.normal(size=(5, 9))
    dynamic = tf.TensorSpec([None, 9], tf.float64)
    graph = tf.function(lambda X, X2: (kernel(X), kernel(X, X2)), input_signature=[dynamic] * 2)
    for got, expected in zip(graph(X, X2), (kernel(X), kernel(X, X2)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12)


@pytest.mark.slow
def test_values_and_gradients_under_xla(monkeypatch):
    monkeypatch.setattr(kernels, "_BLOCK_ELEMENTS", 4 * 3 * 3)
    kernel = ConvNetKernel((3, 3, 1), 1, 3)

    def value_and_gradient(X):
        with tf.GradientTape() as tape:
            tape.watch(X)
            K = kernel(X)
            value = tf.reduce_sum(K**2)
        return K, tape.gradient(value, X)

    xla = tf.function(value_and_gradient, jit_compile=True)
    X = tf.constant(np.random.default_rng(0).normal(size=(5, 9)))
    for got, expected in zip(xla(X), value_and_gradient(X), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-10)


# ------------------------------------------------------------------ as a kernel of GPflow


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda k: pickle.loads(pickle.dumps(k))])
def test_copies(copier):
    kernel = build("residual")
    twin = copier(kernel)
    np.testing.assert_array_equal(twin(images(3)), kernel(images(3)))
    twin.weight_variance.assign(0.5)
    assert twin(images(3))[0, 0] != kernel(images(3))[0, 0]


def test_sums_products_and_summary():
    kernel, X = build("relu"), images(4)
    scaled = gpflow.kernels.Constant(3.0) * kernel + gpflow.kernels.White(0.1)
    np.testing.assert_allclose(scaled(X), 3.0 * kernel(X) + 0.1 * np.eye(4), rtol=1e-12)
    assert set(gpflow.utilities.parameter_dict(kernel)) == {".weight_variance", ".bias_variance"}


def test_in_gpr_and_svgp():
    X = images(8)
    Y = X[:, :1]
    model = gpflow.models.GPR((X, Y), build("relu"), noise_variance=0.1)
    before = float(model.training_loss())
    gpflow.optimizers.Scipy().minimize(
        model.training_loss, model.trainable_variables, options={"maxiter": 5}, compile=False
    )
    assert float(model.training_loss()) < before
    svgp = gpflow.models.SVGP(build("relu"), Bernoulli(), X[:3], num_data=8)
    with tf.GradientTape() as tape:
        loss = svgp.training_loss((X, (Y > 0).astype(float)))
    gradients = tape.gradient(loss, svgp.trainable_variables)
    assert all(np.isfinite(g).all() for g in gradients)


def test_in_gpnet():
    X = images(8)
    Y = (X[:, :1] > 0).astype(float)
    with pytest.raises(
        NoSpectralMeasureError, match="ConvNetKernel has neither a spectral measure"
    ):
        gpn.RFE(build("relu"), X.shape[1])
    network = gpn.NTK((4,), kernel=build("relu"), input_dim=X.shape[1])
    model = gpn.GPNet(
        build("relu"), Bernoulli(), network, num_data=8, measurement=gpn.measurement.Empirical(X)
    )
    history = gpn.fit(model, (X, Y), num_steps=2, batch_size=4, seed=0, progress=False)
    assert np.isfinite(history["loss"]).all()


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: ConvNetKernel((5, 5)), r"image_shape must be \(height, width, colours\)"),
        (lambda: ConvNetKernel((5, 5, 0)), "image_shape's sizes must be a positive integer, got 0"),
        (lambda: ConvNetKernel((5, 5, 1), 0), "num_layers must be a positive integer, got 0"),
        (lambda: ConvNetKernel((5, 5, 1), 2, 0), "filter_size must be a positive integer"),
        (lambda: ConvNetKernel((5, 5, 1), 2, 3, (1, 2, 1)), "strides must be one number or 2"),
        (lambda: ConvNetKernel((5, 5, 1), 2, 3, padding="full"), "padding must be"),
        (lambda: ConvNetKernel((5, 5, 1), 2, 4, padding="valid"), "filters do not fit into images"),
        (lambda: ConvNetKernel((5, 5, 1), activation="tanh"), "activation must be"),
        (lambda: ConvNetKernel((5, 5, 1), weight_variance=0.0), "weight_variance must be positive"),
        (lambda: ConvNetKernel((5, 5, 1), bias_variance=-1.0), "bias_variance must not be"),
        (lambda: ResNetKernel((5, 5, 1), (2, 0)), "blocks must be a positive integer, got 0"),
        (
            lambda: ConvNetKernel((5, 5, 1))(np.ones((2, 24))),
            r"X and X2 must have rows of 25 pixels",
        ),
        (
            lambda: ConvNetKernel((5, 5, 1))(np.ones((2, 1, 5, 5))),
            r"must have rows of 25 pixels or be images of shape \[..., 5, 5, 1\]",
        ),
    ],
)
def test_errors_name_the_argument(build, message):
    with pytest.raises(ValueError, match=message):
        build()
