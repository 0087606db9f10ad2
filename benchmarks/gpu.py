"""Milliseconds a training step on each device that TensorFlow sees, with and without XLA.

    python benchmarks/gpu.py --dtype float32 --features 500 --batch 500

Natural and gradient steps of a GPNet; the data are on the device from the start. With no GPU it
times the CPU. To keep TensorFlow from taking all of a GPU's memory: TF_FORCE_GPU_ALLOW_GROWTH=true.
"""

from __future__ import annotations

import argparse
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")

import gpflow
import numpy as np
import tensorflow as tf
from machine import describe_machine

import gpflow_gpnet as gpn

_NUM_DATA, _INPUTS = 10_000, 8


def _milliseconds(natural: bool, xla: bool, features: int, batch: int, steps: int) -> float:
    """Median over steps, after two that compile."""
    rng, dtype = np.random.default_rng(0), gpflow.default_float()
    X = rng.normal(size=(batch, _INPUTS)).astype(dtype)
    Y = (np.sin(X[:, :1]) + 0.1 * rng.normal(size=(batch, 1))).astype(dtype)
    kernel = gpflow.kernels.SquaredExponential(lengthscales=np.ones(_INPUTS, dtype))
    network = gpn.RFE(kernel, _INPUTS, features, covariance="full" if natural else "diag")
    model = gpn.GPNet(kernel, gpflow.likelihoods.Gaussian(0.1), network, num_data=_NUM_DATA)
    optimizer = gpn.FunctionalMirrorDescent(natural=natural, jit_compile=xla)
    optimizer.build(model)
    step, rows = optimizer.compiled_step(), (tf.constant(X), tf.constant(Y))
    seconds = []
    for _ in range(steps + 2):
        start = time.perf_counter()
        step(rows).numpy()  # waits for the device
        seconds.append(time.perf_counter() - start)
    return 1e3 * float(np.median(seconds[2:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--features", type=int, default=500, help="frequencies of the RFE")
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()
    gpflow.config.set_default_float(np.dtype(arguments.dtype).type)
    if arguments.dtype == "float32":
        gpflow.config.set_default_jitter(1e-4)
    print(describe_machine())
    print(f"{arguments.features} frequencies, batches of {arguments.batch}, {arguments.dtype}")
    for device in tf.config.list_logical_devices():
        if device.device_type not in ("CPU", "GPU"):
            continue
        with tf.device(device.name):
            for natural in (True, False):
                for xla in (False, True):
                    size = arguments.features, arguments.batch, arguments.steps
                    taken = _milliseconds(natural, xla, *size)
                    kind = f"{'natural' if natural else 'gradient'}{', XLA' if xla else ''}"
                    print(f"{device.name:15s} {kind:15s} {taken:9.2f} ms a step", flush=True)


if __name__ == "__main__":
    main()
