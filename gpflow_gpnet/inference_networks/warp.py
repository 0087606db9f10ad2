"""A trainable deformation of the input space that starts as the identity."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow import Module, Parameter
from gpflow.base import TensorType
from gpflow.config import default_float

from .initialisation import centred_normal

__all__ = ["ResidualWarp"]


class ResidualWarp(Module):
    """x ↦ x + MLP(x), tanh hidden layers, last layer zero at the start.

    Training therefore begins at the plain stationary kernel. A Gaussian prior over the weights
    keeps it near: W ~ N(0, 1 / fan-in), b ~ N(0, 1).
    """

    def __init__(
        self,
        input_dim: int,
        hidden_units: Sequence[int],
        rng: np.random.Generator,
        weight_prior: bool = True,
    ) -> None:
        """
        :param input_dim: D.
        :param hidden_units: width of each hidden layer.
        :param weight_prior: whether weights and biases have the prior.
        :raises ValueError: if a width is not positive.
        """
        super().__init__()
        if not hidden_units or any(units < 1 for units in hidden_units):
            raise ValueError(f"warp must be positive layer widths, got {tuple(hidden_units)!r}.")
        sizes = [input_dim, *hidden_units, input_dim]
        self.W = []
        self.b = []
        for fan_in, fan_out in pairwise(sizes):
            self.W.append(Parameter(rng.normal(size=(fan_in, fan_out)) / np.sqrt(fan_in)))
            self.b.append(Parameter(np.zeros(fan_out, default_float())))
        self.W[-1].assign(np.zeros(self.W[-1].shape))
        if weight_prior:
            for W, b in zip(self.W, self.b, strict=True):
                W.prior, b.prior = centred_normal(W.shape[0] ** -0.5), centred_normal(1.0)

    @check_shapes("X: [batch..., D]", "return: [batch..., D]")
    def __call__(self, X: TensorType) -> tf.Tensor:
        hidden = X
        for W, b in zip(self.W[:-1], self.b[:-1], strict=True):
            hidden = tf.tanh(tf.tensordot(hidden, W, 1) + b)
        return X + tf.tensordot(hidden, self.W[-1], 1) + self.b[-1]
