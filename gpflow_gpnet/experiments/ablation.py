"""What each part of natural GPNet is worth: one thing at a time is changed from a base.

The base is an RFE network with full weights, natural steps, the prior correction at up to 200
measurement points, trained features, hyperparameters fitted to a subset and then trained, and noise
tracked on the training batches. Structured weights have no natural steps, so "low-rank" and
"diagonal" compare with "gradient".

Results and tables are written as by the uci experiment; differences are those from the base.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import partial

import gpflow

import gpflow_gpnet as gpn

from . import protocol, tables, uci
from .methods import Method, Task, Trained, fitted_prior
from .protocol import Results

SUMMARY = "ablation of natural GPNet on UCI data sets"

DATASETS = ("boston", "energy", "kin8nm")

BASE = "base"
LEARNING_RATE = 0.01


@dataclass(frozen=True)
class Variant:
    """One setting of GPNet."""

    natural: bool = True
    prior_correction: bool = True
    train_features: bool = True
    covariance: str | int = "full"
    num_measured: int | None = None
    noise: str = "training"
    learn_kernel: bool = True
    warp: tuple[int, int] | None = None


VARIANTS = {
    BASE: Variant(),
    "gradient": Variant(natural=False),
    "no-correction": Variant(prior_correction=False),
    "frozen-features": Variant(train_features=False),
    "frozen-kernel": Variant(learn_kernel=False),
    "low-rank": Variant(natural=False, covariance=50),
    "diagonal": Variant(natural=False, covariance="diag"),
    **{f"M-{M}": Variant(num_measured=M) for M in (20, 50, 100, 500)},
    "noise-objective": Variant(noise="objective"),
    "noise-held-out": Variant(noise="held-out"),
    "warp": Variant(warp=(100, 100)),
    "warp-noise-held-out": Variant(warp=(100, 100), noise="held-out"),
}


def train(task: Task, variant: Variant, num_frequencies: int) -> Trained:
    """Train one variant; the learning rate falls to 0 over the steps."""
    kernel, likelihood = fitted_prior(task)
    gpflow.set_trainable(kernel, variant.learn_kernel)
    network = gpn.RFE(
        kernel,
        task.X.shape[1],
        num_frequencies,
        covariance=variant.covariance,
        warp=variant.warp,
        seed=task.seed,
    )
    if not variant.train_features:
        gpflow.set_trainable(network.maps, False)
    model = gpn.GPNet(
        kernel,
        likelihood,
        network,
        num_data=len(task.X),
        num_measurement_points=variant.num_measured,
    )
    optimizer = gpn.FunctionalMirrorDescent(
        learning_rate=gpn.LinearDecay(LEARNING_RATE, task.steps),
        natural=variant.natural,
        prior_correction=variant.prior_correction,
        noise=variant.noise,
        seed=task.seed,
    )
    return model, task.fit(model, optimizer)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the experiment."""
    parser.add_argument(
        "--datasets",
        nargs="+",
        choices=uci.DATASETS,
        default=DATASETS,
        metavar="NAME",
        help=f"of {', '.join(uci.DATASETS)} (default: {', '.join(DATASETS)})",
    )
    parser.add_argument(
        "--frequencies", type=int, default=500, help="of the RFE network (default: %(default)s)"
    )
    protocol.add_arguments(parser, VARIANTS, "results/ablation", uci.SPLITS, steps=1000)


def run(options: argparse.Namespace) -> list[Results]:
    """Train and score what is not yet there; write tables.md and violins.png."""
    methods = {
        name: Method(partial(train, variant=variant, num_frequencies=options.frequencies))
        for name, variant in VARIANTS.items()
    }
    results = protocol.run(
        lambda: uci.load(options), methods, options, frequencies=options.frequencies
    )
    tables.report(results, options.out, reference=BASE)
    return results
