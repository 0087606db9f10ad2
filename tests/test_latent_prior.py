"""Prior covariances of the latent GPs."""

import numpy as np
import pytest
from gpflow import kernels

from gpflow_gpnet.latent_prior import center, latent_covariance, latent_kernels, latent_variance

PARTS = [kernels.Matern32(1.3, [0.5, 2.0]), kernels.Linear([0.7, 0.2])]


@pytest.mark.parametrize(
    "kernel, expected",
    [
        (PARTS[0], PARTS[:1]),
        (kernels.SharedIndependent(PARTS[0], output_dim=3), PARTS[:1]),
        (kernels.SeparateIndependent(PARTS), PARTS),
        (kernels.LinearCoregionalization(PARTS, W=np.ones((4, 2))), PARTS),
    ],
    ids=["single", "shared", "separate", "coregionalised"],
)
def test_each_distinct_latent_has_its_covariance(rng, kernel, expected):
    assert list(latent_kernels(kernel)) == expected
    X = rng.normal(size=(5, 2))
    cov, variance = latent_covariance(kernel, X), latent_variance(kernel, X)
    assert cov.shape == (len(expected), 5, 5) and variance.shape == (len(expected), 5)
    for latent, part in enumerate(expected):
        np.testing.assert_allclose(cov[latent], part(X), atol=1e-12)
        np.testing.assert_allclose(variance[latent], part(X, full_cov=False), atol=1e-12)


def test_leading_dimensions_equal_a_loop(rng):
    kernel, X = kernels.SeparateIndependent(PARTS), rng.normal(size=(3, 5, 2))
    cov, variance = latent_covariance(kernel, X), latent_variance(kernel, X)
    assert cov.shape == (3, 2, 5, 5) and variance.shape == (3, 2, 5)
    for index in range(3):
        np.testing.assert_allclose(cov[index], latent_covariance(kernel, X[index]), atol=1e-12)
        np.testing.assert_allclose(variance[index], latent_variance(kernel, X[index]), atol=1e-12)


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_distance_to_the_origin_does_not_matter_to_a_stationary_kernel(rng, offset):
    """Squared distances |x|² - 2 x·x' + |x'|² would cancel to nothing at 1e6."""
    X = rng.normal(size=(5, 2))
    expected = latent_covariance(PARTS[0], X)
    np.testing.assert_allclose(latent_covariance(PARTS[0], X + offset), expected, atol=1e-8)


def test_a_kernel_with_an_origin_sees_the_inputs_as_they_are(rng):
    """Alone, beside a stationary kernel, and in a sum with one."""
    X = 100.0 + rng.normal(size=(5, 2))
    linear = PARTS[1]
    expected = linear(X)
    for kernel, latent in ((linear, 0), (kernels.SeparateIndependent(PARTS), 1)):
        np.testing.assert_allclose(latent_covariance(kernel, X)[latent], expected, rtol=1e-12)
    total = latent_covariance(PARTS[0] + linear, X)[0]
    np.testing.assert_allclose(total, expected + PARTS[0](X), rtol=1e-8)


def test_covariance_is_right_far_from_zero_and_beside_a_far_row(rng, float_type):
    """Where squared distances of inputs that are not centred would cancel."""
    X = (1e3 + rng.normal(size=(6, 2))).astype(float_type)
    X[0] += 1e4
    kernel = kernels.SquaredExponential()
    distances = np.sum((X[:, None] - X).astype(float) ** 2, axis=-1)
    tolerance = 1e-5 if float_type == np.float32 else 1e-12
    cov = latent_covariance(kernel, X)[0]
    np.testing.assert_allclose(cov, np.exp(-0.5 * distances), atol=tolerance)
    around = latent_covariance(kernel, X, around=X[1:2])[0]
    np.testing.assert_allclose(around, cov, atol=tolerance)


def test_diagonal_is_the_variance_of_a_far_row(rng, float_type):
    """Of many inputs: sums of their squares round differently from products of rows."""
    X = rng.normal(size=(6, 200)).astype(float_type)
    X[0] *= 1e3
    cov = latent_covariance(kernels.Matern12(2.0), X)[0]
    np.testing.assert_allclose(np.diag(cov), 2.0, rtol=1e-6)


def test_center_is_zero_where_the_kernel_can_tell(rng):
    X = rng.normal(size=(5, 2))
    assert not np.any(center(kernels.Linear(), X))
    median = np.median(X, axis=0, keepdims=True)
    np.testing.assert_array_equal(center(kernels.SquaredExponential(), X), median)
    assert latent_covariance(kernels.SquaredExponential(), X[:0]).shape == (1, 0, 0)
