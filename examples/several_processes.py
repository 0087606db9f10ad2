"""A GPNet trained by several processes: on this host, or one on each host of a cluster.

    python examples/several_processes.py --processes 2

starts two copies of itself that talk over the loopback address. On a cluster start it once on each
host, with TF_CONFIG saying who takes part (docs/several_devices.md). All processes hold the same
data, take their shares of each batch, and end with the same parameters, those of one process.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys


def free_addresses(number: int) -> list[str]:
    """Ports that nobody listens on now, on the loopback address."""
    sockets = [socket.socket() for _ in range(number)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    return addresses


def launch(processes: int) -> int:
    """Start this script once for each process and wait. Returns 0 if all went well."""
    cluster = {"worker": free_addresses(processes)}
    running = []
    for index in range(processes):
        config = {"cluster": cluster, "task": {"type": "worker", "index": index}}
        environment = os.environ | {"TF_CONFIG": json.dumps(config)}
        running.append(subprocess.Popen([sys.executable, *sys.argv], env=environment))
    return max(abs(process.wait()) for process in running)


def train(num_steps: int, checkpoint_dir: str | None) -> None:
    import tensorflow as tf

    # First of all: how processes talk is settled before TensorFlow does anything else.
    strategy = tf.distribute.MultiWorkerMirroredStrategy() if "TF_CONFIG" in os.environ else None

    import gpflow
    import numpy as np

    import gpflow_gpnet as gpn

    rng = np.random.default_rng(0)
    X = rng.uniform(-3.0, 3.0, size=(2000, 2))
    Y = np.sin(X[:, :1]) * np.cos(2.0 * X[:, 1:]) + 0.1 * rng.normal(size=(2000, 1))

    kernel = gpflow.kernels.SquaredExponential(lengthscales=[1.0, 1.0])
    network = gpn.RFE(kernel, input_dim=2, num_features=50)
    model = gpn.GPNet(kernel, gpflow.likelihoods.Gaussian(0.1), network, num_data=len(X))
    history = gpn.fit(
        model,
        (X, Y),
        num_steps=num_steps,
        batch_size=500,
        seed=0,
        checkpoint_dir=checkpoint_dir,  # a folder that all hosts see
        strategy=strategy,
    )
    mean, _ = model.predict_y(X)
    error = float(np.sqrt(np.mean((mean - Y) ** 2)))
    if strategy is None or strategy.cluster_resolver.task_id == 0:
        replicas = 1 if strategy is None else strategy.num_replicas_in_sync
        print(f"replicas {replicas}, loss {history['loss'][-1]:.9g}, training RMSE {error:.9g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=1, help="to start on this host")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--checkpoint-dir")
    arguments = parser.parse_args()
    if arguments.processes > 1 and "TF_CONFIG" not in os.environ:
        raise SystemExit(launch(arguments.processes))
    train(arguments.steps, arguments.checkpoint_dir)


if __name__ == "__main__":
    main()
