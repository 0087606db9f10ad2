"""Warnings about data, model and result that do not go together, which training makes."""

from __future__ import annotations

import warnings

import numpy as np
import tensorflow as tf
from gpflow.base import RegressionData
from gpflow.kernels import MultioutputKernel
from gpflow.likelihoods import Gaussian, StudentT
from gpflow.models import BayesianModel

from .history import History
from .latent_prior import latent_variance
from .likelihoods import KnownNoise, base_likelihood, observed
from .model import InferenceNetworkModel
from .spectral import is_stationary, smoothing_lengthscales

__all__ = ["WatchedRows", "warn_of_overfitting", "warn_of_scale"]

_LARGE_TARGETS = 30.0
_WIDE_INPUTS = 1000.0
_ROUNDED_DISTANCES = 0.01
"""In squared lengthscales."""
_OVERFITTING = 0.05
"""Nats per datum by which the validation NLPD must have risen to warn."""
_DIVERGED = 0.05
"""Nats per datum by which training rows must be explained worse than before to warn."""
_ROWS = 200


class WatchedRows:
    """How well a model explains a few training rows: kept from before the first step."""

    def __init__(self, model: InferenceNetworkModel, batch: RegressionData) -> None:
        self._model = model
        X, Y = model.scaled(batch)
        self._X, self._Y = X[:_ROWS], Y[:_ROWS]
        self._start = model.inference_network(self._X)

    def _explained(self, mean: tf.Tensor, variance: tf.Tensor) -> float:
        """Expected log-likelihood, nats per datum."""
        fit = self._model.expected_log_likelihood(self._X, mean, variance, self._Y)
        return float(fit) / len(self._X)

    def warn_of_divergence(self) -> None:
        """Where the rows are now explained worse than by the start and worse than by the prior.

        With the likelihood as it is now: noise that has grown makes up for nothing.
        """
        model, (mean, variance) = self._model, self._start
        prior = tf.linalg.matrix_transpose(latent_variance(model.kernel, self._X))
        untrained = min(
            self._explained(mean, variance),
            self._explained(tf.zeros_like(mean), tf.broadcast_to(prior, tf.shape(variance))),
        )
        now = self._explained(*model.inference_network(self._X))
        if now < untrained - _DIVERGED:
            warnings.warn(
                "Training has diverged: the model explains rows that it was trained on worse than "
                f"without training, expected log-likelihood {now:.4g} nats per datum, "
                f"{untrained:.4g} without. Lower the learning rate, or let it fall (LinearDecay, "
                "InverseSqrt).",
                UserWarning,
                stacklevel=3,
            )


def warn_of_overfitting(history: History) -> None:
    """Where the validation NLPD has risen while the training loss fell."""
    if "validation_nlpd" not in history:
        return
    scored = np.isfinite(history["validation_nlpd"])
    if not scored.any():
        return
    steps, loss, nlpd = (history[name][scored] for name in ("step", "loss", "validation_nlpd"))
    best = int(np.argmin(nlpd))
    if nlpd[-1] > nlpd[best] + _OVERFITTING and loss[-1] < loss[best]:
        warnings.warn(
            f"The model over-fits: its validation NLPD was {nlpd[best]:.4g} nats per datum at step "
            f"{steps[best]:.0f} and is {nlpd[-1]:.4g} at step {steps[-1]:.0f}, while the training "
            "loss has fallen. Stop at the best step (callbacks.EarlyStopping), learn the noise "
            'from rows held out (FunctionalMirrorDescent(noise="held-out")), or take a less '
            "flexible network.",
            UserWarning,
            stacklevel=3,
        )


def warn_of_scale(model: BayesianModel, batch: RegressionData) -> None:
    """Data on another scale than the prior's are the commonest reason for a useless fit."""
    _warn_of_lengthscales(model, batch[0])
    if not isinstance(base_likelihood(model.likelihood), (Gaussian, StudentT, KnownNoise)):
        return
    X, Y = model.scaled(batch) if isinstance(model, InferenceNetworkModel) else batch
    X, Y = X[:1000], Y[:1000]
    only_own = {"full_output_cov": False} if isinstance(model.kernel, MultioutputKernel) else {}
    prior_sd = float(tf.sqrt(tf.reduce_mean(model.kernel(X, full_cov=False, **only_own))))
    targets, times = observed(model.likelihood, Y)
    squares = tf.reduce_sum(times * tf.square(targets - model.mean_function(X)))
    size = float(tf.sqrt(squares / tf.maximum(tf.reduce_sum(times), 1.0)))
    if size > _LARGE_TARGETS * prior_sd:
        warnings.warn(
            f"Targets have size {size:.3g} (root mean square about the mean function), but the "
            f"prior's standard deviation is {prior_sd:.3g}: standardise Y (a GPNet does it itself "
            "with scaling=Scaling.from_data(data)), or set the kernel's variance and the mean "
            "function to the scale of the targets.",
            UserWarning,
            stacklevel=4,
        )


def _warn_of_lengthscales(model: BayesianModel, X: tf.Tensor) -> None:
    if not is_stationary(model.kernel):
        return
    X = model.scaled_inputs(X) if isinstance(model, InferenceNetworkModel) else X
    lengthscales = np.asarray(smoothing_lengthscales(model.kernel, X.shape[1]))
    spread = np.ptp(np.asarray(X), axis=0)
    # An input without a lengthscale, such as an output's index, has 0.
    half = np.divide(spread, 2.0 * lengthscales, out=np.zeros_like(spread), where=lengthscales > 0)
    rounding = float(np.sum(np.square(half))) * float(np.finfo(spread.dtype).eps)
    if rounding > _ROUNDED_DISTANCES:
        warnings.warn(
            f"X is so wide for the kernel's lengthscales that {spread.dtype} rounds squared "
            f"distances by {rounding:.2g} squared lengthscales: covariances may be wrong. "
            "Standardise X, start from longer lengthscales, or use float64.",
            UserWarning,
            stacklevel=5,
        )
    wide = np.flatnonzero((lengthscales > 0.0) & (spread > _WIDE_INPUTS * lengthscales))
    if wide.size:
        column = wide[0]
        warnings.warn(
            f"X columns {wide.tolist()} are very wide for the kernel (column {column}: range "
            f"{spread[column]:.3g}, lengthscale {lengthscales[column]:.3g}), so that the posterior "
            "would be the prior almost everywhere: standardise X (a GPNet does it itself with "
            "scaling=Scaling.from_data(data)), or start from longer lengthscales "
            "(fit_hyperparameters).",
            UserWarning,
            stacklevel=5,
        )
