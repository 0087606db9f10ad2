"""Variants of natural GPNet: each does what its name says."""

import numpy as np
import pytest

from gpflow_gpnet.experiments import ablation, published
from gpflow_gpnet.experiments.methods import Task, fitted_prior

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2))
Y = np.sin(2.0 * X[:, :1]) + 0.1 * RNG.normal(size=(60, 1))
TASK = Task(X, Y, "any", seed=0, steps=3)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(published, "FIT_ROWS", 20)


def train(name):
    model, history = ablation.train(TASK, ablation.VARIANTS[name], 4)
    assert history["step"][-1] == 3
    assert np.isfinite(model.predict_log_density((X, Y))).all()
    return model


def test_base_moves_everything():
    kernel, likelihood = fitted_prior(TASK)
    model = train("base")
    assert model.optimizer.takes_natural_steps and model.optimizer.prior_correction
    assert not np.array_equal(model.kernel.lengthscales, kernel.lengthscales)
    assert not np.array_equal(model.likelihood.variance, likelihood.variance)
    assert len(model.correction_points(X)) == 4  # half the features


def test_frozen_parts_stay():
    kernel, _ = fitted_prior(TASK)
    model = train("frozen-kernel")
    np.testing.assert_array_equal(model.kernel.lengthscales, kernel.lengthscales)
    model = train("frozen-features")
    [features] = model.inference_network.maps
    np.testing.assert_array_equal(features.lengthscales, kernel.lengthscales)
    assert {p.name for p in model.inference_network.trainable_parameters} and all(
        not parameter.trainable for parameter in features.parameters
    )


def test_structured_weights_take_gradient_steps():
    model = train("low-rank")
    assert not model.optimizer.takes_natural_steps
    sizes = [np.size(p) for p in model.inference_network.weights.parameters]
    assert max(sizes) == 8 * 50


def test_measurement_points_and_noise_are_set():
    model = train("M-20")
    assert len(model.correction_points(X)) == 20 and model.optimizer.noise == "training"
    model = train("noise-held-out")
    assert model.optimizer.noise == "held-out" and model.optimizer.prior_correction
