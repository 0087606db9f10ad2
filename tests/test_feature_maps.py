"""Features against the kernels they stand for."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow import kernels

from gpflow_gpnet.feature_maps import (
    ConcatenatedFeatures,
    ConstantFeatures,
    CoregionFeatures,
    FeatureMap,
    FourierFeatures,
    LinearFeatures,
    PolynomialFeatures,
    TensorProductFeatures,
    feature_map,
    finite_features,
)
from gpflow_gpnet.spectral import NoSpectralMeasureError

STATIONARY = [kernels.SquaredExponential, kernels.Matern12, kernels.Matern32, kernels.Matern52]


def inputs(num: int = 25, dim: int = 2) -> np.ndarray:
    return np.random.default_rng(5).uniform(-1.0, 1.0, (num, dim))


def indexed(num_outputs: int, num: int = 25) -> np.ndarray:
    """Inputs whose second column is an output index."""
    index = np.random.default_rng(6).integers(num_outputs, size=(num, 1))
    return np.hstack([inputs(num, 1), index])


def build(kernel: kernels.Kernel, input_dim: int, num: int = 50, seed: int = 0, **kw) -> FeatureMap:
    return feature_map(kernel, input_dim, num, rng=np.random.default_rng(seed), **kw)


def gram(features: FeatureMap, X: np.ndarray) -> np.ndarray:
    phi = features(tf.convert_to_tensor(X, gpflow.default_float()))
    assert phi.shape == (len(X), features.num_features)
    return tf.linalg.matmul(phi, phi, transpose_b=True).numpy()


def coregion(num_outputs: int = 3, column: int = 1) -> kernels.Coregion:
    kernel = kernels.Coregion(num_outputs, 2, active_dims=[column])
    kernel.W.assign(np.random.default_rng(0).standard_normal((num_outputs, 2)))
    kernel.kappa.assign(np.linspace(0.1, 2.0, num_outputs))
    return kernel


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kernel_class", STATIONARY)
def test_features_reproduce_the_kernel(kernel_class, seed: int) -> None:
    """Case H9."""
    X = inputs()
    kernel = kernel_class(variance=2.5, lengthscales=[0.3, 4.0])
    features = build(kernel, 2, 20_000, seed, share_hyperparameters=True)
    assert np.abs(gram(features, X) - kernel(X)).max() <= 0.06
    kernel.lengthscales.assign([1.0, 1.0])
    assert np.abs(gram(features, X) - kernel(X)).max() <= 0.06


def test_own_hyperparameters_start_at_the_kernel_s_and_stay() -> None:
    X = inputs()
    kernel = kernels.Matern32(variance=2.5, lengthscales=[0.3, 4.0])
    shared, own = build(kernel, 2, share_hyperparameters=True), build(kernel, 2)
    before = gram(own, X)
    np.testing.assert_allclose(before, gram(shared, X), atol=1e-10)
    kernel.lengthscales.assign([1.0, 1.0])
    assert np.array_equal(gram(own, X), before)
    own.lengthscales.assign([1.0, 1.0])
    np.testing.assert_allclose(gram(own, X), gram(shared, X), atol=1e-10)


@pytest.mark.parametrize("kernel_class", [*STATIONARY, kernels.Exponential])
def test_variance_is_exact(kernel_class) -> None:
    kernel = kernel_class(variance=2.5) + kernel_class(variance=0.5)
    np.testing.assert_allclose(np.diag(gram(build(kernel, 2, 7), inputs())), 3.0, rtol=1e-12)


def test_error_falls_at_least_as_the_root_of_the_number_of_frequencies() -> None:
    """Identity 11 for a pooled block; 0.12 is three standard deviations of the slope."""
    X = inputs(12)
    kernel = kernels.Matern32(1.5, [0.3, 2.0]) + kernels.RationalQuadratic(0.5, 0.7)
    rms = [
        np.std([gram(build(kernel, 2, num, seed), X) - kernel(X) for seed in range(15)])
        for num in (500, 20_000)
    ]
    slope = np.log(rms[1] / rms[0]) / np.log(40.0)
    assert slope < -0.5 + 0.12


EXACT: dict[str, tuple[Callable[[], kernels.Kernel], type[FeatureMap], int, np.ndarray]] = {
    "linear": (lambda: kernels.Linear(0.7), LinearFeatures, 2, inputs()),
    "linear ARD": (
        lambda: kernels.Linear([0.7, 2.0], active_dims=[2, 0]),
        LinearFeatures,
        2,
        inputs(dim=3),
    ),
    "polynomial": (
        lambda: kernels.Polynomial(3.0, variance=0.7, offset=0.4),
        PolynomialFeatures,
        10,
        inputs(),
    ),
    "polynomial ARD": (
        lambda: kernels.Polynomial(4, [0.7, 2.0], 1.3, active_dims=slice(1, 3)),
        PolynomialFeatures,
        15,
        inputs(dim=3),
    ),
    "polynomial of degree one": (
        lambda: kernels.Polynomial(1, 0.7, 1.3),
        PolynomialFeatures,
        3,
        inputs(),
    ),
    "constant": (lambda: kernels.Constant(0.7), ConstantFeatures, 1, inputs()),
    "coregion": (coregion, CoregionFeatures, 3, indexed(3)),
    "sum": (
        lambda: kernels.Linear(0.7) + kernels.Constant(2.0) + kernels.Cosine(0.3, 0.9),
        ConcatenatedFeatures,
        5,
        inputs(),
    ),
    "product": (
        lambda: kernels.Linear(0.7) * kernels.Polynomial(2) * kernels.Cosine(0.3, 0.9),
        TensorProductFeatures,
        24,
        inputs(),
    ),
    "nested": (
        lambda: (kernels.Linear(active_dims=[0]) + kernels.Cosine(active_dims=[0])) * coregion(),
        TensorProductFeatures,
        9,
        indexed(3),
    ),
}


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("name", EXACT)
def test_finite_features_are_exact(name: str, share: bool) -> None:
    make, kind, num_features, X = EXACT[name]
    kernel = make()
    features = build(kernel, X.shape[1], share_hyperparameters=share)
    assert isinstance(features, kind)
    assert features.num_features == num_features
    np.testing.assert_allclose(gram(features, X), kernel(X), atol=1e-10)

    before = gram(features, X)
    for parameter in kernel.trainable_parameters:
        parameter.assign(1.5 * parameter)
    expected = kernel(X) if share else before
    np.testing.assert_allclose(gram(features, X), expected, atol=1e-10)


def test_stationary_parts_make_one_block() -> None:
    kernel = kernels.Matern12() + kernels.Linear() + kernels.RBF() + kernels.Matern12() * coregion()
    features = build(kernel, 2, 40)
    kinds = [type(part) for part in features.maps]
    assert kinds == [FourierFeatures, LinearFeatures, TensorProductFeatures]
    assert [part.num_features for part in features.maps] == [80, 2, 240]
    assert features.num_features == 322


@pytest.mark.parametrize(
    "make",
    [
        lambda: kernels.Matern32(active_dims=[0]) * coregion() + kernels.Constant(0.3),
        lambda: kernels.RBF(active_dims=[0]) * kernels.Matern32(active_dims=[0]) * coregion(),
        lambda: kernels.RBF(0.5) + kernels.Linear(active_dims=[0]) * kernels.Cosine(),
    ],
)
def test_mixed_kernels(make) -> None:
    """20,000 frequencies on a variance of about 5: four standard deviations are 0.1."""
    X, kernel = indexed(3), make()
    assert np.abs(gram(build(kernel, 2, 20_000), X) - kernel(X)).max() < 0.1


def test_own_parameters_are_apart_from_the_kernel() -> None:
    kernel = kernels.Polynomial() * kernels.RBF() + coregion()
    kernel.kernels[0].kernels[0].variance.prior = "a prior"
    gpflow.set_trainable(kernel, False)
    features = build(kernel, 2)
    mine = {id(parameter) for parameter in features.parameters}
    assert not mine & {id(parameter) for parameter in kernel.parameters}
    assert all(parameter.prior is None for parameter in features.parameters)
    assert features.trainable_parameters == features.parameters


def test_shared_parameters_are_the_kernel_s() -> None:
    kernel = kernels.RBF() + kernels.Linear() * coregion()
    features = build(kernel, 2, share_hyperparameters=True)
    mine = {id(parameter) for parameter in features.parameters}
    assert {id(parameter) for parameter in kernel.parameters} <= mine


def test_shared_lengthscales_of_cosine_may_be_negative() -> None:
    kernel = kernels.Cosine(0.7, [0.5, 1.3])
    kernel.lengthscales.assign([0.5, -1.3])
    features = build(kernel, 2, share_hyperparameters=True)
    np.testing.assert_allclose(gram(features, inputs()), kernel(inputs()), atol=1e-12)
    kernel.lengthscales.assign([-0.5, -0.3])
    np.testing.assert_allclose(gram(features, inputs()), kernel(inputs()), atol=1e-12)


def test_one_shared_lengthscale_on_some_inputs() -> None:
    kernel = kernels.RBF(lengthscales=0.5, active_dims=[1])
    features = build(kernel, 3, 20_000, share_hyperparameters=True)
    kernel.lengthscales.assign(0.2)
    X = inputs(dim=3)
    assert np.abs(gram(features, X) - kernel(X)).max() <= 0.03


@pytest.mark.parametrize(
    ("kernel", "word"),
    [
        (kernels.RBF() + kernels.Matern12(), "Sum"),
        (kernels.RBF() * kernels.Matern12() + kernels.Linear(), "Product"),
        (kernels.RBF(lengthscales=[1.0, 2.0], active_dims=[0, 2]), "SquaredExponential"),
        (kernels.RBF(lengthscales=[1.0, 2.0, 3.0], active_dims=[2, 1, 0]), "SquaredExponential"),
    ],
)
def test_hyperparameters_that_cannot_be_shared(kernel, word: str) -> None:
    with pytest.raises(ValueError, match=f"share_hyperparameters needs.*got {word}"):
        build(kernel, 3, share_hyperparameters=True)


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (kernels.ArcCosine(), ["ArcCosine", "Matern52", "Coregion", "InducingFeatures"]),
        (kernels.RBF() + kernels.White(), ["In Sum: White", "InducingFeatures"]),
        (
            kernels.RBF() + kernels.Linear() * kernels.Periodic(kernels.RBF()),
            ["In Sum: In Product: Periodic"],
        ),
    ],
)
def test_kernels_without_features(kernel, words: list[str]) -> None:
    with pytest.raises(NoSpectralMeasureError) as info:
        build(kernel, 2)
    for word in words:
        assert word in str(info.value)


def test_refused_arguments() -> None:
    with pytest.raises(TypeError, match=r"one output, got SharedIndependent: .*latent_kernels"):
        build(kernels.SharedIndependent(kernels.RBF(), 2), 2)
    with pytest.raises(ValueError, match="num_frequencies must be at least 1, got 0"):
        build(kernels.RBF(), 2, 0)
    with pytest.raises(ValueError, match="expected 3 active"):
        build(kernels.RBF(lengthscales=[1.0] * 3), 2)
    with pytest.raises(ValueError, match=r"positive whole number .* got 2\.5"):
        build(kernels.Polynomial(2.5), 2)
    with pytest.raises(ValueError, match="degree 8 over 20 inputs has 3,108,105 monomials"):
        build(kernels.Polynomial(8), 20)
    with pytest.raises(ValueError, match="X must have 2 columns"):
        build(kernels.RBF(), 2)(inputs(dim=3))
    with pytest.raises(ValueError, match=r"frequencies must have shape \[m, D\]"):
        FourierFeatures(np.ones(3), 1.0, 1.0)
    with pytest.raises(ValueError, match=r"lengthscales must be a scalar or have shape \[2\]"):
        FourierFeatures(np.ones((3, 2)), np.ones(3), 1.0)
    for power in (np.ones(3), np.full(2, 0.5), np.array([1.5, -0.25, -0.25])):
        with pytest.raises(ValueError, match="power must be 3 positive numbers"):
            FourierFeatures(np.ones((3, 2)), np.ones(2), 1.0, power)


def test_output_index_out_of_range() -> None:
    features = build(coregion(), 2)
    compiled = tf.function(features)
    for index in (-1.0, 3.0):
        X = tf.constant([[0.0, 1.0], [0.0, index]], tf.float64)
        for call in (features, compiled):
            with pytest.raises(
                tf.errors.InvalidArgumentError, match="column 1 must hold output indices 0 to 2"
            ):
                call(X)
        rows = tf.function(features, jit_compile=True)(X).numpy()
        assert np.isfinite(rows[0]).all()
        assert np.isnan(rows[1]).all()


def test_inputs_outside_active_dims_stay_outside_in_training() -> None:
    kernel = kernels.RBF(active_dims=[0]) * coregion()
    features = build(kernel, 2)
    with tf.GradientTape() as tape:
        value = tf.reduce_sum(features(indexed(3)) ** 3)
    gradient = tape.gradient(value, features.maps[0].frequencies.unconstrained_variable).numpy()
    assert (gradient[:, 1] == 0.0).all()
    assert (gradient[:, 0] != 0.0).all()


def test_frequencies_may_be_fixed() -> None:
    kernel = kernels.RBF() + kernels.Linear()
    for trainable in (False, True):
        fourier = build(kernel, 2, trainable_frequencies=trainable).maps[0]
        assert fourier.frequencies.trainable == trainable
        assert fourier.power.trainable == trainable
        assert fourier.lengthscales.trainable


def test_draws_depend_on_the_generator_only() -> None:
    first, again, other = (build(kernels.RBF(), 2, seed=seed).frequencies for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def everything() -> kernels.Kernel:
    """A kernel that needs every feature map."""
    return (
        kernels.Matern32(lengthscales=0.5, active_dims=[0]) * coregion()
        + kernels.Polynomial(2, active_dims=[0])
        + kernels.Constant() * kernels.Linear()
    )


@pytest.mark.parametrize("float_type", [np.float32, np.float64])
def test_batches_compilation_and_float_types(float_type) -> None:
    with gpflow.config.as_context(gpflow.config.Config(float=float_type)):
        features = build(everything(), 2, 10)
        # The mean keeps rounding small, but the frequencies of Matern kernels have heavy tails.
        tolerance = 1e-10 if float_type is np.float64 else 2e-4
        X = tf.convert_to_tensor(np.stack([indexed(3, 4)] * 6).reshape(2, 3, 4, 2), float_type)
        expected = features(X[0, 0])
        assert expected.dtype == float_type
        for call in (
            features,
            tf.function(features),
            tf.function(features, jit_compile=True),
            tf.function(
                features, input_signature=[tf.TensorSpec([2, 3, None, 2], X.dtype)], autograph=False
            ),
        ):
            result = call(X)
            assert result.shape == (2, 3, 4, features.num_features)
            for batch in result.numpy().reshape(6, 4, -1):
                np.testing.assert_allclose(batch, expected, atol=tolerance)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_every_trainable_variable_has_a_finite_gradient(jit_compile: bool) -> None:
    features = build(everything(), 2, 10)
    X = tf.constant(indexed(3))

    @tf.function(jit_compile=jit_compile)
    def gradients() -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(features(X) ** 3)
        return tape.gradient(value, features.trainable_variables)

    for gradient in gradients():
        assert np.isfinite(gradient).all()
        assert np.abs(gradient).max() > 0.0


def test_copies_are_independent_and_equal() -> None:
    features, X = build(everything(), 2, 10), indexed(3)
    expected = features(X).numpy()
    copied = copy.deepcopy(features)
    restored = pickle.loads(pickle.dumps(gpflow.utilities.freeze(features)))
    for variable in features.trainable_variables:
        variable.assign(2.0 * variable)
    assert np.array_equal(copied(X), expected)
    assert np.array_equal(restored(X), expected)
    assert not np.allclose(features(X), expected)


def test_other_finite_kernels_register() -> None:
    class Doubled(kernels.Linear):
        """Four times the Linear kernel."""

        def K(self, X, X2=None):
            return 4.0 * super().K(X, X2)

    @finite_features.register(Doubled)
    def _doubled(kernel: Doubled, input_dim: int, take) -> FeatureMap:
        return LinearFeatures(4.0 * take(kernel.variance), range(input_dim))

    try:
        kernel = Doubled(0.7) * kernels.Constant(2.0)
        np.testing.assert_allclose(gram(build(kernel, 2), inputs()), kernel(inputs()), atol=1e-10)
    finally:
        del finite_features.funcs[(Doubled,)]
        finite_features.reorder()
