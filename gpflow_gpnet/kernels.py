"""Kernels of infinitely wide Bayesian convolutional networks (Garriga-Alonso et al. 2018).

A network with independent Gaussian weights is a Gaussian process as its numbers of channels go to
infinity. Where all positions of the last layer meet in one dense layer, its covariance needs, of
every layer, only the covariance of values at *equal* positions g of two images,

.. math::  v_g(x, x') = σ_b^2 + \\frac{σ_w^2}{|patch|} \\sum_{h \\in patch(g)} s_h(x, x'), \\qquad
           s_h(x, x') = E[a(Z_h(x)) a(Z_h(x'))], \\quad (Z_h(x), Z_h(x')) \\sim N(0, v_h),

with s the mean product of pixels, over colours, in the first layer. Weights have variance
σ_w² / fan-in, so that all positions of a patch share σ_w²; in Shi et al. (2019, appendix), who do
not divide, σ_w² is that of ours over the number of positions.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import comb, isqrt
from typing import Any

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes, inherit_check_shapes
from gpflow import Parameter
from gpflow.base import AnyNDArray, TensorType
from gpflow.kernels import Kernel
from gpflow.kernels.base import ActiveDims
from gpflow.utilities import positive

__all__ = ["ConvNetKernel", "ResNetKernel"]

_BLOCK_ELEMENTS = 5 * 2**18
"""Of a covariance map of a block of pairs; half a dozen such maps exist at a time."""

_COMPILED_ELEMENTS = 2**17
"""From so many on a matrix of a single block is worth the seconds that compiling takes."""


class _InfiniteNetworkKernel(Kernel, abc.ABC):
    """What the kernels share: inputs, parameters, and matrices made in blocks."""

    def __init__(
        self,
        image_shape: Sequence[int],
        layers: tuple[_Layer, ...],
        weight_variance: float,
        bias_variance: float,
        active_dims: ActiveDims | None,
        name: str | None,
    ) -> None:
        super().__init__(active_dims=active_dims, name=name)
        self.network = _InfiniteNetwork(checked_image_shape(image_shape), layers)
        self.network.check()
        if not weight_variance > 0.0:
            raise ValueError(f"weight_variance must be positive, got {weight_variance}.")
        if not bias_variance >= 0.0:
            raise ValueError(f"bias_variance must not be negative, got {bias_variance}.")
        self.weight_variance = Parameter(weight_variance, transform=positive())
        # A positive transform has no 0: without biases there is nothing to train.
        self.bias_variance = (
            Parameter(bias_variance, transform=positive())
            if bias_variance > 0.0
            else Parameter(0.0, trainable=False)
        )

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width and colours of the inputs."""
        return self.network.image_shape

    def __call__(
        self,
        X: TensorType,
        X2: TensorType | None = None,
        *,
        full_cov: bool = True,
        presliced: bool = False,
    ) -> tf.Tensor:
        """As of any kernel, and of images [..., N, H, W, C] too.

        :param X: in the parameters' type, or integers.
        :raises ValueError: for inputs that are neither images nor rows of H * W * C pixels, or of
            another type.
        """
        X = self._flattened(X)
        X2 = None if X2 is None else self._flattened(X2)
        return super().__call__(X, X2, full_cov=full_cov, presliced=presliced)

    def _flattened(self, X: TensorType) -> tf.Tensor:
        """Images as rows of pixels; rows as they are."""
        X = self._numbers(X)
        if X.shape.rank is None or X.shape[-3:] != self.image_shape:
            return X
        return tf.reshape(X, tf.concat([tf.shape(X)[:-3], [-1]], axis=0))

    def _numbers(self, X: TensorType) -> tf.Tensor:
        """Of the parameters' type: products of integers, such as a pixel's bytes, overflow."""
        X, dtype = tf.convert_to_tensor(X), self.weight_variance.dtype
        if X.dtype.is_integer:
            return tf.cast(X, dtype)
        if X.dtype != dtype:
            raise ValueError(
                f"X and X2 must be integers or {dtype.name}, as the kernel's parameters are, got "
                f"{X.dtype.name}."
            )
        return X

    def _rows(self, X: tf.Tensor) -> tf.Tensor:
        """[..., D] as [N, D]."""
        size = int(np.prod(self.image_shape))
        if X.shape[-1] not in (None, size):
            raise ValueError(
                f"X and X2 must have rows of {size} pixels or be images of shape "
                f"[..., {', '.join(map(str, self.image_shape))}], got shape {tuple(X.shape)}."
            )
        return X if X.shape.rank == 2 else tf.reshape(X, [-1, size])

    @property
    def _variances(self) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.convert_to_tensor(self.weight_variance), tf.convert_to_tensor(self.bias_variance)

    @inherit_check_shapes
    def K(self, X: TensorType, X2: TensorType | None = None) -> tf.Tensor:
        X = self._numbers(X)
        rows = self._rows(X)
        if X2 is not None:
            X2 = self._numbers(X2)
            matrix = _covariance(self.network, rows, self._rows(X2), *self._variances)
            return tf.reshape(matrix, tf.concat([tf.shape(X)[:-1], tf.shape(X2)[:-1]], axis=0))
        if X.shape.rank == 2:
            return _covariance(self.network, rows, None, *self._variances)
        batches = tf.reshape(X, tf.concat([[-1], tf.shape(X)[-2:]], axis=0))

        @tf.autograph.experimental.do_not_convert
        def covariance(rows: tf.Tensor) -> tf.Tensor:
            return _covariance(self.network, rows, None, *self._variances)

        matrices = tf.map_fn(covariance, batches)
        return tf.reshape(matrices, tf.concat([tf.shape(X)[:-1], tf.shape(X)[-2:-1]], axis=0))

    @inherit_check_shapes
    def K_diag(self, X: TensorType) -> tf.Tensor:
        X = self._numbers(X)
        return tf.reshape(self.network.variance(self._rows(X), *self._variances), tf.shape(X)[:-1])


class ConvNetKernel(_InfiniteNetworkKernel):
    """Convolutions with an activation after each, then a dense layer of all positions.

    >>> kernel = gpn.kernels.ConvNetKernel((4, 4, 1), num_layers=2, filter_size=3)
    >>> images = np.random.default_rng(0).normal(size=(3, 4, 4, 1))
    >>> kernel(images).shape, kernel(images, full_cov=False).shape
    (TensorShape([3, 3]), TensorShape([3]))
    """

    def __init__(
        self,
        image_shape: Sequence[int],
        num_layers: int = 7,
        filter_size: int = 7,
        strides: int | Sequence[int] = 1,
        padding: str = "same",
        activation: str = "relu",
        *,
        weight_variance: float = 2.0,
        bias_variance: float = 0.1,
        active_dims: ActiveDims | None = None,
        name: str | None = None,
    ) -> None:
        """
        :param image_shape: height, width and colours (H, W, C).
        :param num_layers: of convolutions.
        :param filter_size: of square filters.
        :param strides: of all layers, or of each.
        :param padding: "same" (zeros around, as Keras pads) or "valid".
        :param activation: "relu" or "erf".
        :param weight_variance: σ_w², of a layer's weights times their fan-in.
        :param bias_variance: σ_b²; 0 for no biases, which is then not trained.
        :raises ValueError: for arguments out of range, or where nothing is left of the images.
        """
        check_positive("num_layers", num_layers)
        steps = (strides,) * num_layers if isinstance(strides, (int, np.integer)) else strides
        if len(steps) != num_layers:
            raise ValueError(f"strides must be one number or {num_layers}, got {strides}.")
        activate = _Activation(activation)
        layers: list[_Layer] = []
        for stride in steps:
            layers += [_Convolution(filter_size, stride, padding), activate]
        super().__init__(
            image_shape,
            (*layers, _Dense()),
            weight_variance,
            bias_variance,
            active_dims,
            name,
        )


class ResNetKernel(_InfiniteNetworkKernel):
    """A convolution, residual blocks in groups, an activation, a dense layer of all positions.

    A block adds activation, convolution, activation, convolution to what comes in. Between groups
    images are halved: the first convolution of a group but the first has stride 2, and what is
    added to is then a 1 x 1 convolution of stride 2. The default is the prior of Shi et al. (2019,
    appendix), six blocks in three groups.

    >>> kernel = gpn.kernels.ResNetKernel((4, 4, 1), blocks=(1, 1))
    >>> rows = np.random.default_rng(0).normal(size=(3, 16))  # images as rows of pixels
    >>> kernel(rows).shape
    TensorShape([3, 3])
    """

    def __init__(
        self,
        image_shape: Sequence[int],
        blocks: Sequence[int] = (2, 2, 2),
        filter_size: int = 3,
        activation: str = "relu",
        *,
        weight_variance: float = 1.0,
        bias_variance: float = 0.1,
        active_dims: ActiveDims | None = None,
        name: str | None = None,
    ) -> None:
        """
        :param image_shape: height, width and colours (H, W, C).
        :param blocks: how many in each group.
        :param filter_size: of square filters.
        :param activation: "relu" or "erf".
        :param weight_variance: σ_w², of a layer's weights times their fan-in.
        :param bias_variance: σ_b²; 0 for no biases, which is then not trained.
        :raises ValueError: for arguments out of range.
        """
        for number in blocks:
            check_positive("blocks", number)
        activate = _Activation(activation)
        layers: list[_Layer] = [_Convolution(filter_size)]
        for group, number in enumerate(blocks):
            for block in range(number):
                stride = 2 if group > 0 and block == 0 else 1
                convolutions = _Convolution(filter_size, stride), _Convolution(filter_size)
                shortcut = () if stride == 1 else (_Convolution(1, stride),)
                branch = (activate, convolutions[0], activate, convolutions[1])
                layers.append(_Residual(branch, shortcut))
        super().__init__(
            image_shape,
            (*layers, activate, _Dense()),
            weight_variance,
            bias_variance,
            active_dims,
            name,
        )


def check_positive(name: str, value: Any) -> None:
    """:raises ValueError: for what is not a positive integer."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"{name} must be a positive integer, got {value!r}.")


def checked_image_shape(image_shape: Sequence[int]) -> tuple[int, int, int]:
    """Height, width and colours as integers.

    :raises ValueError: for other than three positive integers.
    """
    shape = tuple(image_shape)
    if len(shape) != 3:
        raise ValueError(f"image_shape must be (height, width, colours), got {image_shape!r}.")
    for size in shape:
        check_positive("image_shape's sizes", size)
    return int(shape[0]), int(shape[1]), int(shape[2])


# ------------------------------------------------------------------ layers


@dataclass(frozen=True)
class _Maps:
    """Covariances of a channel at equal positions; pairs of images are contiguous in memory."""

    variances: tf.Tensor
    """Of A images, and then of B others, with themselves: [H, W, A + B]."""

    cross: tf.Tensor | None
    """Of A images with B others: [H, W, A, B]; None where only variances are wanted."""

    def map(self, function: Callable[[tf.Tensor], tf.Tensor]) -> _Maps:
        """What a linear layer does: the same to all."""
        cross = None if self.cross is None else function(self.cross)
        return _Maps(function(self.variances), cross)

    def __add__(self, other: _Maps) -> _Maps:
        cross = None if self.cross is None or other.cross is None else self.cross + other.cross
        return _Maps(self.variances + other.variances, cross)


@dataclass(frozen=True)
class _Layer(abc.ABC):
    """Covariances of what comes out from those of what goes in."""

    @abc.abstractmethod
    def __call__(self, maps: _Maps, weights: tf.Tensor, biases: tf.Tensor) -> _Maps:
        """:param weights: σ_w²; biases: σ_b²."""


@dataclass(frozen=True)
class _Convolution(_Layer):
    size: int
    stride: int = 1
    padding: str = "same"

    def __post_init__(self) -> None:
        check_positive("filter_size", self.size)
        check_positive("strides", self.stride)
        if self.padding not in ("same", "valid"):
            raise ValueError(f'padding must be "same" or "valid", got {self.padding!r}.')

    def __call__(self, maps: _Maps, weights: tf.Tensor, biases: tf.Tensor) -> _Maps:
        return maps.map(lambda values: biases + weights * self._patch_means(values))

    def _patch_means(self, maps: tf.Tensor) -> tf.Tensor:
        """Sums over patches divided by their size, [H, W, ...] to [H', W', ...].

        Sums of shifted maps, down and then across, which XLA makes in one pass over memory each.
        """
        for axis in range(2):
            starts, length = self._starts(maps.shape[axis]), maps.shape[axis]
            before = max(-int(starts[0]), 0)
            after = max(int(starts[-1]) + self.size - length, 0)
            around = [[0, 0] for _ in maps.shape]
            around[axis] = [before, after]
            padded = tf.pad(maps, tf.constant(around)) if before or after else maps
            # Strided slices, not gathers: one for each position in a window.
            last = int(starts[-1]) + before + 1
            windows = [
                slice(int(starts[0]) + before + offset, last + offset, self.stride)
                for offset in range(self.size)
            ]
            shifted = [padded[window] if axis == 0 else padded[:, window] for window in windows]
            maps = tf.add_n(shifted) / self.size
        return maps

    def _starts(self, length: int) -> AnyNDArray:
        if self.padding == "valid":
            if length < self.size:
                raise ValueError(
                    f"The filters do not fit into images: {self.size} positions into the {length} "
                    "that earlier layers leave. Take fewer layers, smaller filters or strides, or "
                    'padding="same".'
                )
            return np.arange(0, length - self.size + 1, self.stride)
        windows = -(-length // self.stride)
        before = max((windows - 1) * self.stride + self.size - length, 0) // 2
        return np.arange(windows) * self.stride - before


@dataclass(frozen=True)
class _Activation(_Layer):
    function: str

    def __post_init__(self) -> None:
        if self.function not in _MOMENTS:
            raise ValueError(f'activation must be "relu" or "erf", got {self.function!r}.')

    def __call__(self, maps: _Maps, weights: tf.Tensor, biases: tf.Tensor) -> _Maps:
        square, product = _MOMENTS[self.function]
        if maps.cross is None:
            return _Maps(square(maps.variances), None)
        first = maps.variances[..., : maps.cross.shape[2], None]  # [H, W, A, 1]
        second = maps.variances[..., None, maps.cross.shape[2] :]  # [H, W, 1, B]
        return _Maps(square(maps.variances), product(maps.cross, first, second))


@dataclass(frozen=True)
class _Residual(_Layer):
    branch: tuple[_Layer, ...]
    shortcut: tuple[_Layer, ...]

    def __call__(self, maps: _Maps, weights: tf.Tensor, biases: tf.Tensor) -> _Maps:
        through, past = maps, maps
        for layer in self.branch:
            through = layer(through, weights, biases)
        for layer in self.shortcut:
            past = layer(past, weights, biases)
        return past + through


@dataclass(frozen=True)
class _Dense(_Layer):
    def __call__(self, maps: _Maps, weights: tf.Tensor, biases: tf.Tensor) -> _Maps:
        return maps.map(
            lambda values: biases + weights * tf.reduce_mean(values, [0, 1], keepdims=True)
        )


# ------------------------------------------------------------------ E[a(z) a(z')]


def _relu_product(cross: tf.Tensor, first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    """sqrt(v v') J(c) / 2π of correlation c (Cho and Saul 2009)."""
    # A variance of 0 has no correlation: any will do, for the product is 0.
    least = tf.constant(np.sqrt(np.finfo(cross.dtype.as_numpy_dtype).tiny), cross.dtype)
    scale = tf.sqrt(tf.maximum(first, least)) * tf.sqrt(tf.maximum(second, least))
    return _arc_cosine(cross / scale) * scale * (0.5 / np.pi)


@tf.custom_gradient
def _arc_cosine(c: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    r"""J(c) = sin θ + (π - θ) cos θ, θ = arccos c.

    As :math:`π \max(c, 0) + e^{3/2} q(e)` with e = 1 - |c| and q smooth: no cancellation as
    c → -1, and where rounding takes c beyond 1, a straight line. The derivative π - θ is finite.
    """
    distance = tf.maximum(1.0 - tf.abs(c), 0.0)
    remainder = tf.zeros_like(c)
    for coefficient in _remainder_coefficients(c.dtype):
        remainder = remainder * distance + tf.constant(coefficient, c.dtype)
    value = np.pi * tf.maximum(c, 0.0) + distance * tf.sqrt(distance) * remainder

    def gradient(upstream: tf.Tensor) -> tf.Tensor:
        return upstream * (np.pi - tf.acos(tf.clip_by_value(c, -1.0, 1.0)))

    return value, gradient


@cache
def _remainder_coefficients(dtype: tf.DType) -> tuple[float, ...]:
    r"""Of q on [0, 1], highest power first, to the dtype's precision.

    :math:`e^{3/2} q(e) = \int_{1-e}^1 \arccos t \, dt`, integrated term by term.
    """
    series = np.polynomial.Polynomial(
        [np.sqrt(2.0) * comb(2 * k, k) / (8.0**k * (2 * k + 1) * (k + 1.5)) for k in range(80)]
    )
    degree = 20 if dtype == tf.float64 else 8
    fitted = np.polynomial.Chebyshev.interpolate(series, degree, domain=[0.0, 1.0])
    return tuple(fitted.convert(kind=np.polynomial.Polynomial).coef[::-1].tolist())


def _erf_product(cross: tf.Tensor, first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    """Williams (1997)."""
    sine = 2.0 * cross * tf.math.rsqrt(1.0 + 2.0 * first) * tf.math.rsqrt(1.0 + 2.0 * second)
    # arcsin, also where rounding takes the sine to 1 or beyond, with finite gradients.
    least = tf.constant(np.finfo(sine.dtype.as_numpy_dtype).tiny, sine.dtype)
    cosine = tf.sqrt(tf.maximum((1.0 - sine) * (1.0 + sine), least))
    return (2.0 / np.pi) * tf.atan2(sine, cosine)


def _erf_square(variances: tf.Tensor) -> tf.Tensor:
    """The arcsine of 2v / (1 + 2v)."""
    return (2.0 / np.pi) * tf.atan(2.0 * variances * tf.math.rsqrt(1.0 + 4.0 * variances))


_MOMENTS: dict[str, tuple[Callable[..., tf.Tensor], Callable[..., tf.Tensor]]] = {
    "relu": (lambda variances: 0.5 * variances, _relu_product),
    "erf": (_erf_square, _erf_product),
}


# ------------------------------------------------------------------ networks


@dataclass(frozen=True)
class _InfiniteNetwork:
    """A function of images by its layers; equal ones share compiled code."""

    image_shape: tuple[int, int, int]
    layers: tuple[_Layer, ...]

    def check(self) -> None:
        """:raises ValueError: if nothing is left of an image."""
        self.variance(tf.ones([1, self.num_positions * self.image_shape[2]], tf.float32), 1.0, 1.0)

    def variance(self, X: tf.Tensor, weights: tf.Tensor, biases: tf.Tensor) -> tf.Tensor:
        """Variances [N] of the output for images X [N, H * W * C]."""
        pixels = self._pixels(X)
        squares = tf.reduce_mean(tf.square(pixels), axis=-1)
        return self._output(_Maps(self._maps(squares), None), weights, biases).variances[0, 0]

    def cross_covariance(
        self, X: tf.Tensor, X2: tf.Tensor, weights: tf.Tensor, biases: tf.Tensor
    ) -> tf.Tensor:
        """Covariances [A, B] of the output for images X [A, H * W * C] and X2 [B, H * W * C]."""
        pixels, others = self._pixels(X), self._pixels(X2)
        squares = tf.reduce_mean(tf.square(tf.concat([pixels, others], axis=1)), axis=-1)
        products = tf.matmul(pixels, others, transpose_b=True) / self.image_shape[2]
        maps = _Maps(self._maps(squares), self._maps(products))
        cross = self._output(maps, weights, biases).cross
        assert cross is not None
        return cross[0, 0]

    def _pixels(self, X: tf.Tensor) -> tf.Tensor:
        """[H * W, N, C]."""
        height, width, colours = self.image_shape
        return tf.transpose(tf.reshape(X, [-1, height * width, colours]), [1, 0, 2])

    def _maps(self, values: tf.Tensor) -> tf.Tensor:
        """[H * W, ...] to [H, W, ...]."""
        shape = tf.concat([self.image_shape[:2], tf.shape(values)[1:]], axis=0)
        return tf.ensure_shape(
            tf.reshape(values, shape), [*self.image_shape[:2], *values.shape[1:]]
        )

    def _output(self, maps: _Maps, weights: tf.Tensor, biases: tf.Tensor) -> _Maps:
        for layer in self.layers:
            maps = layer(maps, weights, biases)
        return maps

    @property
    def block_rows(self) -> int:
        """Most rows and columns of a block of pairs."""
        return max(1, isqrt(_BLOCK_ELEMENTS // self.num_positions))

    @property
    def num_positions(self) -> int:
        """Of an image, H * W."""
        return self.image_shape[0] * self.image_shape[1]


@cache
def _compiled(network: _InfiniteNetwork) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A block's covariance, and the gradients of (X, X2, σ_w², σ_b²) from those of the block.

    By XLA, which takes seconds once, and then makes one pass over memory of all that is
    elementwise.
    """

    def gradients(upstream: tf.Tensor, *inputs: tf.Tensor) -> Sequence[tf.Tensor]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(inputs)
            block = network.cross_covariance(*inputs)
        return tape.gradient(block, inputs, upstream)

    compile = partial(tf.function, autograph=False, jit_compile=True)
    return compile(network.cross_covariance), compile(gradients)


# ------------------------------------------------------------------ matrices in blocks


@check_shapes("X: [N, D]", "X2: [N2, D]", "return: [N, M]")
def _covariance(
    network: _InfiniteNetwork,
    X: tf.Tensor,
    X2: tf.Tensor | None,
    weights: tf.Tensor,
    biases: tf.Tensor,
) -> tf.Tensor:
    """Covariance of X and X2, or of X with itself, in memory of a few blocks beyond its own.

    So too are gradients: nothing but the inputs is kept for them.
    """

    grid = _Grid(network.block_rows, X, *(() if X2 is None else (X2,)))
    if grid.pairs.shape[0] == 1 and grid.block_size * network.num_positions < _COMPILED_ELEMENTS:
        block = network.cross_covariance(*grid.images(grid.pairs[0]), weights, biases)
        return grid.join(block[None])
    block_covariance, block_gradients = _compiled(network)

    @tf.custom_gradient
    def matrix(
        weights: tf.Tensor, biases: tf.Tensor, *sides: tf.Tensor
    ) -> tuple[tf.Tensor, Callable[..., Any]]:
        @tf.autograph.experimental.do_not_convert
        def covariance(pair: tf.Tensor) -> tf.Tensor:
            return block_covariance(*grid.images(pair), weights, biases)

        @tf.autograph.experimental.do_not_convert
        def add_gradients(totals: Any, pair_and_upstream: Any) -> Any:
            pair, upstream = pair_and_upstream
            new = block_gradients(upstream, *grid.images(pair), weights, biases)
            d_weights, d_biases, *d_sides = totals
            return (d_weights + new[2], d_biases + new[3], *grid.add(d_sides, pair, new[:2]))

        def gradient(upstream: tf.Tensor) -> Any:
            elements = grid.pairs, grid.split(upstream)
            zeros = tuple(tf.zeros_like(value) for value in (weights, biases, *sides))
            return tf.foldl(add_gradients, elements, zeros, parallel_iterations=1)

        blocks = tf.map_fn(
            covariance, grid.pairs, parallel_iterations=1, fn_output_signature=weights.dtype
        )
        return grid.join(blocks), gradient

    return matrix(weights, biases, *(side.blocks for side in grid.sides))


class _Rows:
    """Rows [N, D] as blocks [n, b, D], the last filled up with rows of zeros."""

    def __init__(self, X: tf.Tensor, most: int) -> None:
        known = X.shape[0]
        self.number = tf.shape(X)[0] if known is None else known
        if known is None:
            self.count, self.size = tf.maximum(1, -(-self.number // most)), most
        else:
            self.count = max(1, -(-known // most))
            # Of few sizes, since each is compiled.
            self.size = min(most, 4 * max(1, -(-known // (4 * self.count))))
        missing = self.count * self.size - self.number
        filled = tf.pad(X, tf.convert_to_tensor([[0, missing], [0, 0]]))
        self.blocks = tf.reshape(filled, [self.count, self.size, X.shape[1]])


class _Grid:
    """A matrix as blocks: all of them, or of a symmetric one those on and above the diagonal."""

    def __init__(self, most: int, X: tf.Tensor, X2: tf.Tensor | None = None) -> None:
        self.sides = [_Rows(X, most)] if X2 is None else [_Rows(X, most), _Rows(X2, most)]
        down, across = self.sides[0].count, self.sides[-1].count
        if not (isinstance(down, int) and isinstance(across, int)):
            whole = tf.ones([down, across])
            self.pairs = tf.cast(
                tf.where(tf.linalg.band_part(whole, 0, -1) if self.symmetric else whole), tf.int32
            )
        elif self.symmetric:
            self.pairs = tf.constant(np.transpose(np.triu_indices(down)), tf.int32)
        else:
            self.pairs = tf.constant(list(np.ndindex(down, across)), tf.int32)

    @property
    def symmetric(self) -> bool:
        return len(self.sides) == 1

    def images(self, pair: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Those of a block's rows and columns, [b, D] each."""
        return self.sides[0].blocks[pair[0]], self.sides[-1].blocks[pair[1]]

    @property
    def block_size(self) -> int:
        """Pairs in a block."""
        return self.sides[0].size * self.sides[-1].size

    def join(self, blocks: tf.Tensor) -> tf.Tensor:
        """The matrix, of the blocks [P, b, b'] of all pairs."""
        rows, columns = self.sides[0], self.sides[-1]
        if self.symmetric:
            i, j = tf.meshgrid(tf.range(rows.count), tf.range(rows.count), indexing="ij")
            first, last = tf.minimum(i, j), tf.maximum(i, j)
            place = first * rows.count - first * (first - 1) // 2 + last - first
            below = tf.shape(blocks)[0] * tf.cast(i > j, tf.int32)
            both = tf.concat([blocks, tf.linalg.matrix_transpose(blocks)], axis=0)
            blocks = tf.gather(both, tf.reshape(place + below, [-1]))
        blocks = tf.reshape(blocks, [rows.count, columns.count, rows.size, columns.size])
        matrix = tf.reshape(
            tf.transpose(blocks, [0, 2, 1, 3]),
            [rows.count * rows.size, columns.count * columns.size],
        )
        return matrix[: rows.number, : columns.number]

    def split(self, matrix: tf.Tensor) -> tf.Tensor:
        """Blocks [P, b, b'] of the pairs; with one above the diagonal, the one below it."""
        rows, columns = self.sides[0], self.sides[-1]
        sizes = [rows.count * rows.size, columns.count * columns.size]
        if self.symmetric:
            # On the diagonal a block's own transpose stands in for nothing: half each.
            matrix = matrix + tf.linalg.matrix_transpose(matrix)
        missing = [[0, sizes[0] - rows.number], [0, sizes[1] - columns.number]]
        blocks = tf.reshape(
            tf.pad(matrix, tf.convert_to_tensor(missing)),
            [rows.count, rows.size, columns.count, columns.size],
        )
        blocks = tf.gather_nd(tf.transpose(blocks, [0, 2, 1, 3]), self.pairs)
        if not self.symmetric:
            return blocks
        diagonal = (self.pairs[:, 0] == self.pairs[:, 1])[:, None, None]
        return tf.where(diagonal, 0.5 * blocks, blocks)

    def add(
        self, totals: Sequence[tf.Tensor], pair: tf.Tensor, gradients: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        """Gradients of the sides' blocks, and those of one block's images added."""
        totals = list(totals)
        for index, values in enumerate(gradients):
            side = min(index, len(totals) - 1)
            totals[side] = tf.tensor_scatter_nd_add(
                totals[side], pair[index][None, None], values[None]
            )
        return totals
