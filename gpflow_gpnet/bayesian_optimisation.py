"""GPNet as a model of trieste, for Bayesian optimisation: ``pip install gpflow_gpnet[trieste]``.

For example ::

    dataset = observer(search_space.sample_sobol(10))
    model = GPNetModel(build_gpnet(dataset, search_space))
    result = trieste.bayesian_optimizer.BayesianOptimizer(observer, search_space).optimize(
        20, dataset, model
    )

The package does not import this module by itself.

Random features have fewer degrees of freedom than the prior: where noise is far below the signal
(standard deviations 1 : 300, say) and data are many, their posterior is over-confident between the
data (Wilson et al. 2020 call it variance starvation). The builder's default noise, 1 : 10, is not
affected much; for noise-free functions use trieste's own exact GP while data are few.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow import set_trainable
from gpflow.base import AnyNDArray, TensorType
from gpflow.config import default_float
from gpflow.kernels import Matern52
from gpflow.likelihoods import Gaussian
from gpflow.mean_functions import Constant

from .fit import fit
from .gpnet import GPNet
from .history import History
from .hyperparameters import fit_hyperparameters
from .inference_networks import RFE, LinearNetwork
from .measurement import BatchInputs, Mixture, Uniform
from .mirror_descent import FunctionalMirrorDescent
from .step_sizes import LinearDecay

try:
    from trieste.data import Dataset
    from trieste.models.gpflow.interface import (
        EncodedSupportsCovarianceBetweenPoints,
        GPflowPredictor,
    )
    from trieste.models.interfaces import (
        HasTrajectorySampler,
        TrajectoryFunction,
        TrajectoryFunctionClass,
        TrajectorySampler,
    )
    from trieste.space import EncoderFunction, SearchSpace
except ImportError as error:
    raise ImportError(
        "gpflow_gpnet.bayesian_optimisation needs trieste: pip install gpflow_gpnet[trieste]"
    ) from error

__all__ = ["FunctionTrajectory", "FunctionTrajectorySampler", "GPNetModel", "build_gpnet"]

LENGTHSCALE = 0.2
"""Of the side of the search space, times the root of its dimension, as in trieste's builders."""

SIGNAL_TO_NOISE = 10.0
"""Standard deviation of the observations over that of their noise, where nobody says."""


class GPNetModel(GPflowPredictor, EncodedSupportsCovarianceBetweenPoints, HasTrajectorySampler):
    """A :class:`GPNet` that trieste can train and ask.

    It gives all that trieste's wrapper of SVGP gives: marginal, joint and noisy predictions,
    samples, covariances between points, and trajectories, which are exact draws of whole functions.

    >>> import trieste
    >>> from gpflow_gpnet.bayesian_optimisation import GPNetModel, build_gpnet
    >>> data = trieste.data.Dataset(tf.constant(X), tf.constant(Y))
    >>> model = GPNetModel(build_gpnet(data, trieste.space.Box([-1.0], [1.0]), num_features=5))
    >>> mean, variance = model.predict(tf.constant(X))
    >>> mean.shape, variance.shape
    (TensorShape([20, 1]), TensorShape([20, 1]))
    """

    def __init__(
        self,
        model: GPNet,
        *,
        num_steps: int = 50,
        batch_size: int = 500,
        optimizer: Callable[[], FunctionalMirrorDescent] | None = None,
        hyperparameter_points: int = 1000,
        seed: int = 0,
        encoder: EncoderFunction | None = None,
    ) -> None:
        """
        :param model: its ``num_data`` follows the data that :meth:`update` sees.
        :param num_steps: steps of each :meth:`optimize`.
        :param batch_size: B; fewer data are one batch.
        :param optimizer: makes the optimiser, once; each :meth:`optimize` starts its schedules
            anew, because the data have changed. By default one whose learning rate falls from 0.01
            to 0 over ``num_steps``.
        :param hyperparameter_points: for a Gaussian likelihood each :meth:`optimize` begins with
            :func:`gpflow_gpnet.fit_hyperparameters` on at most so many data, 0 for none: where
            noise is small, gradient steps at the present weights hardly move hyperparameters.
        :param seed: of batches and measurement points.
        :param encoder: of query points, as for trieste's own models.
        """
        super().__init__(encoder=encoder)
        if not isinstance(model, GPNet):
            raise TypeError(f"model must be a GPNet, got {type(model).__name__}.")
        self._model = model
        self._num_steps = num_steps
        self._batch_size = batch_size
        self._hyperparameter_points = hyperparameter_points
        self._seed = seed
        self._make_optimizer = optimizer or (
            lambda: FunctionalMirrorDescent(learning_rate=LinearDecay(0.01, num_steps), seed=seed)
        )
        self._optimizer: Any = None  # nothing of trieste's; made by the first optimize
        self._ensure_variable_model_data()

    def __repr__(self) -> str:
        return f"GPNetModel({self._model!r})"

    def __getstate__(self) -> dict[str, Any]:
        """All but the optimiser, whose compiled steps belong to this model and not to a copy."""
        return self.__dict__ | {"_optimizer": None}

    @property
    def model(self) -> GPNet:
        """The GPNet."""
        return self._model

    def _ensure_variable_model_data(self) -> None:
        # In a variable, so that functions compiled for fewer data see the new number.
        if not isinstance(self._model.num_data, tf.Variable):
            number = 0 if self._model.num_data is None else int(self._model.num_data)
            self._model.num_data = tf.Variable(number, trainable=False, name="num_data")

    # ------------------------------------------------------------------ training

    def update_encoded(self, dataset: Dataset) -> None:
        """Take note of how many data there are; the network learns of them in :meth:`optimize`.

        :raises ValueError: for data that the model cannot be trained on.
        """
        self._model.checked(dataset.astuple())
        number: Any = self._model.num_data
        number.assign(len(dataset))

    def optimize_encoded(self, dataset: Dataset) -> History:
        """Train by :func:`gpflow_gpnet.fit`, from the model's present state."""
        self.update_encoded(dataset)
        model = self._model
        if self._hyperparameter_points and isinstance(model.likelihood, Gaussian):
            fit_hyperparameters(
                model.kernel,
                model.likelihood,
                model.scaled(model.checked(dataset.astuple())),
                mean_function=model.mean_function,
                num_points=self._hyperparameter_points,
                seed=self._seed,
            )
        if self._optimizer is None:
            self._optimizer = self._make_optimizer()
        self._optimizer.t.assign(0)
        return fit(
            model,
            dataset.astuple(),
            optimizer=self._optimizer,
            num_steps=self._num_steps,
            batch_size=self._batch_size,
            seed=self._seed,
            progress=False,
        )

    # ------------------------------------------------------------------ samples and covariances

    def sample_encoded(self, query_points: TensorType, num_samples: int) -> tf.Tensor:
        """Joint samples [..., S, N, L]; for networks linear in their weights whole functions,
        at a cost linear in N."""
        if not _has_functions(self._model):
            return self._model.predict_f_samples(query_points, num_samples)
        weights = _draw_weights(self._model, num_samples)
        values = tf.einsum("...lnf,sfl->...snl", _features(self._model, query_points), weights)
        return _outputs(self._model, values, query_points[..., None, :, :])

    def covariance_between_points_encoded(
        self, query_points_1: TensorType, query_points_2: TensorType
    ) -> tf.Tensor:
        """Posterior covariance [..., L, A, B] of points [..., A, D] with points [B, D]."""
        first = tf.convert_to_tensor(query_points_1, default_float())
        second = tf.convert_to_tensor(query_points_2, default_float())
        number = tf.shape(first)[-2]
        batch = tf.concat([tf.shape(first)[:-2], tf.shape(second)], axis=0)
        points = tf.concat([first, tf.broadcast_to(second, batch)], axis=-2)
        _, cov = self._model.predict_f(points, full_cov=True)
        return cov[..., :number, number:]

    def trajectory_sampler(self) -> FunctionTrajectorySampler:
        """Whole functions from the posterior, for Thompson sampling.

        :raises NotImplementedError: for networks that have none.
        """
        return FunctionTrajectorySampler(self)


class FunctionTrajectorySampler(TrajectorySampler[GPNetModel]):
    """Exact draws of whole functions from a :class:`GPNetModel`.

    >>> import trieste
    >>> from gpflow_gpnet.bayesian_optimisation import GPNetModel
    >>> sampler = GPNetModel(model).trajectory_sampler()
    >>> trajectory = sampler.get_trajectory()
    >>> trajectory(X[:, None]).shape  # [N, B, D] to [N, B, L], here of one function
    TensorShape([20, 1, 1])
    """

    def __init__(self, model: GPNetModel) -> None:
        """
        :raises NotImplementedError: unless the network is linear in its weights and its features
            carry all of the covariance.
        """
        super().__init__(model)
        if not _has_functions(model.model):
            raise NotImplementedError(
                f"{type(model.model.inference_network).__name__} has no trajectories: they need a "
                "network linear in its weights whose features carry all of the covariance."
            )

    def get_trajectory(self) -> FunctionTrajectory:
        """A new trajectory."""
        return FunctionTrajectory(self._model)

    def resample_trajectory(self, trajectory: TrajectoryFunction) -> TrajectoryFunction:
        """Other functions in the same trajectory, in place."""
        _checked_trajectory(trajectory).resample()
        return trajectory

    def update_trajectory(self, trajectory: TrajectoryFunction) -> TrajectoryFunction:
        """The same trajectory after training: functions from the new posterior, in place."""
        _checked_trajectory(trajectory).resample()
        return trajectory


class FunctionTrajectory(TrajectoryFunctionClass):
    """B functions, drawn when first called: points [N, B, D] to values [N, B, L].

    Column b of the points goes through function b.

    >>> from gpflow_gpnet.bayesian_optimisation import FunctionTrajectory, GPNetModel
    >>> trajectory = FunctionTrajectory(GPNetModel(model))
    >>> trajectory(np.tile(X[:, None], [1, 3, 1])).shape  # three functions
    TensorShape([20, 3, 1])
    """

    def __init__(self, model: GPNetModel) -> None:
        self._model = model.model
        self._encoder = model.encoder
        shape = [None, *self._model.inference_network.q_mu.shape]
        self._weights = tf.Variable(  # [B, F, L], as yet of no function
            tf.zeros([0, *shape[1:]], default_float()), shape=shape, trainable=False
        )

    def __call__(self, x: TensorType) -> tf.Tensor:
        """
        :param x: [N, B, D], with the B of the first call.
        """
        x = x if self._encoder is None else self._encoder(x)
        x = tf.convert_to_tensor(x, default_float())
        number = tf.shape(x)[-2]
        new = tf.shape(self._weights)[0] == 0
        weights = tf.stop_gradient(tf.cond(new, lambda: self._draw(number), self._weights.value))
        tf.debugging.assert_equal(
            tf.shape(weights)[0],
            number,
            "A trajectory keeps the number of functions B of its first call, x [N, B, D]: get "
            "another from the sampler.",
        )
        values = tf.einsum("nlbf,bfl->nbl", _features(self._model, x), weights)
        return _outputs(self._model, values, x)

    def resample(self) -> None:
        """Draw as many others from the posterior as it is now; compiled code sees them."""
        self._draw(tf.shape(self._weights)[0])

    def _draw(self, number: tf.Tensor) -> tf.Tensor:
        weights = _draw_weights(self._model, number)
        self._weights.assign(weights)
        return weights


def _checked_trajectory(trajectory: TrajectoryFunction) -> FunctionTrajectory:
    if not isinstance(trajectory, FunctionTrajectory):
        raise ValueError(
            f"trajectory must come from this sampler, got {type(trajectory).__name__}."
        )
    return trajectory


def _has_functions(model: GPNet) -> bool:
    network = model.inference_network
    return isinstance(network, LinearNetwork) and (
        type(network).residual_covariance is LinearNetwork.residual_covariance
    )


def _draw_weights(model: GPNet, number: TensorType) -> tf.Tensor:
    """Weights [S, F, L] of S functions; a new draw each time, also in compiled code."""
    seed = tf.random.uniform([2], maxval=2**31 - 1, dtype=tf.int32)
    return model.inference_network.weights.sample(number, seed)


def _features(model: GPNet, X: TensorType) -> tf.Tensor:
    """Features [..., L, N, F] of X [..., N, D]."""
    features = model.inference_network.latent_features(model.scaled_inputs(X))
    shape = tf.concat(
        [
            tf.shape(features)[:-3],
            [model.inference_network.num_latent_gps],
            tf.shape(features)[-2:],
        ],
        axis=0,
    )
    return tf.broadcast_to(features, shape)


def _outputs(model: GPNet, values: tf.Tensor, X: TensorType) -> tf.Tensor:
    """f [..., P] from what the weights give of the latent GPs [..., L]."""
    X = model.scaled_inputs(X)
    offset = model.inference_network.offset(X)
    if offset is not None:
        values += offset
    if model.mixing is not None:
        values = tf.tensordot(values, model.mixing, [[-1], [-1]])
    values += model.mean_function(X)
    return values if model.scaling is None else model.scaling.original_mean(values)


def build_gpnet(
    data: Dataset,
    search_space: SearchSpace,
    *,
    kernel_priors: bool = True,
    likelihood_variance: float | None = None,
    trainable_likelihood: bool = False,
    num_features: int = 200,
    seed: int = 0,
) -> GPNet:
    """A GPNet with the starting values and priors of trieste's own builders (``build_svgp``).

    The prior is a Matérn-5/2 kernel with lengthscales from the search space and the observations'
    variance, about their mean. Random features follow the kernel's hyperparameters; prior and
    features are compared at points of the search space and at the data.

    >>> import trieste
    >>> from gpflow_gpnet.bayesian_optimisation import build_gpnet
    >>> data = trieste.data.Dataset(tf.constant(X), tf.constant(Y))
    >>> model = build_gpnet(data, trieste.space.Box([-1.0], [1.0]), num_features=5)
    >>> model.kernel.lengthscales.shape, model.inference_network.q_mu.shape
    (TensorShape([1]), TensorShape([10, 1]))

    :param data: initial observations, [N, 1].
    :param search_space: with bounds.
    :param kernel_priors: put log-normal priors about their starting values on lengthscales and
        variance, which keeps few data from misleading them.
    :param likelihood_variance: of the noise; by default a hundredth of the observations' variance.
    :param trainable_likelihood: whether training changes it.
    :param num_features: frequencies of the :class:`RFE`.
    :param seed: of the frequencies.
    :raises ValueError: for a search space without bounds, or observations that do not vary.
    """
    if not search_space.has_bounds:
        raise ValueError(f"search_space must have bounds, got {search_space!r}: encode it first.")
    low: AnyNDArray = np.asarray(search_space.lower, default_float())
    high: AnyNDArray = np.asarray(search_space.upper, default_float())
    variance = float(np.var(data.observations))
    if not variance > 0.0:
        raise ValueError(
            f"the observations' variance is {variance}: the kernel's needs observations that vary."
        )
    dim = int(search_space.dimension)
    width = high - low
    kernel = Matern52(variance, np.where(width > 0.0, LENGTHSCALE * np.sqrt(dim) * width, 1.0))
    if kernel_priors:
        scale = tf.constant(1.0, default_float())
        for parameter in (kernel.lengthscales, kernel.variance):
            parameter.prior = tfp.distributions.LogNormal(np.log(parameter), scale)
    noise = variance / SIGNAL_TO_NOISE**2 if likelihood_variance is None else likelihood_variance
    likelihood = Gaussian(noise, variance_lower_bound=min(1e-6, 0.1 * noise))
    set_trainable(likelihood, trainable_likelihood)
    return GPNet(
        kernel,
        likelihood,
        RFE(
            kernel,
            dim,
            num_features,
            share_hyperparameters=True,
            trainable_frequencies=False,
            seed=seed,
        ),
        mean_function=Constant(float(np.mean(data.observations))),
        num_data=len(data),
        measurement=Mixture(Uniform(low, np.where(width > 0.0, high, low + 1.0)), BatchInputs()),
    )
