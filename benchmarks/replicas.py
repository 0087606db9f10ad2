"""Scaling efficiency: two processes on a core each against one process on one core.

    python benchmarks/replicas.py [--frequencies 500] [--batch 500] [--rounds 20] [--out FILE.csv]

Processes are pinned by taskset and talk over the loopback address. "Same batch": efficiency is the
single process's time over twice that of the two. "Same batch each": two processes take a batch
twice as large, and efficiency is the single one's time over theirs: for gradient steps no measure,
since their joint algebra is cubic in the batch.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

_NUM_DATA, _INPUTS = 7372, 8

CASES: dict[str, dict[str, Any]] = {
    "natural": {},
    "natural, staleness 0.2": {"staleness": 0.2},
    "natural, staleness 0.2, no prior correction": {"staleness": 0.2, "prior_correction": False},
    "gradient": {"natural": False},
}


def _milliseconds(arguments: argparse.Namespace, batch: int, strategy: Any) -> dict[str, float]:
    """Median of a step, for each case."""
    import gpflow
    import numpy as np
    import tensorflow as tf

    import gpflow_gpnet as gpn

    taken = {}
    for name, settings in CASES.items():
        rng = np.random.default_rng(0)
        X = rng.normal(size=(batch, _INPUTS))
        Y = np.sin(X[:, :1]) + 0.1 * rng.normal(size=(batch, 1))
        kernel = gpflow.kernels.SquaredExponential(lengthscales=np.ones(_INPUTS))
        network = gpn.RFE(kernel, _INPUTS, arguments.frequencies)
        model = gpn.GPNet(
            kernel,
            gpflow.likelihoods.Gaussian(0.1),
            network,
            num_data=_NUM_DATA,
            num_measurement_points=200,
        )
        optimizer = gpn.FunctionalMirrorDescent(**settings)
        optimizer.build(model)
        optimizer.t.assign(1000)  # on which β, and so the factorisations, depend
        step, rows = optimizer.compiled_step(strategy=strategy), (tf.constant(X), tf.constant(Y))
        seconds = []
        for _ in range(arguments.rounds + 2):  # the first two compile
            start = time.perf_counter()
            step(rows).numpy()
            seconds.append(time.perf_counter() - start)
        taken[name] = 1e3 * float(np.median(seconds[2:]))
    return taken


def _worker(arguments: argparse.Namespace) -> None:
    import tensorflow as tf

    config = json.loads(os.environ.get("TF_CONFIG", "{}"))
    strategy = tf.distribute.MultiWorkerMirroredStrategy() if config else None
    taken = _milliseconds(arguments, arguments.batch, strategy)
    if not config or config["task"]["index"] == 0:
        arguments.worker.write_text(json.dumps(taken))


def _run(arguments: argparse.Namespace, processes: int, batch: int) -> dict[str, float]:
    """Milliseconds of a step in each case, by workers on the first cores."""
    sockets = [socket.socket() for _ in range(processes)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    cluster = {"worker": [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]}
    for each in sockets:
        each.close()
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "milliseconds.json"
        size = ["--frequencies", arguments.frequencies, "--rounds", arguments.rounds]
        command = [sys.executable, __file__, "--worker", result, "--batch", batch, *size]
        running = []
        for index in range(processes):
            environment = os.environ | {"TF_NUM_INTRAOP_THREADS": "1"}
            if processes > 1:
                task = {"cluster": cluster, "task": {"type": "worker", "index": index}}
                environment["TF_CONFIG"] = json.dumps(task)
            pinned = ["taskset", "-c", arguments.cores[index], *command]
            running.append(subprocess.Popen([str(word) for word in pinned], env=environment))
        if any([process.wait() for process in running]):
            raise SystemExit("A process failed.")
        return json.loads(result.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--frequencies", type=int, default=500, help="of the RFE, half its features"
    )
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--cores", type=int, nargs=2, default=[0, 1])
    parser.add_argument("--out", type=Path, help="CSV to write")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        _worker(arguments)
        return
    from machine import describe_machine, write_rows

    machine = f"{describe_machine()}, float64, load {os.getloadavg()[0]:.1f} before"
    print(machine)
    print(f"{arguments.frequencies} frequencies, batches of {arguments.batch}, 200 measured points")
    one = _run(arguments, 1, arguments.batch)
    same, each = (_run(arguments, 2, size * arguments.batch) for size in (1, 2))
    rows = [
        {
            "case": name,
            "frequencies": arguments.frequencies,
            "batch": arguments.batch,
            "one_process_ms": one[name],
            "two_processes_same_batch_ms": same[name],
            "efficiency_same_batch": one[name] / (2.0 * same[name]),
            "two_processes_twice_the_batch_ms": each[name],
            "efficiency_same_batch_each": one[name] / each[name],
        }
        for name in CASES
    ]
    for row in rows:
        print(
            f"{row['case']:45} one {row['one_process_ms']:7.1f} ms   two, same batch "
            f"{row['two_processes_same_batch_ms']:7.1f} ms ({row['efficiency_same_batch']:4.0%})   "
            f"two, same batch each {row['two_processes_twice_the_batch_ms']:7.1f} ms "
            f"({row['efficiency_same_batch_each']:4.0%})"
        )
    if arguments.out:
        write_rows(arguments.out, rows, machine)


if __name__ == "__main__":
    main()
