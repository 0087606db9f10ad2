"""Trains small models alone and on replicas, in a process of its own; see test_replicas.py.

    python replicas_worker.py FOLDER CASE ...

Replicas are two logical CPU devices, or with TF_CONFIG set the processes that it names. Variables
after training and losses are written to FOLDER/INDEX.npz, of one replica (CASE/one) and of all
(CASE/all). Devices must be made before TensorFlow looks for them: hence the process.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

CONFIG = json.loads(os.environ.get("TF_CONFIG", "{}"))
INDEX = CONFIG["task"]["index"] if CONFIG else 0


def make_strategy() -> tf.distribute.Strategy:
    if CONFIG:
        return tf.distribute.MultiWorkerMirroredStrategy()
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], two)
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


# Before anything else, since this configures how processes talk.
STRATEGY = make_strategy()

import gpflow  # noqa: E402
from gpflow.keras import tf_keras  # noqa: E402

import gpflow_gpnet as gpn  # noqa: E402

RNG = np.random.default_rng(0)
X = RNG.uniform(-2.0, 2.0, size=(25, 2))
Y = np.sin(2.0 * X[:, :1]) + 0.1 * RNG.normal(size=(25, 1))
LABELS = (Y > 0.0).astype(float)
RAGGED: dict[str, Any] = {"batch_size": 8, "num_steps": 5}
"""In each epoch a last batch of one row, which leaves a replica without any."""

Strategy = tf.distribute.Strategy | None


def make_kernel() -> gpflow.kernels.Kernel:
    return gpflow.kernels.SquaredExponential(lengthscales=[1.0, 1.0])


def make_model(
    make: Callable[[gpflow.kernels.Kernel], Any],
    likelihood: gpflow.likelihoods.Likelihood | None = None,
    model: type = gpn.GPNet,
    **kwargs: Any,
) -> Any:
    kernel = make_kernel()
    likelihood = gpflow.likelihoods.Gaussian(0.1) if likelihood is None else likelihood
    mean = gpflow.functions.Constant(0.1)
    return model(kernel, likelihood, make(kernel), num_data=len(X), mean_function=mean, **kwargs)


def train(model: Any, strategy: Strategy, **kwargs: Any) -> np.ndarray:
    """All variables of the trained model, and the losses; by default in batches of all rows, which
    two replicas do not divide, since one shape compiles faster."""
    arguments: dict[str, Any] = {"num_steps": 3, "batch_size": len(X), "seed": 1, "log_every": 1}
    arguments |= {"data": (X, Y), "progress": False, "strategy": strategy} | kwargs
    history = gpn.fit(model, arguments.pop("data"), **arguments)
    return np.concatenate([*(np.ravel(v) for v in model.variables), history["loss"]])


def mirror_descent(
    make: Callable[[gpflow.kernels.Kernel], Any],
    classify: bool = False,
    fit: dict[str, Any] | None = None,
    **settings: Any,
) -> Callable[[Strategy], np.ndarray]:
    def run(strategy: Strategy) -> np.ndarray:
        model = make_model(make, gpflow.likelihoods.Bernoulli() if classify else None)
        optimizer = gpn.FunctionalMirrorDescent(**settings)
        rows = (X, LABELS if classify else Y)
        arguments = {"polish": False} | (fit or {})
        return train(model, strategy, optimizer=optimizer, data=rows, **arguments)

    return run


def adam(
    make: Callable[[gpflow.kernels.Kernel], Any],
    model: type = gpn.GPNet,
    fit: dict[str, Any] | None = None,
    **kwargs: Any,
) -> Callable[[Strategy], np.ndarray]:
    def run(strategy: Strategy) -> np.ndarray:
        trained = make_model(make, model=model, **kwargs)
        return train(trained, strategy, optimizer=tf_keras.optimizers.Adam(0.01), **(fit or {}))

    return run


def rfe(covariance: Any = "full", **kwargs: Any) -> Callable[[gpflow.kernels.Kernel], Any]:
    return lambda kernel: gpn.RFE(kernel, 2, 6, covariance, **kwargs)


def ntk(kernel: gpflow.kernels.Kernel) -> gpn.NTK:
    return gpn.NTK((5,), kernel=kernel, input_dim=2)


def bnn(kernel: gpflow.kernels.Kernel) -> gpn.BNN:
    return gpn.BNN((5,), num_samples=20, kernel=kernel, input_dim=2)


def inducing(kernel: gpflow.kernels.Kernel) -> gpn.InducingFeatures:
    return gpn.InducingFeatures(kernel, X[::5])


def basis(kernel: gpflow.kernels.Kernel) -> gpn.AdaptiveBasis:
    return gpn.AdaptiveBasis((5,), kernel=kernel, input_dim=2)


def images(kernel: gpflow.kernels.Kernel) -> gpn.ConvNTK:
    return gpn.ConvNTK((1, 2, 1), 1, filters=(2,), features=5, hidden_units=4, kernel=kernel)


CASES: dict[str, Callable[[Strategy], np.ndarray]] = {
    "natural": mirror_descent(rfe(), fit=RAGGED | {"polish": True}),
    "natural, classification": mirror_descent(rfe(), classify=True),
    "natural, noise of held-out rows": mirror_descent(rfe(), noise="held-out"),
    "natural, staleness": mirror_descent(rfe(), staleness=0.5),
    "natural, warp": mirror_descent(rfe(warp=(5,))),
    "natural, adaptive basis": mirror_descent(basis),
    "natural, linearised NTK": mirror_descent(lambda kernel: gpn.LinearisedNTK(ntk(kernel))),
    "natural, inducing features": mirror_descent(inducing),
    "natural, sum": mirror_descent(lambda kernel: rfe()(kernel) + inducing(kernel)),
    "gradient": mirror_descent(rfe(), natural=False, fit=RAGGED),
    "gradient, classification": mirror_descent(rfe(), classify=True, natural=False),
    "gradient, noise of the batch": mirror_descent(rfe(), natural=False, noise="training"),
    "gradient, diagonal": mirror_descent(rfe("diag")),
    "gradient, low rank": mirror_descent(rfe(2)),
    "gradient, Kronecker": mirror_descent(rfe("kronecker")),
    "gradient, inducing features": mirror_descent(inducing, natural=False),
    "gradient, NTK": mirror_descent(ntk),
    "gradient, BNN": mirror_descent(bnn),
    "gradient, BNN, classification": mirror_descent(bnn, classify=True),
    "gradient, sum": mirror_descent(lambda kernel: ntk(kernel) + rfe("diag")(kernel)),
    "gradient, ConvNTK": mirror_descent(images),
    "Adam, RFE": adam(rfe()),
    "Adam, BNN": adam(bnn),
    "Adam, FBNN": adam(rfe(), gpn.FBNN),
    "Adam, FBNN, Stein": adam(bnn, gpn.FBNN, divergence="stein"),
    "Adam, SVGP": adam(lambda kernel: X[::5].copy(), gpflow.models.SVGP, RAGGED),
}
"""What is to be the same for one replica and for several."""


def resume(folder: Path, strategy: Strategy) -> np.ndarray:
    """Two runs of half the steps; with a folder, the second goes on from the first's checkpoint."""
    for steps in (1, 3):
        model = make_model(rfe())
        state = {"checkpoint_dir": str(folder / "checkpoints"), "checkpoint_every": 1}
        result = train(model, strategy, num_steps=steps, polish=False, **state)
    return result


def begin_apart() -> np.ndarray:
    """Processes that begin with parameters and seeds of their own."""
    model = make_model(rfe())
    model.inference_network.q_mu.assign(model.inference_network.q_mu + INDEX)
    model.kernel.variance.assign(1.0 + INDEX)
    return train(model, STRATEGY, seed=None, polish=False)


def stop_together() -> np.ndarray:
    """One process wants to stop after the second step."""
    model, stop = make_model(rfe()), lambda step: INDEX == 1 and step == 2
    history = gpn.fit(model, (X, Y), num_steps=6, callbacks=[stop], strategy=STRATEGY)
    return np.array(history["step"][-1])


def differ_in_data() -> np.ndarray:
    try:
        train(make_model(rfe()), STRATEGY, data=(X, Y + INDEX))
    except ValueError as error:
        return np.array(str(error))
    return np.array("no error")


def main(folder: Path, names: list[str]) -> None:
    results: dict[str, np.ndarray] = {}
    for name in names:
        if name == "resume":
            whole = train(make_model(rfe()), STRATEGY, polish=False)
            results |= {"resume/one": whole, "resume/all": resume(folder, STRATEGY)}
        elif name in CASES:
            results |= {f"{name}/one": CASES[name](None), f"{name}/all": CASES[name](STRATEGY)}
        else:
            results[name] = globals()[name]()
        np.savez(folder / f"{INDEX}.npz", **results)
        print(name, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
