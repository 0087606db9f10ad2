"""The variance that steps may follow, however the likelihood is parametrised."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf

from gpflow_gpnet import likelihoods
from gpflow_gpnet.noise_variance import assign_noise_variance, noise_parameter, noise_variance


@pytest.mark.parametrize(
    "likelihood",
    [
        gpflow.likelihoods.Gaussian(variance=0.25),
        gpflow.likelihoods.Gaussian(scale=0.5),
        likelihoods.MissingTargets(gpflow.likelihoods.Gaussian(0.25)),
    ],
    ids=["variance", "scale", "inside another"],
)
def test_variance_can_be_read_and_set(likelihood):
    assert noise_parameter(likelihood) is not None
    np.testing.assert_allclose(noise_variance(likelihood), 0.25, rtol=1e-12)
    assign_noise_variance(likelihood, tf.constant(0.04, tf.float64))
    np.testing.assert_allclose(noise_variance(likelihood), 0.04, rtol=1e-6)


def test_variance_stays_above_gpflows_bound():
    likelihood = gpflow.likelihoods.Gaussian(0.1, variance_lower_bound=1e-3)
    assign_noise_variance(likelihood, tf.constant(0.0, tf.float64))
    assert 1e-3 < noise_variance(likelihood).numpy() < 1.02e-3


@pytest.mark.parametrize(
    "likelihood",
    [
        gpflow.likelihoods.StudentT(),
        gpflow.likelihoods.Gaussian(variance=gpflow.functions.Linear(np.ones((1, 1)))),
    ],
    ids=["of another likelihood", "a function of the inputs"],
)
def test_likelihoods_without_one_variance_are_named(likelihood):
    assert noise_parameter(likelihood) is None
    with pytest.raises(ValueError, match=f"{type(likelihood).__name__} has no single"):
        assign_noise_variance(likelihood, tf.constant(1.0, tf.float64))
