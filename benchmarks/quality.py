"""Quality of natural GPNet on UCI regression sets, split 0: test scores against steps and seconds.

    python benchmarks/quality.py --data FOLDER [--only NAME …] [--dtype float32] [--out FILE]

Prints the machine, versions and one row for each evaluation; hyperparameters come from an exact GP
on at most 1,000 training rows, and their time is counted.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import gpflow
import numpy as np
import tensorflow as tf
from machine import describe_machine, write_rows

import gpflow_gpnet as gpn
from gpflow_gpnet import datasets

JITTER = {np.float32: 1e-5, np.float64: 1e-6}
DTYPES = {dtype.__name__: dtype for dtype in JITTER}


@dataclass(frozen=True)
class Run:
    """A data set, a network, and how it is trained."""

    dataset: str
    steps: tuple[int, ...]
    """At which to score; the last ends training."""
    network: Callable[[gpflow.kernels.Kernel, int], gpn.InferenceNetwork]
    learning_rate: float
    """At first; it falls to zero."""
    noise: str = "held-out"
    correction: bool = False
    dtype: type = np.float64


def random_features(frequencies: int, **settings: Any) -> Callable[..., gpn.InferenceNetwork]:
    return lambda kernel, dim: gpn.RFE(kernel, dim, frequencies, **settings)


def basis(*hidden_units: int, **settings: Any) -> Callable[..., gpn.InferenceNetwork]:
    sizes = {"hidden_units": hidden_units} if hidden_units else {}
    return lambda kernel, dim: gpn.AdaptiveBasis(kernel=kernel, input_dim=dim, **sizes, **settings)


WARP = {"warp": (100, 100)}
FREE = {"activation": "swish", "weight_prior": False}
RUNS = {
    "boston": Run(
        "boston", (1, 5, 10, 20), random_features(1000), 0.01, "objective", correction=True
    ),
    "kin8nm-400": Run("kin8nm", (150, 400), random_features(500), 0.02, "training"),
    "kin8nm-1600": Run("kin8nm", (400, 800, 1600), random_features(500, **WARP), 0.01),
    "kin8nm-warp": Run("kin8nm", (200, 400), random_features(200, **WARP), 0.01),
    "power-warp": Run("power", (1000, 2400), random_features(200, **WARP), 0.01),
    "protein-warp": Run(
        "protein", (1500, 3000), random_features(200, weight_prior=False, **WARP), 0.01
    ),
    "kin8nm-basis": Run("kin8nm", tuple(range(250, 3001, 250)), basis(), 0.01),
    "power-basis": Run(
        "power",
        (1000, 2000, 3000, 4000),
        basis(200, 200, 200, weight_prior=False),
        0.01,
        dtype=np.float32,
    ),
    "protein-basis": Run(
        "protein",
        tuple(range(500, 5001, 500)),
        basis(256, 256, 256, **FREE),
        0.003,
        dtype=np.float32,
    ),
    "kin40k-basis": Run(
        "kin40k", (2000, 4000, 8000), basis(200, 200, 200), 0.005, dtype=np.float32
    ),
}


def exact_scores(split: datasets.Split, kernel, likelihood) -> tuple[float, float]:
    """RMSE and mean log density of the exact GP, in the targets' units."""
    data = tuple(values.astype(gpflow.default_float()) for values in split.train)
    model = gpflow.models.GPR(data, kernel, likelihood=likelihood)
    return scores(model, split)


def scores(model, split: datasets.Split) -> tuple[float, float]:
    """Test RMSE and mean log density in the targets' units."""
    X, Y = (values.astype(gpflow.default_float()) for values in split.test)
    mean, _ = model.predict_y(X)
    density = model.predict_log_density((X, Y))
    rmse = float(np.sqrt(np.mean(np.square(mean - split.Y_test)))) * split.y_std
    return rmse, float(np.mean(density)) - np.log(split.y_std)


def run(name: str, folder: str, args: argparse.Namespace) -> list[dict]:
    setting = RUNS[name]
    if args.dtype:
        setting = replace(setting, dtype=DTYPES[args.dtype])
    config = gpflow.config.Config(float=setting.dtype, jitter=JITTER[setting.dtype])
    with gpflow.config.as_context(config):
        return run_here(name, setting, folder, args)


def run_here(name: str, setting: Run, folder: str, args: argparse.Namespace) -> list[dict]:
    steps = setting.steps
    split = datasets.split(datasets.load(setting.dataset, folder), 0)
    num, dim = split.X_train.shape
    data = tuple(values.astype(setting.dtype) for values in split.train)
    kernel = gpflow.kernels.SquaredExponential(lengthscales=np.ones(dim, setting.dtype))
    likelihood = gpflow.likelihoods.Gaussian(0.1)
    started = time.perf_counter()
    gpn.fit_hyperparameters(kernel, likelihood, data)
    prefit = time.perf_counter() - started
    gpflow.set_trainable(kernel, False)
    gpflow.set_trainable(likelihood, setting.noise != "objective")
    rows = []

    def row(step: int, seconds: float, rmse: float, density: float, method: str) -> None:
        rows.append(
            dict(
                run=name,
                dtype=setting.dtype.__name__,
                staleness=args.staleness,
                method=method,
                step=step,
                seconds=seconds,
                rmse=rmse,
                log_density=density,
            )
        )
        print(
            f"{name:14} {method:10} step {step:5d}  {seconds:6.1f} s  RMSE {rmse:.4f}  "
            f"({rmse / split.y_std:.4f} normalised)  log density {density:+.4f}  noise variance "
            f"{likelihood.variance.numpy():.4g}",
            flush=True,
        )

    if num <= 2000:
        row(0, prefit, *exact_scores(split, kernel, likelihood), "exact GP")
    network = setting.network(kernel, dim)
    model = gpn.GPNet(kernel, likelihood, network, num_data=num)
    optimizer = gpn.FunctionalMirrorDescent(
        learning_rate=gpn.LinearDecay(args.learning_rate or setting.learning_rate, steps[-1]),
        noise=setting.noise,
        prior_correction=setting.correction,
        staleness=args.staleness,
    )
    spent = prefit

    class Score(gpn.callbacks.Callback):
        def on_start(self, model, history):
            self.clock = time.perf_counter()

        def __call__(self, step):
            nonlocal spent
            if step not in steps[:-1]:
                return
            spent += time.perf_counter() - self.clock
            row(step, spent, *scores(model, split), "GPNet")
            self.clock = time.perf_counter()

    score = Score()
    gpn.fit(
        model,
        data,
        optimizer=optimizer,
        num_steps=steps[-1],
        batch_size=500,
        callbacks=[score],
        seed=0,
        progress=False,
        polish=False,
        polish_every=args.polish_every,
    )
    spent += time.perf_counter() - score.clock
    row(steps[-1], spent, *scores(model, split), "GPNet")
    clock = time.perf_counter()
    optimizer.polish(
        tuple(tf.constant(part[start : start + 500]) for part in data)
        for start in range(0, num, 500)
    )
    row(steps[-1], spent + time.perf_counter() - clock, *scores(model, split), "polished")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=os.environ.get("GPNET_DATA"), help="folder of .npz files")
    parser.add_argument("--only", nargs="*", choices=list(RUNS), default=list(RUNS))
    parser.add_argument("--out", type=Path, help="CSV to write")
    parser.add_argument("--learning-rate", type=float, help="instead of the run's own")
    parser.add_argument("--dtype", choices=list(DTYPES), help="instead of the run's own")
    parser.add_argument("--staleness", type=float, default=0.0, help="of natural steps")
    parser.add_argument("--polish-every", type=int, default=None)
    args = parser.parse_args()
    print(describe_machine())
    rows = [row for name in args.only for row in run(name, args.data, args)]
    if args.out:
        write_rows(args.out, rows)


if __name__ == "__main__":
    main()
