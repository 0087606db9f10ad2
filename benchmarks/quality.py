"""Quality of natural GPNet on UCI regression sets, split 0: test scores against steps and seconds.

    python benchmarks/quality.py --data FOLDER [--only NAME …] [--out results/quality.csv]

Prints the machine, versions and one row for each evaluation; hyperparameters come from an exact GP
on at most 1,000 training rows, and their time is counted.
"""

from __future__ import annotations

import argparse
import csv
import os
import platform
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import gpflow
import numpy as np
import tensorflow as tf

import gpflow_gpnet as gpn
from gpflow_gpnet import datasets

# name: (dataset, steps at which to score, frequencies, learning rate at first, options)
WARPED = {"warp": (100, 100), "noise": "held-out", "correction": False}
BASIS = {"network": "basis", "noise": "held-out", "correction": False}
LOCAL = {"network": "local", "noise": "held-out"}
PLAIN = {"noise": "training", "correction": False}
RUNS = {
    "boston": ("boston", [1, 5, 10, 20], 1000, 0.01, {}),
    "kin8nm-400": ("kin8nm", [150, 400], 500, 0.02, PLAIN),
    "kin8nm-1600": ("kin8nm", [400, 800, 1600], 500, 0.02, PLAIN | {"noise": "held-out"}),
    "kin8nm-warp": ("kin8nm", [200, 400], 200, 0.01, WARPED),
    "power-warp": ("power", [1000, 2400], 200, 0.01, WARPED),
    "protein-warp": ("protein", [1500, 3000], 200, 0.01, WARPED),
    "kin8nm-basis": ("kin8nm", [200, 400, 800, 1600, 3000], None, 0.01, BASIS),
    "power-basis": ("power", [1000, 2400], None, 0.01, BASIS),
    "protein-basis": ("protein", [1500, 3000], None, 0.01, BASIS),
    "kin40k-local": ("kin40k", [500, 1500], None, 0.01, LOCAL),
}


def exact_scores(split: datasets.Split, kernel, likelihood) -> tuple[float, float]:
    """RMSE and mean log density of the exact GP, in the targets' units."""
    model = gpflow.models.GPR((split.X_train, split.Y_train), kernel, likelihood=likelihood)
    return scores(model, split)


def scores(model, split: datasets.Split) -> tuple[float, float]:
    """Test RMSE and mean log density in the targets' units."""
    mean, _ = model.predict_y(split.X_test)
    density = model.predict_log_density((split.X_test, split.Y_test))
    rmse = float(np.sqrt(np.mean(np.square(mean - split.Y_test)))) * split.y_std
    return rmse, float(np.mean(density)) - np.log(split.y_std)


def run(name: str, folder: str, args: argparse.Namespace) -> list[dict]:
    dataset, steps, frequencies, learning_rate, options = RUNS[name]
    learning_rate = args.learning_rate or learning_rate
    split = datasets.split(datasets.load(dataset, folder), 0)
    num, dim = split.X_train.shape
    kernel = gpflow.kernels.SquaredExponential(lengthscales=np.ones(dim))
    likelihood = gpflow.likelihoods.Gaussian(0.1)
    started = time.perf_counter()
    gpn.fit_hyperparameters(kernel, likelihood, (split.X_train, split.Y_train))
    prefit = time.perf_counter() - started
    gpflow.set_trainable(kernel, False)
    noise = options.get("noise", "objective")
    gpflow.set_trainable(likelihood, noise != "objective")
    rows = []

    def row(step: int, seconds: float, rmse: float, density: float, method: str) -> None:
        rows.append(
            dict(
                run=name, method=method, step=step, seconds=seconds, rmse=rmse, log_density=density
            )
        )
        print(
            f"{name:14} {method:10} step {step:5d}  {seconds:6.1f} s  RMSE {rmse:.4f}  "
            f"log density {density:+.4f}  noise variance {likelihood.variance.numpy():.4g}",
            flush=True,
        )

    if num <= 2000:
        row(0, prefit, *exact_scores(split, kernel, likelihood), "exact GP")
    if options.get("network") == "basis":
        network = gpn.AdaptiveBasis(kernel=kernel, input_dim=dim)
    elif options.get("network") == "local":
        rows = np.random.default_rng(0).permutation(num)[:1000]
        network = gpn.InducingFeatures(kernel, split.X_train[rows])
    else:
        network = gpn.RFE(kernel, dim, frequencies, warp=options.get("warp"))
    model = gpn.GPNet(kernel, likelihood, network, num_data=num)
    optimizer = gpn.FunctionalMirrorDescent(
        learning_rate=gpn.LinearDecay(learning_rate, steps[-1]),
        noise=noise,
        prior_correction=options.get("correction", True),
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
        (split.X_train, split.Y_train),
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
        tuple(
            part[start : start + 500]
            for part in (tf.constant(split.X_train), tf.constant(split.Y_train))
        )
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
    parser.add_argument("--polish-every", type=int, default=None)
    args = parser.parse_args()
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"TensorFlow {tf.__version__}, GPflow {gpflow.__version__}, float64"
    )
    rows = [row for name in args.only for row in run(name, args.data, args)]
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        with args.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
