"""Neural inference networks by name, a Keras model for them, and their score on Snelson."""

import gpflow
import numpy as np
from gpflow.keras import tf_keras
from gpflow.likelihoods import Gaussian

import gpflow_gpnet as gpn
from gpflow_gpnet import datasets


def keras_model(*units, dtype="float64", input_dim=1):
    """Dense layers, all but the last with tanh, always with the same weights."""
    tf_keras.utils.set_random_seed(1)
    layers = [tf_keras.layers.Dense(size, activation="tanh", dtype=dtype) for size in units[:-1]]
    layers.append(tf_keras.layers.Dense(units[-1], dtype=dtype))
    return tf_keras.Sequential([tf_keras.layers.Input((input_dim,), dtype=dtype), *layers])


def keras_image_model(image_shape, features=5, dtype="float64"):
    """A convolution and a dense layer, always with the same weights."""
    tf_keras.utils.set_random_seed(1)
    return tf_keras.Sequential(
        [
            tf_keras.layers.Input(image_shape, dtype=dtype),
            tf_keras.layers.Conv2D(3, 3, padding="same", activation="tanh", dtype=dtype),
            tf_keras.layers.Flatten(dtype=dtype),
            tf_keras.layers.Dense(features, activation="tanh", dtype=dtype),
        ]
    )


def snelson_gap(build, **fit_options):
    """Test negative log density of a network over that of the exact GP, nats per datum.

    150 points to train, 50 to test, hyperparameters of the exact GP, 600 steps by default.
    """
    dataset = datasets.load("snelson")
    order = np.random.default_rng(0).permutation(200)
    train, test = ((dataset.X[rows], dataset.Y[rows]) for rows in (order[:150], order[150:]))
    kernel, likelihood = gpflow.kernels.SquaredExponential(), Gaussian()
    gpn.fit_hyperparameters(kernel, likelihood, train)
    gpflow.set_trainable(kernel, False)
    gpflow.set_trainable(likelihood, False)
    exact = gpflow.models.GPR(train, kernel, likelihood=likelihood)
    measurement = gpn.measurement.Uniform(train[0].min() - 0.3, train[0].max() + 0.3)
    model = gpn.GPNet(kernel, likelihood, build(kernel), num_data=150, measurement=measurement)
    optimizer = gpn.FunctionalMirrorDescent(learning_rate=gpn.LinearDecay(0.01, 600))
    options = dict(optimizer=optimizer, num_steps=600, batch_size=50, seed=0, progress=False)
    gpn.fit(model, train, **{**options, **fit_options})
    scores = [-np.mean(m.predict_log_density(test)) for m in (model, exact)]
    return scores[0] - scores[1]
