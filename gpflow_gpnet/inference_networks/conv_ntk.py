"""A residual ConvNet whose classes each have a tangent-kernel head: inference for images."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from check_shapes import check_shapes, inherit_check_shapes
from gpflow import Module, Parameter
from gpflow.base import MeanAndVariance, TensorType
from gpflow.config import default_float
from gpflow.kernels import Kernel
from gpflow.utilities import freeze

from ..kernels import check_positive, checked_image_shape
from ..latent_prior import latent_variance
from ..replicas import Share, size_of
from .base import InferenceNetwork
from .initialisation import flattened, spread_rows
from .mlp import KerasBody, as_activation, check_hidden_units, value_and_slope, with_ones
from .ntk import fan_in_variances, gram, log_variances

__all__ = ["ConvNTK", "ResidualBody"]

_ROWS_TO_START_FROM = 256


class ConvNTK(InferenceNetwork):
    r"""Mean g_l(h(x)), covariance :math:`∇g_l^\top V_l ∇g_l`, for a class l each (Shi et al. 2019).

    h is a residual ConvNet, or any tf_keras model of images, with F features; g_l an MLP with one
    hidden layer, whose weights alone have variances V_l. Those of its first layer are
    v_in v_outᵀ, so that the covariance is an elementwise product of Gram matrices, as of
    :class:`NTK` with "kronecker": no Jacobian is formed, and J inputs cost O(J² L (F + U)) beyond
    the ConvNet. Function values (logits) are unbounded.

    At the start the mean is 0, and V such that the variance averaged over the inputs is the
    prior's. Takes gradient steps; for classes with ``Softmax`` or ``RobustMax``, L = num_classes.

    >>> network = gpn.ConvNTK((4, 4, 1), num_classes=3, filters=(2, 2), features=5, hidden_units=4)
    >>> images = np.random.default_rng(0).normal(size=(6, 16))  # rows of pixels
    >>> mean, cov = network(images, full_cov=True)
    >>> mean.shape, cov.shape
    (TensorShape([6, 3]), TensorShape([3, 6, 6]))
    """

    def __init__(
        self,
        image_shape: Sequence[int],
        num_classes: int,
        body: Any = None,
        *,
        filters: Sequence[int] = (64, 64, 128, 128, 256, 256),
        width: float = 1.0,
        features: int = 512,
        hidden_units: int = 100,
        activation: str = "tanh",
        pooling: bool = False,
        kernel: Kernel | None = None,
        body_float: Any = None,
        weight_prior: bool = True,
        seed: int = 0,
    ) -> None:
        """
        :param image_shape: height, width and colours (H, W, C).
        :param num_classes: L, one latent GP for each class.
        :param body: a tf_keras model from images [N, H, W, C], taken as they are, to features
            [N, F], which then is h in place of a ConvNet. Runs as for prediction.
        :param filters: of the ConvNet's residual blocks; where their number grows images are
            halved.
        :param width: multiplies ``filters``, for small machines.
        :param features: F, of the ConvNet's last layer, which is dense.
        :param hidden_units: U, for each class.
        :param activation: of these, elementwise, by Keras's name.
        :param pooling: average over positions before the ConvNet's dense layer.
        :param kernel: the prior's, whose variance V starts with (1 without). Only its values now
            are used.
        :param body_float: type of the ConvNet's numbers, such as ``np.float32`` where the Gaussian
            algebra is to be in float64; GPflow's default float by default.
        :param weight_prior: whether the mean's weights have the prior N(0, 2 / fan-in), and biases
            N(0, 1). Without it the mean over-fits: the divergence at a batch and a few measurement
            points holds it too little. A Keras body has none.
        :param seed: of the weights.
        :raises ValueError: for arguments out of range.
        :raises TypeError: for a Keras 3 model.
        """
        super().__init__()
        self.image_shape = checked_image_shape(image_shape)
        self.input_dim = int(np.prod(self.image_shape))
        check_positive("num_classes", num_classes)
        check_positive("hidden_units", hidden_units)
        check_positive("features", features)
        if not 0.0 < width < np.inf:
            raise ValueError(f"width must be positive and finite, got {width}.")
        rng = np.random.default_rng(seed)
        self.body: ResidualBody | KerasBody
        if body is None:
            numbers = check_hidden_units(filters, 1)
            strides = [1 + (after > before) for before, after in pairwise((numbers[0], *numbers))]
            widths = [max(1, round(width * number)) for number in numbers]
            dtype = default_float() if body_float is None else body_float
            self.body = ResidualBody(
                self.image_shape, widths, strides, features, pooling, rng, dtype
            )
        elif callable(body):
            self.body = KerasBody(body, self.input_dim, self.image_shape)
        else:
            raise TypeError(f"body must be a tf_keras model, got {type(body).__name__}.")
        self.heads = _ClassHeads(
            self.body.num_outputs, hidden_units, num_classes, as_activation(activation), rng
        )
        if weight_prior:
            self._set_weight_prior()
        # In a namespace, so that the network's parameters do not include the prior's.
        self._start = SimpleNamespace(kernel=None if kernel is None else freeze(kernel))
        self.scale_variances(rng.normal(size=(16, self.input_dim)))
        self._at_start = flattened(self._first_to_move)

    def _set_weight_prior(self) -> None:
        heads = self.heads
        fan_in, units = heads.W1.shape[1:]
        variances = [(heads.W1, 2.0 / fan_in), (heads.W2, 2.0 / units)]
        variances += [(heads.b1, 1.0), (heads.b2, 1.0)]
        if isinstance(self.body, ResidualBody):
            for parameter in self.body.parameters:
                is_bias = parameter.shape.rank == 1
                fan_in = np.prod(parameter.shape[:-1])
                variances.append((parameter, 1.0 if is_bias else 2.0 / fan_in))
        for parameter, variance in variances:
            zero, scale = (tf.constant(x, parameter.dtype) for x in (0.0, np.sqrt(variance)))
            parameter.prior = tfp.distributions.Normal(zero, scale)

    @property
    def num_latent_gps(self) -> int:
        return int(self.heads.b2.shape[0])

    @property
    def _first_to_move(self) -> tuple[Parameter, ...]:
        """What training moves: the last biases or, where the mean is frozen, variances."""
        return self.heads.b2, *self.heads.variances

    @property
    def is_trained(self) -> bool:
        return not np.array_equal(flattened(self._first_to_move), self._at_start)

    def initialise(self, X: np.ndarray) -> None:
        """Scale features to size 1, and V to the prior's variance, by some rows of X [N, D]."""
        rows = spread_rows(X, _ROWS_TO_START_FROM)
        self.body.initialise(rows)
        self.scale_variances(rows)

    def scale_variances(self, X: np.ndarray) -> None:
        """Multiply V so that the variance averaged over rows X [N, D] is the prior's."""
        rows = tf.convert_to_tensor(X, default_float())
        kernel = self._start.kernel
        prior = 1.0 if kernel is None else tf.reduce_mean(latent_variance(kernel, rows))
        self.heads.multiply(prior / tf.reduce_mean(self(rows)[1]))

    @check_shapes("X: [...]", "return[0]: [...]", "return[1]: [...]")
    def __call__(self, X: TensorType, full_cov: bool = False) -> MeanAndVariance:
        """Mean and (co)variance of the L latent GPs.

        :param X: rows [..., N, H * W * C], or images [..., N, H, W, C].
        :return: mean [..., N, L], and variance [..., N, L] or covariance [..., L, N, N].
        :raises ValueError: for other shapes.
        """
        X = tf.convert_to_tensor(X, default_float())
        size = self.input_dim
        if X.shape.rank is not None and tuple(X.shape[-3:]) == self.image_shape:
            X = tf.reshape(X, tf.concat([tf.shape(X)[:-3], [size]], axis=0))
        elif X.shape[-1] not in (None, size):
            raise ValueError(
                f"X must have rows of {size} pixels or be images of shape "
                f"[..., N, {', '.join(map(str, self.image_shape))}], got shape {tuple(X.shape)}."
            )
        return self.heads(self.body(X), full_cov)

    @inherit_check_shapes
    def shared_moments(self, X: TensorType, share: Share) -> MeanAndVariance:
        return self.heads(share.gather(self.body(share.rows(X)), size_of(X)), full_cov=True)


class _ClassHeads(Module):
    """An MLP of features for each class, and what its linearisation makes of variances V.

    Notation: F features, U hidden units, L classes.
    """

    def __init__(
        self,
        features: int,
        hidden_units: int,
        num_classes: int,
        activation: Any,
        rng: np.random.Generator,
    ) -> None:
        super().__init__()
        self.activation = activation
        W1 = rng.normal(size=(num_classes, features, hidden_units)) / np.sqrt(features)
        b1 = rng.normal(size=(num_classes, hidden_units))
        W2 = rng.normal(size=(num_classes, hidden_units)) / np.sqrt(hidden_units)
        # Pairs of units with opposite weights give 0, with gradients of a random network.
        half = hidden_units // 2
        for values, sign in ((W1, 1.0), (b1, 1.0), (W2, -1.0)):
            values[..., half : 2 * half] = sign * values[..., :half]
        W2[:, 2 * half :] = 0.0
        self.W1, self.b1, self.W2 = Parameter(W1), Parameter(b1), Parameter(W2)
        self.b2 = Parameter(np.zeros(num_classes, default_float()))
        self.v_in = log_variances(np.tile(fan_in_variances(features), [num_classes, 1]))
        self.v_out = log_variances(np.ones((num_classes, hidden_units), default_float()))
        self.v_last = log_variances(np.tile(fan_in_variances(hidden_units), [num_classes, 1]))

    @property
    def variances(self) -> tuple[Parameter, ...]:
        """V, in parts."""
        return self.v_in, self.v_out, self.v_last

    def multiply(self, factor: tf.Tensor) -> None:
        """Multiply V."""
        for variances in (self.v_in, self.v_last):
            variances.assign(factor * variances)

    @check_shapes("features: [batch..., N, F]", "return[0]: [batch..., N, L]")
    def __call__(self, features: tf.Tensor, full_cov: bool) -> MeanAndVariance:
        shape = tf.shape(features)
        classes, fan_in, units = self.W1.shape
        # One matrix product for all classes.
        weights = tf.reshape(tf.transpose(self.W1, [1, 0, 2]), [fan_in, classes * units])
        inner = tf.reshape(
            tf.tensordot(features, weights, 1),
            tf.concat([shape[:-1], [classes, units]], axis=0),
        )
        hidden, slope = value_and_slope(self.activation, inner + self.b1)  # [..., N, L, U]
        mean = tf.reduce_sum(hidden * self.W2, axis=-1) + self.b2
        first = with_ones(features)[..., None, :, :]  # [..., 1, N, F + 1]
        signals, last = (_classes_first(z) for z in (slope * self.W2, with_ones(hidden)))
        if full_cov:
            cov = gram(first * tf.sqrt(self.v_in)[:, None, :])
            cov *= gram(signals * tf.sqrt(self.v_out)[:, None, :])
            return mean, cov + gram(last * tf.sqrt(self.v_last)[:, None, :])
        sizes = tf.matmul(tf.square(first[..., 0, :, :]), self.v_in, transpose_b=True)
        variance = _classes_first(sizes[..., None])[..., 0] * tf.linalg.matvec(
            tf.square(signals), self.v_out
        )
        variance += tf.linalg.matvec(tf.square(last), self.v_last)
        return mean, tf.linalg.matrix_transpose(variance)


def _classes_first(values: tf.Tensor) -> tf.Tensor:
    """[..., N, L, U] to [..., L, N, U]."""
    rank = values.shape.rank
    return tf.transpose(values, [*range(rank - 3), rank - 2, rank - 3, rank - 1])


# ------------------------------------------------------------------ the ConvNet


class ResidualBody(Module):
    """A convolution, residual blocks, ReLU, and a dense layer with ReLU: images to F features.

    A block adds ReLU, 3 x 3 convolution, ReLU, 3 x 3 convolution to what comes in, which a 1 x 1
    convolution brings to its size where filters or images change (He et al. 2016). Without
    normalisation, so that an image's features do not depend on others; in its place the second
    convolutions start smaller by the root of the number of blocks.
    """

    def __init__(
        self,
        image_shape: Sequence[int],
        filters: Sequence[int],
        strides: Sequence[int],
        features: int,
        pooling: bool,
        rng: np.random.Generator,
        dtype: Any,
    ) -> None:
        """
        :param filters: of each block.
        :param strides: of each block, 2 to halve images.
        :param features: F.
        """
        super().__init__()
        self.image_shape = tuple(image_shape)
        self.num_outputs = features
        self.pooling = pooling
        self.first = _Convolution(3, image_shape[-1], filters[0], 1, rng, dtype)
        before = [filters[0], *filters[:-1]]
        self.blocks = [
            _Block(fan_in, number, stride, rng, dtype, 1.0 / np.sqrt(len(filters)))
            for fan_in, number, stride in zip(before, filters, strides, strict=True)
        ]
        positions = np.array(image_shape[:2])
        for stride in strides:
            positions = -(-positions // stride)
        fan_in = filters[-1] * (1 if pooling else int(np.prod(positions)))
        W = np.sqrt(2.0 / fan_in) * rng.normal(size=(fan_in, features))
        self.W = Parameter(W, dtype=dtype)
        self.b = Parameter(np.zeros(features), dtype=dtype)

    @check_shapes("X: [batch..., N, D]", "return: [batch..., N, F]")
    def __call__(self, X: TensorType) -> tf.Tensor:
        images = tf.cast(tf.reshape(X, [-1, *self.image_shape]), self.W.dtype)
        Z = self.first(images)
        for block in self.blocks:
            Z = block(Z)
        Z = tf.nn.relu(Z)
        if self.pooling:
            Z = tf.reduce_mean(Z, axis=[1, 2])
        features = tf.nn.relu(tf.matmul(tf.reshape(Z, [-1, self.W.shape[0]]), self.W) + self.b)
        shape = tf.concat([tf.shape(X)[:-1], [self.num_outputs]], axis=0)
        return tf.cast(tf.reshape(features, shape), default_float())

    def initialise(self, X: np.ndarray) -> None:
        """Scale the dense layer so that features at X [N, D] have mean square 1."""
        size = tf.sqrt(tf.reduce_mean(tf.square(self(tf.convert_to_tensor(X, default_float())))))
        if float(size) > 0.0:
            self.W.assign(self.W / tf.cast(size, self.W.dtype))


class _Convolution(Module):
    """Filters W [size, size, in, out] from N(0, 2 gain² / fan-in), and biases b, 0 at the start."""

    def __init__(
        self,
        size: int,
        fan_in: int,
        filters: int,
        stride: int,
        rng: np.random.Generator,
        dtype: Any,
        gain: float = 1.0,
    ) -> None:
        super().__init__()
        self.stride = stride
        shape = (size, size, fan_in, filters)
        W = gain * np.sqrt(2.0 / (size * size * fan_in)) * rng.normal(size=shape)
        self.W = Parameter(W, dtype=dtype)
        self.b = Parameter(np.zeros(filters), dtype=dtype)

    def __call__(self, Z: tf.Tensor) -> tf.Tensor:
        W = tf.convert_to_tensor(self.W)
        return tf.nn.conv2d(Z, W, self.stride, "SAME") + self.b


class _Block(Module):
    """Z + second(relu(inner(relu(Z))))."""

    def __init__(
        self,
        fan_in: int,
        filters: int,
        stride: int,
        rng: np.random.Generator,
        dtype: Any,
        gain: float,
    ) -> None:
        super().__init__()
        self.inner = _Convolution(3, fan_in, filters, stride, rng, dtype)
        self.second = _Convolution(3, filters, filters, 1, rng, dtype, gain)
        self.shortcut = (
            None
            if filters == fan_in and stride == 1
            else _Convolution(1, fan_in, filters, stride, rng, dtype)
        )

    def __call__(self, Z: tf.Tensor) -> tf.Tensor:
        past = Z if self.shortcut is None else self.shortcut(Z)
        return past + self.second(tf.nn.relu(self.inner(tf.nn.relu(Z))))
