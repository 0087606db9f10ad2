"""Measurement distributions: statistics at fixed seeds, determinism, compilation, errors."""

from __future__ import annotations

import copy
import pickle

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow import kernels

from gpflow_gpnet.measurement import (
    BatchInputs,
    Empirical,
    KernelSmoothed,
    MeasurementDistribution,
    Mixture,
    Uniform,
    UserDefined,
    as_measurement,
)

NUM = 40_000
DATA = np.array([[0.0, 10.0], [1.0, 20.0], [2.0, 30.0], [3.0, 40.0]])


def batch(size: int = 6) -> tf.Tensor:
    """Rows [i, -i], which tell themselves apart."""
    rows = tf.range(size, dtype=gpflow.default_float())
    return tf.stack([rows, -rows], axis=1)


def smoothed(X: np.ndarray | None = None) -> KernelSmoothed:
    return KernelSmoothed(X, kernels.Matern32(lengthscales=[0.5, 4.0]))


ALL = {
    "Uniform": lambda: Uniform([-1.0, 2.0], [3.0, 5.0]),
    "Empirical": lambda: Empirical(DATA),
    "BatchInputs": lambda: BatchInputs(),
    "KernelSmoothed": lambda: smoothed(DATA),
    "KernelSmoothed batch": lambda: smoothed(),
    "Mixture": lambda: Mixture(Uniform(0.0, 1.0), BatchInputs(), smoothed(), weights=[1, 2, 2]),
}


@pytest.mark.parametrize("name", ALL)
def test_draws_are_functions_of_the_seed(name: str) -> None:
    distribution = ALL[name]()
    jitted = tf.function(lambda seed, X: distribution.sample(5, seed, X), jit_compile=True)
    first = distribution.sample(5, (1, 2), batch()).numpy()
    assert first.shape == (5, 2)
    assert np.array_equal(distribution.sample(5, tf.constant([1, 2]), batch()), first)
    np.testing.assert_allclose(jitted(tf.constant([1, 2]), batch()), first, rtol=1e-9)
    assert not np.array_equal(distribution.sample(5, (1, 3), batch()), first)
    assert not np.array_equal(jitted(tf.constant([3, 2]), batch()), first)


@pytest.mark.parametrize("name", ALL)
def test_dtype_is_the_batch_s(name: str) -> None:
    distribution = ALL[name]()
    assert distribution.sample(5, (1, 2), tf.cast(batch(), tf.float32)).dtype == tf.float32
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32)):
        points = ALL[name]().sample(5, (1, 2), batch())
        assert points.dtype == tf.float32
        assert np.isfinite(points).all()
        assert Uniform(0.0, 1.0)(3).dtype == tf.float32
        assert Empirical(DATA)(3).dtype == tf.float32


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("jit_compile", [False, True])
def test_number_of_points_may_be_a_tensor(name: str, jit_compile: bool) -> None:
    distribution = ALL[name]()

    @tf.function(
        input_signature=[tf.TensorSpec([None, 2], tf.float64)],
        jit_compile=jit_compile,
    )
    def draw(X: tf.Tensor) -> tf.Tensor:
        return distribution.sample(tf.shape(X)[0] - 1, (1, 2), X)

    expected = distribution.sample(5, (1, 2), batch())
    np.testing.assert_allclose(draw(batch()), expected, rtol=1e-9)


@pytest.mark.parametrize("name", ALL)
def test_copies_draw_the_same(name: str) -> None:
    distribution = ALL[name]()
    expected = distribution.sample(5, (1, 2), batch())
    for other in (copy.deepcopy(distribution), pickle.loads(pickle.dumps(distribution))):
        assert np.array_equal(other.sample(5, (1, 2), batch()), expected)


def test_uniform_moments() -> None:
    """Four standard errors: of the mean 0.0058 w, of the variance 0.0016 w², w the width."""
    low, high = np.array([-1.0, 2.0]), np.array([3.0, 5.0])
    points = Uniform(low, high)(NUM, (3, 4)).numpy()
    width = high - low
    assert (points >= low).all() and (points < high).all()
    assert (np.abs(points.mean(axis=0) - (low + high) / 2.0) < 0.006 * width).all()
    assert (np.abs(points.var(axis=0) - width**2 / 12.0) < 0.0016 * width**2).all()
    assert abs(np.corrcoef(points.T)[0, 1]) < 0.02


def test_uniform_scalars_take_the_batch_s_columns() -> None:
    box = Uniform(-2.0, 7.0)
    assert box(3).shape == (3, 1)
    assert box.sample(3, (0, 0), batch()).shape == (3, 2)
    assert Uniform(-1.0, [1.0, 2.0])(3).shape == (3, 2)


def test_empirical_rows_are_equally_likely() -> None:
    """Counts of 10,000 have standard deviation 87."""
    points = Empirical(DATA)(NUM, (3, 4)).numpy()
    rows, counts = np.unique(points, axis=0, return_counts=True)
    assert np.array_equal(rows, DATA)
    assert np.abs(counts - NUM / 4).max() < 4 * 87


def test_empirical_data_are_captured_not_embedded() -> None:
    distribution = Empirical(np.random.default_rng(0).standard_normal((5000, 3)))
    graph = tf.function(lambda: distribution.sample(5, (0, 0))).get_concrete_function()
    assert len(graph.graph.as_graph_def().SerializeToString()) < 20_000  # the data are 120,000
    assert any(tensor is distribution.X for tensor, _ in graph.graph.captures)


def test_batch_rows_come_once_before_any_comes_twice() -> None:
    for seed in range(10):
        few = BatchInputs().sample(4, (0, seed), batch()).numpy()
        assert len(np.unique(few, axis=0)) == 4
        many = BatchInputs().sample(15, (0, seed), batch()).numpy()
        counts = np.unique(many, axis=0, return_counts=True)[1]
        assert sorted(counts.tolist()) == [2, 2, 2, 3, 3, 3]
    firsts = [int(BatchInputs().sample(1, (0, s), batch())[0, 0]) for s in range(60)]
    assert set(firsts) == set(range(6))


def test_smoothing_noise_has_the_kernel_s_lengths() -> None:
    """Four standard errors of a standard deviation: 0.014 of it; of a mean, 0.02."""
    kernel = kernels.Matern32(lengthscales=[0.5, 4.0])
    distribution = KernelSmoothed(np.zeros((1, 2)), kernel)
    for lengthscales in ([0.5, 4.0], [2.0, 0.1]):
        kernel.lengthscales.assign(lengthscales)
        points = distribution(NUM, (3, 4)).numpy() / lengthscales
        np.testing.assert_allclose(points.std(axis=0), np.sqrt(0.5), rtol=0.014)
        np.testing.assert_allclose(points.mean(axis=0), 0.0, atol=0.02)
        assert abs(np.corrcoef(points.T)[0, 1]) < 0.02


def test_smoothing_keeps_to_the_rows_and_leaves_indices_alone() -> None:
    kernel = kernels.RBF(lengthscales=1e-3, active_dims=[0]) * kernels.Coregion(
        6, 1, active_dims=[1]
    )
    X = tf.abs(batch())
    points = KernelSmoothed(None, kernel).sample(6, (1, 2), X).numpy()
    assert sorted(points[:, 1].tolist()) == list(range(6))
    np.testing.assert_allclose(points[:, 0], points[:, 1], atol=0.01)
    assert (points[:, 0] != points[:, 1]).all()


def test_no_gradient_reaches_the_kernel() -> None:
    distribution = smoothed(DATA)
    with tf.GradientTape() as tape:
        value = tf.reduce_sum(distribution(5))
    assert tape.gradient(value, distribution.kernel.trainable_variables) == (None, None)


@pytest.mark.parametrize(
    ("weights", "num", "counts"),
    [
        (None, 9, [3, 3, 3]),
        (None, 11, [5, 3, 3]),
        ([1.0, 0.0, 3.0], 100, [25, 0, 75]),
        ([0.14, 0.57, 0.29], 100, [14, 57, 29]),
        ([0.0, 1.0, 1.0], 3, [1, 1, 1]),
    ],
)
def test_mixture_splits_by_weight(weights, num: int, counts: list[int]) -> None:
    parts = (Uniform(0.0, 1.0), Uniform(10.0, 11.0), Uniform(20.0, 21.0))
    points = Mixture(*parts, weights=weights)(num, (1, 2)).numpy()[:, 0]
    assert [int(((points > low) & (points < low + 1.0)).sum()) for low in (0, 10, 20)] == counts


def test_mixture_parts_have_seeds_of_their_own() -> None:
    points = Mixture(Uniform(0.0, 1.0), Uniform(0.0, 1.0))(20, (1, 2)).numpy()
    assert not np.isin(points[:10], points[10:]).any()


def test_mixture_takes_arrays_and_functions() -> None:
    mixture = Mixture(DATA, lambda n: np.full((n, 2), -1.0))
    points = mixture(6).numpy()
    assert (points[:3] >= 0.0).all() and (points[3:] == -1.0).all()


def test_user_defined_tensorflow_function() -> None:
    distribution = as_measurement(lambda n: tf.random.uniform([n, 2], 5.0, 6.0))
    assert isinstance(distribution, UserDefined)
    draw = tf.function(lambda: distribution.sample(4, (0, 0), batch()), jit_compile=True)
    first, second = draw().numpy(), draw().numpy()
    assert first.shape == (4, 2) and first.dtype == np.float64
    assert (first >= 5.0).all() and (first < 6.0).all()
    assert not np.array_equal(first, second)


def test_user_defined_numpy_function_is_not_frozen_by_tracing() -> None:
    rng = np.random.default_rng(0)
    distribution = as_measurement(lambda n: rng.integers(0, 1000, (n, 2)))
    draw = tf.function(lambda: distribution.sample(4, (0, 0), batch()))
    first, second = draw(), draw()
    assert first.shape == (4, 2) and first.dtype == tf.float64
    assert draw.get_concrete_function().output_shapes == tf.TensorShape([4, 2])
    assert not np.array_equal(first, second)
    assert distribution(3).shape == (3, 2)


def test_as_measurement() -> None:
    box = Uniform(0.0, 1.0)
    assert as_measurement(None) is None
    assert as_measurement(box) is box
    for rows in (DATA, DATA.tolist(), tf.constant(DATA), DATA.astype(int), tf.Variable(DATA)):
        distribution = as_measurement(rows)
        assert isinstance(distribution, Empirical)
        np.testing.assert_allclose(distribution.X, DATA)
    for wrong in (BatchInputs, kernels.RBF(), "uniform", object()):
        with pytest.raises(TypeError, match="measurement must be a distribution of"):
            as_measurement(wrong)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Uniform(1.0, 1.0), "low < high"),
        (lambda: Uniform([0.0, 2.0], [1.0, 1.0]), "low < high"),
        (lambda: Uniform(0.0, np.inf), "finite"),
        (lambda: Uniform(np.zeros((2, 2)), 1.0), "vectors"),
        (lambda: Empirical(np.zeros(3)), r"X must have shape \[N, D\]"),
        (lambda: Empirical(np.zeros((0, 3))), "at least one row"),
        (lambda: as_measurement(np.zeros(3)), r"X must have shape \[N, D\]"),
        (lambda: Mixture(), "at least one"),
        (lambda: Mixture(BatchInputs(), None), "got None"),
        (lambda: Mixture(BatchInputs(), weights=[0.5, 0.5]), "weights must be 1 numbers"),
        (lambda: Mixture(BatchInputs(), BatchInputs(), weights=[-1.0, 2.0]), "none negative"),
        (lambda: Mixture(BatchInputs(), weights=[0.0]), "not all 0"),
        (lambda: BatchInputs()(3), "BatchInputs needs batch_inputs"),
        (lambda: smoothed()(3), "needs batch_inputs"),
        (lambda: Uniform(0.0, [1.0] * 3).sample(2, (0, 0), batch()), "Uniform: points have 3"),
        (lambda: Empirical(np.ones((2, 3))).sample(2, (0, 0), batch()), "Empirical: points have 3"),
        (lambda: as_measurement(lambda n: np.ones(n))(3), r"shape \[n, D\] for n = 3"),
        (lambda: as_measurement(lambda n: np.ones((7, 2)))(3), "got shape"),
        (
            lambda: as_measurement(lambda n: np.ones((n, 3))).sample(2, (0, 0), batch()),
            "UserDefined: points have 3",
        ),
    ],
)
def test_errors(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_smoothing_needs_a_kernel() -> None:
    with pytest.raises(TypeError, match=r"gpflow.kernels.Kernel, got ndarray"):
        KernelSmoothed(kernels.RBF(), DATA)


def test_base_class_is_abstract() -> None:
    with pytest.raises(TypeError):
        MeasurementDistribution()


def test_tracing_draws_nothing_from_numpys_generator():
    draws = []
    for traces in (1, 3):
        np.random.seed(0)
        distribution = UserDefined(lambda n: np.random.normal(size=(n, 1)))
        for _ in range(traces):
            sample = tf.function(distribution.sample, autograph=False)
            sample.get_concrete_function(4, [0, 0])
        draws.append(sample(4, [0, 0]).numpy())
    np.testing.assert_array_equal(*draws)
    assert not np.array_equal(sample(4, [0, 0]), draws[0])


def test_functions_of_numpy_take_numbers_that_the_graph_alone_knows():
    distribution = UserDefined(lambda n: np.full([n, 2], 1.0 * n))
    sample = tf.function(distribution.sample, autograph=False)
    points = sample(tf.constant(3), [0, 0], tf.zeros([5, 2], gpflow.default_float()))
    np.testing.assert_array_equal(points, np.full([3, 2], 3.0))
    with pytest.raises(ValueError, match="needs a fixed number of points"):
        sample(tf.constant(3), [0, 0])
    with pytest.raises(tf.errors.InvalidArgumentError):  # other columns than the batch
        sample(tf.constant(3), [0, 0], tf.zeros([5, 1], gpflow.default_float()))


def test_points_must_be_finite() -> None:
    with pytest.raises(ValueError, match=r"measurement points, has NaN.* row 1"):
        Empirical(np.array([[0.0], [np.nan]]))
