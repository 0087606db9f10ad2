"""The functional variational baseline of Sun, Zhang, Shi and Grosse (2019)."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from check_shapes import inherit_check_shapes
from gpflow.base import RegressionData
from gpflow.utilities import to_default_float

from .model import InferenceNetworkModel

__all__ = ["FBNN"]


class FBNN(InferenceNetworkModel):
    r"""Maximises :math:`s \sum_B E_q[\log p(y|f)] - KL[q(f_J) ‖ p(f_J)]`, J batch and measured.

    With s = 1, as published, the fixed point is the posterior for a noise variance N / B times too
    large; with s = N / B it is the functional evidence lower bound at J.
    """

    def __init__(self, *args: Any, scale_likelihood: bool = False, **kwargs: Any) -> None:
        """
        :param scale_likelihood: False: s = 1 (published); True: s = N / B.

        All other arguments are those of :class:`~gpflow_gpnet.GPNet`.
        """
        super().__init__(*args, **kwargs)
        self.scale_likelihood = scale_likelihood

    def likelihood_scale(self, X: tf.Tensor) -> tf.Tensor:
        """N / B, or 1 as published."""
        return super().likelihood_scale(X) if self.scale_likelihood else to_default_float(1.0)

    @inherit_check_shapes
    def elbo(self, data: RegressionData) -> tf.Tensor:
        """The objective in nats; summed over the batch where ``scale_likelihood`` is False."""
        X, Y = self.scaled(self.checked(data))
        return self.functional_elbo(X, Y, tf.concat([X, self.measurement_points(X)], axis=0))
