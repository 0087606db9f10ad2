"""Standardised inputs and targets inside a model, undone exactly in all that leaves it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import tensorflow as tf
from gpflow import Module, Parameter
from gpflow.base import AnyNDArray, TensorType
from gpflow.config import default_float
from gpflow.kernels import Coregion, Kernel
from gpflow.likelihoods import Gaussian, Likelihood, StudentT

from .checks import check_shape, to_tensors
from .likelihoods import KnownNoise, MissingTargets, Weighted, base_likelihood
from .spectral import kernel_leaves

__all__ = ["Scaling", "column_moments", "constant_scale"]


class Scaling(Module):
    """x ↦ (x - input_center) / input_scale and y ↦ (y - target_center) / target_scale.

    A model with it lives in these units: kernel, mean function, likelihood and network are about
    standardised data. What users give and get is in the units of the data: data, points at which to
    predict, measurement points and inducing inputs; means, variances, samples, quantiles, log
    densities and the bound.

    >>> scaling = gpn.Scaling.from_data((100.0 + X, 5.0 * Y))
    >>> inputs, targets = scaling((100.0 + X, 5.0 * Y))
    >>> inputs.shape, round(float(np.std(targets)), 6)
    (TensorShape([20, 1]), 1.0)
    >>> model = gpn.GPNet(kernel, likelihood, network, num_data=20, scaling=scaling)
    """

    def __init__(
        self,
        input_center: TensorType,
        input_scale: TensorType,
        target_center: TensorType | None = None,
        target_scale: TensorType | None = None,
    ) -> None:
        """
        :param input_center: [D] or a number; input_scale: likewise, positive.
        :param target_center: [P] or a number; target_scale: likewise, positive. Targets are left
            as they are where neither is given.
        :raises ValueError: for scales that are not positive, numbers that are not finite, or
            targets whose variances the float type cannot hold.
        """
        super().__init__()
        self.input_center = _constant(input_center, "input_center")
        self.input_scale = _constant(input_scale, "input_scale", positive=True)
        self.scales_targets = target_center is not None or target_scale is not None
        center = 0.0 if target_center is None else target_center
        scale = 1.0 if target_scale is None else target_scale
        self.target_center = _constant(center, "target_center", ndmin=1)
        self.target_scale = _constant(scale, "target_scale", positive=True, ndmin=1)
        with np.errstate(over="ignore", under="ignore"):
            squares = np.square(self.target_scale.numpy())
        if not (np.isfinite(squares) & (squares >= np.finfo(squares.dtype).tiny)).all():
            raise ValueError(
                f"target_scale is {self.target_scale.numpy()}, whose square, the unit of variances,"
                f" is beyond {squares.dtype}: give targets in other units, or use float64."
            )

    @classmethod
    def from_data(
        cls, data: Any, *, targets: bool = True, unscaled: Collection[int] = ()
    ) -> Scaling:
        """Mean and standard deviation of each column; NaN targets are left out.

        A column that does not vary keeps its scale.

        :param data: X [N, D] and Y [N, P]; further members are ignored.
        :param targets: whether to scale Y too, for which f must be in its units.
        :param unscaled: columns of X that stay as they are, such as a Coregion kernel's indices.
        :raises ValueError: for other shapes, no finite values, or columns that X has not.
        """
        if not isinstance(data, (tuple, list)) or len(data) < 2:
            raise ValueError(f"data must be (X, Y), got {type(data).__name__}.")
        X, Y = check_shape(data[0], "X"), check_shape(data[1], "Y")
        columns = list(unscaled)
        if not np.isin(columns, np.arange(X.shape[1])).all():
            raise ValueError(f"unscaled must be columns of X of shape {X.shape}, got {unscaled}.")
        center, scale = _moments(X, "X")
        center[columns], scale[columns] = 0.0, 1.0
        return cls(center, scale, *(_moments(Y, "Y") if targets else ()))

    def __call__(self, data: Any, likelihood: Likelihood | None = None) -> tuple[tf.Tensor, ...]:
        """Data (X, Y) in the model's units.

        :param likelihood: that says what columns of Y are targets; by default all.
        """
        X, Y = to_tensors(data, likelihood)
        return self.inputs(X), self.targets(Y, likelihood)

    def inputs(self, X: TensorType) -> tf.Tensor:
        """[..., D] in the model's units.

        :raises ValueError: for another D.
        """
        _check_width("X", X, self.input_center.shape + self.input_scale.shape)
        return (X - self.input_center) / self.input_scale

    def original_inputs(self, X: TensorType) -> tf.Tensor:
        """[..., D] in the units of the data."""
        return X * self.input_scale + self.input_center

    def targets(self, Y: tf.Tensor, likelihood: Likelihood | None = None) -> tf.Tensor:
        """[..., P], or what columns the likelihood needs, in the model's units.

        :raises ValueError: for another P.
        """
        if not self.scales_targets:  # labels stay integers
            return Y
        if isinstance(likelihood, MissingTargets):
            return self.targets(Y, likelihood.base)
        if isinstance(likelihood, Weighted):
            targets, weights = likelihood.split(Y)
            return likelihood.join(self.targets(targets, likelihood.base), weights)
        if isinstance(likelihood, KnownNoise):
            targets, variances = likelihood.split(Y)
            return likelihood.join(self.targets(targets), variances / self.target_scale**2)
        sizes = self.target_center.shape + self.target_scale.shape
        _check_width("Y", Y, [size for size in sizes if size > 1])
        return (Y - self.target_center) / self.target_scale

    def original_mean(self, mean: tf.Tensor) -> tf.Tensor:
        """Function values or means of targets [..., P] in the units of the data."""
        if not self.scales_targets:
            return mean
        return mean * self.target_scale + self.target_center

    def original_covariance(
        self, cov: tf.Tensor, full_cov: bool = False, full_output_cov: bool = False
    ) -> tf.Tensor:
        """What ``predict_f`` returns beside the mean, in the units of the data."""
        if not self.scales_targets:
            return cov
        scale = tf.convert_to_tensor(self.target_scale)
        if full_cov and full_output_cov:  # [..., N, P, N, P]
            return cov * scale[:, None, None] * scale
        if full_cov:  # [..., P, N, N]
            return cov * (scale**2)[:, None, None]
        if full_output_cov:  # [..., N, P, P]
            return cov * scale[:, None] * scale
        return cov * scale**2

    def log_jacobian(self, observed: tf.Tensor) -> tf.Tensor:
        """``log |dy' / dy|`` at each row, for targets observed so often [..., P]."""
        return -tf.reduce_sum(observed * tf.math.log(self.target_scale), axis=-1)

    def check_kernel(self, kernel: Kernel) -> None:
        """Refuse to scale a column of output indices, which would merge outputs.

        :raises ValueError: naming it.
        """
        center, scale = self.input_center.numpy(), self.input_scale.numpy()
        for leaf in kernel_leaves(kernel):
            if not isinstance(leaf, Coregion):
                continue
            if any(
                np.any((values if values.ndim == 0 else values[leaf.active_dims]) != unit)
                for values, unit in ((center, 0.0), (scale, 1.0))
            ):
                raise ValueError(
                    f"scaling changes X columns {leaf.active_dims}, which hold the output indices "
                    "of a Coregion kernel: leave them as they are, "
                    "Scaling.from_data(data, unscaled=[...])."
                )

    def check_likelihood(self, likelihood: Likelihood) -> None:
        """Refuse to scale targets that are not in the units of f.

        :raises ValueError: naming the likelihood.
        """
        base = base_likelihood(likelihood)
        if self.scales_targets and not isinstance(base, (Gaussian, StudentT, KnownNoise)):
            raise ValueError(
                "scaling of targets needs a likelihood in whose units f is (Gaussian, StudentT, "
                f"KnownNoise), got {type(base).__name__}: scale inputs alone, "
                "Scaling.from_data(data, targets=False)."
            )


def _constant(
    values: TensorType, name: str, *, positive: bool = False, ndmin: int = 0
) -> Parameter:
    array: AnyNDArray = np.array(values, default_float(), ndmin=ndmin)
    if array.ndim > 1 or not np.isfinite(array).all() or (positive and (array <= 0.0).any()):
        wanted = "finite and positive" if positive else "finite"
        raise ValueError(f"{name} must be a number or a vector, {wanted}, got {values}.")
    return Parameter(array, trainable=False)


def _check_width(name: str, values: TensorType, sizes: Iterable[int]) -> None:
    """Refuse columns that centres and scales [size] would be broadcast to, or which to them."""
    for size in sizes:
        if values.shape[-1] not in (None, size):
            raise ValueError(
                f"{name} has shape {tuple(values.shape)}, but the scaling is of {size} columns."
            )


def _moments(values: AnyNDArray, name: str) -> tuple[AnyNDArray, AnyNDArray]:
    if not np.isfinite(values).any(axis=0).all() or np.isinf(values).any():
        raise ValueError(f"{name} of shape {values.shape} has a column without finite values.")
    return column_moments(values)


def column_moments(values: AnyNDArray) -> tuple[AnyNDArray, AnyNDArray]:
    """Mean and standard deviation [D] of columns [N, D], without NaN; see `constant_scale`."""
    values = np.asarray(values, dtype=np.float64)
    # Rounding can leave a constant column with a tiny spread about its mean, none in its range.
    constant = np.nanmax(values, axis=0) == np.nanmin(values, axis=0)
    mean = np.nanmean(values, axis=0)
    return mean, np.where(constant, constant_scale(mean), np.nanstd(values, axis=0))


def constant_scale(values: AnyNDArray) -> AnyNDArray:
    """Of columns [D] with one value each: 1, or what the float type can tell from the value."""
    return np.maximum(1.0, np.finfo(default_float()).eps * np.abs(values))
