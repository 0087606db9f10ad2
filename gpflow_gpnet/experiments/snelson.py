"""Section 5.1 of the paper on the Snelson data: how near SVGP, GPNet and FBNN come to the exact GP.

100 points, batches of 20, prior hyperparameters fitted by the exact GP and fixed, an RFE network of
20 frequencies, M = 2, 5 and 20 inducing or measurement points. Writes the appendix's 3 x 3 figure,
a second one with natural steps and FBNN's noise, and a table of each posterior's gap to the exact
one over the range of the data: of the mean, in exact standard deviations, and the ratio of standard
deviations.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.keras import tf_keras
from tabulate import tabulate

import gpflow_gpnet as gpn

from .. import datasets

SUMMARY = "posteriors on the Snelson data against the exact GP (section 5.1, figures 2 and 4)"

NUM_POINTS = 100
BATCH_SIZE = 20
NUM_FREQUENCIES = 20
MEASUREMENTS = (2, 5, 20)


@dataclass(frozen=True)
class Budget:
    """Steps and learning rate of each method."""

    steps: int
    natural_steps: int
    learning_rate: Any


def short_budget() -> Budget:
    """Under four minutes on two cores: fewer steps, with a larger learning rate falling to 0."""
    return Budget(4000, 4000, gpn.LinearDecay(0.01, 4000))


def full_budget() -> Budget:
    """The paper's: 40,000 iterations at learning rate 0.003."""
    return Budget(40_000, 4000, 0.003)


@dataclass(frozen=True)
class Row:
    """One posterior against the exact GP's (or, for FBNN, that of a GP with N / B the noise)."""

    method: str
    M: int
    batch: int
    steps: int
    seconds: float
    mean_gap_rms: float
    mean_gap_max: float
    sd_ratio_min: float
    sd_ratio_max: float


@dataclass(frozen=True)
class Problem:
    """The data, the fixed prior and the exact posterior."""

    data: tuple[np.ndarray, np.ndarray]
    kernel: gpflow.kernels.Kernel
    likelihood: gpflow.likelihoods.Gaussian
    exact: gpflow.models.GPR
    noisier: gpflow.models.GPR
    """The exact GP for a noise variance N / B times as large: FBNN's fixed point."""

    @property
    def measurement(self) -> gpn.measurement.Uniform:
        """c(x): uniform over the range of the data and half a lengthscale beyond, for its ends."""
        X, margin = self.data[0], 0.5 * self.kernel.lengthscales.numpy()
        return gpn.measurement.Uniform(X.min() - margin, X.max() + margin)

    def grid(self, margin: float = 0.0) -> np.ndarray:
        """Inputs [300, 1] over the range of the data and a margin on both sides."""
        X = self.data[0]
        return np.linspace(X.min() - margin, X.max() + margin, 300)[:, None]


def make_problem() -> Problem:
    """The first 100 Snelson points under a squared exponential fitted by the exact GP."""
    dataset = datasets.load("snelson")
    data = dataset.X[:NUM_POINTS], dataset.Y[:NUM_POINTS]
    kernel, likelihood = gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian()
    gpn.fit_hyperparameters(kernel, likelihood, data)
    gpflow.set_trainable(kernel, False)
    gpflow.set_trainable(likelihood, False)
    noise = likelihood.variance_at(data[0][:1]).numpy().item()
    noisier = gpflow.likelihoods.Gaussian(noise * NUM_POINTS / BATCH_SIZE)
    return Problem(
        data,
        kernel,
        likelihood,
        gpflow.models.GPR(data, kernel, likelihood=likelihood),
        gpflow.models.GPR(data, kernel, likelihood=noisier),
    )


def gap(problem: Problem, model: Any, reference: gpflow.models.GPR) -> dict[str, float]:
    """How far a posterior is from a reference over the range of the data."""
    Xnew = problem.grid()
    mean, variance = model.predict_f(Xnew)
    exact_mean, exact_variance = reference.predict_f(Xnew)
    difference = np.asarray((mean - exact_mean) / tf.sqrt(exact_variance))
    ratio = np.asarray(tf.sqrt(variance / exact_variance))
    return {
        "mean_gap_rms": float(np.sqrt(np.mean(difference**2))),
        "mean_gap_max": float(np.abs(difference).max()),
        "sd_ratio_min": float(ratio.min()),
        "sd_ratio_max": float(ratio.max()),
    }


def svgp(problem: Problem, M: int, budget: Budget) -> tuple[Any, Any, int]:
    """GPflow's SVGP with M inducing inputs spread over the data."""
    Z = np.quantile(problem.data[0], (np.arange(M) + 0.5) / M)[:, None]
    model = gpflow.models.SVGP(problem.kernel, problem.likelihood, Z, num_data=NUM_POINTS)
    return model, _adam(budget), budget.steps


def gradient_gpnet(problem: Problem, M: int, budget: Budget) -> tuple[Any, Any, int]:
    """The published algorithm: β0 = 1, ξ = 0.1."""
    optimizer = gpn.FunctionalMirrorDescent(
        gpn.InverseSqrt(1.0, 0.1), budget.learning_rate, natural=False
    )
    return _with_network(gpn.GPNet, problem, M), optimizer, budget.steps


def natural_gpnet(problem: Problem, M: int, budget: Budget) -> tuple[Any, Any, int]:
    """Natural steps for the weights, Adam for the frequencies."""
    steps = budget.natural_steps
    optimizer = gpn.FunctionalMirrorDescent(gpn.InverseSqrt(1.0, 0.1), gpn.LinearDecay(0.02, steps))
    return _with_network(gpn.GPNet, problem, M), optimizer, steps


def fbnn(scaled: bool) -> Callable[[Problem, int, Budget], tuple[Any, Any, int]]:
    """The functional variational baseline, with the likelihood scaled by N / B or not."""

    def build(problem: Problem, M: int, budget: Budget) -> tuple[Any, Any, int]:
        model = _with_network(gpn.FBNN, problem, M, scale_likelihood=scaled)
        return model, _adam(budget), budget.steps

    return build


def _with_network(
    model_class: Any, problem: Problem, M: int, network: Any = None, **kwargs: Any
) -> Any:
    """A model on a network, by default the paper's: 20 random frequencies of the prior's kernel."""
    return model_class(
        problem.kernel,
        problem.likelihood,
        gpn.RFE(problem.kernel, 1, NUM_FREQUENCIES) if network is None else network,
        num_data=NUM_POINTS,
        measurement=problem.measurement,
        num_measurement_points=M,
        **kwargs,
    )


def _adam(budget: Budget) -> Any:
    rate = budget.learning_rate
    if isinstance(rate, gpn.LinearDecay):
        rate = tf_keras.optimizers.schedules.PolynomialDecay(rate.initial, rate.num_steps, 0.0)
    return tf_keras.optimizers.Adam(rate)


# method: (builder, batch size, the numbers of points it is run with)
METHODS: dict[str, tuple[Callable[[Problem, int, Budget], Any], int, tuple[int, ...]]] = {
    "SVGP": (svgp, BATCH_SIZE, MEASUREMENTS),
    "GPNet": (gradient_gpnet, BATCH_SIZE, MEASUREMENTS),
    "FBNN": (fbnn(scaled=False), BATCH_SIZE, MEASUREMENTS),
    "FBNN, N/B-scaled": (fbnn(scaled=True), BATCH_SIZE, MEASUREMENTS[-1:]),
    "GPNet, natural": (natural_gpnet, BATCH_SIZE, MEASUREMENTS[-1:]),
    "GPNet, natural, full batch": (natural_gpnet, NUM_POINTS, MEASUREMENTS[-1:]),
}


# network: how it is made from the prior's kernel
NETWORKS: dict[str, Callable[[Problem], gpn.InferenceNetwork]] = {
    "RFE": lambda problem: gpn.RFE(problem.kernel, 1, NUM_FREQUENCIES),
    "RFE, warped": lambda problem: gpn.RFE(problem.kernel, 1, NUM_FREQUENCIES, warp=(20, 20)),
    "InducingFeatures": lambda problem: gpn.InducingFeatures(
        problem.kernel, np.quantile(problem.data[0], (np.arange(20) + 0.5) / 20)[:, None]
    ),
    "AdaptiveBasis": lambda problem: gpn.AdaptiveBasis(
        (50, 50), kernel=problem.kernel, input_dim=1
    ),
    "NTK": lambda problem: gpn.NTK((100,), kernel=problem.kernel, input_dim=1),
    "NTK, Kronecker": lambda problem: gpn.NTK(
        (100,), kernel=problem.kernel, input_dim=1, covariance="kronecker"
    ),
    "BNN": lambda problem: gpn.BNN((50,), kernel=problem.kernel, input_dim=1),
}


def network_gpnet(name: str) -> Callable[[Problem, int, Budget], tuple[Any, Any, int]]:
    """GPNet on another network: natural steps where it is linear, else the published ones."""

    def build(problem: Problem, M: int, budget: Budget) -> tuple[Any, Any, int]:
        optimizer = gpn.FunctionalMirrorDescent(gpn.InverseSqrt(1.0, 0.1), budget.learning_rate)
        model = _with_network(gpn.GPNet, problem, M, NETWORKS[name](problem))
        return model, optimizer, budget.steps

    return build


def bnn_fbnn(problem: Problem, M: int, budget: Budget) -> tuple[Any, Any, int]:
    """The baseline as published: a Bayesian neural network, its divergence by Stein gradients."""
    model = _with_network(gpn.FBNN, problem, M, NETWORKS["BNN"](problem), divergence="stein")
    return model, _adam(budget), budget.steps


BUILDERS = METHODS | {
    **{f"GPNet, {name}": (network_gpnet(name), BATCH_SIZE, (20,)) for name in NETWORKS},
    "FBNN, BNN": (bnn_fbnn, BATCH_SIZE, (20,)),
}


def train(
    problem: Problem, method: str, M: int, budget: Budget, seed: int, progress: bool
) -> tuple[Any, Row]:
    """Train one method; its model and its row of the table."""
    build, batch_size, _ = BUILDERS[method]
    started = time.perf_counter()
    model, optimizer, steps = build(problem, M, budget)
    gpn.fit(
        model,
        problem.data,
        optimizer=optimizer,
        num_steps=steps,
        batch_size=batch_size,
        seed=seed,
        progress=progress,
        log_every=100,
    )
    seconds = time.perf_counter() - started
    scores = gap(problem, model, problem.exact)
    return model, Row(method, M, batch_size, steps, seconds, **scores)


def draw_grid(problem: Problem, models: dict[tuple[str, int], Any], path: Path) -> None:
    """The appendix's figure: methods by rows, numbers of points by columns."""
    import matplotlib.pyplot as plt

    rows = ("SVGP", "GPNet", "FBNN")
    figure, axes = plt.subplots(3, 3, figsize=(11, 8), sharex=True, sharey=True)
    for row, method in zip(axes, rows, strict=True):
        for ax, M in zip(row, MEASUREMENTS, strict=True):
            _panel(problem, models[method, M], f"{method}, M = {M}", ax)
    _finish(figure, axes, path)


def draw_details(problem: Problem, models: dict[tuple[str, int], Any], path: Path) -> None:
    """Natural steps, and FBNN against the exact GP for N / B times the noise variance."""
    import matplotlib.pyplot as plt

    M = MEASUREMENTS[-1]
    figure, axes = plt.subplots(2, 2, figsize=(10, 6.5), sharex=True, sharey=True)
    panels = (
        ("GPNet, natural, full batch", problem.exact, "exact GP"),
        ("GPNet, natural", problem.exact, "exact GP"),
        ("FBNN", problem.noisier, "exact GP, 5 × noise"),
        ("FBNN, N/B-scaled", problem.exact, "exact GP"),
    )
    for ax, (method, reference, label) in zip(axes.flat, panels, strict=True):
        _panel(problem, models[method, M], f"{method}, M = {M}", ax, reference, label)
        ax.legend(loc="lower left", fontsize=8)
    _finish(figure, axes, path)


def draw_networks(problem: Problem, models: dict[tuple[str, int], Any], path: Path) -> None:
    """One panel a network; FBNN against the exact GP for N / B times the noise variance."""
    import matplotlib.pyplot as plt

    rows = -(-len(models) // 2)
    figure, axes = plt.subplots(
        rows, 2, figsize=(10, 3.0 * rows), sharex=True, sharey=True, squeeze=False
    )
    for ax, ((method, _), model) in zip(axes.flat, models.items(), strict=False):
        noisy = method.startswith("FBNN")
        label = "exact GP, 5 × noise" if noisy else "exact GP"
        reference = problem.noisier if noisy else problem.exact
        _panel(problem, model, method, ax, reference, label)
        ax.legend(loc="lower left", fontsize=8)
    for ax in axes.flat[len(models) :]:
        ax.set_axis_off()
    _finish(figure, axes, path)


def _panel(
    problem: Problem,
    model: Any,
    title: str,
    ax: Any,
    reference: Any = None,
    label: str = "exact GP",
) -> None:
    from .. import plotting

    reference = problem.exact if reference is None else reference
    plotting.posterior(
        model, problem.grid(1.0), problem.data, reference=reference, reference_label=label, ax=ax
    )
    ax.set_title(title, fontsize=10)


def _finish(figure: Any, axes: Any, path: Path) -> None:
    axes[0, 0].set_ylim(-3.5, 3.5)
    for ax in axes[-1]:
        ax.set_xlabel("x")
    for ax in axes[:, 0]:
        ax.set_ylabel("f(x)")
    axes[0, 0].legend(loc="lower left", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the experiment."""
    parser.add_argument("--out", type=Path, default=Path("results/snelson"), help="output folder")
    parser.add_argument("--full", action="store_true", help="the paper's 40,000 iterations")
    parser.add_argument("--methods", nargs="*", choices=list(METHODS), help="default: all")
    parser.add_argument(
        "--networks",
        nargs="*",
        choices=["all", *NETWORKS, "FBNN, BNN"],
        help="GPNet on these networks (and FBNN on BNN), M = 20, in place of the methods",
    )
    parser.add_argument(
        "--points", nargs="*", type=int, choices=MEASUREMENTS, help="M; default: all"
    )
    parser.add_argument("--steps", type=int, help="at most so many steps, for a quick look")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--animate",
        action="store_true",
        help="nothing but posterior.gif, GPNet's posterior during training",
    )


def run(options: argparse.Namespace) -> list[Row]:
    """Train all methods; write table.csv and, where all were run, two figures."""
    budget = full_budget() if options.full else short_budget()
    if options.steps is not None:
        budget = Budget(
            min(budget.steps, options.steps),
            min(budget.natural_steps, options.steps),
            budget.learning_rate,
        )
    options.out.mkdir(parents=True, exist_ok=True)
    problem = make_problem()
    if options.animate:
        from .animation import animate

        animate(problem, options.out / "posterior.gif", budget.steps, options.seed)
        print(f"Written to {options.out}.")
        return []
    models: dict[tuple[str, int], Any] = {}
    rows: list[Row] = []
    noisier = None
    for method in _chosen(options):
        for M in BUILDERS[method][2]:
            if options.points and M not in options.points:
                continue
            models[method, M], row = train(problem, method, M, budget, options.seed, progress=True)
            rows.append(row)
            print(
                f"{method}, M = {M}: {row.seconds:.0f} s, mean gap {row.mean_gap_rms:.3f} sd "
                f"(rms), sd ratio {row.sd_ratio_min:.3f} to {row.sd_ratio_max:.3f}",
                flush=True,
            )
            if method.startswith("FBNN") and "scaled" not in method:
                noisier = gap(problem, models[method, M], problem.noisier)
    print(_table(rows))
    if noisier is not None:
        print(
            f"FBNN, M = {MEASUREMENTS[-1]}, against the exact GP for {NUM_POINTS // BATCH_SIZE} "
            f"times the noise variance: mean gap {noisier['mean_gap_rms']:.3f} sd (rms), sd ratio "
            f"{noisier['sd_ratio_min']:.3f} to {noisier['sd_ratio_max']:.3f}."
        )
    with (options.out / "table.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)])
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
    if options.networks:
        draw_networks(problem, models, options.out / "networks.png")
    elif options.methods is None and options.points is None:
        draw_grid(problem, models, options.out / "posteriors.png")
        draw_details(problem, models, options.out / "natural_and_fbnn.png")
    print(f"Written to {options.out}.")
    return rows


def _chosen(options: argparse.Namespace) -> list[str]:
    """Methods to run, in the order of the tables."""
    if not options.networks:
        return list(options.methods or METHODS)
    others = [name for name in BUILDERS if name not in METHODS]
    if "all" in options.networks:
        return others
    return [name for name in others if name.removeprefix("GPNet, ") in options.networks]


def _table(rows: list[Row]) -> str:
    headers = {
        "method": "method",
        "M": "M",
        "batch": "batch",
        "steps": "steps",
        "seconds": "seconds",
        "mean_gap_rms": "mean gap, rms [sd]",
        "mean_gap_max": "max [sd]",
        "sd_ratio_min": "sd ratio, min",
        "sd_ratio_max": "max",
    }
    table = [[getattr(row, name) for name in headers] for row in rows]
    digits = ("g", "g", "g", "g", ".0f", ".3f", ".3f", ".3f", ".3f")
    return str(tabulate(table, list(headers.values()), tablefmt="github", floatfmt=digits))
