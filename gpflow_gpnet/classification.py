"""Class probabilities that use the variance of f, and what they are worth."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import AnyNDArray
from gpflow.likelihoods import Bernoulli, MultiClass, Softmax
from scipy.special import ndtri
from scipy.stats import rankdata

from . import random_numbers
from .likelihoods import base_likelihood

__all__ = [
    "METRICS",
    "auroc",
    "calibration_error",
    "class_probabilities",
    "entropy",
    "probability_scores",
    "scores",
]

METRICS = ("error", "nlpd", "brier", "calibration_error")
"""Of classification, all the lower the better."""

_ROWS = 1000
_LEAST = 1e-12
"""Probabilities below are as if they were this: a sampled class may never have been best."""
_ROUNDING = 1e-3
"""By which rows of probabilities may miss 1."""


@check_shapes("X: [N, D]", "return: [N, C]")
def class_probabilities(
    model: Any, X: Any, num_samples: int = 2048, seed: int = 0, rows: int = _ROWS
) -> AnyNDArray:
    """p(class | x, data), f integrated out.

    >>> classifier = gpn.GPNet(kernel, gpflow.likelihoods.Bernoulli(), X[:5], num_data=len(X))
    >>> gpn.classification.class_probabilities(classifier, X[:3]).shape
    (3, 2)

    By quadrature for ``Bernoulli`` (two classes, of which the second is Y = 1) and ``MultiClass``,
    whose rows miss 1 by up to a tenth where variances differ much, and are divided by their sums;
    for ``Softmax`` the mean over quasi-random f (for ten classes, within .002 by default).

    :param model: any with ``predict_f`` and a likelihood; a variance of 0 is a deterministic
        network.
    :param num_samples: of f at each row, from the same normal numbers.
    :param seed: of the samples.
    :param rows: how many to treat at a time.
    :raises TypeError: for another likelihood.
    :raises ValueError: for numbers below 1, or a Bernoulli likelihood of several latent GPs.
    """
    for name, value in (("num_samples", num_samples), ("rows", rows), ("rows of X", len(X))):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}.")
    likelihood = base_likelihood(model.likelihood)
    if not isinstance(likelihood, (Bernoulli, MultiClass, Softmax)):
        raise TypeError(
            "class probabilities need the likelihood Bernoulli, MultiClass or Softmax, got "
            f"{type(likelihood).__name__}."
        )

    def probabilities(X: tf.Tensor) -> tf.Tensor:
        mean, variance = model.predict_f(X)
        if isinstance(likelihood, Softmax):
            scale = tf.sqrt(tf.maximum(variance, 0.0))  # which rounding can leave below 0
            return _mean_softmax(mean, scale, _normal(num_samples, mean.shape[-1], seed))
        if isinstance(likelihood, Bernoulli) and mean.shape[-1] != 1:
            raise ValueError(
                f"class probabilities of Bernoulli need one latent GP, got {mean.shape[-1]}."
            )
        probability, _ = likelihood.predict_mean_and_var(X, mean, variance)
        if isinstance(likelihood, Bernoulli):
            return tf.concat([1.0 - probability, probability], axis=-1)
        return probability / tf.reduce_sum(probability, axis=-1, keepdims=True)

    # A partial, since TensorFlow takes functions with one code, of several models, for retraces.
    compiled = tf.function(partial(probabilities), autograph=False, reduce_retracing=True)
    parts = [
        compiled(tf.convert_to_tensor(X[i : i + rows])).numpy() for i in range(0, len(X), rows)
    ]
    return np.concatenate(parts)


def _normal(num: int, dim: int, seed: int) -> AnyNDArray:
    """Quasi-random N(0, 1) numbers [num, dim]: scores of many rows share their error."""
    return ndtri(random_numbers.low_discrepancy(num, dim, np.random.default_rng(seed)))


def _mean_softmax(mean: tf.Tensor, scale: tf.Tensor, normal: AnyNDArray) -> tf.Tensor:
    """Class probabilities [N, C], row by row to save memory."""
    steps = tf.constant(normal, mean.dtype)

    def of_row(moments: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        return tf.reduce_mean(tf.nn.softmax(moments[0] + moments[1] * steps), axis=0)

    return tf.map_fn(of_row, (mean, scale), fn_output_signature=mean.dtype)


def scores(model: Any, data: Any, *, num_samples: int = 2048, seed: int = 0) -> dict[str, float]:
    """:func:`probability_scores` of a model's :func:`class_probabilities`.

    >>> classifier = gpn.GPNet(kernel, gpflow.likelihoods.Bernoulli(), X[:5], num_data=len(X))
    >>> sorted(gpn.classification.scores(classifier, (X, 1.0 * (Y > 0))))
    ['brier', 'calibration_error', 'error', 'nlpd']

    :param data: X [N, D] and labels Y [N, 1].
    """
    X, Y = data
    return probability_scores(class_probabilities(model, X, num_samples, seed), Y)


@check_shapes("probabilities: [N, C]", "Y: [N, 1]")
def probability_scores(probabilities: AnyNDArray, Y: Any) -> dict[str, float]:
    """Error rate of the most probable class, mean negative log probability (nats per datum),
    Brier score (sum of squares over classes, 0 to 2) and expected calibration error.

    >>> certain = gpn.classification.probability_scores(np.array([[0.0, 1.0]]), np.array([[1]]))
    >>> certain["error"], certain["brier"]
    (0.0, 0.0)

    :param probabilities: [N, C], rows sum to 1.
    :param Y: labels 0 … C - 1.
    :raises ValueError: for labels that no class has, and rows that are not probabilities.
    """
    probabilities, labels = _checked(probabilities, Y)
    given = probabilities[np.arange(len(labels)), labels]
    squares = np.sum(probabilities**2, axis=1) - 2.0 * given + 1.0
    values = {
        "error": np.mean(probabilities.argmax(axis=1) != labels),
        "nlpd": -np.mean(np.log(np.maximum(given, _LEAST))),
        "brier": np.mean(squares),
        "calibration_error": calibration_error(probabilities, labels[:, None]),
    }
    return {name: float(value) for name, value in values.items()}


@check_shapes("probabilities: [N, C]", "Y: [N, 1]")
def calibration_error(probabilities: AnyNDArray, Y: Any, bins: int = 15) -> float:
    """Mean gap between confidence and accuracy over equally wide bins of the confidence, that of
    the most probable class, weighted by what they hold (Guo et al. 2017).

    >>> gpn.classification.calibration_error(np.array([[0.25, 0.75]]), np.array([[1]]))
    0.25

    :raises ValueError: as :func:`probability_scores`, and for less than 1 bin.
    """
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}.")
    probabilities, labels = _checked(probabilities, Y)
    confidence = probabilities.max(axis=1)
    right = probabilities.argmax(axis=1) == labels
    places = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = np.bincount(places, confidence - right, minlength=bins)
    return float(np.abs(gaps).sum() / len(confidence))


def _checked(probabilities: AnyNDArray, Y: Any) -> tuple[AnyNDArray, AnyNDArray]:
    """In float64, and labels as integers [N]."""
    probabilities, labels = np.asarray(probabilities, np.float64), np.asarray(Y)[:, 0]
    if not len(labels):
        raise ValueError("probabilities and Y must have at least one row, got none.")
    low, high, sums = probabilities.min(), probabilities.max(), probabilities.sum(axis=1)
    # A comparison with NaN is false.
    if not (low >= -_ROUNDING and np.abs(sums - 1.0).max() <= _ROUNDING):
        raise ValueError(
            f"probabilities must be 0 to 1, in rows that sum to 1, got {low:.4g} to {high:.4g} and "
            f"sums {sums.min():.4g} to {sums.max():.4g}."
        )
    classes = probabilities.shape[1]
    if not np.isin(labels, np.arange(classes)).all():
        raise ValueError(
            f"Y must be labels from 0 to {classes - 1}, got {labels.min()} to {labels.max()}"
            f"{'' if np.all(labels == np.round(labels)) else ', not all whole'}."
        )
    return probabilities, labels.astype(int)


@check_shapes("probabilities: [N, C]", "return: [N]")
def entropy(probabilities: AnyNDArray) -> AnyNDArray:
    """Of each row, nats.

    >>> gpn.classification.entropy(np.array([[0.5, 0.5]]))
    array([0.693...])
    """
    return -np.sum(probabilities * np.log(np.maximum(probabilities, _LEAST)), axis=1)


@check_shapes("inside: [N]", "outside: [M]")
def auroc(inside: AnyNDArray, outside: AnyNDArray) -> float:
    """Probability that what is outside scores higher than what is inside, ties half.

    With :func:`entropy` of the class probabilities of the test set and of other inputs: how well
    uncertainty tells inputs that are unlike the data.

    >>> gpn.classification.auroc(np.array([0.1, 0.2]), np.array([0.3, 0.15]))
    0.75

    :raises ValueError: for no values, or values that are not finite.
    """
    for name, values in (("inside", inside), ("outside", outside)):
        if not (len(values) and np.isfinite(values).all()):
            raise ValueError(f"{name} must be finite numbers, at least one, got {values!r}.")
    ranks = rankdata(np.concatenate([outside, inside]))[: len(outside)]
    pairs = len(inside) * len(outside)
    return float((ranks.sum() - len(outside) * (len(outside) + 1) / 2.0) / pairs)
