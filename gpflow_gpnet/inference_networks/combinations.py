"""Sums of inference networks, and functions without uncertainty to add to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes, inherit_check_shapes
from gpflow.base import MeanAndVariance, TensorType
from gpflow.config import default_float
from gpflow.keras import tf_keras
from gpflow.kernels import Kernel
from gpflow.kernels import Sum as KernelSum

from .base import InferenceNetwork, LinearNetwork
from .mlp import KerasBody, keras_input_dim
from .weights import FullGaussian, WeightGaussian, weight_gaussian

__all__ = ["Deterministic", "LinearSum", "Sum"]


class Deterministic(InferenceNetwork):
    """A function without uncertainty, to add to another network: the mean of the sum.

    ``Deterministic(keras_model) + RFE(kernel, …)`` has the model's predictions for a mean and RFE's
    covariance (and a mean of its own, unless frozen). For post-hoc uncertainty of a trained model
    freeze both means, the second one's in the sum, and train:
    ``total = deterministic + rfe; set_trainable([deterministic, total.q_mu], False)``.

    >>> network = gpn.Deterministic(gpflow.functions.Linear()) + gpn.RFE(kernel, 1, num_features=5)
    >>> mean, variance = network(X)
    >>> bool(np.allclose(mean, X)), variance.shape  # slope 1, as RFE's own mean is 0
    (True, TensorShape([20, 1]))
    """

    def __init__(self, function: Any, input_dim: int | None = None) -> None:
        """
        :param function: X [N, D] to [N, L]: a tf_keras model (rows as for prediction), a GPflow
            mean function or any Module.
        :param input_dim: D; needed for Keras models that do not tell.
        :raises ValueError: if a Keras model does not tell D.
        """
        super().__init__()
        if isinstance(function, tf_keras.layers.Layer):
            input_dim = keras_input_dim(function) if input_dim is None else input_dim
            if input_dim is None:
                raise ValueError(f"input_dim is needed, {type(function).__name__} does not tell.")
            function = KerasBody(function, input_dim)
        self.function = function
        self.input_dim = input_dim

    @inherit_check_shapes
    def __call__(self, X: TensorType, full_cov: bool = False) -> MeanAndVariance:
        mean = self.offset(X)
        zeros = tf.zeros_like(mean)
        return mean, tf.linalg.diag(tf.linalg.matrix_transpose(zeros)) if full_cov else zeros

    @check_shapes("X: [batch..., N, D]", "return: [batch..., N, L]")
    def offset(self, X: TensorType) -> tf.Tensor:
        """The function's values."""
        return self.function(tf.convert_to_tensor(X, default_float()))


class Sum(InferenceNetwork):
    """f = f_1 + f_2 + …, independent: means and covariances add up.

    >>> parts = gpn.NTK((5,), kernel=kernel, input_dim=1), gpn.RFE(kernel, 1, num_features=5)
    >>> network = gpn.Sum(*parts)  # also parts[0] + parts[1]
    >>> bool(np.allclose(network(X)[1], parts[0](X)[1] + parts[1](X)[1]))
    True
    """

    def __init__(self, *networks: InferenceNetwork) -> None:
        """
        :raises ValueError: for none, or for different numbers of inputs or latent GPs.
        """
        super().__init__()
        self.networks = _given(networks, "Sum")
        self.input_dim = _common(self.networks, "input_dim", "inputs")
        self._num_latent_gps = _common(self.networks, "num_latent_gps", "latent GPs")

    @property
    def num_latent_gps(self) -> int | None:
        return self._num_latent_gps

    @property
    def is_trained(self) -> bool:
        return any(getattr(network, "is_trained", False) for network in self.networks)

    def initialise(self, X: np.ndarray) -> None:
        """Let all parts see the inputs."""
        _initialise(self.networks, X)

    @inherit_check_shapes
    def __call__(self, X: TensorType, full_cov: bool = False) -> MeanAndVariance:
        means, covariances = zip(*(network(X, full_cov) for network in self.networks), strict=True)
        return _sum(means), _sum(covariances)


class LinearSum(LinearNetwork):
    """f = f_1 + f_2 + … of networks linear in their weights: one network with all their features.

    Its weights have one joint Gaussian, so that natural steps see how the parts share the data. It
    starts from the parts' own and takes the parts over, whose weights are then shares of it.

    >>> short = gpflow.kernels.SquaredExponential(lengthscales=0.1)
    >>> network = gpn.RFE(kernel, 1, num_features=5) + gpn.RFE(short, 1, num_features=8)
    >>> type(network).__name__, network.features(X).shape
    ('LinearSum', TensorShape([20, 26]))
    """

    def __init__(self, *networks: InferenceNetwork) -> None:
        """
        :param networks: linear ones with a full covariance, and :class:`Deterministic` ones.
        :raises ValueError: for another network, or for different numbers of inputs or latent GPs.
        """
        super().__init__()
        self.networks = _given(networks, "LinearSum")
        rest = [n for n in self.networks if not isinstance(n, (LinearNetwork, Deterministic))]
        if rest or not self._parts:
            raise ValueError(
                "LinearSum needs networks linear in their weights, got "
                f"{[type(network).__name__ for network in networks]}: use Sum."
            )
        self.input_dim = _common(self.networks, "input_dim", "inputs")
        latents = _common(self.networks, "num_latent_gps", "latent GPs")
        assert latents is not None
        self.shared_features = all(part.shared_features for part in self._parts)
        self._sizes = [int(part.q_mu.shape[0]) for part in self._parts]
        self.weights = weight_gaussian("full", sum(self._sizes), latents)
        mean, root = _joint([part.weights for part in self._parts], latents)
        self.weights.q_mu.assign(mean)
        self.weights.q_sqrt.assign(root)
        ends = np.cumsum(self._sizes)
        for part, size, end in zip(self._parts, self._sizes, ends, strict=True):
            share = _Share(self.weights, slice(int(end) - size, int(end)))
            part.weights = share  # type: ignore[assignment]

    @property
    def _parts(self) -> list[LinearNetwork]:
        # Not kept, or every parameter of a part would have two paths.
        return [network for network in self.networks if isinstance(network, LinearNetwork)]

    def represents(self, kernel: Kernel) -> bool:
        """Where the parts' kernels are the terms of a sum, each once, and no part is a mean."""
        terms = list(kernel.kernels) if isinstance(kernel, KernelSum) else [kernel]
        for part in self._parts:
            represented = [term for term in terms if part.represents(term)]
            if not represented:
                return False
            terms.remove(represented[0])
        return not terms and len(self._parts) == len(self.networks)

    @property
    def center(self) -> Any:
        """What is subtracted from inputs, [D] or 0, if all parts subtract the same."""
        centers = [np.asarray(getattr(part, "center", 0.0)) for part in self._parts]
        same = all(np.array_equal(center, centers[0]) for center in centers)
        return centers[0] if same else 0.0

    def initialise(self, X: np.ndarray) -> None:
        """Let all parts see the inputs."""
        _initialise(self.networks, X)

    @inherit_check_shapes
    def features(self, X: TensorType) -> tf.Tensor:
        features = [part.latent_features(X) for part in self._parts]
        if self.shared_features:
            return tf.concat(features, axis=-1)[..., 0, :, :]
        lead = tf.concat([tf.shape(features[0])[:-3], [self.num_latent_gps]], axis=0)
        shapes = [tf.concat([lead, tf.shape(part)[-2:]], axis=0) for part in features]
        return tf.concat(
            [tf.broadcast_to(*pair) for pair in zip(features, shapes, strict=True)], -1
        )

    def residual_covariance(
        self, X: TensorType, features: tf.Tensor, full_cov: bool
    ) -> tf.Tensor | None:
        parts = tf.split(features, self._sizes, axis=-1)
        residuals = [
            part.residual_covariance(X, own, full_cov)
            for part, own in zip(self._parts, parts, strict=True)
        ]
        return _sum([residual for residual in residuals if residual is not None])

    def prior_functions(
        self, num_samples: int, seed: tf.Tensor
    ) -> tuple[Callable[[TensorType], tf.Tensor], tf.Tensor] | None:
        given = [
            part.prior_functions(num_samples, seed + index)
            for index, part in enumerate(self._parts)
        ]
        functions = [pair[0] for pair in given if pair is not None]
        if not functions:
            return None
        shapes = [[num_samples, size, self.num_latent_gps] for size in self._sizes]
        weights = [
            tf.zeros(shape, default_float()) if pair is None else pair[1]
            for pair, shape in zip(given, shapes, strict=True)
        ]
        return lambda X: _sum([function(X) for function in functions]), tf.concat(weights, axis=1)

    def offset(self, X: TensorType) -> tf.Tensor | None:
        offsets = [network.offset(X) for network in self.networks]
        return _sum([offset for offset in offsets if offset is not None])


class _Share:
    """A part's weights in a :class:`LinearSum`: its marginal of their joint Gaussian."""

    # Not a WeightGaussian, or every parameter of the joint one would have two paths.
    mean, sample = WeightGaussian.mean, WeightGaussian.sample

    def __init__(self, joint: FullGaussian, rows: slice) -> None:
        self._joint = joint
        self._rows = rows

    @property
    def q_mu(self) -> tf.Tensor:
        return self._joint.q_mu[self._rows]

    def project(self, features: tf.Tensor) -> tf.Tensor:
        """A root of the part's own covariance in the joint Gaussian."""
        return tf.matmul(features, tf.convert_to_tensor(self._joint.q_sqrt)[:, self._rows])

    def prior_kl(self) -> tf.Tensor:
        """That of the joint Gaussian."""
        return self._joint.prior_kl()


def add(*networks: InferenceNetwork) -> InferenceNetwork:
    """A :class:`LinearSum` where it can be one, else a :class:`Sum`."""
    linear = [network for network in networks if isinstance(network, LinearNetwork)]
    fits = all(isinstance(network.weights, FullGaussian) for network in linear)
    others = [network for network in networks if not isinstance(network, LinearNetwork)]
    if linear and fits and all(isinstance(network, Deterministic) for network in others):
        return LinearSum(*networks)
    return Sum(*networks)


def _given(networks: tuple[InferenceNetwork, ...], name: str) -> list[InferenceNetwork]:
    if not networks:
        raise ValueError(f"{name} needs at least one network, got none.")
    return list(networks)


def _common(networks: list[InferenceNetwork], name: str, what: str) -> int | None:
    """The value of an attribute that all networks share, but those where it is None."""
    known = {getattr(network, name, None) for network in networks} - {None}
    if len(known) > 1:
        raise ValueError(f"All networks need the same number of {what}, got {known}.")
    return known.pop() if known else None


def _initialise(networks: list[InferenceNetwork], X: np.ndarray) -> None:
    for network in networks:
        if hasattr(network, "initialise"):
            network.initialise(X)


def _joint(weights: list[Any], latents: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Mean [F, L] and block-diagonal root [L, F, F] of independent Gaussians."""
    operator = tf.linalg.LinearOperatorBlockDiag(
        [tf.linalg.LinearOperatorFullMatrix(tf.convert_to_tensor(w.q_sqrt)) for w in weights]
    )
    return tf.concat([tf.convert_to_tensor(w.q_mu) for w in weights], 0), operator.to_dense()


def _sum(tensors: Sequence[tf.Tensor]) -> tf.Tensor | None:
    if not tensors:
        return None
    total = tensors[0]
    for tensor in tensors[1:]:  # tf.add_n does not broadcast
        total = total + tensor
    return total
