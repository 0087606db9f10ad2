"""Normal numbers that depend on their seed alone."""

import numpy as np
import pytest
import tensorflow as tf

from gpflow_gpnet import random_numbers
from gpflow_gpnet.random_numbers import normal


def test_moments_and_dependence_on_the_seed():
    """Mean and variance within five standard errors of 40,000 numbers."""
    draw = normal([200, 200], [3, 4], tf.float64).numpy()
    assert abs(draw.mean()) < 5 / 200 and abs(draw.var() - 1.0) < 5 * np.sqrt(2) / 200
    assert abs(np.mean(draw**4) - 3.0) < 5 * np.sqrt(96) / 200
    np.testing.assert_array_equal(draw, normal([200, 200], [3, 4], tf.float64))
    other = normal([200, 200], [4, 4], tf.float64).numpy()
    assert abs(np.corrcoef(draw.ravel(), other.ravel())[0, 1]) < 5 / 200


def test_same_numbers_under_xla(float_type):
    def draw():
        return normal([50, 3], [3, 4], tf.as_dtype(float_type))

    compiled = tf.function(draw, jit_compile=True)()
    assert compiled.dtype == float_type and np.all(np.isfinite(compiled))
    np.testing.assert_allclose(compiled, draw(), rtol=1e-4, atol=1e-6)


def test_drawn_seeds_follow_tensorflows():
    tf.random.set_seed(3)
    first, other = random_numbers.draw_seed(), random_numbers.draw_seed()
    tf.random.set_seed(3)
    assert random_numbers.draw_seed() == first != other
    tf.function(lambda: tf.constant(random_numbers.draw_seed()), autograph=False)()


@pytest.mark.parametrize("num", [1, 100, 128])
def test_low_discrepancy_points_are_stratified_in_each_coordinate(num):
    points = random_numbers.low_discrepancy(num, 3, np.random.default_rng(0))
    assert points.min() > 0.0 and points.max() < 1.0
    strata = np.sort((points * num).astype(int), axis=0)
    np.testing.assert_array_equal(strata, np.tile(np.arange(num)[:, None], [1, 3]))


def test_low_discrepancy_integrates_better_than_independent_points():
    """Of a smooth function of four coordinates, 1,024 points: independent ones err by .02."""
    for seed in range(3):
        points = random_numbers.low_discrepancy(1024, 4, np.random.default_rng(seed))
        values = np.cos(2.0 * points.sum(axis=1))
        expected = np.real((np.exp(2j) - 1.0) ** 4 / 2j**4)
        assert abs(values.mean() - expected) < 0.002
