"""Spectral measures of GPflow kernels, and what kernels say about the space of their inputs.

Bochner's theorem: k(x, x') = variance * E cos(w . (x - x')), with w drawn from the kernel's
spectral measure (Rahimi and Recht 2007). ``spectral_measure.register(Class)`` adds kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from gpflow.base import AnyNDArray
from gpflow.config import default_float
from gpflow.kernels import (
    Combination,
    Coregion,
    Cosine,
    Exponential,
    Kernel,
    LinearCoregionalization,
    Matern12,
    Matern32,
    Matern52,
    MultioutputKernel,
    Product,
    RationalQuadratic,
    SeparateIndependent,
    SharedIndependent,
    SquaredExponential,
    Static,
    Stationary,
    Sum,
)
from gpflow.utilities import Dispatcher
from scipy import stats

from . import random_numbers

__all__ = [
    "KernelDispatcher",
    "NoSpectralMeasureError",
    "SpectralMeasure",
    "active_columns",
    "infer_input_dim",
    "is_stationary",
    "kernel_leaves",
    "smoothing_lengthscales",
    "spectral_measure",
]

_FEW_INPUTS = 4
"""Most inputs for which frequencies are quasi-random."""

Draw = Callable[[int, np.random.Generator], tuple[AnyNDArray, AnyNDArray]]
Scale = Callable[[AnyNDArray], AnyNDArray]
"""From a level in (0, 1) to the quantile of the scale."""


class NoSpectralMeasureError(ValueError):
    """A kernel has no features of the kind asked for.

    >>> gpn.RFE(gpflow.kernels.ArcCosine(), input_dim=1)
    Traceback (most recent call last):
    ...
    gpflow_gpnet.spectral.NoSpectralMeasureError: ArcCosine has neither ...
    """


class KernelDispatcher(Dispatcher):
    """Multiple dispatch on the class of the first argument alone, a kernel.

    >>> "Matern52" in gpn.spectral.spectral_measure.supported
    True
    """

    def __init__(self, name: str, subject: str) -> None:
        """
        :param subject: what the registered functions return, for error messages.
        """
        super().__init__(name)
        self.subject = subject

    @property
    def supported(self) -> str:
        """Names of the registered kernels."""
        return ", ".join(sorted(kernel_class.__name__ for (kernel_class,) in self.funcs))

    def __call__(self, kernel: Kernel, *args: Any, **kwargs: Any) -> Any:
        """Call the function registered for the kernel's class or its nearest base class.

        :raises NoSpectralMeasureError: where there is none.
        """
        implementation = self.dispatch(type(kernel))
        if implementation is None:
            raise NoSpectralMeasureError(
                f"{type(kernel).__name__} has no {self.subject}; kernels that have: "
                f"{self.supported}. InducingFeatures takes any kernel."
            )
        return implementation(kernel, *args, **kwargs)


@dataclass(frozen=True)
class SpectralMeasure:
    """Distribution of the frequencies of a stationary kernel over D inputs.

    With (frequencies, power) from ``sample``, in expectation

        k(x, x') = variance * sum_i power_i cos(frequencies_i . (x - x') / lengthscales)

    >>> measure = gpn.spectral.spectral_measure(kernel, 2)
    >>> frequencies, power = measure.sample(100, np.random.default_rng(0))
    >>> frequencies.shape, power.shape, round(float(power.sum()), 6)
    ((100, 2), (100,), 1.0)
    """

    variance: float
    """Total mass, k(x, x)."""

    lengthscales: AnyNDArray
    """Typical length of each input [D], the unit of frequencies; 1 in inactive inputs."""

    draw: Draw
    """What ``sample`` calls."""

    support_size: int | None = None
    """Number of distinct frequencies, up to sign; None for a density."""

    def sample(self, num: int, rng: np.random.Generator) -> tuple[AnyNDArray, AnyNDArray]:
        """Draw frequencies in units of 1 / lengthscales, and their shares of the variance.

        :return: frequencies [num, D] and power [num], which sums to 1.
        :raises ValueError: if num < 1.
        """
        if num < 1:
            raise ValueError(f"num must be at least 1, got {num}.")
        return self.draw(num, rng)


spectral_measure = KernelDispatcher("spectral_measure", "spectral measure")
"""``spectral_measure(kernel, input_dim) -> SpectralMeasure`` of a kernel over D = input_dim inputs.

Raises `NoSpectralMeasureError`, naming the kernel, or the part of a Sum or Product, without one.
"""


def active_columns(kernel: Kernel, input_dim: int) -> AnyNDArray:
    """Columns [I] of inputs [N, D] that a kernel other than a combination uses.

    >>> gpn.spectral.active_columns(gpflow.kernels.Matern12(active_dims=[0, 2]), 3).tolist()
    [0, 2]

    :raises ValueError: if they do not exist, are repeated, or differ in number from the kernel's
        lengthscales (ARD).
    """
    name, dims = type(kernel).__name__, kernel.active_dims
    columns = np.arange(input_dim)[dims] if isinstance(dims, slice) else np.asarray(dims)
    if not (columns.size and np.isin(columns, np.arange(input_dim)).all()):
        raise ValueError(
            f"{name}: active_dims must be columns 0 to {input_dim - 1} of inputs with input_dim = "
            f"{input_dim}, got {dims}."
        )
    if np.unique(columns).size != columns.size:
        raise ValueError(f"{name}: active_dims must not repeat a column, got {dims}.")
    size = _declared_size(kernel)
    if size not in (None, columns.size):
        raise ValueError(
            f"{name}: expected {size} active input(s), as many as its parameters say, got "
            f"{columns.size} with input_dim = {input_dim} and active_dims = {dims}."
        )
    return columns


def _declared_size(kernel: Kernel) -> int | None:
    """Number of active inputs, where the parameters of the kernel tell."""
    if isinstance(kernel, Coregion):
        return 1
    for name in ("lengthscales", "variance", "period", "weight_variances"):
        shape = tf.TensorShape(getattr(getattr(kernel, name, None), "shape", []))
        if shape.rank == 1:
            return int(shape[0])
    return None


def _children(kernel: Kernel) -> Sequence[Kernel]:
    if isinstance(kernel, MultioutputKernel):
        return kernel.latent_kernels
    return kernel.kernels if isinstance(kernel, Combination) else ()


def kernel_leaves(kernel: Kernel) -> list[Kernel]:
    """Kernels at the ends of the tree of combinations and multi-output kernels.

    >>> len(gpn.spectral.kernel_leaves(kernel + kernel * gpflow.kernels.Linear()))
    3
    """
    children = _children(kernel)
    return [leaf for child in children for leaf in kernel_leaves(child)] if children else [kernel]


def _least_input_dim(kernel: Kernel) -> int | None:
    """Smallest number of inputs a leaf can have, None where it does not say."""
    dims, size = kernel.active_dims, _declared_size(kernel)
    if not isinstance(dims, slice):
        return int(dims.max(initial=-1)) + 1
    if dims.stop is not None:
        return dims.stop if dims.stop > 0 else None
    start, step = dims.start or 0, dims.step or 1
    return None if size is None or start < 0 or step < 0 else start + (size - 1) * step + 1


def infer_input_dim(kernel: Kernel, input_dim: int | None = None) -> int:
    """Number of inputs D of a kernel: ``input_dim``, checked, or what the kernel says.

    Lengthscales per input (ARD) tell D. Failing that, it is the number of columns up to the last
    that the kernel uses, if ``active_dims`` names them.

    >>> gpn.spectral.infer_input_dim(gpflow.kernels.Matern12(lengthscales=[1.0, 2.0]))
    2

    :raises ValueError: if the kernel does not tell D, or contradicts ``input_dim`` or itself.
    """
    leaves = kernel_leaves(kernel)
    if input_dim is None:
        least = [_least_input_dim(leaf) for leaf in leaves]
        telling = [
            dim
            for leaf, dim in zip(leaves, least, strict=True)
            if dim and isinstance(leaf.active_dims, slice) and leaf.active_dims.stop is None
        ]
        known = telling or least
        if None in known:
            raise ValueError(
                f"input_dim is needed: {type(kernel).__name__} does not tell the number of inputs."
            )
        input_dim = max(dim for dim in known if dim is not None)
    if isinstance(input_dim, bool) or not isinstance(input_dim, (int, np.integer)):
        raise TypeError(f"input_dim must be an integer, got {input_dim!r}.")
    if input_dim < 1:
        raise ValueError(f"input_dim must be at least 1, got {input_dim}.")
    for leaf in leaves:
        active_columns(leaf, int(input_dim))
    return int(input_dim)


def is_stationary(kernel: Kernel) -> bool:
    """Whether a kernel is made of GPflow's stationary and static kernels only.

    Sums, products and the multi-output kernels of these are stationary too.

    >>> gpn.spectral.is_stationary(kernel), gpn.spectral.is_stationary(gpflow.kernels.Linear())
    (True, False)
    """
    if isinstance(
        kernel, (Sum, Product, SharedIndependent, SeparateIndependent, LinearCoregionalization)
    ):
        return all(is_stationary(child) for child in _children(kernel))
    return isinstance(kernel, (Stationary, Static))


def smoothing_lengthscales(kernel: Kernel, input_dim: int) -> tf.Tensor:
    """Current lengthscale [D] of each input: the smallest among the stationary parts that use it.

    It is 0 for inputs that no stationary part uses and for index columns of Coregion kernels.

    >>> gpn.spectral.smoothing_lengthscales(kernel, 2).numpy().tolist()
    [1.0, 1.0]

    :raises ValueError: as `active_columns`.
    """
    leaves = kernel_leaves(kernel)
    stationary = [leaf for leaf in leaves if isinstance(leaf, Stationary)]
    if not stationary:
        return tf.zeros([input_dim], default_float())
    smallest = tf.reduce_min([_spread_lengthscales(k, input_dim) for k in stationary], axis=0)
    moving = np.ones(input_dim, dtype=bool)
    for leaf in leaves:
        if isinstance(leaf, Coregion):
            moving[active_columns(leaf, input_dim)] = False
    return tf.where(tf.math.is_finite(smallest) & moving, smallest, tf.zeros_like(smallest))


def _spread_lengthscales(kernel: Stationary, input_dim: int) -> tf.Tensor:
    """Lengthscales [D] of a stationary leaf, infinite in inactive inputs."""
    columns = active_columns(kernel, input_dim)
    lengthscales = tf.broadcast_to(tf.abs(kernel.lengthscales), [len(columns)])
    infinite = tf.fill([input_dim], tf.constant(np.inf, lengthscales.dtype))
    return tf.tensor_scatter_nd_update(infinite, columns[:, None], lengthscales)


def _scale_mixture(kernel: Stationary, input_dim: int, scale: Scale) -> SpectralMeasure:
    """Measure of frequencies scale * N(0, I), with one draw of the scale for each frequency.

    With few inputs draws are quasi-random: a few frequencies then cover the measure far better than
    independent ones. With many, independent ones train to better posteriors (measured on kin8nm).
    """
    columns = active_columns(kernel, input_dim)
    lengthscales = np.ones(input_dim)
    lengthscales[columns] = kernel.lengthscales.numpy()

    def draw(num: int, rng: np.random.Generator) -> tuple[AnyNDArray, AnyNDArray]:
        frequencies = np.zeros((num, input_dim))
        if len(columns) > _FEW_INPUTS:
            normal, level = rng.standard_normal((num, len(columns))), rng.random((num, 1))
        else:
            levels = random_numbers.low_discrepancy(num, len(columns) + 1, rng)
            # w and -w are the same frequency: half of the space is enough, in one coordinate.
            levels[:, 1] = 0.5 + 0.5 * levels[:, 1]
            normal, level = stats.norm.ppf(levels[:, 1:]), levels[:, :1]
        frequencies[:, columns] = scale(level) * normal
        return frequencies, np.full(num, 1.0 / num)

    return SpectralMeasure(float(kernel.variance.numpy()), lengthscales, draw)


def _student(degrees: int) -> Scale:
    """Scale that turns a normal into Student's t, the spectrum of Matérn kernels."""
    return lambda level: np.sqrt(degrees / stats.chi2.ppf(level, degrees))


@spectral_measure.register(SquaredExponential)
def _squared_exponential(kernel: SquaredExponential, input_dim: int) -> SpectralMeasure:
    return _scale_mixture(kernel, input_dim, np.ones_like)


@spectral_measure.register(Matern12)
def _matern12(kernel: Matern12, input_dim: int) -> SpectralMeasure:
    return _scale_mixture(kernel, input_dim, _student(1))


@spectral_measure.register(Matern32)
def _matern32(kernel: Matern32, input_dim: int) -> SpectralMeasure:
    return _scale_mixture(kernel, input_dim, _student(3))


@spectral_measure.register(Matern52)
def _matern52(kernel: Matern52, input_dim: int) -> SpectralMeasure:
    return _scale_mixture(kernel, input_dim, _student(5))


@spectral_measure.register(Exponential)
def _exponential(kernel: Exponential, input_dim: int) -> SpectralMeasure:
    # GPflow's Exponential is exp(-r / 2).
    return _scale_mixture(kernel, input_dim, lambda level: 0.5 * _student(1)(level))


@spectral_measure.register(RationalQuadratic)
def _rational_quadratic(kernel: RationalQuadratic, input_dim: int) -> SpectralMeasure:
    alpha = float(kernel.alpha.numpy())
    return _scale_mixture(
        kernel, input_dim, lambda level: np.sqrt(stats.gamma.ppf(level, alpha) / alpha)
    )


@spectral_measure.register(Cosine)
def _cosine(kernel: Cosine, input_dim: int) -> SpectralMeasure:
    columns = active_columns(kernel, input_dim)
    frequency, lengthscales = np.zeros(input_dim), np.ones(input_dim)
    # GPflow lets the lengthscales of this kernel be negative: the sign goes to the frequency.
    frequency[columns] = 2.0 * np.pi * np.sign(kernel.lengthscales.numpy())
    lengthscales[columns] = np.abs(kernel.lengthscales.numpy())

    def draw(num: int, rng: np.random.Generator) -> tuple[AnyNDArray, AnyNDArray]:
        return np.tile(frequency, (num, 1)), np.full(num, 1.0 / num)

    return SpectralMeasure(float(kernel.variance.numpy()), lengthscales, draw, support_size=1)


def _measures_of_parts(kernel: Combination, input_dim: int) -> list[SpectralMeasure]:
    try:
        return [spectral_measure(part, input_dim) for part in kernel.kernels]
    except NoSpectralMeasureError as error:
        raise NoSpectralMeasureError(f"In {type(kernel).__name__}: {error}") from None


def _uses(kernel: Combination, input_dim: int) -> AnyNDArray:
    """Which of K parts use which of D inputs, [K, D] of 0 and 1."""
    uses = np.zeros((len(kernel.kernels), input_dim))
    for row, part in zip(uses, kernel.kernels, strict=True):
        for leaf in kernel_leaves(part):
            row[active_columns(leaf, input_dim)] = 1.0
    return uses


def _allocate(num: int, shares: AnyNDArray, least: AnyNDArray, grows: AnyNDArray) -> AnyNDArray:
    """Split num draws: `least` for each part, the rest by `shares` among the parts that grow."""
    shares = shares * grows if grows.any() else shares
    spare = num - least.sum()
    extra = np.floor(spare * shares / shares.sum()).astype(int)
    extra[np.argmax(shares)] += spare - extra.sum()
    return least + extra


@spectral_measure.register(Sum)
def _sum(kernel: Sum, input_dim: int) -> SpectralMeasure:
    """Mixture of the parts, stratified where there are enough draws for every part.

    Lengths are geometric means over the parts that use an input.
    """
    parts = _measures_of_parts(kernel, input_dim)
    uses = _uses(kernel, input_dim)
    logs = uses * np.log([part.lengthscales for part in parts])
    lengthscales = np.exp(logs.sum(axis=0) / np.maximum(uses.sum(axis=0), 1.0))
    variances = np.array([part.variance for part in parts])
    shares = variances / variances.sum()
    least = np.array([part.support_size or 1 for part in parts])
    grows = np.array([part.support_size is None for part in parts])

    def draw(num: int, rng: np.random.Generator) -> tuple[AnyNDArray, AnyNDArray]:
        if num >= least.sum():
            counts, masses = _allocate(num, shares, least, grows), shares
        else:
            counts = rng.multinomial(num, shares)
            masses = counts / num
        samples = [
            (mass, part.lengthscales, *part.sample(count, rng))
            for part, count, mass in zip(parts, counts, masses, strict=True)
            if count
        ]
        return (
            np.concatenate([freq / lengths * lengthscales for _, lengths, freq, _ in samples]),
            np.concatenate([mass * power for mass, _, _, power in samples]),
        )

    support_size = None if grows.any() else int(least.sum())
    return SpectralMeasure(float(variances.sum()), lengthscales, draw, support_size)


@spectral_measure.register(Product)
def _product(kernel: Product, input_dim: int) -> SpectralMeasure:
    """Convolution of the parts: sums of their frequencies, drawn independently.

    Lengths are those of the product of as many squared exponentials: precisions add up.
    """
    parts = _measures_of_parts(kernel, input_dim)
    uses = _uses(kernel, input_dim)
    precisions = (uses / np.square([part.lengthscales for part in parts])).sum(axis=0)
    lengthscales = 1.0 / np.sqrt(np.where(uses.any(axis=0), precisions, 1.0))

    def draw(num: int, rng: np.random.Generator) -> tuple[AnyNDArray, AnyNDArray]:
        frequencies = np.zeros((num, input_dim))
        for part in parts:
            ours, power = part.sample(num, rng)
            # Systematic resampling: factors of unequal power become factors of equal power.
            levels = (np.arange(num) + rng.random()) / num
            chosen = np.minimum(np.searchsorted(np.cumsum(power), levels), num - 1)
            # Measures are symmetric, but a draw may hold one of two opposite frequencies only.
            signs = rng.permutation(np.resize(rng.permutation([1.0, -1.0]), num))
            ours = ours[rng.permutation(chosen)] / part.lengthscales
            frequencies = signs[:, None] * frequencies + ours
        return frequencies * lengthscales, np.full(num, 1.0 / num)

    variance = float(np.prod([part.variance for part in parts]))
    return SpectralMeasure(variance, lengthscales, draw)
