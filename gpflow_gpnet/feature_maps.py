"""Explicit features of kernels: phi(x) with phi(x)^T phi(x') equal to, or on average, k(x, x').

A map's parameters are Parameters of their own, apart from the kernel's, unless its constructor is
given a Parameter, which it then shares.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import combinations_with_replacement
from math import comb, factorial, prod

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes, inherit_check_shapes
from gpflow import Module, Parameter
from gpflow.base import AnyNDArray, TensorData, TensorType
from gpflow.kernels import (
    Combination,
    Constant,
    Coregion,
    Kernel,
    Linear,
    MultioutputKernel,
    Polynomial,
    Product,
    Stationary,
    Sum,
)
from gpflow.utilities import positive

from .spectral import (
    KernelDispatcher,
    NoSpectralMeasureError,
    active_columns,
    infer_input_dim,
    spectral_measure,
)

__all__ = [
    "ConcatenatedFeatures",
    "ConstantFeatures",
    "CoregionFeatures",
    "FeatureMap",
    "FourierFeatures",
    "LinearFeatures",
    "PolynomialFeatures",
    "TensorProductFeatures",
    "feature_map",
    "finite_features",
]

MAX_MONOMIALS = 10_000

Take = Callable[[Parameter], TensorData]


def _parameter(value: TensorData, constrained: bool = True) -> Parameter:
    """A Parameter as it is, anything else as a new one, positive if constrained."""
    if isinstance(value, Parameter):
        return value
    return Parameter(value, transform=positive() if constrained else None)


class FeatureMap(Module, abc.ABC):
    """Map from inputs x to F features phi(x).

    >>> features = gpn.feature_maps.feature_map(kernel, 1, 4, rng=np.random.default_rng(0))
    >>> features.num_features, features(X).shape
    (8, TensorShape([20, 8]))
    """

    @property
    @abc.abstractmethod
    def num_features(self) -> int:
        """F."""

    @abc.abstractmethod
    @check_shapes("X: [batch..., N, D]", "return: [batch..., N, F]")
    def __call__(self, X: TensorType) -> tf.Tensor:
        """Features of every row of X."""


class FourierFeatures(FeatureMap):
    r"""Cosines and sines of m frequencies (Rahimi and Recht 2007).

    .. math:: φ(x) = [\sqrt{v p_i} \cos z_i, \sqrt{v p_i} \sin z_i]_{i=1}^m,
              \quad z = W (x / ℓ)

    with power p summing to 1 at the start, so that then :math:`φ(x)^\top φ(x) = v` for every x.

    >>> features = gpn.feature_maps.FourierFeatures(np.ones([3, 1]), lengthscales=1.0, variance=2.0)
    >>> phi = features(X)
    >>> phi.shape, bool(np.allclose(np.sum(phi**2, axis=-1), 2.0))
    (TensorShape([20, 6]), True)
    """

    def __init__(
        self,
        frequencies: TensorData,
        lengthscales: TensorData,
        variance: TensorData,
        power: TensorData | None = None,
        trainable_frequencies: bool = True,
    ) -> None:
        """
        :param frequencies: W [m, D]; an input for which all are 0 is not used, in training neither.
        :param lengthscales: ℓ, [D] or a scalar, positive.
        :param variance: v, positive.
        :param power: p [m], positive, summing to 1 at the start; by default equal.
        :param trainable_frequencies: whether frequencies and their powers are trained.
        :raises ValueError: for shapes or powers other than these.
        """
        super().__init__()
        values: AnyNDArray = np.asarray(frequencies)
        if values.ndim != 2 or not values.size:
            raise ValueError(f"frequencies must have shape [m, D], got {values.shape}.")
        num, dim = values.shape
        shares = np.full(num, 1.0 / num) if power is None else np.asarray(power)
        if shares.shape != (num,) or not (shares > 0.0).all() or abs(shares.sum() - 1.0) > 1e-5:
            raise ValueError(
                f"power must be {num} positive numbers, one a frequency, that sum to 1; got shape "
                f"{shares.shape}, smallest {shares.min():g}, sum {shares.sum():g}."
            )
        self.frequencies = Parameter(values, trainable=trainable_frequencies)
        self.lengthscales = _parameter(lengthscales)
        self.variance = _parameter(variance)
        # Logarithmic, so that powers of 1 / m learn at the pace of the other parameters.
        self.power = Parameter(
            shares, transform=positive(base="exp"), trainable=trainable_frequencies
        )
        if tuple(self.lengthscales.shape) not in ((), (dim,)):
            raise ValueError(
                f"lengthscales must be a scalar or have shape [{dim}], one for each input of "
                f"frequencies, got shape {self.lengthscales.shape}."
            )
        self._used = (values != 0.0).any(axis=0)

    @property
    def num_features(self) -> int:
        return 2 * int(self.frequencies.shape[0])

    @inherit_check_shapes
    def __call__(self, X: TensorType) -> tf.Tensor:
        dim = self.frequencies.shape[-1]
        if X.shape[-1] not in (None, dim):
            raise ValueError(f"X must have {dim} columns, got shape {X.shape}.")
        frequencies = self.frequencies * tf.cast(self._used, self.frequencies.dtype)
        phase = tf.linalg.matmul(X / self.lengthscales, frequencies, transpose_b=True)
        amplitude = tf.sqrt(self.variance * self.power)
        return tf.concat([amplitude * tf.cos(phase), amplitude * tf.sin(phase)], axis=-1)


class LinearFeatures(FeatureMap):
    """Scaled inputs: phi(x) = sqrt(variance) x, of the Linear kernel.

    >>> gpn.feature_maps.LinearFeatures(4.0, [0])(tf.constant([[3.0, 9.0]], tf.float64)).numpy()
    array([[6.]])
    """

    def __init__(self, variance: TensorData, columns: Sequence[int]) -> None:
        """
        :param variance: positive, scalar or one for each of F columns.
        :param columns: of X that are used.
        """
        super().__init__()
        self.variance = _parameter(variance)
        self._columns: AnyNDArray = np.asarray(columns)

    @property
    def num_features(self) -> int:
        return len(self._columns)

    @inherit_check_shapes
    def __call__(self, X: TensorType) -> tf.Tensor:
        return tf.sqrt(self.variance) * tf.gather(X, self._columns, axis=-1)


class PolynomialFeatures(FeatureMap):
    r"""Monomials whose products sum to the Polynomial kernel, by the multinomial theorem.

    .. math:: \Big(\sum_{j=0}^d z_j z'_j\Big)^p
              = \sum_{|α| = p} \frac{p!}{\prod_j α_j!} \prod_j (z_j z'_j)^{α_j}, \quad
              z = (\sqrt{\mathrm{offset}}, \sqrt{\mathrm{variance}}\, x)

    >>> kernel = gpflow.kernels.Polynomial(2)
    >>> phi = gpn.feature_maps.feature_map(kernel, 1, 1, rng=np.random.default_rng(0))(X)
    >>> phi.shape, bool(np.allclose(phi @ tf.transpose(phi), kernel(X)))
    (TensorShape([20, 3]), True)
    """

    def __init__(
        self,
        degree: float,
        variance: TensorData,
        offset: TensorData,
        columns: Sequence[int],
    ) -> None:
        """
        :param degree: p, a positive whole number.
        :param variance: positive, scalar or one for each column.
        :param offset: positive.
        :param columns: of X that are used, d of them; F = (d + p)! / (d! p!).
        :raises ValueError: for another degree, or more than 10,000 features.
        """
        super().__init__()
        if degree != int(degree) or degree < 1:
            raise ValueError(
                f"degree must be a positive whole number for finite features, got {degree}."
            )
        degree, size = int(degree), len(columns)
        if comb(size + degree, degree) > MAX_MONOMIALS:
            raise ValueError(
                f"degree {degree} over {size} inputs has {comb(size + degree, degree):,} monomials,"
                f" more than {MAX_MONOMIALS:,}; InducingFeatures takes this kernel."
            )
        self.variance = _parameter(variance)
        self.offset = _parameter(offset)
        self._columns: AnyNDArray = np.asarray(columns)
        self._factors = np.array(list(combinations_with_replacement(range(size + 1), degree)))
        powers = (self._factors[:, :, None] == np.arange(size + 1)).sum(axis=1)
        self._weights = np.sqrt(
            [factorial(degree) / prod(factorial(power) for power in row) for row in powers.tolist()]
        )

    @property
    def num_features(self) -> int:
        return len(self._factors)

    @inherit_check_shapes
    def __call__(self, X: TensorType) -> tf.Tensor:
        X = tf.sqrt(self.variance) * tf.gather(X, self._columns, axis=-1)
        Z = tf.concat([tf.sqrt(self.offset) * tf.ones_like(X[..., :1]), X], axis=-1)
        factors = (tf.gather(Z, index, axis=-1) for index in self._factors.T)
        return reduce(tf.multiply, factors) * tf.cast(self._weights, Z.dtype)


class ConstantFeatures(FeatureMap):
    """One feature, the root of the variance, of the Constant kernel.

    >>> gpn.feature_maps.ConstantFeatures(4.0)(tf.constant(X))[:2].numpy().tolist()
    [[2.0], [2.0]]
    """

    def __init__(self, variance: TensorData) -> None:
        """
        :param variance: positive.
        """
        super().__init__()
        self.variance = _parameter(variance)

    @property
    def num_features(self) -> int:
        return 1

    @inherit_check_shapes
    def __call__(self, X: TensorType) -> tf.Tensor:
        return tf.sqrt(self.variance) * tf.ones_like(X[..., :1])


class CoregionFeatures(FeatureMap):
    r"""Rows of the Cholesky factor of :math:`W W^\top + \mathrm{diag}(κ)`, of the Coregion kernel.

    Features of a row are those of the output that its index column names, F outputs in all.

    >>> kappa = np.array([4.0, 9.0])
    >>> features = gpn.feature_maps.CoregionFeatures(np.zeros([2, 1]), kappa, column=0)
    >>> features(tf.constant([[0.0], [1.0]], tf.float64)).numpy().tolist()
    [[2.0, 0.0], [0.0, 3.0]]
    """

    def __init__(self, W: TensorData, kappa: TensorData, column: int) -> None:
        """
        :param W: [F, R].
        :param kappa: [F], positive.
        :param column: of X that holds the output's index, 0 to F - 1.
        """
        super().__init__()
        self.W = _parameter(W, constrained=False)
        self.kappa = _parameter(kappa)
        self._column = int(column)

    @property
    def num_features(self) -> int:
        return int(self.kappa.shape[0])

    @inherit_check_shapes
    def __call__(self, X: TensorType) -> tf.Tensor:
        """Features of every row of X.

        :raises InvalidArgumentError: for an index out of range; in XLA, which cannot raise, its
            features are NaN.
        """
        index = tf.cast(X[..., self._column], tf.int32)
        message = (
            f"X: column {self._column} must hold output indices 0 to {self.num_features - 1} "
            "for CoregionFeatures"
        )
        checks = [
            tf.debugging.assert_non_negative(index, message=message),
            tf.debugging.assert_less(index, self.num_features, message=message),
        ]
        covariance = tf.linalg.matmul(self.W, self.W, transpose_b=True) + tf.linalg.diag(self.kappa)
        with tf.control_dependencies([check for check in checks if check is not None]):
            known = (index >= 0) & (index < self.num_features)
            rows = tf.gather(tf.linalg.cholesky(covariance), tf.where(known, index, 0))
        return tf.where(known[..., None], rows, tf.constant(np.nan, rows.dtype))


class ConcatenatedFeatures(FeatureMap):
    """Features of all maps side by side: kernels add up.

    >>> ones = gpn.feature_maps.ConstantFeatures(1.0)
    >>> gpn.feature_maps.ConcatenatedFeatures([ones, ones])(tf.constant(X)).shape
    TensorShape([20, 2])
    """

    def __init__(self, maps: Sequence[FeatureMap]) -> None:
        super().__init__()
        self.maps = list(maps)

    @property
    def num_features(self) -> int:
        return sum(features.num_features for features in self.maps)

    @inherit_check_shapes
    def __call__(self, X: TensorType) -> tf.Tensor:
        return tf.concat([features(X) for features in self.maps], axis=-1)


class TensorProductFeatures(FeatureMap):
    """All products of one feature of each map: kernels multiply.

    >>> line = gpn.feature_maps.LinearFeatures(1.0, [0])
    >>> square = gpn.feature_maps.TensorProductFeatures([line, line])(tf.constant(X))
    >>> square.shape, bool(np.allclose(square, X**2))
    (TensorShape([20, 1]), True)
    """

    def __init__(self, maps: Sequence[FeatureMap]) -> None:
        super().__init__()
        self.maps = list(maps)

    @property
    def num_features(self) -> int:
        return prod(features.num_features for features in self.maps)

    @inherit_check_shapes
    def __call__(self, X: TensorType) -> tf.Tensor:
        return reduce(_outer, [features(X) for features in self.maps])


def _outer(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """Features [..., N, F G] of features [..., N, F] and [..., N, G]."""
    products = left[..., :, None] * right[..., None, :]
    size = left.shape[-1] * right.shape[-1]
    return tf.reshape(products, tf.concat([tf.shape(left)[:-1], [size]], axis=0))


finite_features = KernelDispatcher("finite_features", "exact finite features")
"""``finite_features(kernel, input_dim, take) -> FeatureMap`` of kernels of finite rank.

Parameters pass through ``take``: it gives the Parameter itself, to share it, or its value.
"""


@finite_features.register(Linear)
def _linear(kernel: Linear, input_dim: int, take: Take) -> FeatureMap:
    return LinearFeatures(take(kernel.variance), active_columns(kernel, input_dim))


@finite_features.register(Polynomial)
def _polynomial(kernel: Polynomial, input_dim: int, take: Take) -> FeatureMap:
    columns = active_columns(kernel, input_dim)
    return PolynomialFeatures(kernel.degree, take(kernel.variance), take(kernel.offset), columns)


@finite_features.register(Constant)
def _constant(kernel: Constant, input_dim: int, take: Take) -> FeatureMap:
    return ConstantFeatures(take(kernel.variance))


@finite_features.register(Coregion)
def _coregion(kernel: Coregion, input_dim: int, take: Take) -> FeatureMap:
    (column,) = active_columns(kernel, input_dim)
    return CoregionFeatures(take(kernel.W), take(kernel.kappa), column)


def feature_map(
    kernel: Kernel,
    input_dim: int,
    num_frequencies: int,
    *,
    rng: np.random.Generator,
    share_hyperparameters: bool = False,
    trainable_frequencies: bool = True,
) -> FeatureMap:
    """Features of a kernel over D = input_dim inputs, random for stationary kernels, else exact.

    A sum concatenates features and a product multiplies them; their stationary parts together make
    one Fourier block.

    >>> product = kernel * gpflow.kernels.Linear()
    >>> features = gpn.feature_maps.feature_map(product, 1, 50, rng=np.random.default_rng(0))
    >>> features(X).shape
    TensorShape([20, 100])

    :param num_frequencies: of every Fourier block, which has twice as many features.
    :param rng: draws the frequencies.
    :param share_hyperparameters: use the Parameters of the kernel instead of copies, so that
        features follow the kernel.
    :param trainable_frequencies: whether frequencies are trained.
    :raises NoSpectralMeasureError: (a ValueError) for kernels without features, naming the part of
        a sum or product that has none.
    :raises ValueError: for sizes that contradict the kernel, and shared hyperparameters of a
        Fourier block of several kernels, or with lengthscales of a subset of the inputs.
    :raises TypeError: for multi-output kernels.
    """
    if isinstance(kernel, MultioutputKernel):
        raise TypeError(
            f"kernel must have one output, got {type(kernel).__name__}: make a feature map for "
            "each of its latent_kernels."
        )
    if num_frequencies < 1:
        raise ValueError(f"num_frequencies must be at least 1, got {num_frequencies}.")
    input_dim = infer_input_dim(kernel, input_dim)

    def take(parameter: Parameter) -> TensorData:
        return parameter if share_hyperparameters else tf.convert_to_tensor(parameter)

    def build(part: Kernel) -> FeatureMap:
        if _has_measure(part, input_dim):
            return _fourier_features(
                part, input_dim, num_frequencies, rng, share_hyperparameters, trainable_frequencies
            )
        if not isinstance(part, (Sum, Product)):
            return _exact_features(part, input_dim, take)
        try:
            maps = [build(child) for child in _pooled(part, input_dim)]
        except NoSpectralMeasureError as error:
            raise NoSpectralMeasureError(f"In {type(part).__name__}: {error}") from None
        return ConcatenatedFeatures(maps) if isinstance(part, Sum) else TensorProductFeatures(maps)

    return build(kernel)


def _has_measure(kernel: Kernel, input_dim: int) -> bool:
    try:
        spectral_measure(kernel, input_dim)
    except NoSpectralMeasureError:
        return False
    return True


def _pooled(kernel: Combination, input_dim: int) -> list[Kernel]:
    """Parts of a sum or product, those with a spectral measure combined and first."""
    spectral = [part for part in kernel.kernels if _has_measure(part, input_dim)]
    others = [part for part in kernel.kernels if not _has_measure(part, input_dim)]
    if len(spectral) > 1:
        spectral = [Sum(spectral) if isinstance(kernel, Sum) else Product(spectral)]
    return spectral + others


def _exact_features(kernel: Kernel, input_dim: int, take: Take) -> FeatureMap:
    try:
        features: FeatureMap = finite_features(kernel, input_dim, take)
    except NoSpectralMeasureError:
        raise NoSpectralMeasureError(
            f"{type(kernel).__name__} has neither a spectral measure nor exact finite features; "
            f"kernels that have: {spectral_measure.supported}, {finite_features.supported}. "
            "InducingFeatures takes any kernel."
        ) from None
    return features


def _fourier_features(
    kernel: Kernel,
    input_dim: int,
    num: int,
    rng: np.random.Generator,
    share: bool,
    trainable: bool,
) -> FourierFeatures:
    measure = spectral_measure(kernel, input_dim)
    frequencies, power = measure.sample(min(num, measure.support_size or num), rng)
    if not share:
        return FourierFeatures(
            frequencies, measure.lengthscales, measure.variance, power, trainable
        )
    if not _can_share(kernel, input_dim):
        raise ValueError(
            "share_hyperparameters needs, for each Fourier block, a single stationary kernel with "
            f"one lengthscale, or one for each of the {input_dim} inputs in order; got "
            f"{type(kernel).__name__} with active_dims = {kernel.active_dims}."
        )
    # The ratio is 1, or -1 for negative lengthscales, which Cosine may have.
    frequencies *= kernel.lengthscales.numpy() / measure.lengthscales
    return FourierFeatures(frequencies, kernel.lengthscales, kernel.variance, power, trainable)


def _can_share(kernel: Kernel, input_dim: int) -> bool:
    if not isinstance(kernel, Stationary):
        return False
    columns = active_columns(kernel, input_dim)
    return not kernel.ard or np.array_equal(columns, np.arange(input_dim))
