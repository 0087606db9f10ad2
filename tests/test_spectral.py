"""Spectral measures against the kernels they belong to, and what kernels say of their inputs."""

from __future__ import annotations

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow import kernels
from scipy import stats

from gpflow_gpnet.spectral import (
    NoSpectralMeasureError,
    SpectralMeasure,
    active_columns,
    infer_input_dim,
    is_stationary,
    smoothing_lengthscales,
    spectral_measure,
)

SMALL, LARGE, SEEDS = 500, 20_000, 20

# A mean over SEEDS * LARGE cosines has standard deviation 0.7 / 632 = 0.0011; times five, since
# this bounds the largest over pairs.
BIAS = 0.0055
# Over repetitions with other seeds, the measured slope has standard deviation 0.02 to 0.04.
SLOPE = 0.12

DENSITIES = {
    "SquaredExponential": lambda **kw: kernels.SquaredExponential(**kw),
    "Matern12": lambda **kw: kernels.Matern12(**kw),
    "Matern32": lambda **kw: kernels.Matern32(**kw),
    "Matern52": lambda **kw: kernels.Matern52(**kw),
    "Exponential": lambda **kw: kernels.Exponential(**kw),
    "RationalQuadratic": lambda **kw: kernels.RationalQuadratic(alpha=0.6, **kw),
}


def inputs(num: int = 12, dim: int = 2, seed: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1.0, 1.0, (num, dim))


def reproduced(measure: SpectralMeasure, X: np.ndarray, num: int, seed: int) -> np.ndarray:
    """variance * sum_i power_i cos(frequencies_i . (x - x') / lengthscales) for all pairs."""
    frequencies, power = measure.sample(num, np.random.default_rng(seed))
    assert frequencies.shape == (len(power), X.shape[1])
    assert power.sum() == pytest.approx(1.0, abs=1e-12)
    phase = X / measure.lengthscales @ frequencies.T
    cos, sin = np.cos(phase), np.sin(phase)
    return measure.variance * ((cos * power) @ cos.T + (sin * power) @ sin.T)


def errors(kernel: kernels.Kernel, X: np.ndarray, num: int) -> list[np.ndarray]:
    """Relative to the variance, one matrix a seed."""
    measure = spectral_measure(kernel, X.shape[1])
    exact = kernel(X).numpy()
    return [(reproduced(measure, X, num, seed) - exact) / measure.variance for seed in range(SEEDS)]


def decay(kernel: kernels.Kernel, X: np.ndarray) -> tuple[float, float]:
    """Slope of log error against log number of frequencies, and the largest mean error."""
    small, large = errors(kernel, X, SMALL), errors(kernel, X, LARGE)
    slope = np.log(np.std(large) / np.std(small)) / np.log(LARGE / SMALL)
    return float(slope), float(np.abs(np.mean(large, axis=0)).max())


@pytest.mark.parametrize("name", DENSITIES)
def test_error_falls_at_least_as_the_root_of_the_number_of_frequencies(name: str) -> None:
    """Identity 11, in two dimensions with a lengthscale for each; quasi-random draws do better."""
    slope, bias = decay(DENSITIES[name](variance=2.5, lengthscales=[0.3, 4.0]), inputs())
    assert slope < -0.5 + SLOPE
    assert bias < BIAS


@pytest.mark.parametrize("dim", [1, 5])
@pytest.mark.parametrize("name", ["Matern12", "RationalQuadratic"])
def test_one_lengthscale_for_all_inputs(name: str, dim: int) -> None:
    kernel = DENSITIES[name](variance=0.3, lengthscales=0.7)
    assert np.abs(np.mean(errors(kernel, inputs(dim=dim), LARGE), axis=0)).max() < BIAS


@pytest.mark.parametrize(
    "make",
    [
        lambda: (
            kernels.SquaredExponential(0.5, [0.3, 4.0])
            + kernels.Matern32(2.0, 1.5, active_dims=[1])
            + kernels.Cosine(0.4, 0.8, active_dims=[0])
        ),
        lambda: kernels.Matern52(0.5, [0.3, 4.0]) * kernels.RationalQuadratic(2.0, 1.5),
        lambda: kernels.SquaredExponential(0.5, [0.3, 4.0]) * kernels.Cosine(2.0, [0.5, 0.9]),
        lambda: (
            (kernels.Matern12(0.2, active_dims=[0]) + kernels.Cosine(3.0, 0.6))
            * (kernels.Matern32(0.1, [2.0, 0.5]) + kernels.Cosine(0.3, [0.9, 0.7]))
            + kernels.SquaredExponential(1.0, 0.4)
        ),
    ],
    ids=["sum", "product", "modulated", "nested"],
)
def test_combinations(make) -> None:
    slope, bias = decay(make(), inputs())
    assert slope < -0.5 + SLOPE
    assert bias < BIAS


@pytest.mark.parametrize("active_dims", [[2, 0], slice(0, 3, 2)])
def test_active_dims(active_dims) -> None:
    kernel = kernels.Matern32(1.3, [0.5, 2.0], active_dims=active_dims)
    measure = spectral_measure(kernel, 4)
    frequencies, _ = measure.sample(10, np.random.default_rng(0))
    first = [2.0, 1.0, 0.5, 1.0] if isinstance(active_dims, list) else [0.5, 1.0, 2.0, 1.0]
    assert measure.lengthscales.tolist() == first
    assert (frequencies[:, [1, 3]] == 0.0).all()
    assert (frequencies[:, [0, 2]] != 0.0).all()
    assert np.abs(np.mean(errors(kernel, inputs(dim=4), LARGE), axis=0)).max() < BIAS


def test_cosine_is_one_frequency_with_the_sign_of_its_lengthscales() -> None:
    kernel = kernels.Cosine(0.7, [0.5, 1.3])
    kernel.lengthscales.assign([0.5, -1.3])
    measure = spectral_measure(kernel, 2)
    assert measure.support_size == 1
    assert measure.lengthscales.tolist() == [0.5, 1.3]
    X = inputs()
    np.testing.assert_allclose(reproduced(measure, X, 1, 0), kernel(X), atol=1e-12)


def test_sum_is_stratified_by_variance() -> None:
    kernel = (
        kernels.SquaredExponential(3.0, 2.0, active_dims=[0])
        + kernels.Matern12(1.0, 8.0)
        + kernels.Cosine(4.0, 1.0)
    )
    measure = spectral_measure(kernel, 2)
    assert measure.variance == 8.0
    assert measure.support_size is None
    np.testing.assert_allclose(measure.lengthscales, [np.cbrt(16.0), np.sqrt(8.0)])
    frequencies, power = measure.sample(11, np.random.default_rng(0))
    # One for Cosine, which has no more; the other ten about 3 to 1.
    assert (frequencies[:, 1] == 0.0).tolist() == [True] * 7 + [False] * 4
    np.testing.assert_allclose(power[:7], 3.0 / 8.0 / 7.0)
    np.testing.assert_allclose(power[7:10], 1.0 / 8.0 / 3.0)
    assert power[10] == 0.5


def test_sum_of_tiny_part_keeps_one_frequency_and_few_draws_still_work() -> None:
    kernel = kernels.SquaredExponential(1.0, active_dims=[0]) + kernels.Matern12(
        1e-6, active_dims=[1]
    )
    measure = spectral_measure(kernel, 2)
    frequencies, power = measure.sample(20, np.random.default_rng(0))
    assert (frequencies[:, 1] != 0.0).sum() == 1
    assert power.min() == pytest.approx(1e-6, rel=1e-5)
    frequencies, power = measure.sample(1, np.random.default_rng(0))
    assert frequencies.shape == (1, 2)
    assert power.tolist() == [1.0]


def test_sums_and_products_of_cosines_are_exact() -> None:
    X = inputs()
    first, second = kernels.Cosine(0.7, [0.5, 1.3]), kernels.Cosine(2.0, [0.2, 0.6])
    measure = spectral_measure(first + second, 2)
    assert measure.support_size == 2
    np.testing.assert_allclose(reproduced(measure, X, 2, 0), (first + second)(X), atol=1e-12)
    np.testing.assert_allclose(reproduced(measure, X, 7, 0), (first + second)(X), atol=1e-12)
    measure = spectral_measure(first * second, 2)
    np.testing.assert_allclose(reproduced(measure, X, 8, 0), (first * second)(X), atol=1e-12)


def test_product_of_squared_exponentials_is_one() -> None:
    kernel = kernels.SquaredExponential(2.0, 3.0, active_dims=[0]) * kernels.SquaredExponential(
        3.0, [4.0, 5.0]
    )
    measure = spectral_measure(kernel, 2)
    assert measure.variance == pytest.approx(6.0)
    np.testing.assert_allclose(measure.lengthscales, [12.0 / 5.0, 5.0])
    frequencies, _ = measure.sample(LARGE, np.random.default_rng(0))
    np.testing.assert_allclose(np.sqrt(np.mean(frequencies**2, axis=0)), 1.0, atol=0.02)


@pytest.mark.parametrize("name", DENSITIES)
def test_few_draws_cover_the_measure_better_than_independent_ones(name: str) -> None:
    """Of n independent draws the error has variance about 1 / (2 n); here under a third of it."""
    kernel = DENSITIES[name](variance=1.0, lengthscales=[0.3, 4.0])
    assert np.mean(np.square(errors(kernel, inputs(), 100))) < 1.0 / (3 * 2 * 100)


def test_one_dimensional_draws_are_stratified_and_of_one_sign() -> None:
    """-w is the same frequency as w; each of n equal strata of the half-normal holds one draw."""
    measure = spectral_measure(kernels.SquaredExponential(), 1)
    frequencies, _ = measure.sample(20, np.random.default_rng(0))
    levels = 2.0 * stats.norm.cdf(frequencies[:, 0]) - 1.0
    assert sorted(np.floor(20 * levels)) == list(range(20))


def test_draws_depend_on_the_generator_only() -> None:
    measure = spectral_measure(kernels.Matern32() * kernels.Cosine(), 3)
    first, again, other = (measure.sample(5, np.random.default_rng(s))[0] for s in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()
    with pytest.raises(ValueError, match="num must be at least 1, got 0"):
        measure.sample(0, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (kernels.Linear(), ["Linear", "Matern52", "InducingFeatures"]),
        (kernels.SquaredExponential() + kernels.Linear(), ["In Sum", "Linear"]),
        (
            kernels.Matern12() + kernels.Matern12() * kernels.ArcCosine(),
            ["In Sum: In Product: ArcCosine"],
        ),
        (kernels.SharedIndependent(kernels.Matern12(), 2), ["SharedIndependent"]),
    ],
)
def test_kernels_without_spectral_measure(kernel, words: list[str]) -> None:
    with pytest.raises(NoSpectralMeasureError) as info:
        spectral_measure(kernel, 2)
    assert isinstance(info.value, ValueError)
    for word in words:
        assert word in str(info.value)


def test_other_kernels_register() -> None:
    class Slow(kernels.SquaredExponential):
        """Twice the lengthscale of its base class."""

    inherited = spectral_measure(Slow(1.0, 3.0), 1)
    assert inherited.lengthscales.tolist() == [3.0]

    @spectral_measure.register(Slow)
    def _slow(kernel: Slow, input_dim: int) -> SpectralMeasure:
        base = kernels.SquaredExponential(kernel.variance, 2.0 * kernel.lengthscales)
        return spectral_measure(base, input_dim)

    try:
        assert spectral_measure(Slow(1.0, 3.0), 1).lengthscales.tolist() == [6.0]
        total = spectral_measure(Slow(1.0, 3.0) + kernels.Matern12(1.0, 6.0), 1)
        assert total.lengthscales == pytest.approx(6.0)
    finally:
        del spectral_measure.funcs[(Slow,)]
        spectral_measure.reorder()


@pytest.mark.parametrize(
    ("kernel", "input_dim"),
    [
        (kernels.Matern12(lengthscales=[1.0, 2.0, 3.0]), 3),
        (kernels.Linear(variance=[1.0, 2.0]), 2),
        (kernels.Matern12(active_dims=[0]) * kernels.Coregion(2, 1, active_dims=[3]), 4),
        (kernels.Matern12(active_dims=slice(1, 3)), 3),
        (kernels.Matern12(lengthscales=[1.0, 2.0], active_dims=slice(2, None)), 4),
        (kernels.Matern12(lengthscales=[1.0, 2.0]) + kernels.Linear(), 2),
        (kernels.SharedIndependent(kernels.Matern12(lengthscales=[1.0, 2.0]), 2), 2),
        (kernels.Coregion(3, 1), 1),
    ],
)
def test_input_dim_that_the_kernel_tells(kernel, input_dim: int) -> None:
    assert infer_input_dim(kernel) == input_dim
    assert infer_input_dim(kernel, input_dim) == input_dim


def test_input_dim_may_exceed_the_columns_in_use() -> None:
    assert infer_input_dim(kernels.Matern12(active_dims=[0]), 7) == 7


@pytest.mark.parametrize(
    ("kernel", "input_dim", "message"),
    [
        (kernels.Matern12(), None, "input_dim is needed: Matern12"),
        (kernels.Matern12(active_dims=[1]) + kernels.Linear(), None, "input_dim is needed: Sum"),
        (kernels.Matern12(lengthscales=[1.0, 2.0]), 3, r"Matern12: expected 2 active input\(s\)"),
        (kernels.Matern12(active_dims=[4]), 3, "columns 0 to 2 .* got .4"),
        (kernels.Matern12(active_dims=[-1]), 3, "columns 0 to 2"),
        (kernels.Matern12(active_dims=slice(3, None)), 3, "columns 0 to 2"),
        (kernels.Matern12(active_dims=[1, 1]), 3, "must not repeat"),
        (
            kernels.Matern12(lengthscales=[1.0] * 2) + kernels.Linear(variance=[1.0] * 3),
            None,
            "expected 2 active",
        ),
        (kernels.Matern12(), 0, "at least 1, got 0"),
    ],
)
def test_input_dim_errors(kernel, input_dim, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        infer_input_dim(kernel, input_dim)


@pytest.mark.parametrize("input_dim", [2.0, True, "2"])
def test_input_dim_must_be_an_integer(input_dim) -> None:
    with pytest.raises(TypeError, match="input_dim must be an integer"):
        infer_input_dim(kernels.Matern12(), input_dim)


def test_active_columns() -> None:
    assert active_columns(kernels.Matern12(active_dims=[2, 0]), 3).tolist() == [2, 0]
    assert active_columns(kernels.Matern12(active_dims=slice(1, None)), 3).tolist() == [1, 2]


def test_smoothing_lengthscales_are_the_smallest_that_touch_an_input() -> None:
    kernel = (
        kernels.SquaredExponential(lengthscales=[0.5, 4.0], active_dims=[0, 2])
        * kernels.Matern12(lengthscales=3.0, active_dims=slice(0, 4))
        * kernels.Coregion(2, 1, active_dims=[3])
    ) + kernels.Linear()
    assert smoothing_lengthscales(kernel, 5).numpy().tolist() == [0.5, 3.0, 3.0, 0.0, 0.0]
    other = kernels.Matern32(lengthscales=0.1, active_dims=[4])
    both = kernels.SeparateIndependent([kernel, other])
    np.testing.assert_allclose(smoothing_lengthscales(both, 5), [0.5, 3.0, 3.0, 0.0, 0.1])
    assert smoothing_lengthscales(kernels.Linear(), 2).numpy().tolist() == [0.0, 0.0]


@pytest.mark.parametrize("jit_compile", [False, True])
def test_smoothing_lengthscales_follow_the_kernel(jit_compile: bool) -> None:
    kernel = kernels.Matern12(lengthscales=2.0, active_dims=[0]) + kernels.Constant()
    current = tf.function(lambda: smoothing_lengthscales(kernel, 2), jit_compile=jit_compile)
    np.testing.assert_allclose(current(), [2.0, 0.0])
    kernel.kernels[0].lengthscales.assign(0.25)
    np.testing.assert_allclose(current(), [0.25, 0.0])


def test_smoothing_lengthscales_in_float32() -> None:
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32)):
        kernel = kernels.Matern12(lengthscales=2.0) + kernels.Constant()
        assert smoothing_lengthscales(kernel, 2).dtype == tf.float32
        assert smoothing_lengthscales(kernels.Constant(), 2).dtype == tf.float32


def test_is_stationary() -> None:
    stationary, linear = kernels.Matern12() + kernels.Constant(), kernels.Linear()
    for kernel in (
        stationary,
        kernels.Cosine() * kernels.White(),
        kernels.SharedIndependent(stationary, 2),
        kernels.LinearCoregionalization([stationary, kernels.RBF()], W=np.ones((2, 2))),
    ):
        assert is_stationary(kernel)
    for kernel in (
        linear,
        stationary * (stationary + linear),
        kernels.SeparateIndependent([stationary, linear]),
        kernels.ChangePoints([kernels.Matern12(), kernels.Matern12()], [0.0], 1.0),
        kernels.Matern12() + kernels.ChangePoints([kernels.RBF(), kernels.RBF()], [0.0], 1.0),
    ):
        assert not is_stationary(kernel)
