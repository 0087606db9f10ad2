"""Entries per second of the kernels of infinite ConvNets, against neural-tangents.

    python benchmarks/convnet_kernel.py [--neural-tangents PYTHON] [--images 128] [--repeats 5]
        [--out convnet_kernel.csv]

PYTHON is an interpreter that can import neural_tangents (tests/kernels_reference.py says how to
make one); without it that side is skipped. float32, 28 x 28 images, one after the other on the
same machine; the best of the repeats counts, and compiling does not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

SHAPE = (28, 28, 1)
NETWORKS = ("6 convolutions", "6 residual blocks")


def images(num: int) -> tuple[np.ndarray, np.ndarray]:
    """Two sets of images of noise."""
    rng = np.random.default_rng(0)
    return tuple(rng.uniform(size=(num, *SHAPE)).astype(np.float32) for _ in range(2))


def rate(matrix: Callable[[], Any], entries: int, repeats: int) -> float:
    """Entries per second, the best of the repeats after a first one."""
    matrix()
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        matrix()
        seconds.append(time.perf_counter() - started)
    return entries / min(seconds)


def ours(num: int, repeats: int) -> dict[str, dict[str, float]]:
    """This package's rates."""
    import gpflow

    from gpflow_gpnet.kernels import ConvNetKernel, ResNetKernel

    gpflow.config.set_default_float(np.float32)
    X, X2 = images(num)
    rates = {}
    for name, kernel in zip(
        NETWORKS, (ConvNetKernel(SHAPE, 6, 3), ResNetKernel(SHAPE)), strict=True
    ):
        rates[name] = {
            "K(X, X2)": rate(lambda k=kernel: k(X, X2).numpy(), num**2, repeats),
            "K(X)": rate(lambda k=kernel: k(X).numpy(), num**2, repeats),
        }
    return rates


def neural_tangents(num: int, repeats: int) -> dict[str, dict[str, float]]:
    """Those of neural-tangents, compiled by JAX; its batches as large as the set of images."""
    import jax
    from neural_tangents import stax

    def convolution(size: int = 3, stride: int = 1) -> Any:
        return stax.Conv(1, (size, size), (stride, stride), "SAME", W_std=1.4, b_std=0.3)

    def block(stride: int) -> Any:
        main = stax.serial(stax.Relu(), convolution(3, stride), stax.Relu(), convolution())
        past = stax.Identity() if stride == 1 else convolution(1, stride)
        return stax.serial(stax.FanOut(2), stax.parallel(main, past), stax.FanInSum())

    end = stax.Flatten(), stax.Dense(1, W_std=1.4, b_std=0.3)
    blocks = [block(stride) for stride in (1, 1, 2, 1, 2, 1)]
    networks = (
        stax.serial(*[convolution(), stax.Relu()] * 6, *end),
        stax.serial(convolution(), *blocks, stax.Relu(), *end),
    )
    X, X2 = images(num)
    rates = {}
    for name, (_, _, kernel) in zip(NETWORKS, networks, strict=True):
        compiled = jax.jit(lambda a, b, k=kernel: k(a, b, get="nngp"))
        symmetric = jax.jit(lambda a, k=kernel: k(a, None, get="nngp"))
        rates[name] = {
            "K(X, X2)": rate(lambda f=compiled: np.asarray(f(X, X2)), num**2, repeats),
            "K(X)": rate(lambda f=symmetric: np.asarray(f(X)), num**2, repeats),
        }
    return rates


def main() -> None:
    """Print both sides' rates and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--neural-tangents", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="CSV file to write")
    parser.add_argument("--side", choices=["ours", "theirs"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side is not None:
        side = ours if options.side == "ours" else neural_tangents
        print(json.dumps(side(options.images, options.repeats)))
        return
    # Each in a process of its own, so that neither's threads are in the other's way.
    size = "--images", str(options.images), "--repeats", str(options.repeats)
    rates = []
    for side, python in (("ours", sys.executable), ("theirs", options.neural_tangents)):
        process = subprocess.run(
            [python, __file__, "--side", side, *size],
            capture_output=True,
            text=True,
        )
        if process.returncode == 0:
            rates.append(json.loads(process.stdout.splitlines()[-1]))
        elif side == "theirs":
            reason = process.stderr.strip().splitlines()[-1]
            print(f"neural-tangents is skipped ({reason}): see --neural-tangents.")
        else:
            sys.exit(process.stderr)
    # Imports TensorFlow, whose threads must not be there while the sides run.
    from machine import describe_machine, write_rows

    print(f"{describe_machine()}, float32")
    rows = []
    for name in NETWORKS:
        for matrix, number in rates[0][name].items():
            row = {"network": name, "matrix": matrix, "images": options.images, "ours": number}
            line = f"{name}, {matrix} of {options.images} images: {number:,.0f} entries/s"
            if len(rates) == 2:
                other = rates[1][name][matrix]
                row |= {"neural-tangents": other, "ratio": number / other}
                line += f", neural-tangents {other:,.0f}, ratio {number / other:.2f}"
            rows.append(row)
            print(line)
    if options.out is not None:
        write_rows(options.out, rows)


if __name__ == "__main__":
    main()
