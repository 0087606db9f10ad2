"""How a training step's time and memory grow with F, B, M, D, L and N, and with weight covariances.

    python benchmarks/growth.py [--only F B …] [--out benchmarks/results/growth.csv]
        [--plot docs/growth.png]

Natural steps, one axis at a time from 250 frequencies (F = 500 features), B = 500, no prior
correction (M = 0), D = 8, L = 1, N = 10,000; for covariances gradient steps, 500 frequencies and
M = 200. Each case runs in a process of its own: its memory is the peak of resident memory, less
what it was before the model was made. Exponents are slopes of log time over the upper half of an
axis. N is streamed from files, whose reading is in the time.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np

STEPS = 20


@dataclass(frozen=True)
class Case:
    """A step to time."""

    axis: str
    value: str
    frequencies: int = 250
    batch: int = 500
    measured: int = 0
    """M, measurement points of the prior correction, or of gradient steps."""
    inputs: int = 8
    latents: int = 1
    rows: int = 10_000
    covariance: str | int = "full"
    natural: bool = True


def _along(axis: str, field: str, values: tuple[int, ...], scale: int = 1) -> list[Case]:
    return [replace(Case(axis, str(scale * value)), **{field: value}) for value in values]


CASES = [
    *_along("F", "frequencies", (62, 125, 250, 500, 1000), scale=2),
    *_along("B", "batch", (250, 500, 1000, 2000, 4000)),
    *_along("M", "measured", (62, 125, 250, 500, 1000)),
    *_along("D", "inputs", (5, 10, 20, 40, 80, 160)),
    *_along("L", "latents", (1, 2, 4, 8)),
    *_along("N", "rows", (1_000, 10_000, 100_000, 1_000_000, 10_000_000)),
    *(
        Case("covariance", str(name), 500, measured=200, covariance=name, natural=False)
        for name in ("full", 20, "kronecker", "diag")
    ),
]


def measure(case: Case) -> dict[str, float]:
    """Median seconds a step, and MiB."""
    import gpflow
    import tensorflow as tf

    import gpflow_gpnet as gpn

    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        for start in range(0, case.rows, 500_000):
            X = rng.normal(size=(min(500_000, case.rows - start), case.inputs))
            Y = np.sin(X[:, :1]) + 0.1 * rng.normal(size=(len(X), case.latents))
            np.savez(Path(folder) / f"part-{start:09d}.npz", X=X, Y=Y)
        data = gpn.datasets.stream(f"{folder}/*.npz")
        kernel = gpflow.kernels.SquaredExponential(lengthscales=np.ones(case.inputs))
        gpflow.set_trainable(kernel, False)
        before = _resident()
        network = gpn.RFE(
            kernel,
            case.inputs,
            case.frequencies,
            covariance=case.covariance,
            num_latent_gps=case.latents,
        )
        model = gpn.GPNet(
            kernel,
            gpflow.likelihoods.Gaussian(0.1),
            network,
            num_data=data.num_data,
            num_latent_gps=case.latents,
            num_measurement_points=case.measured or case.batch,
        )
        optimizer = gpn.FunctionalMirrorDescent(
            natural=case.natural, prior_correction=case.measured > 0, noise="objective"
        )
        optimizer.build(model)
        batches = gpn.shards.ShardBatches(data, min(case.batch, case.rows), seed=0)
        model.initialise(tf.constant(batches(0)[0]))
        step, seconds = optimizer.compiled_step(), []
        for number in range(STEPS + 2):
            start_time = time.perf_counter()
            step(tuple(tf.constant(values) for values in batches(number))).numpy()
            seconds.append(time.perf_counter() - start_time)
    # The mean, since a block of rows is read once for many steps.
    return {"seconds": float(np.mean(seconds[2:])), "mebibytes": _peak() - before}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def exponent(values: np.ndarray, costs: np.ndarray) -> float:
    """Slope of log cost by log value over the upper half of the values."""
    upper = slice(len(values) // 2, None)
    return float(np.polyfit(np.log(values[upper]), np.log(costs[upper]), 1)[0])


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Time and memory against each axis, with the exponents."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import NullLocator

    axes = [axis for axis in dict.fromkeys(row["axis"] for row in rows) if axis != "covariance"]
    figure, panels = plt.subplots(2, len(axes), figsize=(2.3 * len(axes), 4.4), squeeze=False)
    for column, axis in enumerate(axes):
        mine = [row for row in rows if row["axis"] == axis]
        values = np.array([float(row["value"]) for row in mine])
        for panel, key, scale, unit in (
            (panels[0, column], "seconds", 1e3, "ms a step"),
            (panels[1, column], "mebibytes", 1.0, "MiB"),
        ):
            costs = scale * np.array([row[key] for row in mine])
            panel.loglog(values, costs, "o-", color="#0072B2", markersize=4)
            panel.set_title(f"{unit}, exponent {exponent(values, costs):.2f}", fontsize=8)
            panel.set_ylim(0.5 * costs.min(), 2.0 * costs.max())
            labels = [f"{v:.0f}" if v < 1e4 else f"$10^{np.log10(v):.0f}$" for v in values]
            panel.set_xticks(values, labels)
            low, high = costs.min(), costs.max()
            panel.set_yticks([low, high], [f"{low:.0f}", f"{high:.0f}"])
            for ticks in (panel.xaxis, panel.yaxis):
                ticks.set_minor_locator(NullLocator())
            panel.tick_params(labelsize=7)
            panel.grid(True, which="major", alpha=0.3)
        panels[1, column].set_xlabel(axis)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    names = list(dict.fromkeys(case.axis for case in CASES))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--out", type=Path, help="CSV to write")
    parser.add_argument("--plot", type=Path, help="figure to write")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(Case(**json.loads(arguments.case)))))
        return
    from machine import describe_machine, write_rows

    print(describe_machine())
    rows: list[dict[str, Any]] = []
    for case in CASES:
        if case.axis not in arguments.only:
            continue
        done = subprocess.run(
            [sys.executable, __file__, "--case", json.dumps(asdict(case))],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise SystemExit(f"{case} failed:\n{done.stderr}")
        rows.append(
            {"axis": case.axis, "value": case.value, **json.loads(done.stdout.splitlines()[-1])}
        )
        row = rows[-1]
        print(
            f"{case.axis:10s} {case.value:>10s} {1e3 * row['seconds']:9.2f} ms a step "
            f"{row['mebibytes']:8.0f} MiB",
            flush=True,
        )
    for axis in arguments.only:
        mine = [row for row in rows if row["axis"] == axis]
        if axis != "covariance":
            values = np.array([float(row["value"]) for row in mine])
            time_by, memory_by = (
                exponent(values, np.array([row[key] for row in mine]))
                for key in ("seconds", "mebibytes")
            )
            print(f"{axis}: time grows with the power {time_by:.2f}, memory {memory_by:.2f}")
    if arguments.out:
        write_rows(arguments.out, rows)
    if arguments.plot:
        plot(rows, arguments.plot)


if __name__ == "__main__":
    main()
