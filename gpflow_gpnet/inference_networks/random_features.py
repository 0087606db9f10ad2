"""Random feature expansion of the prior's kernel, with trainable frequencies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from check_shapes import inherit_check_shapes
from gpflow import Parameter
from gpflow.base import TensorType
from gpflow.config import default_float
from gpflow.kernels import Kernel

from ..feature_maps import feature_map
from ..latent_prior import latent_kernels
from ..scaling import column_moments
from ..spectral import infer_input_dim, is_stationary
from .base import LinearNetwork
from .warp import ResidualWarp
from .weights import weight_gaussian

__all__ = ["RFE"]


class RFE(LinearNetwork):
    r"""f(x) = φ(x)ᵀ w, φ cosines and sines of trainable frequencies (Shi et al. 2019, section 4.2).

    Frequencies are drawn from the kernel's spectral density, so that before training
    :math:`φ(x)^\top φ(x') ≈ k(x, x')` and q ≈ p, with equal variances for a stationary kernel.
    Kernels without a spectral density that have exact finite features (Linear, Polynomial,
    Constant, Coregion), and sums and products with them, use these.

    >>> network = gpn.RFE(kernel, input_dim=1, num_features=5)  # cosines and sines: F = 10
    >>> mean, variance = network(X)
    >>> mean.shape, variance.shape, network(X, full_cov=True)[1].shape
    (TensorShape([20, 1]), TensorShape([20, 1]), TensorShape([1, 20, 20]))
    >>> network.features(X).shape, network.q_mu.shape, network.q_sqrt.shape
    (TensorShape([20, 10]), TensorShape([10, 1]), TensorShape([1, 10, 10]))
    """

    def __init__(
        self,
        kernel: Kernel,
        input_dim: int | None = None,
        num_features: int = 1000,
        covariance: str | int = "full",
        warp: Sequence[int] | None = None,
        *,
        num_latent_gps: int | None = None,
        trainable_frequencies: bool = True,
        share_hyperparameters: bool = False,
        weight_prior: bool = True,
        seed: int = 0,
    ) -> None:
        """
        :param kernel: the prior's kernel; a multi-output kernel gives each latent GP its features.
        :param input_dim: D; needed where the kernel does not tell (one lengthscale for all inputs).
        :param num_features: number of frequencies; a stationary kernel gets F = 2 num_features.
        :param covariance: of the weights: "full" O(L F²), "diag" O(L F), the rank of a low-rank
            plus diagonal precision O(L F rank), or "kronecker" O(F² + L F), a full one that latent
            GPs share up to a scale; time per row. Natural steps take "full".
        :param warp: hidden layer widths of a residual warp of the inputs before the features.
        :param num_latent_gps: L; by default what the kernel says, else 1.
        :param trainable_frequencies: whether frequencies move in training.
        :param share_hyperparameters: use the kernel's own lengthscales and variance Parameters, so
            that features follow the kernel, instead of copies of their values.
        :param weight_prior: whether the warp's weights have a Gaussian prior, without which a warp
            over-fits.
        :param seed: of frequencies and warp.
        :raises ValueError: for a kernel without features, naming it and networks that take it, and
            for arguments out of range.
        """
        super().__init__()
        if num_features < 1:
            raise ValueError(f"num_features must be at least 1, got {num_features}.")
        input_dim = self.input_dim = infer_input_dim(kernel, input_dim)
        rng = np.random.default_rng(seed)
        self.maps = [
            feature_map(
                latent,
                input_dim,
                num_features,
                rng=rng,
                share_hyperparameters=share_hyperparameters,
                trainable_frequencies=trainable_frequencies,
            )
            for latent in latent_kernels(kernel)
        ]
        self.shared_features = len(self.maps) == 1
        if num_latent_gps is None:
            num_latent_gps = getattr(kernel, "num_latent_gps", 1)
        if not self.shared_features and num_latent_gps != len(self.maps):
            raise ValueError(
                f"num_latent_gps must be {len(self.maps)}, the kernel's number of latent GPs, got "
                f"{num_latent_gps}."
            )
        self._centred = is_stationary(kernel)
        self.center = Parameter(np.zeros(input_dim, default_float()), trainable=False)
        self.scale = Parameter(np.ones(input_dim, default_float()), trainable=False)
        if warp is None:
            self.warp = None
        elif self._centred:
            self.warp = ResidualWarp(input_dim, warp, rng, weight_prior)
        else:
            raise ValueError(f"warp needs a stationary kernel, got {type(kernel).__name__}.")
        self.num_features = max(features.num_features for features in self.maps)
        self.weights = weight_gaussian(covariance, self.num_features, num_latent_gps)

    def initialise(self, X: np.ndarray) -> None:
        """Centre (for stationary kernels) and, for the warp, scale the inputs by X [N, D]."""
        if self._centred:
            center, scale = column_moments(X)
            self.center.assign(center)
            self.scale.assign(scale)

    @inherit_check_shapes
    def features(self, X: TensorType) -> tf.Tensor:
        X = tf.convert_to_tensor(X, dtype=self.center.dtype) - self.center
        if self.warp is not None:
            X = self.warp(X / self.scale) * self.scale
        features = [self._padded(feature_map(X)) for feature_map in self.maps]
        return features[0] if self.shared_features else tf.stack(features, axis=-3)

    def _padded(self, features: tf.Tensor) -> tf.Tensor:
        """Zeros up to the number of features of the largest latent GP."""
        missing = self.num_features - features.shape[-1]
        if not missing:
            return features
        return tf.pad(features, [[0, 0]] * (len(features.shape) - 1) + [[0, missing]])
