"""The object that ``model.posterior()`` returns: GPflow's posterior interface."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from check_shapes import inherit_check_shapes
from gpflow.base import MeanAndVariance, TensorType
from gpflow.posteriors import AbstractPosterior, PrecomputeCacheType, PrecomputedValue

__all__ = ["NetworkPosterior"]


class NetworkPosterior(AbstractPosterior):
    """The posterior of a model with an inference network.

    Its cache is empty: predictions of a network factorise nothing that would be worth keeping, so
    they never are stale, whatever has been trained since.

    >>> posterior = model.posterior()
    >>> mean, cov = posterior.predict_f(X, full_cov=True)
    >>> mean.shape, cov.shape
    (TensorShape([20, 1]), TensorShape([1, 20, 20]))
    """

    def __init__(self, model: Any, precompute_cache: PrecomputeCacheType | str | None) -> None:
        """
        :param model: an :class:`~gpflow_gpnet.model.InferenceNetworkModel`.
        :param precompute_cache: as in GPflow; with "nocache" or None, :meth:`predict_f` raises
            until ``update_cache`` is called.
        :raises ValueError: for another kind of cache.
        """
        super().__init__(model.kernel, tf.zeros([0, 0]))  # the model adds its mean function
        self._model = model
        self.update_cache(PrecomputeCacheType(precompute_cache or "nocache"))

    def _precompute(self) -> tuple[PrecomputedValue, ...]:
        return ()

    @inherit_check_shapes
    def _conditional_fused(
        self, Xnew: TensorType, full_cov: bool = False, full_output_cov: bool = False
    ) -> MeanAndVariance:
        return self._model.predict_f(Xnew, full_cov, full_output_cov)

    @inherit_check_shapes
    def _conditional_with_precompute(
        self,
        cache: tuple[tf.Tensor, ...],
        Xnew: TensorType,
        full_cov: bool = False,
        full_output_cov: bool = False,
    ) -> MeanAndVariance:
        return self._conditional_fused(Xnew, full_cov, full_output_cov)
