"""Seconds until GPNet predicts as well as GPflow's SVGP does at the end of its training.

    python benchmarks/time_to_quality.py --data FOLDER [--only kin8nm …] [--svgp-steps 10000]
        [--svgp "SVGP natural" "SVGP Adam" "GPyTorch SVGP"] (or none)
        [--out benchmarks/results/time_to_quality.csv] [--plot docs/time_to_quality.png]

Split 0. All start from the hyperparameters of an exact GP on 1,000 training rows, whose time is
counted. SVGP has 500 k-means inducing points and trains by Adam 0.01 and by NaturalGradient 0.1
with Adam 0.01, GPyTorch's (where it is installed) by Adam 0.01; the best end counts. GPNet has the
network that ``gpn.defaults`` keeps for these data, trained as it trains it; that it tried others
too is not counted. Seconds are those of training: test scores are taken with the clock stopped.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import gpflow
import numpy as np
from gpflow.keras import tf_keras
from gpytorch_svgp import GPyTorchSVGP, is_installed
from machine import describe_machine, write_rows

import gpflow_gpnet as gpn
from gpflow_gpnet import datasets
from gpflow_gpnet.defaults import MANY
from gpflow_gpnet.experiments.methods import NaturalGradientAndAdam, kmeans_centres

INDUCING, BATCH = 500, 500
GPYTORCH = "GPyTorch SVGP"
METHODS = ("SVGP natural", "SVGP Adam", *([GPYTORCH] if is_installed() else []))
KEPT = {
    "kin8nm": "warped random features",
    "power": "adaptive basis",
    "protein": "adaptive basis",
    "airline_nyc2013": "adaptive basis",
}
"""By data set, the name of the candidate that ``gpn.defaults`` keeps."""


class Curve(gpn.callbacks.Callback):
    """Test scores at every so many steps, against the seconds of training."""

    def __init__(self, split: datasets.Split, every: int, spent: float) -> None:
        self.split, self.every, self.spent = split, every, spent
        self.rows: list[dict[str, float]] = []

    def on_start(self, model: Any, history: gpn.History) -> None:
        super().on_start(model, history)
        self.clock = time.perf_counter()

    def __call__(self, step: int) -> None:
        if step % self.every == 0:
            self.spent += time.perf_counter() - self.clock
            self.score(step)
            self.clock = time.perf_counter()

    def score(self, step: int) -> None:
        X, Y, scale = self.split.X_test[:20_000], self.split.Y_test[:20_000], self.split.y_std
        means, densities = [], []
        for start in range(0, len(X), 2000):
            rows = slice(start, start + 2000)
            means.append(np.asarray(self.model.predict_y(X[rows])[0]))
            densities.append(np.asarray(self.model.predict_log_density((X[rows], Y[rows]))))
        self.rows.append(
            dict(
                step=step,
                seconds=self.spent,
                rmse=scale * float(np.sqrt(np.mean((np.concatenate(means) - Y) ** 2))),
                nlpd=float(np.log(scale) - np.mean(np.concatenate(densities))),
            )
        )


def compare(name: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    split = datasets.split(datasets.load(name, args.data), 0)
    num, dim = split.X_train.shape
    kernel = gpflow.kernels.SquaredExponential(lengthscales=np.ones(dim))
    likelihood = gpflow.likelihoods.Gaussian(0.1)
    clock = time.perf_counter()
    gpn.fit_hyperparameters(kernel, likelihood, split.train)
    prefit = time.perf_counter() - clock
    rows: list[dict[str, Any]] = []

    def train(method: str, model: Any, optimizer: Any, steps: int, spent: float) -> None:
        curve = Curve(split, max(1, steps // 50), spent)
        clock = time.perf_counter()
        gpn.fit(
            model,
            split.train,
            optimizer=optimizer,
            num_steps=steps,
            batch_size=BATCH,
            callbacks=[curve],
            validate_every=steps,
            seed=0,
            progress=False,
        )
        if method == "GPNet":  # with the final polishing
            curve.spent = prefit + time.perf_counter() - clock
            curve.score(steps + 1)
        report(method, curve)

    def train_gpytorch(spent: float) -> None:
        curve, rng = Curve(split, max(1, args.svgp_steps // 50), spent), np.random.default_rng(0)
        clock = time.perf_counter()
        model = GPyTorchSVGP(
            kmeans_centres(split.X_train, INDUCING, 0),
            num,
            lengthscales=kernel.lengthscales.numpy(),
            variance=float(kernel.variance.numpy()),
            noise=float(likelihood.variance.numpy()),
        )
        curve.spent += time.perf_counter() - clock
        curve.on_start(model, gpn.History())
        for step in range(1, args.svgp_steps + 1):
            batch = rng.choice(num, BATCH, replace=False)
            model.step(split.X_train[batch], split.Y_train[batch])
            curve(step)
        report(GPYTORCH, curve)

    def report(method: str, curve: Curve) -> None:
        rows.extend(dict(dataset=name, method=method) | row for row in curve.rows)
        last = curve.rows[-1]
        print(
            f"{name:16} {method:16} {last['seconds']:7.1f} s  RMSE {last['rmse']:.4f}  "
            f"NLPD {last['nlpd']:+.4f}",
            flush=True,
        )

    optimizers: dict[str, Callable[[], Any]] = {
        "SVGP natural": NaturalGradientAndAdam,
        "SVGP Adam": lambda: tf_keras.optimizers.Adam(0.01),
    }
    for method in args.svgp:
        if method == GPYTORCH:
            train_gpytorch(prefit)
            continue
        clock = time.perf_counter()
        centres = kmeans_centres(split.X_train, INDUCING, 0)
        svgp = gpflow.models.SVGP(deepcopy(kernel), deepcopy(likelihood), centres, num_data=num)
        spent = prefit + time.perf_counter() - clock
        train(method, svgp, optimizers[method](), args.svgp_steps, spent)
    gpflow.set_trainable(kernel, False)
    candidate = next(each for each in MANY if each.name == KEPT[name])
    network = candidate.network(kernel, split.X_train, 1, 0)
    model = gpn.GPNet(kernel, likelihood, network, num_data=num)
    optimizer = gpn.FunctionalMirrorDescent(
        learning_rate=gpn.LinearDecay(candidate.learning_rate, args.steps),
        prior_correction=candidate.prior_correction,
    )
    train("GPNet", model, optimizer, args.steps, prefit)
    return rows


def summary(rows: list[dict[str, Any]]) -> None:
    """The ratio of seconds for each data set."""
    for name in dict.fromkeys(row["dataset"] for row in rows):
        curves: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            if row["dataset"] == name:
                curves.setdefault(row["method"], []).append(row)
        ends = [curve[-1] for method, curve in curves.items() if method != "GPNet"]
        if not ends:
            continue
        best = min(ends, key=lambda row: row["nlpd"])
        reached = [row for row in curves["GPNet"] if row["nlpd"] <= best["nlpd"]]
        end = curves["GPNet"][-1]
        first = f"{reached[0]['seconds']:.1f} s" if reached else "never"
        ratio = f", 1/{best['seconds'] / reached[0]['seconds']:.0f}" if reached else ""
        print(
            f"{name}: {best['method']} ends at {best['nlpd']:+.4f} (RMSE {best['rmse']:.4f}) after "
            f"{best['seconds']:.0f} s; GPNet is there after {first}{ratio}, and ends at "
            f"{end['nlpd']:+.4f} (RMSE {end['rmse']:.4f}) after {end['seconds']:.0f} s"
        )


def last_step(rows: list[dict[str, Any]], method: str) -> int:
    """The last step of a method."""
    return max(row["step"] for row in rows if row["method"] == method)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(row["dataset"] for row in rows))
    figure, axes = plt.subplots(1, len(names), figsize=(3.4 * len(names), 3.0), squeeze=False)
    styles = {
        "SVGP natural": ("C1", "--"),
        "SVGP Adam": ("C1", ":"),
        GPYTORCH: ("C2", "--"),
        "GPNet": ("C0", "-"),
    }
    for axis, name in zip(axes[0], names, strict=True):
        for method, (color, line) in styles.items():
            curve = [r for r in rows if r["dataset"] == name and r["method"] == method]
            if curve:
                seconds, nlpd = zip(*((r["seconds"], r["nlpd"]) for r in curve), strict=True)
                axis.plot(seconds, nlpd, line, color=color, label=method)
        axis.set(xscale="log", xlabel="seconds", title=name)
        own = [row for row in rows if row["dataset"] == name]
        # GPNet's first steps, from features that are not the kernel's, would hide the rest.
        late = [row["nlpd"] for row in own if row["step"] >= 0.1 * last_step(own, row["method"])]
        axis.set_ylim(min(late) - 0.02, max(late) + 0.02)
    axes[0][0].set_ylabel("test NLPD, nats")
    axes[0][0].legend(loc="lower right", fontsize="x-small")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=os.environ.get("GPNET_DATA"), help="folder of .npz files")
    parser.add_argument("--only", nargs="*", choices=list(KEPT), default=list(KEPT))
    parser.add_argument("--svgp", nargs="*", choices=METHODS, default=METHODS)
    parser.add_argument("--svgp-steps", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=3000, help="of GPNet")
    parser.add_argument("--out", type=Path, help="CSV to write")
    parser.add_argument("--plot", type=Path, help="figure to write")
    args = parser.parse_args()
    print(describe_machine(), "float64")
    rows: list[dict[str, Any]] = []
    for name in args.only:
        rows += compare(name, args)
        if args.out:
            write_rows(args.out, rows)
    summary(rows)
    if args.plot:
        plot(rows, args.plot)


if __name__ == "__main__":
    main()
