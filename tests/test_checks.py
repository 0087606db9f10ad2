"""Data at the door: conversions, and errors that name what is wrong."""

import sys

import gpflow
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from gpflow import likelihoods
from gpflow.keras import tf_keras

import gpflow_gpnet as gpn
from gpflow_gpnet import checks

RBF = gpflow.kernels.SquaredExponential


def make_model(likelihood=None, num_latent_gps=1, kernel=None, **kwargs):
    kernel = kernel or RBF()
    network = gpn.RFE(kernel, 1, 3, num_latent_gps=num_latent_gps)
    likelihood = likelihood or likelihoods.Gaussian()
    return gpn.GPNet(
        kernel, likelihood, network, num_latent_gps=num_latent_gps, num_data=4, **kwargs
    )


# ------------------------------------------------------------------ conversion


@pytest.mark.parametrize(
    "convert",
    [
        lambda values: values.astype(np.int64),
        lambda values: values.astype(np.uint8),
        lambda values: values.astype(bool),
        lambda values: values.astype(np.float16),
        lambda values: values.astype(np.float32),
        lambda values: values.astype(np.float64),
        lambda values: values.astype(object),
        lambda values: values.tolist(),
        lambda values: pd.DataFrame(values),
        lambda values: pd.DataFrame(values).astype({0: int, 1: bool}),
        lambda values: tf.constant(values, tf.int32),
        lambda values: tf.constant(values, tf.float32),
        lambda values: tf.Variable(values),
        lambda values: gpflow.Parameter(values),
    ],
    ids=[
        "int64", "uint8", "bool", "float16", "float32", "float64", "object", "list", "frame",
        "mixed frame", "int tensor", "float tensor", "variable", "parameter",
    ],
)  # fmt: skip
def test_numbers_become_tensors_of_the_default_float_type(convert, float_type):
    values = np.array([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
    for tensor in checks.to_tensors((convert(values), convert(values))):
        assert tf.is_tensor(tensor) and tensor.dtype == float_type
        np.testing.assert_array_equal(tensor, values)


def test_softmax_labels_become_integers():
    for dtype in (np.int64, np.float64, np.float32):
        Y = np.array([[0], [2]], dtype)
        _, labels = checks.to_tensors((np.zeros((2, 1)), Y), likelihoods.Softmax(3))
        assert labels.dtype.is_integer
        np.testing.assert_array_equal(labels, [[0], [2]])


@pytest.mark.parametrize("data", [np.zeros((3, 2)), (np.zeros((3, 1)),), 7, None])
def test_data_must_be_a_pair(data):
    with pytest.raises(ValueError, match="data must be a pair"):
        checks.to_tensors(data)


@pytest.mark.parametrize(
    "X, column",
    [
        (pd.DataFrame({"age": [1.0, 2.0], "town": ["Bath", "York"]}), "town"),
        (pd.DataFrame({"age": [1.0, 2.0], "born": pd.to_datetime(["2001", "2002"])}), "born"),
        (np.array([[1.0, "a"], [2.0, "b"]], dtype=object), "1"),
        (np.array([["x", "1"], ["y", "2"]]), "0"),
    ],
    ids=["text", "dates", "objects", "strings"],
)
def test_columns_that_are_not_numbers_are_named(X, column):
    with pytest.raises(TypeError, match=f"X must be numeric, but column '{column}'"):
        checks.to_tensors((X, np.zeros((2, 1))))


@pytest.mark.parametrize(
    "X, Y, message",
    [
        ((2,), (1,), r"\(2,\).*\(1,\).*single rows needs .batch\(batch_size\)"),
        ((7, 2), (7,), r"\(7, 2\).*\(7,\).*use Y\[:, None\]"),
        ((7,), (7, 1), r"\(7,\).*\(7, 1\).*use X\[:, None\]"),
        ((7, 2), (6, 1), r"\(7, 2\).*\(6, 1\).*same number of rows"),
        ((7, 2, 3), (7, 1), r"\(7, 2, 3\).*must be matrices"),
        ((7, 2), (), r"must be matrices"),
    ],
)
@pytest.mark.parametrize("convert", [np.ones, tf.ones])
def test_shapes_that_do_not_fit_are_both_named(X, Y, message, convert):
    with pytest.raises(ValueError, match=message):
        checks.to_tensors((convert(X), convert(Y)))


def test_matrices_are_told_from_vectors():
    assert checks.check_shape([[1, 2]], "Z").dtype == gpflow.config.default_float()
    with pytest.raises(ValueError, match=r"Z must have two dimensions.*\(3,\).*Z\[:, None\]"):
        checks.check_shape(np.ones(3), "Z")
    with pytest.raises(ValueError, match=r"Z must have two dimensions.*\(1, 1, 1\)"):
        checks.check_shape(np.ones((1, 1, 1)), "Z")


# ------------------------------------------------------------------ targets


@pytest.mark.parametrize(
    "likelihood, good, bad, support",
    [
        (likelihoods.Poisson(), [0, 3, 2.5], [-1, -0.5], "of at least 0"),
        (likelihoods.Exponential(), [0, 3.5], [-1], "of at least 0"),
        (likelihoods.Gamma(), [0.1, 3.5], [0, -1], "above 0"),
        (likelihoods.Beta(), [0.1, 0.9], [0, 1, -1, 2], "strictly between 0 and 1"),
        (likelihoods.Bernoulli(), [0, 1], [-1, 0.5, 2], "0 or 1"),
        (likelihoods.MultiClass(3), [0, 1, 2], [-1, 3, 0.5], "class indices 0 to 2"),
        (likelihoods.Softmax(3), [0, 1, 2], [-1, 3, 0.5], "class indices 0 to 2"),
        (gpn.likelihoods.Ordinal(np.array([0.0, 1.0])), [0, 1, 2], [-1, 3, 0.5], "0 to 2"),
        (likelihoods.Gaussian(), [-1e9, 0, 1e9], [], ""),
        (likelihoods.StudentT(), [-1e9, 0, 1e9], [], ""),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, likelihoods.Likelihood) else "",
)
def test_targets_outside_the_support_are_refused_with_their_rows(likelihood, good, bad, support):
    good = np.array(good, float)[:, None]
    checks.check_targets(likelihood, good)
    for value in bad:
        Y = np.vstack([good, [[value]], good[:1], [[value]]])
        rows = rf"rows \[{len(good)}, {len(good) + 2}\]"
        name = type(likelihood).__name__
        with pytest.raises(ValueError, match=f"{name} needs targets.*{support}.*{rows}"):
            checks.check_targets(likelihood, Y)


@pytest.mark.parametrize("likelihood", [likelihoods.MultiClass(3), likelihoods.Softmax(3)])
def test_one_hot_labels_are_told_what_to_become(likelihood):
    model = make_model(likelihood, num_latent_gps=3)
    with pytest.raises(ValueError, match=r"argmax|class indices"):
        model.training_loss((np.zeros((3, 1)), np.eye(3)))
    with pytest.raises(ValueError, match=r"np\.argmax\(Y, axis=1\)\[:, None\]"):
        checks.check_targets(likelihood, np.eye(3))


@pytest.mark.parametrize("label", [3, -1, 0.5])
@pytest.mark.parametrize("likelihood", [likelihoods.MultiClass(3), likelihoods.Softmax(3)])
def test_models_refuse_labels_that_are_no_class(likelihood, label):
    """Also where conversion to integers would hide the fraction."""
    model = make_model(likelihood, num_latent_gps=3)
    data = (np.zeros((2, 1)), np.array([[0], [label]], float))
    with pytest.raises(ValueError, match=r"class indices 0 to 2.*row"):
        model.training_loss(data)


# ------------------------------------------------------------------ batches


def test_check_batch_names_rows_and_columns():
    model = make_model()
    X, Y = np.zeros((4, 1)), np.ones((4, 1))
    checks.check_batch(model, (X, Y))
    for name, data in (("X", (X.copy(), Y)), ("Y", (X, Y.copy()))):
        data["XY".index(name)][2:] = np.nan
        with pytest.raises(ValueError, match=f"{name} has NaN.* 2 rows, the first is row 2"):
            checks.check_batch(model, data)
    with pytest.raises(ValueError, match="no rows"):
        checks.check_batch(model, (X[:0], Y[:0]))
    with pytest.raises(ValueError, match="Y has 2 columns, but the model has 1 outputs"):
        checks.check_batch(model, (X, np.hstack([Y, Y])))


def linear(columns):
    return gpflow.mean_functions.Linear(np.ones((1, columns)), np.zeros(columns))


NETWORKS = {
    "RFE": lambda kernel: gpn.RFE(kernel, 2, 4),
    "AdaptiveBasis": lambda kernel: gpn.AdaptiveBasis((4,), kernel=kernel, input_dim=2),
    "NTK": lambda kernel: gpn.NTK((4,), kernel=kernel, input_dim=2),
    "LinearisedNTK": lambda kernel: gpn.LinearisedNTK(gpn.NTK((4,), kernel=kernel, input_dim=2)),
    "BNN": lambda kernel: gpn.BNN((4,), kernel=kernel, input_dim=2),
    "InducingFeatures": lambda kernel: gpn.InducingFeatures(kernel, np.zeros((3, 2))),
    "ConvNTK": lambda kernel: gpn.ConvNTK((1, 2, 1), 1, width=0.02, features=3, filters=(64,)),
    "LinearSum": lambda kernel: gpn.RFE(kernel, 2, 4) + gpn.RFE(kernel, 2, 4),
    "Sum": lambda kernel: gpn.NTK((4,), kernel=kernel, input_dim=2) + gpn.RFE(kernel, 2, 4),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_inputs_of_another_width_are_refused(name):
    """One column would be spread over both inputs of most networks: a silent wrong answer."""
    kernel, Y = gpflow.kernels.SquaredExponential(), np.zeros((3, 1))
    network = NETWORKS[name](kernel)
    assert network.input_dim == 2
    model = gpn.GPNet(kernel, gpflow.likelihoods.Gaussian(), network, num_data=3)
    calls = (
        model.predict_f,
        model.predict_y,
        model.posterior().predict_f,
        lambda X: model.predict_quantiles(X, [0.5]),
        lambda X: model.predict_log_density((X, Y)),
        lambda X: model.elbo((X, Y)),
        tf.function(lambda X: model.training_loss((X, Y))),
        lambda X: gpn.fit(model, (X, Y), num_steps=1, progress=False),
    )
    for call in calls:
        for columns in (1, 3):
            with pytest.raises(ValueError, match=rf"X must have 2 columns.*\(3, {columns}\)"):
                call(np.zeros((3, columns)))
    if isinstance(network, gpn.LinearNetwork):
        with pytest.raises(ValueError, match="X must have 2 columns"):
            model.sample_functions(1)(np.zeros((3, 1)))


def test_widths_of_own_networks_may_be_numpy_integers():
    kernel = gpflow.kernels.SquaredExponential()
    network = gpn.RFE(kernel, 1, 4)
    network.input_dim = np.int64(1)
    model = gpn.GPNet(kernel, gpflow.likelihoods.Gaussian(), network)
    with pytest.raises(ValueError, match="X must have 1 columns"):
        model.predict_f(np.zeros((3, 2)))


def test_networks_of_other_widths_do_not_add_up():
    kernel = gpflow.kernels.SquaredExponential()
    for first in (gpn.RFE(kernel, 1, 4), gpn.NTK((4,), input_dim=1)):
        with pytest.raises(ValueError, match="same number of inputs"):
            first + gpn.RFE(kernel, 2, 4)
    free = gpn.Deterministic(gpflow.functions.Linear())
    assert free.input_dim is None and (free + gpn.RFE(kernel, 2, 4)).input_dim == 2


def test_kernels_of_another_width_are_refused():
    one = gpflow.kernels.SquaredExponential()
    for kernel in (
        gpflow.kernels.Linear(variance=[1.0, 1.0]),
        gpflow.kernels.Polynomial(variance=[1.0, 1.0]) + one,
        gpflow.kernels.ArcCosine(weight_variances=[1.0, 1.0]) * one,
        gpflow.kernels.Periodic(one, period=[1.0, 1.0]),
        gpflow.kernels.Matern12(lengthscales=[1.0, 1.0]),
    ):
        model = gpn.GPNet(kernel, gpflow.likelihoods.Gaussian(), gpn.RFE(one, 1, 4), num_data=3)
        with pytest.raises(ValueError, match=r"expected 2 active input\(s\), .* got 1"):
            gpn.fit(model, (np.eye(3)[:, :1], np.zeros((3, 1))), num_steps=1, progress=False)


def test_targets_of_another_width_have_no_log_density():
    kernel, X = gpflow.kernels.SquaredExponential(), np.zeros((3, 1))
    model = gpn.GPNet(kernel, gpflow.likelihoods.Gaussian(), gpn.RFE(kernel, 1, 4))
    with pytest.raises(ValueError, match="Y has 2 columns, but the model has 1 outputs"):
        model.predict_log_density((X, np.zeros((3, 2))))


def test_mean_function_needs_a_column_for_each_function():
    X, Y = np.zeros((4, 1)), np.ones((4, 2))
    for columns in (1, 2):
        checks.check_batch(make_model(num_latent_gps=2, mean_function=linear(columns)), (X, Y))
    with pytest.raises(ValueError, match="mean_function gives 3 columns, but the model has 2"):
        checks.check_batch(make_model(num_latent_gps=2, mean_function=linear(3)), (X, Y))


def test_mean_function_of_other_inputs_is_named():
    X, Y = np.zeros((4, 1)), np.ones((4, 1))
    of_three = gpflow.mean_functions.Linear(np.ones((3, 1)), np.zeros(1))
    with pytest.raises(ValueError, match="mean_function Linear failed for X of 1 columns"):
        checks.check_batch(make_model(mean_function=of_three), (X, Y))


def test_mean_function_of_mixed_functions_has_a_column_for_each_output():
    """It is added to f = W g, not to the latent g."""
    kernel = gpflow.kernels.LinearCoregionalization([RBF(), RBF()], W=np.ones((3, 2)))
    X, Y = np.zeros((4, 1)), np.ones((4, 3))
    model = make_model(num_latent_gps=2, kernel=kernel, mean_function=linear(3))
    checks.check_batch(model, (X, Y))
    assert model.predict_f(X)[0].shape == (4, 3)
    with pytest.raises(ValueError, match="mean_function gives 2 columns"):
        checks.check_batch(
            make_model(num_latent_gps=2, kernel=kernel, mean_function=linear(2)), (X, Y)
        )


def test_mean_function_must_not_be_spread_over_latents_with_different_roles():
    likelihood = likelihoods.HeteroskedasticTFPConditional()
    X, Y = np.zeros((4, 1)), np.ones((4, 1))
    checks.check_batch(make_model(likelihood, 2, mean_function=linear(2)), (X, Y))
    with pytest.raises(ValueError, match="gives 1 columns, but the model has 2 latent GPs"):
        checks.check_batch(make_model(likelihood, 2, mean_function=linear(1)), (X, Y))


@pytest.mark.parametrize(
    "X, Y", [((None, 1), (None,)), ((None,), (None, 1)), ((4, 1), (3, 1)), ((4, 1, 1), (4, 1))]
)
def test_compiled_losses_refuse_shapes_while_tracing(X, Y):
    model = make_model()
    loss = tf.function(lambda X, Y: model.training_loss((X, Y)))
    with pytest.raises(ValueError, match=r"X has shape .* and Y has shape"):
        loss.get_concrete_function(*(tf.TensorSpec(shape, tf.float64) for shape in (X, Y)))


def test_compiled_closures_refuse_values_when_they_are_made():
    model = make_model(likelihoods.Poisson())
    X = np.zeros((4, 1))
    with pytest.raises(ValueError, match="Poisson needs targets of at least 0"):
        model.training_loss_closure((X, -np.ones((4, 1))))
    with pytest.raises(ValueError, match=r"Y\[:, None\]"):
        model.training_loss_closure((X, np.ones(4)))


# ------------------------------------------------------------------ far from 0


def test_inputs_far_from_0_are_told_to_be_centred(rng):
    kernel = RBF(lengthscales=[0.5, 0.5, 1e4])
    model = gpn.GPNet(kernel, likelihoods.Gaussian(), gpn.RFE(kernel, 3, 3))
    X = rng.uniform(-1, 1, size=(20, 3))

    def check(*offset):
        checks.check_far_from_origin(model, X + np.array(offset))

    check(0.0, 0.0, 0.0)
    check(0.0, 500.0, 1e6)
    with pytest.raises(ValueError, match=r"X columns \[1\] lie far from 0.*centre the inputs"):
        check(0.0, 1e5, 1e6)
    with pytest.raises(ValueError, match=r"columns \[0, 2\]"):
        check(-1e5, 0.0, 1e8)
    with pytest.raises(ValueError, match="centre the inputs"):
        make_model().training_loss_closure((1e6 + X[:, :1], X[:, :1]))


# ------------------------------------------------------------------ modules


class Wrapped(gpn.InferenceNetwork):
    def __init__(self, layers):
        super().__init__()
        self.body = layers

    def __call__(self, X, full_cov=False):
        raise NotImplementedError


def test_keras_3_layers_inside_networks_are_refused():
    import keras

    for layers in (
        keras.layers.Dense(2),
        keras.Sequential([keras.layers.Dense(2)]),
        [keras.layers.Dense(2)],
        {"first": keras.layers.Dense(2)},
        Wrapped(keras.layers.Dense(2)),
    ):
        with pytest.raises(TypeError, match=r"Wrapped\.body is a Keras 3 (Dense|Sequential)"):
            checks.check_module(Wrapped(layers))


def test_trackable_layers_and_plain_parameters_are_accepted(monkeypatch):
    checks.check_module(Wrapped(tf_keras.layers.Dense(2)))
    checks.check_module(Wrapped([gpflow.Parameter(1.0)]))
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    checks.check_module(Wrapped(gpflow.Parameter(1.0)))


def test_networks_must_be_callable():
    with pytest.raises(TypeError, match=r"must be an InferenceNetwork.* got Module"):
        checks.check_module(tf.Module())


def test_output_indices_must_be_those_of_the_coregion_kernel():
    kernel = gpflow.kernels.Matern32(active_dims=[0]) * gpflow.kernels.Coregion(
        2, 1, active_dims=[1]
    )
    model = gpn.GPNet(kernel, gpflow.likelihoods.Gaussian(), gpn.RFE(kernel, 2, 3), num_data=3)
    X, Y = np.array([[0.1, 0.0], [0.2, 1.0], [0.3, 1.0]]), np.zeros((3, 1))
    checks.check_batch(model, (X, Y))
    for index in (2.0, -1.0, 0.5):
        X[1, 1] = index
        with pytest.raises(ValueError, match=f"column 1 .* from 0 to 1, but row 1 has {index:g}"):
            checks.check_batch(model, (X, Y))


def test_float16_is_refused():
    kernel = gpflow.kernels.SquaredExponential()
    network = gpn.RFE(kernel, 1, 3)
    with gpflow.config.as_context(gpflow.config.Config(float=np.float16)):
        with pytest.raises(ValueError, match="float16"):
            gpn.GPNet(kernel, gpflow.likelihoods.Gaussian(), network, num_data=3)


def test_missing_values_of_a_nullable_column_are_shown():
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": pd.array([1, pd.NA], dtype="Int64")})
    with pytest.raises(TypeError, match=r"column 'b' .* such as <NA>"):
        checks.to_tensors((frame, np.zeros((2, 1))))
