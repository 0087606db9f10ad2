"""Bodies of neural inference networks: multilayer perceptrons of Parameters, and Keras models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow import Module, Parameter
from gpflow.base import AnyNDArray, TensorType
from gpflow.config import default_float
from gpflow.keras import tf_keras

from ..checks import check_module
from ..scaling import column_moments
from .initialisation import centred_normal

__all__ = [
    "KerasBody",
    "MLP",
    "Standardisation",
    "as_activation",
    "check_hidden_units",
    "keras_input_dim",
    "value_and_slope",
    "with_ones",
]

_MAX_GAIN = 10.0

Activation = Callable[[tf.Tensor], tf.Tensor]


def as_activation(activation: str | Activation) -> Activation:
    """An elementwise function by Keras's name, or as it is.

    :raises ValueError: for a name that Keras does not know.
    """
    return tf_keras.activations.get(activation)


def check_hidden_units(hidden_units: Any, least: int = 0) -> tuple[int, ...]:
    """The widths as integers.

    :raises ValueError: if fewer than ``least`` widths, or one that is not a positive integer.
    """
    widths = tuple(hidden_units) if isinstance(hidden_units, (Sequence, np.ndarray)) else None
    if (
        widths is None
        or len(widths) < least
        or not all(isinstance(units, (int, np.integer)) and units > 0 for units in widths)
    ):
        raise ValueError(
            f"hidden_units must be a sequence of at least {least} positive layer widths, got "
            f"{hidden_units!r}."
        )
    return tuple(int(units) for units in widths)


class Standardisation(Module):
    """x ↦ (x - center) / scale, the identity until it has seen the inputs."""

    def __init__(self, input_dim: int) -> None:
        """:param input_dim: D."""
        super().__init__()
        self.center = Parameter(np.zeros(input_dim, default_float()), trainable=False)
        self.scale = Parameter(np.ones(input_dim, default_float()), trainable=False)

    def initialise(self, X: np.ndarray) -> None:
        """Give X [N, D] mean 0 and standard deviation 1; constant columns are only centred."""
        center, scale = column_moments(X)
        self.center.assign(center)
        self.scale.assign(scale)

    @check_shapes("X: [batch..., D]", "return: [batch..., D]")
    def __call__(self, X: TensorType) -> tf.Tensor:
        return (tf.convert_to_tensor(X, dtype=self.center.dtype) - self.center) / self.scale


class MLP(Module):
    r"""x ↦ z_K, the last of z_k = a_k W_k + b_k, a_0 = x standardised and a_{k+1} = σ(z_k).

    At the start W_k ~ N(0, 1 / fan-in) and b_k ~ N(0, 1), so that units have their turning points
    all over the inputs; where lengthscales are known, the first layer is steeper by the number of
    them (at most 10) in an input's standard deviation, so that functions vary as the prior's. The
    last layer has b = 0, and gives 0 at the start in
    one of two ways: weights 0, or units in pairs with opposite weights, for which gradients by all
    layers' weights are as those of a random network (Zhang et al. 2020, antisymmetric
    initialisation).
    """

    def __init__(
        self,
        sizes: Sequence[int],
        activation: str | Activation,
        rng: np.random.Generator,
        lengthscales: AnyNDArray,
        start: str = "random",
        activate_outputs: bool = False,
        weight_prior: bool = False,
    ) -> None:
        """
        :param sizes: D, the widths of the hidden layers, and the number of outputs.
        :param activation: elementwise, by Keras's name.
        :param lengthscales: of the inputs [D], 0 where unknown.
        :param start: of the output: "random", "zero" (last weights 0) or "paired".
        :param activate_outputs: give σ(z_K) instead.
        :param weight_prior: give weights and biases the distribution that they are drawn from as
            their prior, which the model's objective then counts; in the first layer never one that
            is narrower than without lengthscales.
        """
        super().__init__()
        self.activation = as_activation(activation)
        self.activate_outputs = activate_outputs
        self.num_outputs = int(sizes[-1])
        self.inputs = Standardisation(sizes[0])
        weights = [rng.normal(size=shape) / np.sqrt(shape[0]) for shape in pairwise(sizes)]
        offsets = [rng.normal(size=size) for size in sizes[1:]]
        if start != "random":
            offsets[-1][:] = 0.0
        if start == "zero" or len(weights) == 1:
            weights[-1] *= start == "random"
        elif start == "paired":
            _pair_units(weights, offsets)
        self.W = [Parameter(W) for W in weights]
        self.b = [Parameter(b) for b in offsets]
        self._lengthscales = np.asarray(lengthscales)
        self._gain = np.ones(sizes[0])
        self._weight_prior = weight_prior
        self._steepen()

    def _steepen(self) -> None:
        scale, known = self.inputs.scale.numpy(), self._lengthscales > 0.0
        gain = np.ones(len(scale))
        gain[known] = np.minimum(scale[known] / self._lengthscales[known], _MAX_GAIN)
        self.W[0].assign(self.W[0] * (gain / self._gain)[:, None])
        self.b[0].assign(self.b[0] * np.sqrt(np.mean(gain**2) / np.mean(self._gain**2)))
        self._gain = gain
        if self._weight_prior:
            self._set_priors(gain)

    def _set_priors(self, gain: np.ndarray) -> None:
        # A flat start, for long lengthscales, is no reason to stay flat (measured on kin8nm).
        gain = np.maximum(gain, 1.0)
        for index, (W, b) in enumerate(zip(self.W, self.b, strict=True)):
            first = index == 0
            W.prior = centred_normal((gain if first else np.ones(W.shape[0])) / W.shape[0] ** 0.5)
            b.prior = centred_normal(np.sqrt(np.mean(gain**2)) if first else 1.0)

    @property
    def center(self) -> Parameter:
        """What is subtracted from inputs, [D]."""
        return self.inputs.center

    def initialise(self, X: np.ndarray) -> None:
        """Standardise by X [N, D], and steepen the first layer accordingly."""
        self.inputs.initialise(X)
        self._steepen()

    @check_shapes("X: [batch..., D]", "return: [batch..., O]")
    def __call__(self, X: TensorType) -> tf.Tensor:
        hidden = self.inputs(X)
        for W, b in zip(self.W[:-1], self.b[:-1], strict=True):
            hidden = self.activation(tf.tensordot(hidden, W, 1) + b)
        outputs = tf.tensordot(hidden, self.W[-1], 1) + self.b[-1]
        return self.activation(outputs) if self.activate_outputs else outputs

    @check_shapes("X: [batch..., N, D]", "return[0]: [batch..., N, O]")
    def gradient_factors(self, X: TensorType) -> tuple[tf.Tensor, list[tf.Tensor], list[tf.Tensor]]:
        r"""Outputs, and each layer's gradients in factors: ∂g_o(x_n) / ∂[W_k; b_k] = a_n δ_{on}ᵀ.

        The second are all layers' activations with a column of ones for the biases,
        [batch..., N, in + 1]; the third the back-propagated signals [batch..., O, N, out] of all
        layers but the last, whose signal is the o-th unit vector. Memory O(O N Σ width).
        """
        hidden = self.inputs(X)
        activations, slopes = [with_ones(hidden)], []
        for W, b in zip(self.W[:-1], self.b[:-1], strict=True):
            hidden, slope = value_and_slope(self.activation, tf.tensordot(hidden, W, 1) + b)
            activations.append(with_ones(hidden))
            slopes.append(slope)
        last = self.W[-1]
        outputs = tf.tensordot(hidden, last, 1) + self.b[-1]
        signal = tf.transpose(last)[:, None, :]  # [O, 1, in]
        signals: list[tf.Tensor] = []
        for index in reversed(range(len(slopes))):
            signal = signal * slopes[index][..., None, :, :]
            signals.insert(0, signal)
            signal = tf.matmul(signal, self.W[index], transpose_b=True)
        return outputs, activations, signals


def with_ones(X: tf.Tensor) -> tf.Tensor:
    """X [..., F] with a column of ones after it."""
    return tf.concat([X, tf.ones_like(X[..., :1])], axis=-1)


def value_and_slope(activation: Activation, z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """σ(z) and σ'(z), both differentiable."""
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(z)
        value = activation(z)
    return value, tape.gradient(value, z)


def _pair_units(weights: list[np.ndarray], offsets: list[np.ndarray]) -> None:
    """Make every hidden layer two equal halves that the last layer weighs with opposite signs.

    Exchanging the halves leaves each layer as it is. Of an odd number of units the last one starts
    without effect.
    """
    for W, b in zip(weights[:-1], offsets[:-1], strict=True):
        half = W.shape[1] // 2
        b[half : 2 * half] = b[:half]
        if W is weights[0]:
            W[:, half : 2 * half] = W[:, :half]
        else:
            inner = W.shape[0] // 2
            W[:inner, half : 2 * half] = W[inner : 2 * inner, :half]
            W[inner : 2 * inner, half : 2 * half] = W[:inner, :half]
            W[2 * inner :] = 0.0
    last = weights[-1]
    half = last.shape[0] // 2
    last[half : 2 * half] = -last[:half]
    last[2 * half :] = 0.0


class KerasBody(Module):
    """A tf_keras model as a function of X [..., N, D], in GPflow's default float.

    Runs as for prediction (``training=False``). What Keras holds to be trainable now is trained
    with the network; from here on ``gpflow.set_trainable`` says, Keras's own flags are not seen. It
    takes the inputs as they are: scale them yourself.
    """

    def __init__(
        self, model: Any, input_dim: int, input_shape: tuple[int, ...] | None = None
    ) -> None:
        """
        :param model: rows [N, D] to [N, F].
        :param input_dim: D.
        :param input_shape: what the model takes in place of D numbers, such as images.
        :raises TypeError: for what TensorFlow modules cannot track, such as a Keras 3 model.
        :raises ValueError: if the outputs are not a matrix.
        """
        super().__init__()
        self.model = model
        check_module(self)
        self.input_dim = input_dim
        self.input_shape = (input_dim,) if input_shape is None else input_shape
        outputs = self._rows(tf.zeros([1, self.input_dim], default_float()))
        if outputs.shape.rank != 2:
            raise ValueError(
                f"{type(model).__name__} must give rows [N, F], got shape {outputs.shape} for one "
                "row."
            )
        for variable in model.non_trainable_variables:
            variable._trainable = False  # as gpflow.set_trainable does
        self.num_outputs = int(outputs.shape[-1])

    def _rows(self, X: tf.Tensor) -> tf.Tensor:
        X = tf.reshape(X, [-1, *self.input_shape])
        return tf.cast(self.model(X, training=False), default_float())  # Keras casts what comes in

    @check_shapes("X: [batch..., N, D]", "return: [batch..., N, F]")
    def __call__(self, X: TensorType) -> tf.Tensor:
        X = tf.convert_to_tensor(X, default_float())
        rows = self._rows(tf.reshape(X, [-1, self.input_dim]))
        return tf.reshape(rows, tf.concat([tf.shape(X)[:-1], [self.num_outputs]], axis=0))

    def initialise(self, X: np.ndarray) -> None:
        """Nothing: the model takes inputs as they are."""


def keras_input_dim(model: Any) -> int | None:
    """The number of inputs that a Keras model was built for, None where it does not tell."""
    try:
        shape = model.input_shape
    except (AttributeError, RuntimeError):
        return None
    return shape[-1] if isinstance(shape, tuple) and len(shape) == 2 else None
