"""Scores of class probabilities by hand, and probabilities against integrals."""

from types import SimpleNamespace

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow.likelihoods import Bernoulli, Gaussian, MultiClass, Softmax
from scipy.integrate import dblquad
from scipy.stats import norm

from gpflow_gpnet import classification


def fixed(likelihood, mean, variance):
    """A model whose marginals are the same at all rows."""

    def predict_f(X):
        ones = tf.ones_like(tf.convert_to_tensor(X)[:, :1])
        return ones * np.asarray(mean), ones * np.asarray(variance)

    return SimpleNamespace(likelihood=likelihood, predict_f=predict_f)


def test_scores_by_hand():
    probabilities = np.array([[0.7, 0.2, 0.1], [0.5, 0.3, 0.2], [0.1, 0.0, 0.9]])
    Y = np.array([[0], [1], [1]])
    scores = classification.probability_scores(probabilities, Y)
    assert set(scores) == set(classification.METRICS)
    assert scores["error"] == pytest.approx(2 / 3)
    assert scores["nlpd"] == pytest.approx(-np.mean(np.log([0.7, 0.3, 1e-12])))
    expected = 0.3**2 + 0.2**2 + 0.1**2, 0.5**2 + 0.7**2 + 0.2**2, 0.1**2 + 1 + 0.9**2
    assert scores["brier"] == pytest.approx(np.mean(expected))
    # Three bins of one row each.
    assert scores["calibration_error"] == pytest.approx((0.3 + 0.5 + 0.9) / 3)


def test_calibrated_probabilities_have_no_calibration_error():
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.ones(4), size=100_000)
    Y = np.array([rng.choice(4, p=row) for row in probabilities[:20_000]])[:, None]
    assert classification.calibration_error(probabilities[:20_000], Y) < 0.015
    sharper = probabilities[:20_000] ** 3
    sharper /= sharper.sum(axis=1, keepdims=True)
    assert classification.calibration_error(sharper, Y) > 0.1


def test_softmax_probabilities_are_the_integral():
    mean, variance = [1.0, -0.5], [2.0, 0.5]
    got = classification.class_probabilities(fixed(Softmax(2), mean, variance), np.zeros((3, 1)))

    def integrand(b, a):
        density = norm.pdf(a, mean[0], variance[0] ** 0.5) * norm.pdf(
            b, mean[1], variance[1] ** 0.5
        )
        return density / (1.0 + np.exp(b - a))

    expected = dblquad(integrand, -12, 12, -8, 8)[0]
    np.testing.assert_allclose(got, [[expected, 1 - expected]] * 3, atol=1e-4)
    certain = classification.class_probabilities(
        fixed(Softmax(2), mean, [0.0, 0.0]), np.zeros((1, 1))
    )
    np.testing.assert_allclose(certain[0, 0], 1 / (1 + np.exp(-1.5)), rtol=1e-12)


def test_scores_of_softmax_hardly_depend_on_the_seed():
    """Rows share the error of the samples: of 1,000 independent ones the scores differ by .05."""
    rng = np.random.default_rng(0)
    mean, variance = rng.normal(0.0, 1.0, (1000, 10)), rng.uniform(4.0, 20.0, (1000, 10))
    Y = rng.integers(0, 10, (1000, 1))
    mean[np.arange(1000), Y[:, 0]] += 12.0
    model, data = fixed(Softmax(10), tf.constant(mean), tf.constant(variance)), (1.0 * Y, Y)
    densities = [classification.scores(model, data, seed=seed)["nlpd"] for seed in range(4)]
    assert np.ptp(densities) < 0.015 * np.mean(densities)


def test_other_likelihoods_and_batches():
    X = np.zeros((5, 1))
    bernoulli = classification.class_probabilities(fixed(Bernoulli(), [0.3], [0.5]), X, rows=2)
    expected = norm.cdf(0.3 / np.sqrt(1.5))
    np.testing.assert_allclose(bernoulli, [[1 - expected, expected]] * 5, atol=1e-3)
    model = fixed(MultiClass(3), [1.0, 0.0, 0.0], [1.0, 1.0, 1.0])
    three = classification.class_probabilities(model, X, rows=2)
    assert three.shape == (5, 3) and three[0, 0] > three[0, 1] == pytest.approx(three[0, 2])
    scores = classification.scores(model, (X, np.zeros((5, 1))))
    assert scores["error"] == 0.0 and scores["nlpd"] == pytest.approx(-np.log(three[0, 0]))


def test_entropy_and_auroc():
    np.testing.assert_allclose(
        classification.entropy(np.array([[0.5, 0.5], [1.0, 0.0]])), [np.log(2), 0]
    )
    assert classification.auroc(np.array([0.0, 1.0]), np.array([2.0, 3.0])) == 1.0
    assert classification.auroc(np.array([0.0, 2.0]), np.array([1.0, 2.0])) == 0.625
    rng = np.random.default_rng(0)
    shifted = classification.auroc(rng.normal(size=4000), 1.0 + rng.normal(size=3000))
    assert shifted == pytest.approx(norm.cdf(1 / np.sqrt(2)), abs=0.02)


def test_errors():
    with pytest.raises(TypeError, match="Bernoulli, MultiClass or Softmax, got Gaussian"):
        classification.class_probabilities(fixed(Gaussian(), [0.0], [1.0]), np.zeros((1, 1)))
    with pytest.raises(ValueError, match="labels from 0 to 1, got 0 to 2"):
        classification.probability_scores(np.full((2, 2), 0.5), np.array([[0], [2]]))


@pytest.mark.parametrize(
    ("probabilities", "labels", "message"),
    [
        ([[2.1, 0.9]], [0], "rows that sum to 1, got 0.9 to 2.1 and sums 3 to 3"),
        ([[3.0, -2.0]], [0], r"probabilities must be 0 to 1, .* got -2 to 3"),
        ([[np.nan, 1.0]], [0], "probabilities must be 0 to 1, .* got nan to nan"),
        ([[0.5, 0.5]], [0.7], "labels from 0 to 1, got 0.7 to 0.7, not all whole"),
        ([[0.5, 0.5]], [2], "labels from 0 to 1, got 2 to 2"),
        (np.zeros((0, 2)), np.zeros(0), "at least one row, got none"),
    ],
)
def test_what_are_not_probabilities_or_labels(probabilities, labels, message):
    for score in (classification.probability_scores, classification.calibration_error):
        with pytest.raises(ValueError, match=message):
            score(np.array(probabilities), np.array(labels)[:, None])


def test_rows_of_quadrature_sum_to_1():
    """GPflow's for RobustMax give .92 here, which scores would refuse; Bernoulli's do anyway."""
    model = fixed(MultiClass(3), [1.0, 0.0, -1.0], [25.0, 0.01, 0.01])
    raw, _ = model.likelihood.predict_mean_and_var(
        np.zeros((1, 1)), *model.predict_f(np.zeros((1, 1)))
    )
    assert float(tf.reduce_sum(raw)) < 0.95
    probabilities = classification.class_probabilities(model, np.zeros((1, 1)))
    np.testing.assert_allclose(probabilities, raw / tf.reduce_sum(raw), rtol=1e-12)
    assert classification.scores(model, (np.zeros((1, 1)), np.zeros((1, 1))))["error"] == 0.0


def test_numbers_out_of_range():
    with pytest.raises(ValueError, match="bins must be at least 1, got 0"):
        classification.calibration_error(np.array([[0.5, 0.5]]), np.array([[0]]), bins=0)
    model = fixed(Softmax(2), [0.0, 0.0], [1.0, 1.0])
    for rows, arguments, message in (
        (1, {"num_samples": 0}, "num_samples must be at least 1, got 0"),
        (1, {"rows": -1}, "rows must be at least 1, got -1"),
        (0, {}, "rows of X must be at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            classification.class_probabilities(model, np.zeros((rows, 1)), **arguments)
    two = fixed(Bernoulli(), [0.0, 0.0], [1.0, 1.0])
    with pytest.raises(ValueError, match="Bernoulli need one latent GP, got 2"):
        classification.class_probabilities(two, np.zeros((1, 1)))
    for inside, outside, name in (([], [1.0], "inside"), ([1.0], [np.nan], "outside")):
        with pytest.raises(ValueError, match=f"{name} must be finite numbers, at least one"):
            classification.auroc(np.array(inside), np.array(outside))


def test_of_a_trained_model():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    Y = (X[:, :1] > 0).astype(float)
    model = gpflow.models.SVGP(
        gpflow.kernels.SquaredExponential(), Bernoulli(), X[:10], num_data=60
    )
    gpflow.optimizers.Scipy().minimize(
        model.training_loss_closure((X, Y)), model.trainable_variables, options={"maxiter": 20}
    )
    scores = classification.scores(model, (X, Y))
    assert scores["error"] < 0.1 and scores["nlpd"] < 0.4


def test_variances_that_rounding_leaves_below_zero_are_zero():
    mean = [[0.3, -0.2, 1.0]]
    got = classification.class_probabilities(
        fixed(Softmax(3), mean, [[-2e-7, -1e-9, 0.0]]), np.zeros((2, 1))
    )
    expected = np.exp(mean) / np.sum(np.exp(mean))
    np.testing.assert_allclose(got, np.tile(expected, [2, 1]), rtol=1e-6)
