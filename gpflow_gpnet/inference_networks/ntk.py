"""A neural network's outputs as the mean and its tangent kernel as the covariance."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from check_shapes import inherit_check_shapes
from gpflow import Module, Parameter
from gpflow.base import AnyNDArray, MeanAndVariance, TensorType
from gpflow.config import default_float
from gpflow.kernels import Kernel
from gpflow.utilities import positive, to_default_float

from .base import InferenceNetwork, LinearNetwork
from .initialisation import flattened, spread_rows, starting_prior, typical_inputs
from .mlp import MLP, KerasBody, check_hidden_units, keras_input_dim
from .weights import weight_gaussian

__all__ = ["LinearisedNTK", "NTK", "fan_in_variances", "gram", "log_variances"]

_ROWS_TO_START_FROM = 2000


class NTK(InferenceNetwork):
    r"""Mean g_l(x; Ω), covariance :math:`∇g_l(x; Ω)^\top V ∇g_l(x'; Ω)` (Shi et al. 2019, 4.2).

    g is an MLP, or a Keras model, and V a diagonal matrix of trainable variances: what
    linearisation at Ω makes of weights N(Ω, V) (Khan et al. 2019). The L outputs are L latent GPs,
    independent of each other.

    At the start an MLP's outputs are 0, and V is such that the variance averaged over the inputs is
    the kernel's; its covariance is then the tangent kernel of a random network, which may be far
    from the prior's. Takes gradient steps.

    Of dense layers no Jacobian is formed for marginals, ``O(N L |Ω|)`` time, O(N L Σ width) memory.
    For a full covariance of N inputs and layers a → δ, ∂g/∂W = a δᵀ:

    * ``"diag"``, one variance a weight: one layer's Jacobian at a time, ``O(N² L |Ω|)`` time,
      ``O(N L max |Ω_k|)`` memory;
    * ``"kronecker"``, v_in v_outᵀ in each layer: the elementwise product of two Gram matrices,
      (A diag(v_in) Aᵀ) ∘ (Δ diag(v_out) Δᵀ), O(N² L Σ width) time, no Jacobian. Exact, since a
      layer's gradient is an outer product; a variance for each layer is the special case of equal
      entries.

    >>> network = gpn.NTK((10,), kernel=kernel, input_dim=1)
    >>> mean, cov = network(X, full_cov=True)
    >>> mean.shape, cov.shape
    (TensorShape([20, 1]), TensorShape([1, 20, 20]))
    """

    def __init__(
        self,
        hidden_units: Sequence[int] | Any = (100,),
        activation: str | Callable[[tf.Tensor], tf.Tensor] = "tanh",
        *,
        kernel: Kernel | None = None,
        input_dim: int | None = None,
        covariance: str = "diag",
        num_latent_gps: int | None = None,
        seed: int = 0,
    ) -> None:
        """
        :param hidden_units: widths of the hidden layers, none for a linear model; or a tf_keras
            model that maps rows [N, D] to [N, L]. Its Jacobian ``[N, L, |Ω|]`` is formed, by one
            vectorised pass over rows; V has a variance for each of its trainable weights. Freeze
            the weights after this (``gpflow.set_trainable(network.tangents.body, False)``) to give
            a trained model uncertainty and leave its predictions as they are.
        :param activation: elementwise, by Keras's name; not for a Keras model.
        :param kernel: the prior's: tells D where it can, L, and the variance (1 without) and
            lengthscales to start with. Only its values now are used.
        :param input_dim: D; needed where neither the kernel nor a Keras model tells.
        :param covariance: V of each layer, "diag" or "kronecker" (not for Keras models).
        :param num_latent_gps: L; by default what the kernel or a Keras model says, else 1.
        :param seed: of the MLP.
        :raises TypeError: for a Keras 3 model.
        :raises ValueError: for arguments out of range, or where nothing tells D.
        """
        super().__init__()
        given = callable(hidden_units)
        if covariance not in ("diag", "kronecker") or (given and covariance == "kronecker"):
            raise ValueError(
                f'covariance must be "diag" or, for an MLP, "kronecker", got {covariance!r}.'
            )
        if given and input_dim is None:
            input_dim = keras_input_dim(hidden_units)
        start = starting_prior(kernel, input_dim, num_latent_gps)
        self.input_dim = start.input_dim
        self.tangents: _Tangents
        if given:
            body = KerasBody(hidden_units, start.input_dim)
            told = kernel is not None or num_latent_gps is not None
            latents = start.num_latent_gps if told else body.num_outputs
            if body.num_outputs != latents:
                raise ValueError(
                    f"The model must give {latents} columns, one for each latent GP, got "
                    f"{body.num_outputs}."
                )
            self.tangents = _KerasTangents(body)
        else:
            latents = start.num_latent_gps
            sizes = [start.input_dim, *check_hidden_units(hidden_units), latents]
            rng = np.random.default_rng(seed)
            mlp = MLP(sizes, activation, rng, start.lengthscales, "paired")
            self.tangents = _LayerTangents(mlp, covariance)
        self._num_latent_gps = latents
        self._prior_variance = start.variance
        self._scale_to_prior(typical_inputs(start.input_dim))
        self._at_start = flattened(self._first_to_move)

    @property
    def num_latent_gps(self) -> int:
        return self._num_latent_gps

    @property
    def center(self) -> Any:
        """What is subtracted from inputs: [D], or 0 for a Keras model."""
        return getattr(self.tangents.body, "center", 0.0)

    @property
    def _first_to_move(self) -> tuple[Parameter, ...]:
        """What training moves: the last biases or, where the mean is frozen, variances."""
        body = self.tangents.body
        biases = (body.b[-1],) if isinstance(body, MLP) else ()
        return *biases, *self.tangents.variances

    @property
    def is_trained(self) -> bool:
        return not np.array_equal(flattened(self._first_to_move), self._at_start)

    def initialise(self, X: np.ndarray) -> None:
        """Standardise the inputs (but a Keras model's) and scale V by X [N, D], of which by at most
        2,000 rows."""
        self.tangents.body.initialise(X)
        self._scale_to_prior(spread_rows(X, _ROWS_TO_START_FROM))

    def _scale_to_prior(self, X: np.ndarray) -> None:
        _, variance = self(tf.convert_to_tensor(X, default_float()))
        self.tangents.multiply(self._prior_variance / tf.reduce_mean(variance))

    @inherit_check_shapes
    def __call__(self, X: TensorType, full_cov: bool = False) -> MeanAndVariance:
        X = tf.convert_to_tensor(X, default_float())
        mean, cov = self.tangents(X, full_cov)
        return mean, cov if full_cov else tf.linalg.matrix_transpose(cov)


class LinearisedNTK(LinearNetwork):
    r"""f(x) = g(x; Ω) + (V^½ ∇g(x; Ω))ᵀ w, w ~ N(q_mu, ·): the model linearised about Ω.

    Where w ~ N(0, I), as at the start, it is the :class:`NTK` that it is made of. Weights take
    natural steps: with Ω and V frozen, the exact posterior of the linearised model (Khan et al.
    2019); else Ω and V take Adam steps. A "full" covariance needs ``O(B L |Ω|² + L |Ω|³)`` time a
    step: for up to a few thousand weights.

    >>> network = gpn.LinearisedNTK(gpn.NTK((4,), kernel=kernel, input_dim=1))
    >>> network.features(X).shape  # [L, N, F]: 4 + 4 weights into, 4 + 1 out of the hidden layer
    TensorShape([1, 20, 13])
    """

    shared_features = False

    def __init__(self, network: NTK, covariance: str | int = "full") -> None:
        """
        :param network: itself, not a copy.
        :param covariance: of w, as in :class:`RFE`.
        """
        super().__init__()
        self.network = network
        self.input_dim = network.input_dim
        self.weights = weight_gaussian(
            covariance, network.tangents.num_weights, network.num_latent_gps
        )

    @property
    def center(self) -> Any:
        """What is subtracted from inputs: [D], or 0 for a Keras model."""
        return self.network.center

    @property
    def is_trained(self) -> bool:
        return super().is_trained or self.network.is_trained

    def initialise(self, X: np.ndarray) -> None:
        """:meth:`NTK.initialise`."""
        self.network.initialise(X)

    @inherit_check_shapes
    def features(self, X: TensorType) -> tf.Tensor:
        return self.network.tangents.scaled_jacobian(tf.convert_to_tensor(X, default_float()))

    def offset(self, X: TensorType) -> tf.Tensor:
        return self.network.tangents.body(X)


def log_variances(values: AnyNDArray) -> Parameter:
    """A tenth of the logarithm is what is trained: small variances learn at the pace of others.

    A posterior's variances are many times smaller than the prior's, while weights move by a
    fraction of their size: at equal rates variances would be the last to converge.
    """
    tenfold = tfp.bijectors.Scale(to_default_float(10.0))
    return Parameter(values, transform=tfp.bijectors.Chain([positive(base="exp"), tenfold]))


def gram(root: tf.Tensor) -> tf.Tensor:
    """Inner products [..., N, N] of the rows of [..., N, F]."""
    return tf.matmul(root, root, transpose_b=True)


class _Tangents(Module, abc.ABC):
    """Outputs [..., N, L] of a body, and ∇gᵀ V ∇g [..., L, N] or [..., L, N, N]."""

    body: MLP | KerasBody

    @abc.abstractmethod
    def __call__(self, X: tf.Tensor, full_cov: bool) -> MeanAndVariance:
        """Mean and (co)variance at X."""

    @property
    @abc.abstractmethod
    def num_weights(self) -> int:
        """|Ω|."""

    @abc.abstractmethod
    def scaled_jacobian(self, X: tf.Tensor) -> tf.Tensor:
        """∇gᵀ V^½ [..., L, N, |Ω|]."""

    @property
    def variances(self) -> tuple[Parameter, ...]:
        """V, in parts."""
        of_body = {id(parameter) for parameter in self.body.parameters}
        return tuple(part for part in self.parameters if id(part) not in of_body)

    @abc.abstractmethod
    def multiply(self, factor: tf.Tensor) -> None:
        """Multiply V."""


class _LayerTangents(_Tangents):
    """Layer by layer, from activations a and back-propagated signals δ."""

    def __init__(self, mlp: MLP, covariance: str) -> None:
        super().__init__()
        self.body = mlp
        layer = {"diag": _DiagonalLayer, "kronecker": _KroneckerLayer}[covariance]
        self.layers = [layer(*W.shape) for W in mlp.W]

    def __call__(self, X: tf.Tensor, full_cov: bool) -> MeanAndVariance:
        mean, activations, signals = self.body.gradient_factors(X)
        parts = [
            layer.covariance(a, d) if full_cov else layer.variance(a, d)
            for layer, a, d in zip(self.layers, activations, [*signals, None], strict=True)
        ]
        return mean, tf.add_n(parts)

    @property
    def num_weights(self) -> int:
        return sum((W.shape[0] + 1) * W.shape[1] for W in self.body.W)

    def scaled_jacobian(self, X: tf.Tensor) -> tf.Tensor:
        _, activations, signals = self.body.gradient_factors(X)
        latents = self.body.num_outputs
        unit = tf.eye(latents, dtype=X.dtype)[:, None, :] * tf.ones_like(X[..., None, :, :1])
        parts = [
            _jacobian(a, d, layer.root)
            for layer, a, d in zip(self.layers, activations, [*signals, unit], strict=True)
        ]
        return tf.concat(parts, axis=-1)

    def multiply(self, factor: tf.Tensor) -> None:
        for layer in self.layers:
            layer.multiply(factor)


def _jacobian(activations: tf.Tensor, signals: tf.Tensor, root: tf.Tensor) -> tf.Tensor:
    """A layer's gradients times roots of variances [in + 1, out]: [..., L, N, (in + 1) out]."""
    products = (activations[..., None, :, :, None] * root) * signals[..., :, None, :]
    shape = tf.concat([tf.shape(signals)[:-1], [tf.size(root)]], axis=0)
    return tf.reshape(products, shape)


class _DiagonalLayer(Module):
    """A variance for each weight [in + 1, out], biases last."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        self.V = log_variances(np.tile(fan_in_variances(fan_in)[:, None], [1, fan_out]))

    @property
    def root(self) -> tf.Tensor:
        return tf.sqrt(self.V)

    def multiply(self, factor: tf.Tensor) -> None:
        self.V.assign(factor * self.V)

    def variance(self, activations: tf.Tensor, signals: tf.Tensor | None) -> tf.Tensor:
        by_unit = tf.tensordot(tf.square(activations), self.V, 1)  # [..., N, out]
        if signals is None:
            return tf.linalg.matrix_transpose(by_unit)
        return tf.reduce_sum(by_unit[..., None, :, :] * tf.square(signals), axis=-1)

    def covariance(self, activations: tf.Tensor, signals: tf.Tensor | None) -> tf.Tensor:
        if signals is None:
            return gram(activations[..., None, :, :] * tf.transpose(self.root)[:, None, :])
        return gram(_jacobian(activations, signals, self.root))


class _KroneckerLayer(Module):
    """Variances v_in [in + 1] times v_out [out], biases last."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        self.v_in = log_variances(fan_in_variances(fan_in))
        self.v_out = log_variances(np.ones(fan_out, default_float()))

    @property
    def root(self) -> tf.Tensor:
        return tf.sqrt(self.v_in[:, None] * self.v_out)

    def multiply(self, factor: tf.Tensor) -> None:
        self.v_in.assign(factor * self.v_in)

    def variance(self, activations: tf.Tensor, signals: tf.Tensor | None) -> tf.Tensor:
        sizes = tf.linalg.matvec(tf.square(activations), self.v_in)[..., None, :]
        return sizes * self._signal_squares(signals)

    def _signal_squares(self, signals: tf.Tensor | None) -> tf.Tensor:
        if signals is None:
            return self.v_out[:, None]
        return tf.linalg.matvec(tf.square(signals), self.v_out)

    def covariance(self, activations: tf.Tensor, signals: tf.Tensor | None) -> tf.Tensor:
        inner = gram(activations * tf.sqrt(self.v_in))[..., None, :, :]
        if signals is None:
            return inner * self.v_out[:, None, None]
        return inner * gram(signals * tf.sqrt(self.v_out))


def fan_in_variances(fan_in: int) -> AnyNDArray:
    """Variances of a random network's weights, 1 / fan-in, and biases, 1."""
    return np.append(np.full(fan_in, 1.0 / fan_in), 1.0).astype(default_float())


class _KerasTangents(_Tangents):
    """Per-example gradients of any Keras model, in one vectorised pass."""

    def __init__(self, body: KerasBody) -> None:
        super().__init__()
        self.body = body
        if not self._weights:
            raise ValueError(f"{type(body.model).__name__} has no trainable weights.")
        self.V = [log_variances(np.ones(w.shape, default_float())) for w in self._weights]

    @property
    def _weights(self) -> list[tf.Variable]:
        """What Keras holds to be trainable; asked anew, since copied models have new variables."""
        return list(self.body.model.trainable_variables)

    def multiply(self, factor: tf.Tensor) -> None:
        for V in self.V:
            V.assign(factor * V)

    @property
    def num_weights(self) -> int:
        return sum(int(np.prod(V.shape)) for V in self.V)

    def __call__(self, X: tf.Tensor, full_cov: bool) -> MeanAndVariance:
        root = self.scaled_jacobian(X)
        cov = gram(root) if full_cov else tf.reduce_sum(tf.square(root), axis=-1)
        return self.body(X), cov

    def scaled_jacobian(self, X: tf.Tensor) -> tf.Tensor:
        latents, weights = self.body.num_outputs, self._weights
        rows = tf.reshape(X, [-1, self.body.input_dim])
        # Each row once for each output, so that every gradient is that of a scalar.
        repeated = tf.repeat(rows, latents, axis=0)
        output = tf.tile(tf.range(latents), [tf.shape(rows)[0]])
        gradients = tf.vectorized_map(
            lambda pair: self._gradient(pair[0], pair[1], weights), (repeated, output)
        )
        shape = tf.concat([tf.shape(X)[:-1], [latents, self.num_weights]], axis=0)
        roots = [tf.reshape(tf.sqrt(V), [-1]) for V in self.V]
        scaled = tf.reshape(gradients, shape) * tf.concat(roots, axis=0)  # [..., N, L, |Ω|]
        rank = X.shape.rank + 1
        return tf.transpose(scaled, [*range(rank - 3), rank - 2, rank - 3, rank - 1])

    def _gradient(self, x: tf.Tensor, output: tf.Tensor, weights: list[tf.Variable]) -> tf.Tensor:
        """∇g_output(x), flat."""
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            value = tf.gather(self.body(x[None])[0], output)
        gradients = tape.gradient(
            value, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        return tf.concat([tf.cast(tf.reshape(g, [-1]), value.dtype) for g in gradients], axis=0)
