"""A Bayesian neural network whose moments come from weight samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes, inherit_check_shapes
from gpflow import Module, Parameter
from gpflow.base import AnyNDArray, MeanAndVariance, TensorType
from gpflow.config import default_float
from gpflow.kernels import Kernel
from gpflow.utilities import positive, triangular

from ..random_numbers import normal
from ..replicas import Share, size_of
from .base import InferenceNetwork
from .initialisation import flattened, spread_rows, starting_prior, typical_inputs
from .mlp import MLP, check_hidden_units, with_ones

__all__ = ["BNN"]

_ROWS_TO_START_FROM = 2000

_HIDDEN_SD = 0.1
"""Standard deviation of hidden layers' weights at the start, over the spread of their means."""


class BNN(InferenceNetwork):
    r"""f(x) = MLP(x; Ω), Ω ~ q, given by the moments of S functions (Sun et al. 2019, section 3).

    Weights W_k of each layer, biases as a last row, are independent between layers and

    * ``"diag"``: W ~ N(M, diag(sd²)), ``O(S N |Ω|)`` time;
    * ``"matrix"``: W = M + A E Bᵀ, E standard normal, the matrix-variate Gaussian MN(M, AAᵀ, BBᵀ)
      with triangular A and B (Louizos and Welling 2016): O(S (in² out + in out²)) more a layer.

    Memory O(S N width). The S samples are reparametrised, so that gradients go through them, from
    noise that stays until :meth:`redraw`: predictions and objectives are deterministic. Training
    (``fit``, ``FunctionalMirrorDescent``) draws anew before each step; so must a loop of your own,
    which else fits the S samples in place of q. Sampled covariances have rank S - 1 at most: where
    they are inverted the model adds its nugget. q(f) is not Gaussian; a :class:`GPNet` uses its
    moments, and so does :class:`FBNN` unless its ``divergence`` is "stein". Takes gradient steps.

    At the start the last layer has mean 0, and its variances are such that the variance averaged
    over the inputs is the kernel's.

    >>> network = gpn.BNN((10,), num_samples=30, kernel=kernel, input_dim=1)
    >>> mean, variance = network(X)
    >>> mean.shape, variance.shape
    (TensorShape([20, 1]), TensorShape([20, 1]))
    """

    def __init__(
        self,
        hidden_units: Sequence[int] = (50,),
        num_samples: int = 100,
        activation: str | Callable[[tf.Tensor], tf.Tensor] = "tanh",
        *,
        kernel: Kernel | None = None,
        input_dim: int | None = None,
        covariance: str = "diag",
        num_latent_gps: int | None = None,
        seed: int = 0,
    ) -> None:
        """
        :param hidden_units: widths of the hidden layers, none for a linear model.
        :param num_samples: S.
        :param activation: elementwise, by Keras's name.
        :param kernel: the prior's: tells D where it can, L, and the variance (1 without) and
            lengthscales to start with. Only its values now are used.
        :param input_dim: D; needed where the kernel does not tell.
        :param covariance: of each layer's weights, "diag" or "matrix".
        :param num_latent_gps: L; by default what the kernel says, else 1.
        :param seed: of means and noise.
        :raises ValueError: for arguments out of range, or where nothing tells D.
        """
        super().__init__()
        if num_samples < 2:
            raise ValueError(f"num_samples must be at least 2, got {num_samples}.")
        if covariance not in ("diag", "matrix"):
            raise ValueError(f'covariance must be "diag" or "matrix", got {covariance!r}.')
        start = starting_prior(kernel, input_dim, num_latent_gps)
        self.input_dim = start.input_dim
        sizes = [start.input_dim, *check_hidden_units(hidden_units), start.num_latent_gps]
        rng = np.random.default_rng(seed)
        self.means = MLP(sizes, activation, rng, start.lengthscales, "zero")
        layer: Any = {"diag": _DiagonalLayer, "matrix": _MatrixLayer}[covariance]
        factors = [_HIDDEN_SD] * (len(sizes) - 2) + [1.0]
        self.layers = [
            layer(*W.shape, factor) for W, factor in zip(self.means.W, factors, strict=True)
        ]
        self.num_samples = num_samples
        self.seed = seed
        self.draw = tf.Variable(0, dtype=tf.int32, trainable=False, name="draw")
        self._prior_variance = start.variance
        self._scale_to_prior(typical_inputs(start.input_dim))
        self._at_start = flattened(self._first_to_move)

    @property
    def num_latent_gps(self) -> int:
        return self.means.num_outputs

    @property
    def center(self) -> Parameter:
        """What is subtracted from inputs, [D]."""
        return self.means.center

    @property
    def _first_to_move(self) -> tuple[Parameter, ...]:
        """What training moves: the last biases or, where the mean is frozen, variances."""
        return self.means.b[-1], *self.layers[-1].parameters

    @property
    def is_trained(self) -> bool:
        return not np.array_equal(flattened(self._first_to_move), self._at_start)

    def initialise(self, X: np.ndarray) -> None:
        """Standardise the inputs and scale the last layer by at most 2,000 rows of X [N, D]."""
        self.means.initialise(X)
        self._scale_to_prior(spread_rows(X, _ROWS_TO_START_FROM))

    def _scale_to_prior(self, X: np.ndarray) -> None:
        _, variance = self(tf.convert_to_tensor(X, default_float()))
        self.layers[-1].multiply(tf.sqrt(self._prior_variance / tf.reduce_mean(variance)))

    @check_shapes("X: [batch..., N, D]", "return: [S, batch..., N, L]")
    def sampled_values(self, X: TensorType) -> tf.Tensor:
        """f(X) of the S functions that moments are made of; differentiable by q's parameters."""
        return self._values(X, self._weights(self.num_samples, tf.stack([self.seed, self.draw])))

    def redraw(self, number: tf.Tensor) -> None:
        """Moments are of other functions from now on, those of this number and the seed."""
        self.draw.assign(number)

    def sample_functions(
        self, num_samples: int, seed: tf.Tensor
    ) -> Callable[[TensorType], tf.Tensor]:
        """Whole functions from q: a callable X [..., N, D] to [S, ..., N, L]."""
        weights = self._weights(num_samples, seed)
        return lambda X: self._values(X, weights)

    def _weights(self, num_samples: int, seed: tf.Tensor) -> list[tf.Tensor]:
        """[S, in + 1, out] of each layer."""
        seeds = tf.random.experimental.stateless_split(seed, len(self.layers), alg="philox")
        weights = []
        for index, layer in enumerate(self.layers):
            W, b = self.means.W[index], self.means.b[index]
            mean = tf.concat([W, b[None]], axis=0)
            noise = normal([num_samples, *mean.shape], seeds[index], mean.dtype)
            weights.append(mean + layer.deviations(noise))
        return weights

    def _values(self, X: TensorType, weights: list[tf.Tensor]) -> tf.Tensor:
        X = self.means.inputs(X)
        hidden = tf.matmul(with_ones(tf.reshape(X, [-1, X.shape[-1]])), weights[0])  # [S, rows, .]
        for W in weights[1:]:
            hidden = tf.matmul(with_ones(self.means.activation(hidden)), W)
        shape = [[tf.shape(hidden)[0]], tf.shape(X)[:-1], [self.num_latent_gps]]
        return tf.reshape(hidden, tf.concat(shape, axis=0))

    @inherit_check_shapes
    def __call__(self, X: TensorType, full_cov: bool = False) -> MeanAndVariance:
        return self._moments(self.sampled_values(X), full_cov)

    @inherit_check_shapes
    def shared_moments(self, X: TensorType, share: Share) -> MeanAndVariance:
        values = self.sampled_values(share.rows(X))  # [S, N, L], the same functions everywhere
        return self._moments(share.gather(values, size_of(X), axis=1), full_cov=True)

    def _moments(self, values: tf.Tensor, full_cov: bool) -> MeanAndVariance:
        mean = tf.reduce_mean(values, axis=0)
        scaled = (values - mean) / np.sqrt(self.num_samples - 1)
        if not full_cov:
            return mean, tf.reduce_sum(tf.square(scaled), axis=0)
        rank = len(values.shape)
        root = tf.transpose(scaled, [*range(1, rank - 2), rank - 1, rank - 2, 0])  # [..., L, N, S]
        return mean, tf.matmul(root, root, transpose_b=True)


def _spread(fan_in: int) -> AnyNDArray:
    """Standard deviations of a random network's weights, fan-in^-½, and biases, 1."""
    return np.append(np.full(fan_in, fan_in**-0.5), 1.0).astype(default_float())


class _DiagonalLayer(Module):
    """Standard deviations sd [in + 1, out]."""

    def __init__(self, fan_in: int, fan_out: int, factor: float) -> None:
        super().__init__()
        values = np.tile(factor * _spread(fan_in)[:, None], [1, fan_out])
        self.sd = Parameter(values, transform=positive(base="exp"))

    def multiply(self, factor: tf.Tensor) -> None:
        self.sd.assign(factor * self.sd)

    def deviations(self, noise: tf.Tensor) -> tf.Tensor:
        return noise * self.sd


class _MatrixLayer(Module):
    """Roots A [in + 1, in + 1] of the rows' and B [out, out] of the columns' covariance."""

    def __init__(self, fan_in: int, fan_out: int, factor: float) -> None:
        super().__init__()
        # A's rows have sizes of their own, so that its trained root starts as the identity.
        self.rows = Parameter(factor * _spread(fan_in), trainable=False)
        self.root = Parameter(np.eye(fan_in + 1, dtype=default_float()), transform=triangular())
        self.B = Parameter(np.eye(fan_out, dtype=default_float()), transform=triangular())

    @property
    def A(self) -> tf.Tensor:
        return self.rows[:, None] * self.root

    def multiply(self, factor: tf.Tensor) -> None:
        self.rows.assign(factor * self.rows)

    def deviations(self, noise: tf.Tensor) -> tf.Tensor:
        return tf.matmul(tf.matmul(self.A, noise), self.B, transpose_b=True)
