"""Cases H1 to H8, H11, H12: small data sets distilled from users' reports, with their numbers."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow.keras import tf_keras
from gpflow.kernels import Matern12, SquaredExponential
from gpflow.likelihoods import Gaussian, Poisson

import gpflow_gpnet as gpn


def make_model(num_data, input_dim=1, kernel=None, noise=0.01, **kwargs):
    kernel = SquaredExponential() if kernel is None else kernel
    network = gpn.RFE(kernel, input_dim, kwargs.pop("num_features", 30))
    return gpn.GPNet(kernel, Gaussian(noise), network, num_data=num_data, **kwargs)


def fit(model, data, num_steps, **kwargs):
    kwargs = {"seed": 0, "progress": False, "polish": False} | kwargs
    return gpn.fit(model, data, num_steps=num_steps, **kwargs)


def whole_step():
    """One such step on all data leads to the posterior of a conjugate model."""
    return gpn.FunctionalMirrorDescent(gpn.Constant(1.0), learning_rate=0.0)


# ------------------------------------------------------------------ H1: ragged minibatches


@pytest.mark.parametrize("network", ["RFE", "InducingFeatures"])
def test_h1_ragged_minibatches_are_unbiased(rng, float_type, network):
    X = rng.uniform(-2, 2, size=(107, 1))
    Y = np.sin(3 * X) + 0.1 * rng.normal(size=X.shape)
    points = np.linspace(-2, 2, 20)[:, None].astype(float_type)
    kernel = SquaredExponential()
    q = (
        gpn.RFE(kernel, 1, 30)
        if network == "RFE"
        else gpn.InducingFeatures(kernel, np.linspace(-2, 2, 10)[:, None])
    )
    q.q_mu.assign(rng.normal(size=q.q_mu.shape))
    model = gpn.GPNet(
        kernel,
        Gaussian(0.1),
        q,
        num_data=107,
        measurement=lambda num: points,
        num_measurement_points=20,
    )
    batches = [(X[i : i + 20], Y[i : i + 20]) for i in range(0, 107, 20)]
    assert len(batches[-1][0]) == 7
    elbos = [float(model.elbo((x.astype(float_type), y.astype(float_type)))) for x, y in batches]
    total = sum(len(x) / 107 * elbo for (x, _), elbo in zip(batches, elbos, strict=True))
    whole = float(model.elbo((X.astype(float_type), Y.astype(float_type))))
    tolerance = 1e-6 if float_type is np.float64 else 1e-4
    np.testing.assert_allclose(total, whole, rtol=tolerance)
    assert abs(np.mean(elbos) / whole - 1.0) > 10 * tolerance, "the test could not fail"


# ------------------------------------------------------------------ H2: one-dimensional Y


def h2_data():
    X = np.random.default_rng(2).normal(size=(7, 2))
    return X, X.sum(1)


@pytest.mark.parametrize(
    "door",
    [
        lambda model, data: model.training_loss(data),
        lambda model, data: model.training_loss_closure(data),
        lambda model, data: model.predict_log_density(data),
        lambda model, data: gpn.FunctionalMirrorDescent().minimize(model, data),
        lambda model, data: fit(model, data, 1),
        lambda model, data: fit(
            model, (data[0], np.asarray(data[1])[:, None]), 1, validation_data=data
        ),
    ],
    ids=["training_loss", "closure", "log density", "minimize", "fit", "validation"],
)
@pytest.mark.parametrize("convert", [np.asarray, tf.constant, np.ndarray.tolist])
def test_h2_one_dimensional_targets_are_refused_with_the_way_out(door, convert):
    X, y = h2_data()
    with pytest.raises(ValueError, match=r"(?i)y\[:, ?None\]") as failure:
        door(make_model(7, 2), (convert(X), convert(y)))
    assert "(7, 2)" in str(failure.value) and "(7,)" in str(failure.value)


def test_h2_a_column_is_the_cure():
    X, y = h2_data()
    assert np.isfinite(make_model(7, 2).training_loss((X, y[:, None])))


# ------------------------------------------------------------------ H3: a constant column of 1e6


@pytest.mark.parametrize("float_type, tolerance", [(np.float64, 0.01), (np.float32, 0.05)])
def test_h3_a_constant_column_far_from_0_does_no_harm(rng, float_type, tolerance):
    """Under fit, which centres; both models are near the exact posterior, from other features."""
    with gpflow.config.as_context(gpflow.config.Config(float=float_type)):
        x = rng.uniform(-2, 2, size=(40, 1))
        y = np.sin(2 * x) + 0.1 * rng.normal(size=x.shape)
        far = np.full_like(x, 1e6)
        new = np.linspace(-2, 2, 21)[:, None]
        predictions = []
        for X, Xnew in ((x, new), (np.hstack([x, far]), np.hstack([new, far[:21]]))):
            model = make_model(40, X.shape[1], num_features=200)
            history = fit(model, (X, y), 1, optimizer=whole_step())
            assert np.all(np.isfinite(history["loss"]))
            predictions.append([value.numpy() for value in model.predict_y(Xnew)])
            with tf.GradientTape() as tape:
                loss = model.training_loss((X, y))
            for gradient in tape.gradient(loss, model.trainable_variables):
                assert np.all(np.isfinite(gradient))
        for without, with_column in zip(*predictions, strict=True):
            assert np.all(np.isfinite(with_column))
            np.testing.assert_allclose(with_column, without, atol=tolerance)


def test_h3_a_plain_loop_is_told_to_centre(rng):
    x = rng.uniform(-2, 2, size=(40, 1))
    data = (np.hstack([x, np.full_like(x, 1e6)]), np.sin(2 * x))
    with pytest.raises(ValueError, match=r"columns \[1\].*centre the inputs"):
        make_model(40, 2).training_loss_closure(data)


# ------------------------------------------------------------------ H4: repeated inputs


H4_INPUTS = np.linspace(-1.75, 1.75, 8)[:, None]
H4_MEAN = [0.338, -0.568, -0.973, -0.434, 0.512, 0.979, 0.521, -0.355]


def h4_data():
    X = np.repeat(H4_INPUTS, 64, axis=0)
    return X, np.sin(2 * X) + 0.3 * np.random.default_rng(4).normal(size=X.shape)


def h4_model(X):
    kernel = Matern12(1.0, 1.0)
    model = make_model(512, 1, kernel, noise=0.09, measurement=X, num_features=50)
    gpflow.set_trainable(kernel, False)
    gpflow.set_trainable(model.likelihood, False)
    return model


def test_h4_reference_numbers_are_the_exact_posterior_s():
    exact = gpflow.models.GPR(h4_data(), Matern12(1.0, 1.0), noise_variance=0.09)
    mean, variance = exact.predict_f(H4_INPUTS)
    np.testing.assert_allclose(mean[:, 0], H4_MEAN, atol=6e-4)
    np.testing.assert_allclose(np.sqrt(variance), 0.0375, atol=6e-4)


@pytest.mark.parametrize("natural", [True, False], ids=["natural", "published"])
def test_h4_gradients_are_finite_where_points_coincide(float_type, natural):
    """Batch and measurement points on top of each other, before training and after steps."""
    X, Y = h4_data()
    model = h4_model(X)
    gpflow.set_trainable(model.kernel, True)
    optimizer = gpn.FunctionalMirrorDescent(natural=natural)
    rows = np.random.default_rng(0).permutation(512)[:64]
    batch = (X[rows], Y[rows])
    for _ in range(2):
        X_B, Y_B = model.checked(batch)
        points = tf.concat([X_B, model.measurement_points(X_B)], axis=0)
        with tf.GradientTape(persistent=True) as tape:
            losses = [model.training_loss(batch), -model.functional_elbo(X_B, Y_B, points)]
        for loss in losses:
            assert np.isfinite(loss)
            for gradient in tape.gradient(loss, model.trainable_variables):
                if gradient is not None:
                    assert np.all(np.isfinite(gradient))
        assert np.isfinite(optimizer.minimize(model, batch))


def test_h4_repeated_inputs_give_the_exact_posterior():
    X, Y = h4_data()
    model = h4_model(X)
    fit(model, (X, Y), 100, batch_size=64, polish=True)
    mean, variance = model.predict_f(H4_INPUTS)
    np.testing.assert_allclose(mean[:, 0], H4_MEAN, atol=0.08)
    deviation = np.sqrt(variance)
    assert 0.019 <= deviation.min() and deviation.max() <= 0.075


# ------------------------------------------------------------------ H5: huge targets


def h5_data(rng):
    X = rng.uniform(-2, 2, size=(500, 1))
    Y1 = np.sin(2 * X) + 0.1 * rng.normal(size=X.shape)
    return X, Y1, 5e5 + 2e4 * Y1


def test_h5_huge_targets_are_warned_of_by_their_size(rng):
    """1,500 steps, the same constructor defaults as for targets of size 1: no NaN."""
    X, _, Y2 = h5_data(rng)
    model = make_model(500, num_features=10)
    with pytest.warns(UserWarning, match=r"size 5\.01e\+05 .*standardise Y"):
        history = fit(model, (X, Y2), 1500, batch_size=50, log_every=100)
    assert np.all(np.isfinite(history["loss"]))
    for value in model.predict_y(X):
        assert np.all(np.isfinite(value))


def test_h5_targets_of_the_prior_s_size_are_not_warned_of(rng):
    X, Y1, _ = h5_data(rng)
    model = make_model(500)
    fit(model, (X, Y1), 1, optimizer=whole_step())
    assert np.sqrt(np.mean((model.predict_y(X)[0] - Y1) ** 2)) < 0.2


def test_h5_log_densities_are_in_the_users_units(rng):
    """Prior and mean scaled as the targets are: the densities differ by the Jacobian alone."""
    X, Y1, Y2 = h5_data(rng)
    densities = []
    for Y, scale, offset in ((Y1, 1.0, 0.0), (Y2, 2e4, 5e5)):
        kernel = SquaredExponential(scale**2)
        mean_function = gpflow.mean_functions.Constant([offset])
        model = make_model(
            500, 1, kernel, noise=0.01 * scale**2, mean_function=mean_function, num_features=20
        )
        whole_step().minimize(model, (X, Y))
        assert np.sqrt(np.mean((model.predict_y(X)[0] - Y) ** 2)) < 0.2 * Y.std()
        densities.append(model.predict_log_density((X, Y)).numpy())
    np.testing.assert_allclose(densities[0] - densities[1], 9.9035, atol=0.05)


# ------------------------------------------------------------------ H6: integer counts


H6_X = np.array([[0.0], [1.0], [2.0]])
H6_COUNTS = np.array([[0], [3], [7]])


@pytest.mark.parametrize("network", ["RFE", "InducingFeatures"])
def test_h6_integer_counts_are_counts(network):
    kernel = SquaredExponential()
    q = gpn.RFE(kernel, 1, 5) if network == "RFE" else gpn.InducingFeatures(kernel, H6_X)
    model = gpn.GPNet(kernel, Poisson(), q, num_data=3)
    floats = H6_COUNTS.astype(np.float64)
    assert H6_COUNTS.dtype == np.int64
    losses = [model.training_loss((H6_X, Y)) for Y in (H6_COUNTS, floats)]
    np.testing.assert_array_equal(losses[0], losses[1])
    if network == "InducingFeatures":  # no divergence from the prior, so all is likelihood
        np.testing.assert_allclose(losses[0], 1.64872 + 3.44048 + 10.17388, atol=2e-5)
    mean, variance = model.predict_f(H6_X)
    fit_of_each = model.likelihood.variational_expectations(H6_X, mean, variance, floats)
    np.testing.assert_allclose(fit_of_each, [-1.64872, -3.44048, -10.17388], atol=1e-5)
    y_mean, y_variance = model.predict_y(H6_X)
    np.testing.assert_allclose(y_mean, np.full((3, 1), 1.64872), atol=1e-5)
    np.testing.assert_allclose(y_variance, np.full((3, 1), 6.31950), atol=1e-5)
    densities = [model.predict_log_density((H6_X, Y)) for Y in (H6_COUNTS, floats)]
    np.testing.assert_array_equal(*densities)


def test_h6_integer_counts_train():
    kernel = SquaredExponential()
    model = gpn.GPNet(kernel, Poisson(), gpn.RFE(kernel, 1, 5), num_data=3)
    history = fit(model, (H6_X, H6_COUNTS), 3)
    assert np.all(np.isfinite(history["loss"]))


@pytest.mark.parametrize(
    "door",
    [
        lambda model, data: model.training_loss(data),
        lambda model, data: model.training_loss_closure(data),
        lambda model, data: model.elbo(data),
        lambda model, data: fit(model, data, 1),
    ],
    ids=["training_loss", "closure", "elbo", "fit"],
)
def test_h6_negative_counts_are_refused(door):
    kernel = SquaredExponential()
    model = gpn.GPNet(kernel, Poisson(), gpn.RFE(kernel, 1, 5), num_data=3)
    with pytest.raises(ValueError, match=r"Poisson needs targets .*rows \[1\] with \[-1\.0\]"):
        door(model, (H6_X, np.array([[0], [-1], [7]])))


def test_h6_fractions_are_as_in_svgp():
    kernel = SquaredExponential()
    ours = gpn.GPNet(kernel, Poisson(), gpn.InducingFeatures(kernel, H6_X), num_data=3)
    theirs = gpflow.models.SVGP(kernel, Poisson(), H6_X, num_data=3)
    data = (H6_X, np.array([[0.0], [2.5], [7.0]]))
    np.testing.assert_allclose(ours.elbo(data), theirs.elbo(data), rtol=1e-10)


# ------------------------------------------------------------------ H11: Keras parts


class KerasNetwork(gpn.InferenceNetwork):
    """Features from Keras layers; mean and covariance linear in them."""

    def __init__(self, layers):
        super().__init__()
        self.layers = layers
        self.weights = gpflow.Parameter(np.zeros((8, 1)))
        self.variances = gpflow.Parameter(np.ones(8), transform=gpflow.utilities.positive())

    def __call__(self, X, full_cov=False):
        features = tf.convert_to_tensor(X)
        for layer in self.layers:
            features = layer(features)
        mean = features @ self.weights
        root = features * tf.sqrt(self.variances)
        if full_cov:
            return mean, (root @ tf.linalg.matrix_transpose(root))[..., None, :, :]
        return mean, tf.reduce_sum(tf.square(root), axis=-1, keepdims=True)


def keras_model(layers):
    kernel = SquaredExponential()
    return gpn.GPNet(kernel, Gaussian(0.1), KerasNetwork(layers), num_data=30)


def tf_keras_layers():
    layers = [tf_keras.layers.Dense(8, activation="tanh", dtype="float64") for _ in range(2)]
    for layer, dim in zip(layers, (1, 8), strict=True):
        layer.build((None, dim))
    return layers


def h11_data(rng):
    X = rng.uniform(-2, 2, size=(30, 1))
    return X, np.sin(2 * X) + 0.1 * rng.normal(size=X.shape)


def keras_3():
    return pytest.importorskip("keras", minversion="3.0")


def test_h11_keras_3_layers_are_refused():
    """So both optimisers with such a network: its variables would never be trained."""
    keras = keras_3()
    layers = [keras.layers.Dense(8, activation="tanh", dtype="float64") for _ in range(2)]
    with pytest.raises(TypeError, match=r"KerasNetwork\.layers is a Keras 3 Dense"):
        keras_model(layers)


OPTIMIZERS = {
    "mirror descent": lambda: gpn.FunctionalMirrorDescent(),
    "tf_keras": lambda: tf_keras.optimizers.Adam(0.01),
    "keras 3": lambda: keras_3().optimizers.Adam(0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_h11_tf_keras_layers_train_and_freeze(rng, name):
    """Frozen weights stay, the others move; kernel frozen and unfrozen with one optimiser."""
    data = h11_data(rng)
    model = keras_model(tf_keras_layers())
    network = model.inference_network
    weights = [weight for layer in network.layers for weight in layer.trainable_variables]
    ids = {id(variable) for variable in model.trainable_variables}
    assert len(weights) == 4 and all(id(weight) in ids for weight in weights)
    optimizer = OPTIMIZERS[name]()

    def moved(before):
        return [
            np.any(weight.numpy() != value) for weight, value in zip(weights, before, strict=True)
        ]

    start = [weight.numpy() for weight in weights]
    gpflow.set_trainable(model.kernel, False)
    losses = fit(model, data, 20, optimizer=optimizer, log_every=1)["loss"]
    assert all(moved(start)) and losses[-1] < losses[0]
    assert model.kernel.lengthscales.numpy() == 1.0

    gpflow.set_trainable(model.kernel, True)
    if name == "mirror descent":
        fit(model, data, 20, optimizer=optimizer)
        assert model.kernel.lengthscales.numpy() != 1.0
    else:
        with pytest.raises(ValueError, match="make a new optimiser"):
            fit(model, data, 20, optimizer=optimizer)
        fit(model, data, 20, optimizer=OPTIMIZERS[name]())
        assert model.kernel.lengthscales.numpy() != 1.0

    gpflow.set_trainable(network, False)
    before = [weight.numpy() for weight in weights]
    fit(model, data, 3, optimizer=OPTIMIZERS[name]())
    assert not any(moved(before)), "set_trainable(network, False) did not stop the layers"


def test_h11_tf_keras_adam_minimizes_the_closure(rng):
    """The loop that GPflow's notebooks write."""
    model = keras_model(tf_keras_layers())
    loss = model.training_loss_closure(h11_data(rng), compile=False)
    adam = tf_keras.optimizers.Adam(0.01)
    start = float(loss())
    for _ in range(5):
        adam.minimize(loss, model.trainable_variables)
    assert float(loss()) < start


# ------------------------------------------------------------------ H7: classes


def h7_model(likelihood, num_latent_gps=3):
    """q with mean (1, 0, -1) and variance (.5, 1, 2) at x = 1: one linear feature for each."""
    kernel = gpflow.kernels.Linear()
    network = gpn.RFE(kernel, 1, num_latent_gps=num_latent_gps)
    if num_latent_gps == 3:
        network.q_mu.assign([[1.0, 0.0, -1.0]])
        network.q_sqrt.assign(np.sqrt([0.5, 1.0, 2.0])[:, None, None])
    return gpn.GPNet(
        kernel, likelihood, network, num_latent_gps=num_latent_gps, num_data=1, measurement=[[1.0]]
    )


def softmax():
    """With more than GPflow's 100 draws, whose noise is as large as the tolerance."""
    likelihood = gpflow.likelihoods.Softmax(3)
    likelihood.num_monte_carlo_points = 2000
    return likelihood


@pytest.mark.parametrize(
    "likelihood, probabilities, atol, total",
    [
        (lambda: gpflow.likelihoods.MultiClass(3), [0.7257, 0.1891, 0.0852], 1e-3, 1e-3),
        (softmax, [0.585, 0.270, 0.145], 0.05, 0.05),
    ],
    ids=["RobustMax", "Softmax"],
)
def test_h7_class_probabilities(likelihood, probabilities, atol, total):
    tf.random.set_seed(0)
    model = h7_model(likelihood())
    X = np.ones((1, 1))
    p, _ = model.predict_y(X)
    np.testing.assert_allclose(p, [probabilities], atol=atol)
    np.testing.assert_allclose(np.sum(p), 1.0, atol=1e-4)
    for dtype in (np.int64, np.float64):
        densities = [
            np.exp(model.predict_log_density((X, np.array([[label]], dtype)))) for label in range(3)
        ]
        np.testing.assert_allclose(np.sum(densities), 1.0, atol=total)


@pytest.mark.parametrize("likelihood", [gpflow.likelihoods.MultiClass, gpflow.likelihoods.Softmax])
def test_h7_wrong_labels_and_latents_are_refused(likelihood):
    model = h7_model(likelihood(3))
    X = np.ones((1, 1))
    with pytest.raises(ValueError, match="class indices 0 to 2"):
        model.training_loss((X, np.array([[3]])))
    with pytest.raises(ValueError, match="for one-hot labels"):
        model.training_loss((X, np.array([[0, 1, 0]])))
    with pytest.raises(ValueError, match="num_latent_gps=3"):
        h7_model(likelihood(3), num_latent_gps=1)


# ------------------------------------------------------------------ H8: a mean for each latent


def h8_model(A, b):
    kernel = gpflow.kernels.SquaredExponential()
    return gpn.GPNet(
        kernel,
        gpflow.likelihoods.HeteroskedasticTFPConditional(),
        gpn.RFE(kernel, 1, 20, num_latent_gps=2),
        mean_function=gpflow.mean_functions.Linear(A, b),
        num_latent_gps=2,
        num_data=1,
    )


def test_h8_a_mean_for_each_latent():
    model = h8_model([[3.0, 0.0]], [0.0, 0.0])
    X = np.array([[2.0]])
    np.testing.assert_allclose(model.predict_f(X)[0], [[6.0, 0.0]], atol=1e-12)
    mean, variance = model.predict_y(X)
    assert mean.shape == variance.shape == (1, 1)
    np.testing.assert_allclose(mean, [[6.0]], atol=1e-10)
    # E exp(2 g) for g ~ N(0, 1), by 20-point quadrature, plus the variance of f.
    np.testing.assert_allclose(variance, [[1.0 + np.exp(2.0)]], rtol=1e-4)


def test_h8_one_mean_for_two_latents_is_refused():
    with pytest.raises(ValueError, match=r"mean_function gives 1 columns.*2 latent GPs"):
        h8_model([[3.0]], [0.0]).training_loss((np.array([[2.0]]), np.array([[1.0]])))


# ------------------------------------------------------------------ H12: many rows


@pytest.mark.parametrize("likelihood", [gpflow.likelihoods.Gaussian, gpflow.likelihoods.StudentT])
def test_h12_chunks_do_not_change_predictions(rng, likelihood):
    kernel = gpflow.kernels.SquaredExponential(lengthscales=np.ones(8))
    network = gpn.RFE(kernel, 8, 20)
    network.q_mu.assign(rng.normal(size=(40, 1)))
    network.q_sqrt.assign(np.tril(rng.normal(size=(1, 40, 40))))
    model = gpn.GPNet(kernel, likelihood(), network, num_data=1)
    X, Y = rng.normal(size=(2500, 8)), rng.normal(size=(2500, 1))

    def predictions():
        return *model.predict_f(X), *model.predict_y(X), model.predict_log_density((X, Y))

    whole = predictions()
    for rows in (1000, 999, 2500):
        model.prediction_rows = rows
        for one, other in zip(whole, predictions(), strict=True):
            assert one.shape == other.shape
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


def test_h12_no_rows_one_row_and_too_large_a_covariance():
    kernel = gpflow.kernels.SquaredExponential(lengthscales=np.ones(8))
    model = gpn.GPNet(kernel, gpflow.likelihoods.Gaussian(), gpn.RFE(kernel, 8, 20), num_data=1)
    for rows in (0, 1):
        for moment in (*model.predict_f(np.ones((rows, 8))), *model.predict_y(np.ones((rows, 8)))):
            assert moment.shape == (rows, 1)
    with pytest.raises(ValueError, match=r"\(200000, 8\) needs a covariance of 298 GiB"):
        model.predict_f(np.ones((200_000, 8)), full_cov=True)
    model.prediction_rows = 0
    with pytest.raises(ValueError, match="prediction_rows must be at least 1, got 0"):
        model.predict_f(np.ones((1, 8)))
