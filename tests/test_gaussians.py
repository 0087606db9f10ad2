"""Gaussian algebra against dense formulas, and identities 1, 2, 3 and 8 of the algorithm."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from gpflow_gpnet import gaussians


def random_cov(rng, *shape, dtype=np.float64):
    root = rng.normal(size=(*shape, shape[-1] + 2))
    return (root @ np.swapaxes(root, -1, -2) / shape[-1] + 0.1 * np.eye(shape[-1])).astype(dtype)


def exact_posterior(prior, y, noise, rows):
    """Moments at all points of a GP with this prior covariance, y observed at the rows."""
    gain = prior[:, rows] @ np.linalg.inv(prior[np.ix_(rows, rows)] + np.diag(noise))
    return gain @ y, prior - gain @ prior[rows]


# ------------------------------------------------------------------ factorisations


@pytest.mark.parametrize("size", [5, 130, 301])
@pytest.mark.parametrize("dtype, tolerance", [(np.float64, 1e-10), (np.float32, 2e-3)])
def test_cholesky_and_inverse_factor_and_invert(rng, size, dtype, tolerance):
    matrix = random_cov(rng, 2, size, dtype=dtype)
    factor, inverse = gaussians.cholesky_and_inverse(tf.constant(matrix))
    np.testing.assert_allclose(factor @ tf.linalg.matrix_transpose(factor), matrix, atol=tolerance)
    identity = np.broadcast_to(np.eye(size), matrix.shape)
    np.testing.assert_allclose(factor @ inverse, identity, atol=tolerance)
    np.testing.assert_array_equal(np.triu(factor[0], 1), 0.0)
    np.testing.assert_array_equal(np.triu(inverse[0], 1), 0.0)


def test_lower_root_of_inverse(rng):
    precision = random_cov(rng, 2, 140)
    root = gaussians.lower_root_of_inverse(tf.constant(precision)).numpy()
    np.testing.assert_array_equal(np.triu(root[1], 1), 0.0)
    np.testing.assert_allclose(root @ np.swapaxes(root, 1, 2), np.linalg.inv(precision), atol=1e-8)


def test_cholesky_gradient_is_tensorflows(rng):
    matrix, weights = tf.constant(random_cov(rng, 3, 6)), rng.normal(size=(3, 6, 6))
    gradients = []
    for factorise in (tf.linalg.cholesky, gaussians.cholesky):
        with tf.GradientTape() as tape:
            tape.watch(matrix)
            value = tf.reduce_sum(weights * factorise(matrix))
        gradients.append(tape.gradient(value, matrix))
    np.testing.assert_allclose(*gradients, atol=1e-12)


@pytest.mark.parametrize("compiled", [False, True])
def test_cholesky_retries_with_jitter(compiled):
    singular = tf.ones([4, 4], tf.float64) - 1e-9 * tf.eye(4, dtype=tf.float64)
    factorise = tf.function(gaussians.cholesky) if compiled else gaussians.cholesky
    factor = factorise(singular)
    np.testing.assert_allclose(factor @ tf.transpose(factor), singular, atol=1e-5)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    "entry, cause", [(np.nan, "NaN or infinite"), (-5.0, "not positive definite")]
)
def test_cholesky_failure_names_matrix_size_dtype_and_cause(compiled, entry, cause):
    matrix = tf.constant(np.diag([1.0, entry, 1.0]))

    def factorise(matrix):
        return gaussians.cholesky(matrix, "the prior at the batch")

    with pytest.raises(tf.errors.InvalidArgumentError) as failure:
        (tf.function(factorise) if compiled else factorise)(matrix)
    message = str(failure.value)
    for part in ("the prior at the batch", cause, "(3, 3)", "float64", "Likely cause"):
        assert part in message


def test_nugget_follows_scale_and_dtype():
    identity = tf.eye(10, dtype=tf.float64)
    np.testing.assert_allclose(gaussians.nugget(4.0 * identity), 4.0 * gaussians.nugget(identity))
    assert gaussians.nugget(tf.eye(500, dtype=tf.float32)) > 1e-4


# ------------------------------------------------------------------ bridge and conditioning


@pytest.mark.parametrize("beta", [0.01, 0.3, 0.9])
def test_bridge_is_the_weighted_product(rng, beta):
    prior_cov, cov = random_cov(rng, 2, 6), random_cov(rng, 2, 6)
    prior_mean, mean = rng.normal(size=(2, 6)), rng.normal(size=(2, 6))
    precision = beta * np.linalg.inv(prior_cov) + (1 - beta) * np.linalg.inv(cov)
    shift = beta * np.linalg.solve(prior_cov, prior_mean[..., None])
    shift += (1 - beta) * np.linalg.solve(cov, mean[..., None])
    expected = np.linalg.inv(precision)
    bridge_mean, bridge_cov = gaussians.bridge(beta, prior_mean, prior_cov, mean, cov)
    np.testing.assert_allclose(bridge_cov, expected, atol=1e-10)
    np.testing.assert_allclose(bridge_mean, (expected @ shift)[..., 0], atol=1e-10)


def test_bridge_takes_a_singular_network_covariance(rng):
    """Fewer features than points: the product lives in the features' span."""
    prior_cov, features = random_cov(rng, 6), rng.normal(size=(6, 2))
    _, bridge_cov = gaussians.bridge(
        0.3, np.zeros(6), prior_cov, np.zeros(6), features @ features.T
    )
    inner = np.linalg.inv(0.3 * features.T @ np.linalg.solve(prior_cov, features) + 0.7 * np.eye(2))
    np.testing.assert_allclose(bridge_cov, features @ inner @ features.T, atol=1e-10)


@pytest.mark.parametrize("dtype, tolerance", [(np.float64, 1e-8), (np.float32, 2e-4)])
@pytest.mark.parametrize("duplicate", [False, True])
def test_identity_1_full_step_on_all_data_is_the_exact_posterior(rng, dtype, tolerance, duplicate):
    """β = 1, full batch: the target at M is the exact posterior whatever q_t; M may repeat data."""
    X = rng.uniform(-2, 2, size=(9, 1))
    if duplicate:
        X[7] = X[2]
    prior = np.exp(-0.5 * (X - X.T) ** 2)
    y, noise = rng.normal(size=5), np.full(5, 0.3)
    expected_mean, expected_cov = exact_posterior(prior, y, noise, np.arange(5))
    mean, cov = rng.normal(size=9), random_cov(rng, 9)
    moments = gaussians.bridge(1.0, *(v.astype(dtype) for v in (np.zeros(9), prior, mean, cov)))
    got_mean, got_cov = gaussians.condition(*moments, y.astype(dtype), (1 / noise).astype(dtype))
    np.testing.assert_allclose(got_mean, expected_mean[5:], atol=tolerance)
    np.testing.assert_allclose(got_cov, expected_cov[5:, 5:], atol=tolerance)


def test_identity_2_no_step_leaves_the_network_where_it_is(rng):
    """β = 0: the target is q_t and the gradient is 0."""
    prior, cov, mean = random_cov(rng, 7), random_cov(rng, 7), rng.normal(size=7)
    moments = gaussians.bridge(0.0, np.zeros(7), prior, mean, cov)
    target_mean, target_cov = gaussians.condition(*moments, rng.normal(size=3), np.zeros(3))
    np.testing.assert_allclose(target_mean, mean[3:], atol=1e-10)
    np.testing.assert_allclose(target_cov, cov[3:, 3:], atol=1e-10)
    mean, cov = tf.constant(mean[3:]), tf.constant(cov[3:, 3:])
    with tf.GradientTape() as tape:
        tape.watch([mean, cov])
        value = gaussians.kl_divergence(mean, cov, target_mean, target_cov)
    for gradient in tape.gradient(value, [mean, cov]):
        np.testing.assert_allclose(gradient, 0.0, atol=1e-8)


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [3, 0, 4, 2, 1]])
def test_identity_3_one_pass_with_inverse_time_steps_is_the_exact_posterior(rng, order):
    prior, y, noise = random_cov(rng, 8), rng.normal(size=5), 0.2
    mean, cov = tf.constant(rng.normal(size=8)), tf.constant(random_cov(rng, 8))
    for t, n in enumerate(order, start=1):
        beta = 1.0 / t
        mean, cov = gaussians.bridge(beta, np.zeros(8), prior, mean, cov)
        rows = [n, *range(8)]  # the observed point, then every point of the set
        mean, cov = gaussians.condition(
            tf.gather(mean, rows),
            tf.gather(tf.gather(cov, rows), rows, axis=1),
            y[n : n + 1],
            np.array([5 * beta / noise]),
        )
    expected_mean, expected_cov = exact_posterior(prior, y, np.full(5, noise), np.arange(5))
    np.testing.assert_allclose(mean, expected_mean, atol=1e-9)
    np.testing.assert_allclose(cov, expected_cov, atol=1e-9)


def test_identity_8_conditioning_never_adds_variance(rng):
    prior, cov, mean = random_cov(rng, 12), random_cov(rng, 12), rng.normal(size=12)
    for beta in (0.05, 0.5, 1.0):
        moments = gaussians.bridge(beta, np.zeros(12), prior, mean, cov)
        target_mean, target_cov = gaussians.condition(
            *moments, rng.normal(size=4), np.full(4, 30.0 * beta)
        )
        bridge_variance = np.diag(moments[1])[4:]
        assert np.all(np.diag(target_cov) <= bridge_variance)
        assert np.any(np.diag(target_cov) < 0.9 * bridge_variance)
        assert np.linalg.eigvalsh(target_cov).min() > 0.0
        divergence = gaussians.kl_divergence(mean[4:], cov[4:, 4:], target_mean, target_cov)
        assert divergence > 0.0


# ------------------------------------------------------------------ divergences


def test_kl_divergence_and_its_gradients_are_tfps(rng):
    """Value and closed-form gradients against automatic differentiation through Cholesky."""
    tensors = [
        tf.constant(v) for _ in range(2) for v in (rng.normal(size=(2, 5)), random_cov(rng, 2, 5))
    ]

    def by_tfp(mean, cov, target_mean, target_cov):
        normal = tfp.distributions.MultivariateNormalTriL
        return tfp.distributions.kl_divergence(
            normal(mean, tf.linalg.cholesky(cov)),
            normal(target_mean, tf.linalg.cholesky(target_cov)),
        )

    values, gradients = [], []
    for divergence in (by_tfp, gaussians.kl_divergence):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            value = divergence(*tensors)
            weighted = tf.reduce_sum(value * np.array([1.0, 3.0]))
        values.append(value)
        gradients.append([g for g in tape.gradient(weighted, tensors)])
    np.testing.assert_allclose(*values, atol=1e-10)
    for expected, got in zip(*gradients, strict=True):
        if len(expected.shape) == 3:  # only the symmetric part of a gradient by a covariance counts
            expected = gaussians.symmetrise(expected)
        np.testing.assert_allclose(got, expected, atol=1e-9)


def test_expected_log_ratio_is_the_sampled_average(rng):
    mean, root = rng.normal(size=4), rng.normal(size=(4, 3))
    cov_1, cov_2 = random_cov(rng, 4), random_cov(rng, 4)
    samples = mean + rng.normal(size=(200_000, 3)) @ root.T

    def log_density(cov):
        return tfp.distributions.MultivariateNormalFullCovariance(np.zeros(4), cov).log_prob(
            samples
        )

    ratios = (log_density(cov_1) - log_density(cov_2)).numpy()
    error = 4.0 * ratios.std() / np.sqrt(len(ratios))
    got = gaussians.expected_log_ratio(
        mean, root, np.linalg.cholesky(cov_1), np.linalg.cholesky(cov_2)
    )
    np.testing.assert_allclose(got, ratios.mean(), atol=error)


def test_algebra_compiles_under_xla(rng):
    prior, cov, mean = random_cov(rng, 2, 8), random_cov(rng, 2, 8), rng.normal(size=(2, 8))
    y = rng.normal(size=(1, 3))

    def step(prior, cov, mean, y):
        moments = gaussians.bridge(0.3, tf.zeros_like(mean), prior, mean, cov)
        target = gaussians.condition(*moments, y, tf.ones_like(y))
        root = gaussians.lower_root_of_inverse(cov)
        return gaussians.kl_divergence(mean[:, 3:], cov[:, 3:, 3:], *target), root

    compiled = tf.function(step, jit_compile=True)(prior, cov, mean, y)
    eager = step(*map(tf.constant, (prior, cov, mean, y)))
    for got, expected in zip(compiled, eager, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-9)


def test_conjugate_gradients(rng):
    """Exact at once with the exact root, after N iterations with any; a solution stays."""
    A = rng.normal(size=(2, 6, 6))
    matrix = A @ A.transpose(0, 2, 1) + np.eye(6)
    target, start = rng.normal(size=(2, 2, 6))
    solution = np.linalg.solve(matrix, target[..., None])[..., 0]
    exact = gaussians.lower_root_of_inverse(tf.constant(matrix))
    rough = np.broadcast_to(np.eye(6), (2, 6, 6))
    for root, iterations in ((exact, 1), (rough, 6), (exact, 3)):
        found = gaussians.conjugate_gradients(matrix, target, start, root, iterations)
        np.testing.assert_allclose(found, solution, atol=1e-10)
    stays = gaussians.conjugate_gradients(matrix, np.zeros((2, 6)), np.zeros((2, 6)), rough, 2)
    np.testing.assert_array_equal(stays, 0.0)
    errors = []
    for iterations in range(4):
        found = gaussians.conjugate_gradients(matrix, target, start, rough, iterations)
        gap = np.asarray(found) - solution
        errors.append(np.einsum("li,lij,lj->l", gap, matrix, gap))
    assert (np.diff(errors, axis=0) < 0.0).all()


@pytest.mark.parametrize("batch", [(), (2,)])
def test_product_with_a_lower_triangular_factor_by_blocks(rng, batch):
    """Values and gradients are those of the plain product, which is what small factors get."""
    size = 803
    matrix = tf.constant(rng.normal(size=(*batch, 5, size)))
    factor = tf.constant(np.tril(rng.normal(size=(*batch, size, size))))
    upstream = tf.constant(rng.normal(size=(*batch, 5, size)))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([matrix, factor])
        found, expected = gaussians.times_lower(matrix, factor), tf.matmul(matrix, factor)
        values = [tf.reduce_sum(upstream * product) for product in (found, expected)]
    np.testing.assert_allclose(found, expected, atol=1e-10)
    (d_matrix, d_factor), plain = (tape.gradient(value, [matrix, factor]) for value in values)
    np.testing.assert_allclose(d_matrix, plain[0], atol=1e-10)
    np.testing.assert_allclose(d_factor, np.tril(plain[1]), atol=1e-10)
    more = gaussians.times_lower(matrix[..., None, :, :], factor[..., None, :, :])
    np.testing.assert_allclose(more[..., 0, :, :], expected, atol=1e-10)
