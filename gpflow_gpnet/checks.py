"""Data at the door: conversion to tensors, and clear errors before the first step."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import numpy as np
import tensorflow as tf
from gpflow import likelihoods
from gpflow.base import RegressionData
from gpflow.config import default_float
from gpflow.kernels import (
    ArcCosine,
    Coregion,
    Kernel,
    Linear,
    LinearCoregionalization,
    Periodic,
    Stationary,
)
from gpflow.likelihoods import SwitchedLikelihood
from gpflow.mean_functions import Zero
from gpflow.models import GPModel
from gpflow.optimizers import Scipy
from gpflow.utilities import Dispatcher

from .likelihoods import (
    KnownNoise,
    MissingTargets,
    Ordinal,
    RowDataLikelihood,
    Weighted,
    base_likelihood,
)
from .spectral import active_columns, is_stationary, kernel_leaves, smoothing_lengthscales

__all__ = [
    "check_batch",
    "check_columns",
    "check_far_from_origin",
    "check_finite",
    "check_kernel",
    "check_module",
    "check_not_in_scipy",
    "check_shape",
    "check_targets",
    "check_width",
    "num_targets",
    "to_tensors",
]

_FAR = 1e3
"""Inputs further from 0 than this many times their spread need centring."""


def check_shape(values: Any, name: str) -> np.ndarray:
    """A float matrix from an array, DataFrame, list or tensor.

    :raises ValueError: if it is not two-dimensional; a vector is told to become a column.
    :raises TypeError: for text or objects, naming the column.
    """
    array = _to_numpy(values, name)
    if array.ndim == 1:
        raise ValueError(
            f"{name} must have two dimensions, got shape {array.shape}: use {name}[:, None]."
        )
    if array.ndim != 2:
        raise ValueError(f"{name} must have two dimensions, got shape {array.shape}.")
    return array


def _to_numpy(values: Any, name: str) -> np.ndarray:
    if hasattr(values, "to_numpy"):
        columns = [str(column) for column in getattr(values, "columns", [name])]
        array = values.to_numpy()
    else:
        array = np.asarray(values)
        columns = []
    if array.dtype.kind in "fiub":
        return array.astype(default_float())
    table = array.reshape(len(array), -1)
    for index in range(table.shape[1]):
        try:
            table[:, index].astype(default_float())
        except (TypeError, ValueError) as error:
            column = columns[index] if index < len(columns) else str(index)
            value = next((v for v in table[:, index] if not _is_number(v)), table[0, index])
            raise TypeError(
                f"{name} must be numeric, but column {column!r} has dtype {array.dtype} with "
                f"values such as {value!r}: encode it as numbers first."
            ) from error
    return array.astype(default_float())


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def to_tensors(
    data: Any,
    likelihood: likelihoods.Likelihood | None = None,
    *,
    dtype: tf.DType | None = None,
    batched: bool = False,
) -> RegressionData:
    """(X, Y) as tensors of one float type; integer labels where the likelihood wants them.

    :param data: a pair of arrays, DataFrames, lists or tensors; for a
        :class:`~gpflow_gpnet.likelihoods.RowDataLikelihood` also a triple, whose last member
        becomes further columns of Y.
    :param dtype: by default ``default_float()``.
    :param batched: whether both may have further dimensions in front.
    :raises ValueError: unless X is [N, D] and Y is [N, P].
    """
    dtype = default_float() if dtype is None else dtype
    row_data = likelihood if isinstance(likelihood, RowDataLikelihood) else None
    expected = "a pair (X, Y)" if row_data is None else f"(X, Y, {row_data.row_data})"
    if not isinstance(data, (tuple, list)):
        raise ValueError(f"data must be {expected}, got {type(data).__name__}.")
    if len(data) != 2 and (row_data is None or len(data) != 3):
        raise ValueError(
            f"data must be {expected}, got {len(data)} members. Weights or noise variances of rows "
            "need gpflow_gpnet.likelihoods.Weighted or KnownNoise."
        )
    X, Y, *rest = (
        tf.cast(value, dtype)
        if tf.is_tensor(value)
        else tf.convert_to_tensor(_to_numpy(value, name), dtype)
        for value, name in zip(data, ("X", "Y", "row data"), strict=False)
    )
    _check_pair(X.shape, Y.shape, batched)
    if row_data is not None and rest:
        Y = _with_row_data(row_data, Y, rest[0])
    if isinstance(likelihood, likelihoods.Softmax):
        if tf.executing_eagerly():  # the cast would hide labels such as 0.5
            check_targets(likelihood, np.reshape(Y, [-1, Y.shape[-1]]))
        Y = tf.cast(Y, tf.int32)
    return X, Y


def _with_row_data(likelihood: RowDataLikelihood, Y: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    if values.shape.rank == 1 and Y.shape.rank == 2:
        values = values[:, None]
    if values.shape.rank != Y.shape.rank or not values.shape[:-1].is_compatible_with(Y.shape[:-1]):
        raise ValueError(
            f"{likelihood.row_data} have shape {tuple(values.shape)}, but Y has shape "
            f"{tuple(Y.shape)}: give one for each row, [N] or [N, 1]."
        )
    return likelihood.join(Y, values)


def _check_pair(X: tf.TensorShape, Y: tf.TensorShape, batched: bool = False) -> None:
    if X.rank is None or Y.rank is None:  # of a signature that leaves it open
        return
    shapes = f"X has shape {tuple(X)} and Y has shape {tuple(Y)}"
    if X.rank == Y.rank == 1 and X[0] != Y[0]:
        raise ValueError(
            f"{shapes}: both must be matrices, [N, D] and [N, P]; a tf.data.Dataset of single rows "
            "needs .batch(batch_size)."
        )
    if Y.rank == 1:
        raise ValueError(f"{shapes}: Y must be a matrix [N, P], use Y[:, None].")
    if X.rank == 1:
        raise ValueError(f"{shapes}: X must be a matrix [N, D], use X[:, None].")
    if not batched and (X.rank != 2 or Y.rank != 2):
        raise ValueError(f"{shapes}: both must be matrices, [N, D] and [N, P].")
    if not X[:-1].is_compatible_with(Y[:-1]):
        raise ValueError(f"{shapes}: both need the same number of rows.")


def check_batch(model: GPModel, data: RegressionData) -> None:
    """Refuse values and shapes that the model cannot be trained on. Eager tensors only.

    :raises ValueError: naming the argument, what came and what was expected.
    """
    X, Y = (np.asarray(values) for values in data)
    _check_pair(tf.TensorShape(X.shape), tf.TensorShape(Y.shape))
    if len(X) == 0:
        raise ValueError("X and Y have no rows.")
    check_width(model, X)
    check_kernel(model.kernel, X.shape[1])
    check_finite("X", X)
    check_columns(model, Y)
    check_targets(model.likelihood, Y)
    _check_mean_function(model, X)
    _check_output_indices(model.kernel, X)


def check_width(model: GPModel, X: Any) -> None:
    """Refuse inputs of another width than the model's network takes, which could be broadcast.

    :raises ValueError: naming the shape.
    """
    expected = getattr(getattr(model, "inference_network", None), "input_dim", None)
    if isinstance(expected, (int, np.integer)) and X.shape[-1] not in (None, expected):
        raise ValueError(
            f"X must have {expected} columns, the inputs of the model's network, got shape "
            f"{tuple(X.shape)}."
        )


def check_kernel(kernel: Kernel, input_dim: int) -> None:
    """Refuse inputs that one of GPflow's kernels was not made for, which could be broadcast.

    :raises ValueError: naming the kernel.
    """
    for leaf in kernel_leaves(kernel):
        if isinstance(leaf, (Stationary, Linear, ArcCosine, Periodic, Coregion)):
            active_columns(leaf, input_dim)


def check_finite(name: str, values: np.ndarray, hint: str = "") -> None:
    """Refuse NaN and infinite values of a matrix.

    :raises ValueError: naming the matrix and the first row.
    """
    bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if bad.size:
        raise ValueError(
            f"{name} has NaN or infinite values in {bad.size} rows, the first is row "
            f"{bad[0]}.{hint}"
        )


def check_columns(model: GPModel, Y: Any) -> None:
    """Refuse targets [..., P] of another number than the model has, which could be broadcast.

    :raises ValueError: naming the numbers.
    """
    likelihood, outputs = model.likelihood, num_targets(model)
    if outputs is None or Y.shape[-1] is None:
        return
    if isinstance(likelihood, RowDataLikelihood):
        expected = likelihood.num_columns(outputs)
        if Y.shape[-1] != expected:
            raise ValueError(
                f"Y has {Y.shape[-1]} columns, but {type(likelihood).__name__} needs {expected}, "
                f"{outputs} of targets and then {likelihood.row_data}: pass data as (X, Y, "
                f"{likelihood.row_data})."
            )
    elif isinstance(base_likelihood(likelihood), (likelihoods.MultiClass, likelihoods.Softmax)):
        return  # of labels check_targets says more
    elif isinstance(base_likelihood(likelihood), SwitchedLikelihood) and Y.shape[-1] != outputs:
        raise ValueError(
            f"Y has {Y.shape[-1]} columns, but SwitchedLikelihood needs {outputs}: a target for "
            f"each of the model's {outputs - 1} outputs (num_latent_gps={model.num_latent_gps}), "
            "and then the index of the row's likelihood."
        )
    elif Y.shape[-1] != outputs:
        raise ValueError(
            f"Y has {Y.shape[-1]} columns, but the model has {outputs} outputs "
            f"(num_latent_gps={model.num_latent_gps}). One-hot labels must become one column of "
            "class indices."
        )


def num_targets(model: GPModel) -> int | None:
    """P, the targets of a row (with the index that SwitchedLikelihood has for one of them); None
    where the likelihood does not tell."""
    likelihood = base_likelihood(model.likelihood)
    switched = isinstance(likelihood, SwitchedLikelihood)
    if not switched:
        if isinstance(likelihood, (likelihoods.MultiClass, likelihoods.Softmax)):
            return 1
        if likelihood.observation_dim is not None:
            return int(likelihood.observation_dim)
        if likelihood.latent_dim is not None:
            return None
    mixed = isinstance(model.kernel, LinearCoregionalization)
    outputs = model.kernel.W.shape[0] if mixed else model.num_latent_gps
    return int(outputs) + switched


def _check_mean_function(model: GPModel, X: np.ndarray) -> None:
    if isinstance(model.mean_function, Zero):
        return
    try:
        columns = model.mean_function(tf.convert_to_tensor(X[:1])).shape[-1]
    except Exception as error:  # of any kind, since it may be the user's own
        raise ValueError(
            f"mean_function {type(model.mean_function).__name__} failed for X of {X.shape[1]} "
            f"columns and type {X.dtype}: {error}"
        ) from error
    latents = model.likelihood.latent_dim
    roles_differ = latents is not None and latents > 1
    wanted = latents if roles_differ else model.num_latent_gps
    if isinstance(model.kernel, LinearCoregionalization):
        wanted = int(model.kernel.W.shape[0])
    if columns not in ((wanted,) if roles_differ else (1, wanted, None)):
        raise ValueError(
            f"mean_function gives {columns} columns, but the model has {wanted} latent GPs: give "
            "one column per latent."
        )


def index_columns(kernel: Kernel, input_dim: int) -> list[tuple[int, int]]:
    """Columns of X that hold output indices of Coregion kernels, and how many outputs each has."""
    leaves = [leaf for leaf in kernel_leaves(kernel) if isinstance(leaf, Coregion)]
    return [
        (int(column), leaf.output_dim)
        for leaf in leaves
        for column in active_columns(leaf, input_dim)
    ]


def _check_output_indices(kernel: Kernel, X: np.ndarray) -> None:
    for column, outputs in index_columns(kernel, X.shape[1]):
        indices = X[:, column]
        valid = (indices == np.round(indices)) & (indices >= 0) & (indices < outputs)
        if not valid.all():
            row = np.flatnonzero(~valid)[0]
            raise ValueError(
                f"X column {column} holds the output indices of a Coregion kernel, which must be "
                f"integers from 0 to {outputs - 1}, but row {row} has {indices[row]:g}."
            )


def check_module(network: Any) -> None:
    """Refuse what ``tf.Module`` cannot track: Keras 3 layers inside a network.

    :raises TypeError: naming the attribute.
    """
    if not (callable(network) and isinstance(network, tf.Module)):
        raise TypeError(
            "inference_network must be an InferenceNetwork, a Module with __call__(X, full_cov) or "
            f"an array [M, D], got {type(network).__name__}."
        )
    keras = sys.modules.get("keras")
    if keras is None or not hasattr(keras, "layers"):
        return
    for owner in (network, *getattr(network, "submodules", ())):
        for name, value in vars(owner).items():
            if name.startswith("_self_"):  # what TensorFlow keeps about the attributes
                continue
            for item in _leaves(value):
                if isinstance(item, keras.layers.Layer) and not isinstance(item, tf.Module):
                    raise TypeError(
                        f"{type(owner).__name__}.{name} is a Keras 3 {type(item).__name__}, whose "
                        "variables TensorFlow modules cannot see, so it would never be trained. "
                        "Build it from gpflow.keras.tf_keras layers or gpflow.Parameter."
                    )


def _leaves(value: Any) -> Iterator[Any]:
    """What lists and dicts hold; tf.nest fails on those that Keras layers keep."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def check_far_from_origin(model: GPModel, X: np.ndarray) -> None:
    """Refuse inputs whose offset swamps their spread, for which features lose all precision.

    :raises ValueError: naming the columns.
    """
    if not is_stationary(model.kernel):
        return
    offset = X.mean(axis=0) - np.asarray(getattr(model.inference_network, "center", 0.0))
    spread = np.ptp(X, axis=0)
    lengthscales = np.asarray(smoothing_lengthscales(model.kernel, X.shape[1]))
    far = np.flatnonzero(np.abs(offset) > _FAR * np.maximum(spread, lengthscales))
    if far.size:
        raise ValueError(
            f"X columns {far.tolist()} lie far from 0 for their spread (column {far[0]}: mean "
            f"{X[:, far[0]].mean():.3g}, spread {spread[far[0]]:.3g}): centre the inputs, or call "
            "model.initialise(X) first, which centres the network (as gpflow_gpnet.fit does)."
        )


def check_not_in_scipy() -> None:
    """Refuse to be evaluated by ``gpflow.optimizers.Scipy``, compiled or not.

    Its line searches compare values of one function, and end early and badly on another one at each
    call. Its callbacks may call what they like.

    :raises ValueError: with the ways out.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        module, function = frame.f_globals.get("__name__"), frame.f_code.co_name
        if module == Scipy.__module__ and function == "_eval":
            raise ValueError(
                "gpflow.optimizers.Scipy needs the same function at each call, but this loss draws "
                "minibatches: give it the full batch as arrays, training_loss_closure((X, Y)), or "
                "train on minibatches with a stochastic optimiser, such as gpflow_gpnet.fit's."
            )
        frame = frame.f_back


# ---------------------------------------------------------------------- targets by likelihood

_targets: Any = Dispatcher("check_targets")


def check_targets(likelihood: likelihoods.Likelihood, Y: np.ndarray) -> None:
    """Refuse targets that are not finite or outside the support of the likelihood.

    :param Y: [N, P].
    :raises ValueError: naming the likelihood, its support and the first rows outside.
    """
    if not isinstance(likelihood, (MissingTargets, RowDataLikelihood)):
        hint = " For targets not observed, see gpflow_gpnet.likelihoods.MissingTargets."
        check_finite("Y", Y, hint if np.isnan(Y).any() else "")
    _targets(likelihood, Y)


def _require(valid: np.ndarray, likelihood: Any, support: str, Y: np.ndarray) -> None:
    rows = np.flatnonzero(~valid.all(axis=-1))
    if rows.size:
        raise ValueError(
            f"{type(likelihood).__name__} needs targets {support}, but Y has others in {rows.size} "
            f"rows, the first are rows {rows[:5].tolist()} with {Y[rows[0]].tolist()}."
        )


@_targets.register(likelihoods.Likelihood, object)
def _any(likelihood: likelihoods.Likelihood, Y: np.ndarray) -> None:
    pass


@_targets.register((likelihoods.Poisson, likelihoods.Exponential), object)
def _non_negative(likelihood: likelihoods.Likelihood, Y: np.ndarray) -> None:
    _require(Y >= 0, likelihood, "of at least 0", Y)


@_targets.register(likelihoods.Gamma, object)
def _positive(likelihood: likelihoods.Gamma, Y: np.ndarray) -> None:
    _require(Y > 0, likelihood, "above 0", Y)


@_targets.register(likelihoods.Beta, object)
def _unit_interval(likelihood: likelihoods.Beta, Y: np.ndarray) -> None:
    _require((Y > 0) & (Y < 1), likelihood, "strictly between 0 and 1", Y)


@_targets.register(likelihoods.Bernoulli, object)
def _binary(likelihood: likelihoods.Bernoulli, Y: np.ndarray) -> None:
    _require((Y == 0) | (Y == 1), likelihood, "0 or 1", Y)


def _check_labels(likelihood: Any, Y: np.ndarray, classes: int) -> None:
    valid = (Y == np.round(Y)) & (Y >= 0) & (Y < classes)
    _require(valid, likelihood, f"that are class indices 0 to {classes - 1}", Y)


@_targets.register((likelihoods.MultiClass, likelihoods.Softmax), object)
def _classes(likelihood: Any, Y: np.ndarray) -> None:
    classes = likelihood.latent_dim
    if Y.shape[1] != 1:
        raise ValueError(
            f"{type(likelihood).__name__} needs labels as one column of class indices, got Y with "
            f"{Y.shape[1]} columns: use np.argmax(Y, axis=1)[:, None] for one-hot labels."
        )
    _check_labels(likelihood, Y, classes)


def _float_infinity() -> tf.Tensor:
    return tf.constant(np.inf, default_float())


@_targets.register(likelihoods.Ordinal, object)
def _ordinal(likelihood: likelihoods.Ordinal, Y: np.ndarray) -> None:
    if not isinstance(likelihood, Ordinal) and np.isnan(tf.math.erf(_float_infinity())):
        raise ValueError(
            "gpflow.likelihoods.Ordinal is NaN for its first and last label with this TensorFlow, "
            "whose erf(inf) is NaN: use gpflow_gpnet.likelihoods.Ordinal, which is the same with "
            "finite edges."
        )
    _check_labels(likelihood, Y, likelihood.num_bins)


@_targets.register(MissingTargets, object)
def _missing(likelihood: MissingTargets, Y: np.ndarray) -> None:
    there = ~np.isnan(Y)
    check_finite("Y", np.where(there, Y, 0.0))
    check_targets(likelihood.base, np.where(there, Y, likelihood.placeholder))


@_targets.register(Weighted, object)
def _weighted(likelihood: Weighted, Y: np.ndarray) -> None:
    weights = Y[:, -1:]
    _require(np.isfinite(weights) & (weights >= 0.0), likelihood, "whose weights are >= 0", Y)
    check_targets(likelihood.base, Y[:, :-1])


@_targets.register(KnownNoise, object)
def _known_noise(likelihood: KnownNoise, Y: np.ndarray) -> None:
    targets, known = np.split(Y, 2, axis=1)
    check_finite("Y", targets)
    positive = known > 0.0 if likelihood.variance is None else known >= 0.0
    needs = "whose noise variances are above 0"
    _require(np.isfinite(known) & positive, likelihood, needs, Y)
