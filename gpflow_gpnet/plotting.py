"""Figures of posteriors and of training. Needs matplotlib: ``pip install gpflow-gpnet[plot]``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .compare import Comparison
    from .history import History

__all__ = ["calibration", "posterior", "training_curves", "violins"]

# Okabe and Ito's palette: told apart by every eye and in grey print.
MODEL = "#0072B2"
REFERENCE = "#D55E00"
DATA = "#000000"
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vP*"


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.gca()


def posterior(
    model: Any,
    Xnew: Any,
    data: Any = None,
    *,
    reference: Any = None,
    num_sds: float = 3.0,
    reference_label: str = "exact GP",
    ax: Axes | None = None,
) -> Axes:
    """Mean and band of f over one-dimensional inputs, with a second model dashed over it.

    >>> gpn.plotting.posterior(model, X, (X, Y)).get_legend_handles_labels()[1]
    ['mean ± 3 sd']

    :param model: anything with ``predict_f``; its first output is drawn.
    :param Xnew: inputs in increasing order [N, 1].
    :param data: (X, Y) to show as points.
    :param reference: a model whose mean and band are drawn as dashed lines.
    :param num_sds: half width of the band in standard deviations of f.
    """
    ax = _axes(ax)
    Xnew = np.asarray(Xnew)
    line = Xnew[:, 0]
    mean, variance = (np.asarray(moment)[:, 0] for moment in model.predict_f(Xnew))
    width = num_sds * np.sqrt(variance)
    ax.fill_between(line, mean - width, mean + width, color=MODEL, alpha=0.25, lw=0)
    ax.plot(line, mean, color=MODEL, label=f"mean ± {num_sds:g} sd")
    if reference is not None:
        mean, variance = (np.asarray(moment)[:, 0] for moment in reference.predict_f(Xnew))
        width = num_sds * np.sqrt(variance)
        ax.plot(line, mean, "--", color=REFERENCE, lw=1.0, label=reference_label)
        for edge in (mean - width, mean + width):
            ax.plot(line, edge, "--", color=REFERENCE, lw=0.8)
    if data is not None:
        X, Y = (np.asarray(values)[:, 0] for values in data[:2])
        ax.plot(X, Y, ".", color=DATA, ms=3, alpha=0.6)
    return ax


def training_curves(history: History, *, ax: Axes | None = None) -> Axes:
    """Training loss (left, nats) and validation NLPD (right, nats per datum) against the step.

    >>> history = gpn.History()
    >>> history.append(step=1, loss=3.0)
    >>> gpn.plotting.training_curves(history).get_xlabel()
    'step'
    """
    ax = _axes(ax)
    ax.plot(history["step"], history["loss"], color=MODEL)
    ax.set(xlabel="step", ylabel="training loss [nats]")
    if "validation_nlpd" in history:
        scored = np.isfinite(history["validation_nlpd"])
        other = ax.twinx()
        other.plot(
            history["step"][scored], history["validation_nlpd"][scored], "--", color=REFERENCE
        )
        other.set_ylabel("validation NLPD [nats per datum], dashed")
    return ax


def violins(comparison: Comparison, metric: str = "nlpd", *, ax: Axes | None = None) -> Axes:
    """A metric's distribution over splits for each method, with its mean as a line.

    >>> trained = gpflow.models.GPR((X, Y), kernel, noise_variance=0.1)
    >>> comparison = gpn.compare({"GP": trained}, (X, Y), test_data=(X, Y), progress=False)
    >>> gpn.plotting.violins(comparison, "rmse").get_ylabel()
    'rmse'
    """
    ax = _axes(ax)
    groups = comparison.results.groupby("method")[metric]
    values = [groups.get_group(method).dropna().to_numpy() for method in comparison.methods]
    positions = np.arange(1, len(values) + 1)
    drawn = [index for index, group in enumerate(values) if len(group) > 1]
    if drawn:
        parts = ax.violinplot(
            [values[index] for index in drawn], positions[drawn], showmeans=True, showextrema=False
        )
        bodies: Any = parts["bodies"]
        for body in bodies:
            body.set(facecolor=MODEL, alpha=0.3)
        parts["cmeans"].set_color(REFERENCE)
    for position, group in zip(positions, values, strict=True):
        ax.plot(np.full(len(group), position), group, ".", color=DATA, ms=4)
    ax.set_xticks(positions, comparison.methods)
    ax.set_ylabel(metric)
    return ax


def calibration(comparison: Comparison, *, ax: Axes | None = None) -> Axes:
    """Fraction of targets below each predictive quantile against its level; right: diagonal.

    >>> trained = gpflow.models.GPR((X, Y), kernel, noise_variance=0.1)
    >>> comparison = gpn.compare({"GP": trained}, (X, Y), test_data=(X, Y), progress=False)
    >>> gpn.plotting.calibration(comparison).get_ylabel()
    'fraction of targets below'
    """
    ax = _axes(ax)
    columns = [name for name in comparison.results.columns if name.startswith("below_")]
    levels = [float(name.removeprefix("below_")) for name in columns]
    means = comparison.results.groupby("method")[columns].mean()
    ax.plot([0.0, 1.0], [0.0, 1.0], color=DATA, lw=0.8)
    for index, method in enumerate(comparison.methods):
        style: dict[str, Any] = {
            "color": PALETTE[index % len(PALETTE)],
            "marker": MARKERS[index % len(MARKERS)],
            "ls": "-" if index < len(PALETTE) else "--",
        }
        ax.plot(levels, means.loc[method], ms=3, lw=1.0, label=method, **style)
    ax.set(xlabel="level of the quantile", ylabel="fraction of targets below")
    ax.legend()
    return ax
