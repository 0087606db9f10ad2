"""Seconds a step: GPNet's natural and gradient steps beside GPflow's SVGP and the paper's formula.

    python benchmarks/steps.py [--rounds 15] [--dtype float64] [--out benchmarks/results/steps.csv]

All cases are made first and then timed in turn, round after round, so that other work on the
machine meets them alike; what is printed are medians, and their ratios to SVGP's Adam step. The
floor of a step is its arithmetic, counted, over the rates of matrix products and Cholesky factors
measured in the same rounds.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.keras import tf_keras
from gpytorch_svgp import GPyTorchSVGP, is_installed
from machine import describe_machine, write_rows
from published_step import published_gradients

import gpflow_gpnet as gpn

NUM_DATA, DIM, BATCH, INDUCING = 7372, 8, 500, 500
LATE = 1000
"""Steps done before the timed ones, on which β depends."""


@dataclass
class Case:
    run: Callable[[], object]
    products: float = 0.0
    """Floating-point operations of a step's matrix products."""
    factors: float = 0.0
    """Those of its Cholesky factors, N³ / 3 each."""


class Data:
    """Batches of random rows, drawn beforehand."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        dtype = gpflow.default_float()
        X = rng.normal(size=(NUM_DATA, DIM)).astype(dtype)
        Y = (np.sin(X[:, :1]) + 0.1 * rng.normal(size=(NUM_DATA, 1))).astype(dtype)
        self.X = X
        rows = [rng.choice(NUM_DATA, BATCH, replace=False) for _ in range(20)]
        self.batches = [(tf.constant(X[row]), tf.constant(Y[row])) for row in rows]
        self.next = 0

    def batch(self) -> tuple[tf.Tensor, tf.Tensor]:
        self.next += 1
        return self.batches[self.next % len(self.batches)]


def prior() -> tuple[gpflow.kernels.Kernel, gpflow.likelihoods.Likelihood]:
    lengthscales = np.ones(DIM, gpflow.default_float())
    return gpflow.kernels.SquaredExponential(lengthscales=lengthscales), (
        gpflow.likelihoods.Gaussian(0.1)
    )


def svgp(data: Data) -> Case:
    """GPflow's SVGP, all parameters by Adam."""
    kernel, likelihood = prior()
    model = gpflow.models.SVGP(kernel, likelihood, data.X[:INDUCING].copy(), num_data=NUM_DATA)
    adam = tf_keras.optimizers.Adam(0.01)
    variables = model.trainable_variables
    adam.build(variables)

    @tf.function(autograph=False)
    def step(X: tf.Tensor, Y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            loss = model.training_loss((X, Y))
        adam.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return Case(lambda: step(*data.batch()).numpy())


def gpytorch(data: Data) -> Case:
    """GPyTorch's SVGP, all parameters by Adam."""
    model = GPyTorchSVGP(data.X[:INDUCING].copy(), NUM_DATA)
    batches = [tuple(values.numpy() for values in batch) for batch in data.batches]

    def run() -> None:
        data.next += 1
        model.step(*batches[data.next % len(batches)])

    return Case(run)


def natural(
    data: Data, frequencies: int, *, warp: tuple[int, ...] | None = None, staleness: float = 0.0
) -> Case:
    """Natural steps, features trained, no prior correction."""
    kernel, likelihood = prior()
    gpflow.set_trainable(kernel, False)
    network = gpn.RFE(kernel, DIM, frequencies, warp=warp)
    model = gpn.GPNet(kernel, likelihood, network, num_data=NUM_DATA)
    optimizer = gpn.FunctionalMirrorDescent(
        learning_rate=0.01, noise="training", prior_correction=False, staleness=staleness
    )
    optimizer.build(model)
    optimizer.t.assign(LATE)
    step = optimizer.compiled_step()
    # Root times features, its gradient, and the Gram matrix; then factor and inverse.
    F = 2 * frequencies
    share = 1.0 if not staleness else 1.0 / (staleness // float(optimizer.step_size(LATE)) + 1.0)
    lower = 1.25 if F >= 800 else 2.0
    products = (2.0 * lower + 2.0) * BATCH * F**2 + share * 2.0 / 3.0 * F**3
    return Case(lambda: step(data.batch()).numpy(), products, share * F**3 / 3.0)


def gradient(data: Data, frequencies: int) -> Case:
    """The published step in this package's form; full covariance of the weights."""
    model, points, _ = published_problem(data, frequencies)
    optimizer = gpn.FunctionalMirrorDescent(natural=False, seed=0)
    optimizer.build(model)
    optimizer.t.assign(LATE)
    step = optimizer.compiled_step()
    F, J = 2 * frequencies, BATCH + len(points)
    lower = 1.25 if F >= 800 else 2.0
    products = (
        lower * J * F**2  # roots of all points
        + 2.0 * 0.75 * J**2 * F  # their covariance, three of four blocks
        + 2.0 * len(points) ** 2 * F  # gradients of covariance, features and root
        + 2.0 * lower * len(points) * F**2
        + 4.0 * J**3  # bridge: two whitened matrices (J³ each) and their product
        + 12.0 * len(points) ** 3  # conditioning and divergence
    )
    return Case(lambda: step(data.batch()).numpy(), products, J**3 / 3.0 + len(points) ** 3)


def structured(data: Data, covariance: str | int) -> Case:
    """A gradient step with 500 frequencies for another covariance of the weights."""
    kernel, likelihood = prior()
    network = gpn.RFE(kernel, DIM, 500, covariance=covariance)
    model = gpn.GPNet(kernel, likelihood, network, num_data=NUM_DATA)
    optimizer = gpn.FunctionalMirrorDescent(natural=False)
    optimizer.build(model)
    step = optimizer.compiled_step()
    return Case(lambda: step(data.batch()).numpy())


def as_published(data: Data, frequencies: int) -> Case:
    """The same step from the paper's formula, see published_step.py."""
    model, points, old = published_problem(data, frequencies)
    adam = tf_keras.optimizers.Adam(3e-3)
    variables = model.inference_network.trainable_variables
    adam.build(variables)
    beta = tf.constant(0.03, gpflow.default_float())
    jitter = tf.constant(1e-6, gpflow.default_float())

    @tf.function(autograph=False)
    def step(X: tf.Tensor, Y: tf.Tensor) -> tf.Tensor:
        gradients = published_gradients(model, old, (X, Y), points, beta, jitter)
        adam.apply_gradients(zip(gradients, variables, strict=True))
        for copy, variable in zip(old.trainable_variables, variables, strict=True):
            copy.assign(variable)
        return tf.reduce_sum(gradients[0])

    return Case(lambda: step(*data.batch()).numpy())


def published_problem(
    data: Data, frequencies: int
) -> tuple[gpn.GPNet, tf.Tensor, gpn.InferenceNetwork]:
    """Model, measurement points and a second copy of the network."""
    kernel, likelihood = prior()
    gpflow.set_trainable(kernel, False)
    gpflow.set_trainable(likelihood, False)
    network = gpn.RFE(kernel, DIM, frequencies)
    model = gpn.GPNet(kernel, likelihood, network, num_data=NUM_DATA, num_measurement_points=BATCH)
    return model, tf.constant(data.X[:BATCH]), deepcopy(network)


def rates() -> dict[str, tuple[Callable[[], object], float]]:
    """What the machine does: operations of a product and of a Cholesky factor of size 1,000."""
    rng = np.random.default_rng(0)
    A = tf.constant(rng.normal(size=(1000, 1000)), gpflow.default_float())
    P = A @ tf.transpose(A) + 1000.0 * tf.eye(1000, dtype=A.dtype)
    product = tf.function(lambda: tf.matmul(A, P)[0, 0])
    cholesky = tf.function(lambda: tf.linalg.cholesky(P)[0, 0])
    return {
        "matrix product": (lambda: product().numpy(), 2e9),
        "Cholesky factor": (lambda: cholesky().numpy(), 1e9 / 3.0),
    }


CASES: dict[str, Callable[[Data], Case]] = {
    "SVGP, 500 inducing points, Adam": svgp,
    "natural, 500 frequencies": lambda data: natural(data, 500),
    "natural, 500 frequencies, staleness 0.2": lambda data: natural(data, 500, staleness=0.2),
    "natural, 200 frequencies, warp": lambda data: natural(data, 200, warp=(100, 100)),
    "gradient, 500 frequencies, full": lambda data: structured(data, "full"),
    "gradient, 500 frequencies, rank 20": lambda data: structured(data, 20),
    "gradient, 500 frequencies, diagonal": lambda data: structured(data, "diag"),
    "gradient, 500 frequencies, Kronecker": lambda data: structured(data, "kronecker"),
    "gradient, 1000 frequencies": lambda data: gradient(data, 1000),
    "gradient as published, 1000 frequencies": lambda data: as_published(data, 1000),
}


if is_installed():
    CASES["GPyTorch SVGP, 500 inducing points, Adam"] = gpytorch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float64")
    parser.add_argument("--out", type=Path, help="CSV to write")
    args = parser.parse_args()
    gpflow.config.set_default_float(getattr(np, args.dtype))
    print(describe_machine(), args.dtype)
    data = Data()
    cases, first = {}, {}
    for name, make in CASES.items():
        cases[name] = make(data)
        clock = time.perf_counter()
        cases[name].run()
        first[name] = time.perf_counter() - clock
        cases[name].run()
    speeds = rates()
    seconds: dict[str, list[float]] = {name: [] for name in (*cases, *speeds)}
    for _ in range(args.rounds):
        for name, run in [(n, c.run) for n, c in cases.items()] + [
            (n, s[0]) for n, s in speeds.items()
        ]:
            clock = time.perf_counter()
            run()
            run()
            seconds[name].append((time.perf_counter() - clock) / 2.0)
    typical = {name: float(np.median(values)) for name, values in seconds.items()}
    product, cholesky = (speeds[name][1] / typical[name] for name in speeds)
    print(f"matrix products {product / 1e9:.0f} GFLOP/s, Cholesky {cholesky / 1e9:.0f} GFLOP/s")
    base = typical["SVGP, 500 inducing points, Adam"]
    rows = []
    for name, case in cases.items():
        floor = case.products / product + case.factors / cholesky
        rows.append(
            dict(
                case=name,
                dtype=args.dtype,
                seconds=typical[name],
                ratio_to_svgp=typical[name] / base,
                times_floor=typical[name] / floor if floor else "",
                first_step=first[name],
            )
        )
        times = f"{typical[name] / floor:.2f} x floor" if floor else ""
        print(
            f"{name:42} {1e3 * typical[name]:7.1f} ms  {typical[name] / base:5.2f} x SVGP  "
            f"first {first[name]:4.1f} s  {times}"
        )
    ours, theirs = "gradient, 1000 frequencies", "gradient as published, 1000 frequencies"
    print(f"{theirs} / ours: {typical[theirs] / typical[ours]:.2f}")
    if args.out:
        write_rows(args.out, rows)


if __name__ == "__main__":
    main()
