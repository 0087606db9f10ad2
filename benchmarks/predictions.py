"""Rows a second and memory of predict_y on a million rows of 8 inputs, beside GPflow's SVGP.

    python benchmarks/predictions.py [--rows 1000000] [--dtype float64] [--out FILE.csv]

Every model gets one call of ``predict_y`` with all rows, but SVGP, which would hold its [M, rows]
covariance at once, gets 4,096 at a time, as GPNet takes them itself. Rounds are interleaved; the
memory is the process's peak above that before the call.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import gpflow
import numpy as np
import psutil
from gpytorch_svgp import GPyTorchSVGP, is_installed
from machine import describe_machine, write_rows

import gpflow_gpnet as gpn

DIM, CHUNK = 8, 4096


def models(X: np.ndarray) -> dict[str, Any]:
    """Untrained: what a prediction costs does not depend on the parameters' values."""
    dtype = gpflow.default_float()
    kernel = gpflow.kernels.SquaredExponential(lengthscales=np.ones(DIM, dtype))

    def gpnet(network: gpn.InferenceNetwork) -> gpn.GPNet:
        return gpn.GPNet(kernel, gpflow.likelihoods.Gaussian(0.1), network, num_data=len(X))

    others = {"GPyTorch SVGP": GPyTorchSVGP(X[:500].copy(), len(X))} if is_installed() else {}
    return {
        "SVGP, 500 inducing points": gpflow.models.SVGP(
            kernel, gpflow.likelihoods.Gaussian(0.1), X[:500].copy(), num_data=len(X)
        ),
        "RFE, 500 frequencies": gpnet(gpn.RFE(kernel, DIM, 500)),
        "warped RFE, 200 frequencies": gpnet(gpn.RFE(kernel, DIM, 200, warp=(100, 100))),
        "AdaptiveBasis, 200, 200, 200": gpnet(
            gpn.AdaptiveBasis((200, 200, 200), kernel=kernel, input_dim=DIM)
        ),
        **others,
    }


def predict(model: Any, X: np.ndarray) -> None:
    if isinstance(model, gpn.GPNet):
        model.predict_y(X)
        return
    for start in range(0, len(X), CHUNK):
        mean, variance = model.predict_y(X[start : start + CHUNK])
        np.asarray(mean), np.asarray(variance)


def peak_above(call: Callable[[], None]) -> tuple[float, float]:
    """Seconds of a call, and MiB that it takes at its peak beyond what was held before."""
    process, done = psutil.Process(), threading.Event()
    before = peak = process.memory_info().rss

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.01):
            peak = max(peak, process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    clock = time.perf_counter()
    call()
    seconds = time.perf_counter() - clock
    done.set()
    watcher.join()
    return seconds, (peak - before) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float64")
    parser.add_argument("--out", type=Path, help="CSV to write")
    args = parser.parse_args()
    gpflow.config.set_default_float(getattr(np, args.dtype))
    print(describe_machine(), args.dtype)
    X = np.random.default_rng(0).normal(size=(args.rows, DIM)).astype(args.dtype)
    compared = models(X)
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in compared}
    for model in compared.values():
        predict(model, X[: 2 * CHUNK + 1])
    for _ in range(args.rounds):
        for name, model in compared.items():
            measured[name].append(peak_above(lambda model=model: predict(model, X)))
    base = float(np.median([seconds for seconds, _ in next(iter(measured.values()))]))
    rows = []
    for name, values in measured.items():
        seconds = float(np.median([second for second, _ in values]))
        memory = max(mebibytes for _, mebibytes in values)
        rows.append(
            dict(
                model=name,
                dtype=args.dtype,
                rows_per_second=args.rows / seconds,
                ratio_to_svgp=base / seconds,
                peak_mib=memory,
            )
        )
        print(
            f"{name:32} {args.rows / seconds:10.0f} rows/s  {base / seconds:5.2f} x SVGP  "
            f"peak {memory:.0f} MiB"
        )
    if args.out:
        write_rows(args.out, rows)


if __name__ == "__main__":
    main()
