"""Rows in ten chunks, each absorbed without the old ones, against all rows at once.

    python benchmarks/growing.py

On the 200 Snelson points in random order, with hyperparameters of an exact GP on the first chunk
or on all rows. `fit` trains on the first chunk, `FunctionalMirrorDescent.absorb` takes the others;
"all at once" is `fit` on all rows. Gaps are over all inputs, in standard deviations of the latter.
"""

from __future__ import annotations

import time
from copy import deepcopy

import gpflow
import numpy as np
from machine import describe_machine

import gpflow_gpnet as gpn

_CHUNKS, _FREQUENCIES = 10, 100


def _model(kernel, likelihood, num_data: int, scaling) -> gpn.GPNet:
    kernel, likelihood = deepcopy(kernel), deepcopy(likelihood)
    network = gpn.RFE(kernel, 1, _FREQUENCIES)
    model = gpn.GPNet(kernel, likelihood, network, num_data=num_data, scaling=scaling)
    gpflow.set_trainable(model, False)
    gpflow.set_trainable([network.q_mu, network.q_sqrt], True)
    return model


def _fit(model: gpn.GPNet, data) -> gpn.FunctionalMirrorDescent:
    optimizer = gpn.FunctionalMirrorDescent(prior_correction=False)
    gpn.fit(model, data, optimizer=optimizer, num_steps=1, seed=0, progress=False)
    return optimizer


def main() -> None:
    print(describe_machine())
    dataset = gpn.datasets.load("snelson")
    order = np.random.default_rng(0).permutation(len(dataset.X))
    X, Y = dataset.X[order], dataset.Y[order]
    chunks = np.array_split(np.arange(len(X)), _CHUNKS)
    exact = gpflow.models.GPR((X, Y), gpflow.kernels.SquaredExponential())
    gpflow.optimizers.Scipy().minimize(exact.training_loss, exact.trainable_variables)
    for name, rows in (("the first chunk", chunks[0]), ("all rows", np.arange(len(X)))):
        start = X[rows], Y[rows]
        kernel, likelihood = gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(0.1)
        scaling = gpn.Scaling.from_data(start)
        gpn.fit_hyperparameters(kernel, likelihood, scaling(start))
        streamed = _model(kernel, likelihood, len(chunks[0]), scaling)
        optimizer, seconds = _fit(streamed, (X[chunks[0]], Y[chunks[0]])), []
        for chunk in chunks[1:]:
            began = time.perf_counter()
            optimizer.absorb((X[chunk], Y[chunk]))
            seconds.append(time.perf_counter() - began)
        whole = _model(kernel, likelihood, len(X), scaling)
        _fit(whole, (X, Y))
        (mean, var), (expected, expected_var) = streamed.predict_f(X), whole.predict_f(X)
        gap = np.max(np.abs(mean - expected) / np.sqrt(expected_var))
        ratio = np.max(np.abs(np.sqrt(var / expected_var) - 1.0))
        exact_mean, exact_var = exact.predict_f(X)
        far = np.max(np.abs(mean - exact_mean) / np.sqrt(exact_var))
        print(
            f"hyperparameters of {name}: {streamed.num_data} rows in {_CHUNKS} chunks, "
            f"{1e3 * np.median(seconds[1:]):.1f} ms a chunk; from all at once, mean {gap:.1e} sd, "
            f"sd {ratio:.1e}; from the exact GP fitted on all rows, mean {far:.2f} sd"
        )


if __name__ == "__main__":
    main()
