"""Bayesian linear regression on the last hidden layer of a neural network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from check_shapes import inherit_check_shapes
from gpflow import Parameter
from gpflow.base import TensorType
from gpflow.config import default_float
from gpflow.kernels import Kernel
from gpflow.utilities import positive

from .base import LinearNetwork
from .initialisation import spread_rows, starting_prior, typical_inputs
from .mlp import MLP, KerasBody, check_hidden_units, keras_input_dim, with_ones
from .weights import weight_gaussian

__all__ = ["AdaptiveBasis"]

_ROWS_TO_START_FROM = 50_000


class AdaptiveBasis(LinearNetwork):
    r"""f(x) = φ(x)ᵀ w, φ(x) = s [h(x), 1], h the last hidden layer of an MLP or a Keras model.

    (Snoek et al. 2015; as an inference network for GPs, Shi et al. 2019, section 4.2.) The
    amplitude s makes the variance φ(x)ᵀφ(x), averaged over inputs, the kernel's at the start. The
    prior w ~ N(0, I) in these features is not the kernel's: the model's correction accounts for the
    difference. Weights take natural steps, body and amplitude Adam steps, on the objective plus the
    log density of a Gaussian prior over the body's weights.

    A step costs the body's ``O(B |Ω|)`` and the weights' O(B F²) + O(F³), F the width of the last
    hidden layer plus 1.

    >>> network = gpn.AdaptiveBasis((20, 10), kernel=kernel, input_dim=1)
    >>> network.features(X).shape, network(X, full_cov=True)[1].shape
    (TensorShape([20, 11]), TensorShape([1, 20, 20]))
    """

    def __init__(
        self,
        hidden_units: Sequence[int] | Any = (100, 50),
        activation: str | Callable[[tf.Tensor], tf.Tensor] = "tanh",
        *,
        kernel: Kernel | None = None,
        input_dim: int | None = None,
        covariance: str | int = "full",
        residual_mean: bool | Any = False,
        weight_prior: bool = True,
        num_latent_gps: int | None = None,
        seed: int = 0,
    ) -> None:
        """
        :param hidden_units: widths of the hidden layers; or a tf_keras model that maps rows [N, D]
            to features, trained with the network unless its layers are frozen.
        :param activation: elementwise, by Keras's name; not for a Keras model.
        :param kernel: the prior's: tells D where it can, L, and the variance (1 without) and
            lengthscales to start with. Only its values now are used.
        :param input_dim: D; needed where neither the kernel nor a Keras model tells.
        :param covariance: of the weights, as in :class:`RFE`.
        :param residual_mean: add a deterministic function to the mean: True, an MLP of the same
            widths that starts at 0; or a tf_keras model, rows [N, D] to [N, L], such as one trained
            before. It is penalised at the correction's measurement points alone.
        :param weight_prior: whether the layers' weights and biases have the distribution they are
            drawn from as their prior. Without it a wide body over-fits: nothing else holds it where
            no measurement point is. A Keras model has none.
        :param num_latent_gps: L; by default what the kernel says, else 1.
        :param seed: of the body.
        :raises TypeError: for a Keras 3 model.
        :raises ValueError: for arguments out of range, or where nothing tells D.
        """
        super().__init__()
        rng = np.random.default_rng(seed)
        given = callable(hidden_units)
        if given and input_dim is None:
            input_dim = keras_input_dim(hidden_units)
        start = starting_prior(kernel, input_dim, num_latent_gps)
        self.input_dim = start.input_dim
        widths = () if given else check_hidden_units(hidden_units, least=1)
        self.body: KerasBody | MLP
        if given:
            self.body = KerasBody(hidden_units, start.input_dim)
        else:
            self.body = MLP(
                [start.input_dim, *widths],
                activation,
                rng,
                start.lengthscales,
                activate_outputs=True,
                weight_prior=weight_prior,
            )
        self.residual_mean: KerasBody | MLP | None = None
        if callable(residual_mean):
            self.residual_mean = KerasBody(residual_mean, start.input_dim)
        elif residual_mean:
            sizes = [start.input_dim, *(widths or (100, 50)), start.num_latent_gps]
            self.residual_mean = MLP(
                sizes, activation, rng, start.lengthscales, "zero", weight_prior=weight_prior
            )
        if self.residual_mean and self.residual_mean.num_outputs != start.num_latent_gps:
            raise ValueError(
                f"residual_mean must give {start.num_latent_gps} columns, one for each latent GP, "
                f"got {self.residual_mean.num_outputs}."
            )
        self._prior_variance = start.variance
        self.amplitude = Parameter(1.0, transform=positive(base="exp"))
        self.weights = weight_gaussian(covariance, self.body.num_outputs + 1, start.num_latent_gps)
        self._scale_to_prior(typical_inputs(start.input_dim))

    @property
    def center(self) -> Any:
        """What is subtracted from inputs: [D], or 0 for a Keras model."""
        return getattr(self.body, "center", 0.0)

    def initialise(self, X: np.ndarray) -> None:
        """Standardise the inputs (but a Keras model's) and scale the features by X [N, D], of
        which by at most 50,000 rows."""
        for part in (self.body, self.residual_mean):
            if part is not None:
                part.initialise(X)
        self._scale_to_prior(spread_rows(X, _ROWS_TO_START_FROM))

    def _scale_to_prior(self, X: np.ndarray) -> None:
        hidden = with_ones(self.body(tf.convert_to_tensor(X, default_float())))
        mean_square = tf.reduce_mean(tf.reduce_sum(tf.square(hidden), axis=-1))
        self.amplitude.assign(tf.sqrt(self._prior_variance / mean_square))

    @inherit_check_shapes
    def features(self, X: TensorType) -> tf.Tensor:
        return self.amplitude * with_ones(self.body(X))

    def offset(self, X: TensorType) -> tf.Tensor | None:
        return None if self.residual_mean is None else self.residual_mean(X)
