"""The spectral Stein gradient estimator against densities whose gradients are known."""

import numpy as np
import pytest
import tensorflow as tf

from gpflow_gpnet.stein_gradient import median_distance, score


def relative_error(got, expected):
    return np.sqrt(np.mean((got - expected) ** 2) / np.mean(expected**2))


def test_median_distance(rng):
    samples = rng.normal(size=(3, 22, 2)) + 1e3
    for batch, got in zip(samples, median_distance(tf.constant(samples)), strict=True):
        distances = np.linalg.norm(batch[:, None] - batch, axis=-1)[np.triu_indices(22, 1)]
        np.testing.assert_allclose(got, np.median(distances), rtol=1e-5)


def test_it_is_the_published_sum_over_eigenfunctions(rng):
    """β_j = -mean_m ∇ψ_j(x_m) and ∇ log q = Σ_j β_j ψ_j, written out with numerical gradients."""
    samples, points, lengthscale, number = rng.normal(size=(8, 2)), rng.normal(size=(3, 2)), 1.3, 4

    def kernel(a, b):
        return np.exp(-0.5 * np.sum((a[:, None] - b) ** 2, axis=-1) / lengthscale**2)

    values, vectors = np.linalg.eigh(kernel(samples, samples))

    def eigenfunctions(x):
        return np.sqrt(8) * kernel(x, samples) @ vectors[:, -number:] / values[-number:]

    step, expected = 1e-5, np.zeros((3, 2))
    for axis in range(2):
        shift = step * np.eye(2)[axis]
        slopes = (eigenfunctions(samples + shift) - eigenfunctions(samples - shift)) / (2 * step)
        expected[:, axis] = eigenfunctions(points) @ -slopes.mean(axis=0)
    got = score(tf.constant(samples), tf.constant(points), number, lengthscale)
    np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize("center", [0.0, 1e4])
def test_standard_gaussian(rng, center):
    """500 samples of N(center, I) in two dimensions: ∇ log q = center - x within a quarter."""
    samples, points = rng.normal(size=(500, 2)), rng.normal(size=(100, 2))
    got = score(tf.constant(samples + center), tf.constant(points + center))
    assert relative_error(got, -points) < 0.25


def test_correlated_gaussian(rng):
    """Correlation .8: within a quarter (500 samples)."""
    mean, cov = np.array([1.0, -2.0]), np.array([[1.0, 0.8], [0.8, 1.0]])
    samples, points = (rng.multivariate_normal(mean, cov, size) for size in (500, 100))
    expected = -(points - mean) @ np.linalg.inv(cov)
    got = score(tf.constant(samples), tf.constant(points))
    assert relative_error(got, expected) < 0.25


def test_mixture_of_two_gaussians(rng):
    """Means ±2, unit variance: within a quarter (1,000 samples), where a Gaussian fails."""
    samples = np.where(rng.random((1000, 1)) < 0.5, -2.0, 2.0) + rng.normal(size=(1000, 1))
    points = np.linspace(-4.0, 4.0, 81)[:, None]
    expected = -points + 2.0 * np.tanh(2.0 * points)
    gaussian = -points / 5.0
    got = score(tf.constant(samples), tf.constant(points), lengthscale=1.0)
    assert relative_error(got, expected) < 0.25 < relative_error(gaussian, expected)


def test_leading_dimensions_equal_a_loop(rng):
    samples, points = rng.normal(size=(2, 3, 20, 2)), rng.normal(size=(2, 3, 5, 2))
    got = score(tf.constant(samples), tf.constant(points))
    assert got.shape == (2, 3, 5, 2)
    for index in np.ndindex(2, 3):
        one = score(tf.constant(samples[index]), tf.constant(points[index]))
        np.testing.assert_allclose(got[index], one, atol=1e-8)


def test_units(rng):
    """Samples and points s times as large have a gradient s times as small."""
    samples, points = tf.constant(rng.normal(size=(30, 2))), tf.constant(rng.normal(size=(5, 2)))
    small, large = score(samples, points), score(1e3 * samples, 1e3 * points)
    np.testing.assert_allclose(1e3 * large, small, rtol=1e-6)


def test_float32_and_xla(rng):
    samples, points = (rng.normal(size=(size, 2)) for size in (50, 20))
    expected = score(tf.constant(samples), tf.constant(points), 4)
    single = [tf.constant(values, tf.float32) for values in (samples, points)]
    got = score(*single, 4)
    assert got.dtype == tf.float32
    assert relative_error(got.numpy(), expected.numpy()) < 1e-2
    compiled = tf.function(lambda s, p: score(s, p), jit_compile=True)
    np.testing.assert_allclose(
        compiled(tf.constant(samples), tf.constant(points)),
        score(tf.constant(samples), tf.constant(points)),
        atol=1e-6,
    )


@pytest.mark.parametrize("number", [0, 31])
def test_numbers_of_eigenvectors_out_of_range(number):
    with pytest.raises(ValueError, match=f"num_eigenvectors must be 1 to 30, got {number}"):
        score(tf.zeros([30, 2]), tf.zeros([3, 2]), number)
