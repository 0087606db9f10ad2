"""Figures of posteriors and of training. Needs matplotlib: ``pip install gpflow-gpnet[plot]``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .history import History

__all__ = ["posterior", "training_curves"]

# Okabe and Ito's palette: told apart by every eye and in grey print.
MODEL = "#0072B2"
REFERENCE = "#D55E00"
DATA = "#000000"


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
        ax.plot(*(np.asarray(values)[:, 0] for values in data), ".", color=DATA, ms=3, alpha=0.6)
    return ax


def training_curves(history: History, *, ax: Axes | None = None) -> Axes:
    """Training loss (left, nats) and validation NLPD (right, nats per datum) against the step."""
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
