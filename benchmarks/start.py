"""What a user waits for: seconds to import, and to the first step, with its traces.

    python benchmarks/start.py [--rounds 5] [--out FILE.csv]

Imports are new processes in turn with those of gpflow alone; first steps are of ``gpn.fit`` on new
models, from the call to the end of the step, and traces those of the step in 60 steps.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import gpflow
import numpy as np
from machine import describe_machine, write_rows

import gpflow_gpnet as gpn

ROWS, DIM, STEPS = 5000, 8, 60


def import_seconds(module: str) -> float:
    """Of a new process."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True, capture_output=True)
    return time.perf_counter() - started


def models() -> dict[str, tuple[Any, Any]]:
    """Models and optimisers (None: the default one), by name; SVGP is the first."""
    rng = np.random.default_rng(0)
    kernel = gpflow.kernels.SquaredExponential(lengthscales=np.ones(DIM))
    noise = gpflow.likelihoods.Gaussian

    def gpnet(network: gpn.InferenceNetwork, likelihood: Any = None) -> gpn.GPNet:
        return gpn.GPNet(
            gpflow.utilities.deepcopy(kernel), likelihood or noise(0.1), network, num_data=ROWS
        )

    gradient = gpn.FunctionalMirrorDescent(natural=False)
    networks: dict[str, gpn.InferenceNetwork] = {
        "RFE, 500 frequencies": gpn.RFE(kernel, DIM, 500),
        "warped RFE, 200 frequencies": gpn.RFE(kernel, DIM, 200, warp=(100, 100)),
        "AdaptiveBasis": gpn.AdaptiveBasis(kernel=kernel, input_dim=DIM),
        "InducingFeatures, 500": gpn.InducingFeatures(kernel, rng.normal(size=(500, DIM))),
        "NTK": gpn.NTK(kernel=kernel, input_dim=DIM),
        "BNN": gpn.BNN(kernel=kernel, input_dim=DIM),
    }
    Z = rng.normal(size=(500, DIM))
    return {
        "SVGP, 500 inducing points": (
            gpflow.models.SVGP(kernel, noise(0.1), Z, num_data=ROWS),
            None,
        ),
        **{name: (gpnet(network), None) for name, network in networks.items()},
        "RFE, Student-t": (
            gpnet(gpn.RFE(kernel, DIM, 500), gpflow.likelihoods.StudentT()),
            None,
        ),
        "RFE, gradient steps": (gpnet(gpn.RFE(kernel, DIM, 500)), gradient),
    }


def first_step(model: Any, optimizer: Any, data: Any) -> tuple[float, int | None]:
    """Seconds to the end of the first step, and traces of the step in all (None: not a GPNet)."""
    ends: list[float] = []
    started = time.perf_counter()
    gpn.fit(
        model,
        data,
        optimizer=optimizer,
        num_steps=STEPS,
        batch_size=500,
        callbacks=[lambda step: ends.append(time.perf_counter())],
        seed=0,
        progress=False,
    )
    if not isinstance(model, gpn.GPNet):
        return ends[0] - started, None
    steps = model.optimizer._compiled.step.values()
    return ends[0] - started, sum(step.experimental_get_tracing_count() for step in steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="CSV to write")
    args = parser.parse_args()
    print(describe_machine())
    names = ("gpflow", "gpflow_gpnet")
    times = [{name: import_seconds(name) for name in names} for _ in range(args.rounds + 1)][1:]
    ratio = float(np.median([each["gpflow_gpnet"] / each["gpflow"] for each in times]))
    rows: list[dict[str, Any]] = []
    for name in names:
        seconds = float(np.median([each[name] for each in times]))
        rows.append(dict(what=f"import {name}", seconds=seconds, ratio="", traces=""))
    rows[-1]["ratio"] = ratio
    rng = np.random.default_rng(1)
    X = rng.normal(size=(ROWS, DIM))
    data = X, np.sin(X[:, :1]) + 0.1 * rng.normal(size=(ROWS, 1))
    for name, (model, optimizer) in models().items():
        seconds, traces = first_step(model, optimizer, data)
        rows.append(
            dict(what=f"first step, {name}", seconds=seconds, ratio="", traces=traces or "")
        )
    for row in rows:
        more = f", {row['ratio']:.2f} x gpflow" if row["ratio"] else ""
        more += f", {row['traces']} traces" if row["traces"] else ""
        print(f"{row['what']:44} {row['seconds']:6.2f} s{more}")
    if args.out:
        write_rows(args.out, rows)


if __name__ == "__main__":
    main()
