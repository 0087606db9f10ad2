"""What models with an inference network share: prior, predictions, and checked data at the door."""

from __future__ import annotations

import abc
import os
from collections.abc import Callable, Iterator
from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes, inherit_check_shapes
from gpflow.base import InputData, MeanAndVariance, Parameter, RegressionData, TensorType
from gpflow.conditionals.util import mix_latent_gp
from gpflow.config import default_float
from gpflow.inducing_variables import (
    FallbackSharedIndependentInducingVariables,
    InducingPoints,
    SharedIndependentInducingVariables,
)
from gpflow.kernels import Kernel, LinearCoregionalization, MultioutputKernel
from gpflow.likelihoods import Likelihood, SwitchedLikelihood
from gpflow.mean_functions import MeanFunction
from gpflow.models import ExternalDataTrainingLossMixin, GPModel
from gpflow.posteriors import PrecomputeCacheType
from gpflow.utilities import to_default_float
from gpflow.utilities.model_utils import assert_params_false

from . import gaussians, random_numbers
from .checks import (
    check_batch,
    check_columns,
    check_far_from_origin,
    check_finite,
    check_module,
    check_not_in_scipy,
    check_shape,
    check_targets,
    check_width,
    num_targets,
    to_tensors,
)
from .inference_networks import RFE, InducingFeatures, InferenceNetwork, LinearNetwork
from .latent_prior import latent_covariance
from .likelihoods import RowDataLikelihood, base_likelihood, observed, row_weights
from .measurement import (
    BatchInputs,
    Empirical,
    KernelSmoothed,
    MeasurementDistribution,
    Mixture,
    as_measurement,
)
from .observations import predict_mean_and_var, sample_observations
from .posterior import NetworkPosterior
from .predictive_density import predictive_log_density
from .quantiles import predictive_quantiles
from .replicas import WHOLE, Share
from .saving import save
from .scaling import Scaling
from .spectral import NoSpectralMeasureError

__all__ = ["InferenceNetworkModel"]

_GIB = 2**30

_ELSEWHERE = {
    "q_mu": "that of weights is inference_network.q_mu, where the network is linear in them",
    "q_sqrt": "that of weights is inference_network.q_sqrt, where the network is linear in them",
    "q_diag": 'the inference network has the argument covariance, "diag" or "full"',
    "whiten": "where the inference network is linear in its weights, their prior is N(0, I) always",
    "inducing_variable": "points where functions are compared come from measurement, and inducing "
    "inputs are inference_network.Z of InducingFeatures",
    "prior_kl": "that of weights is inference_network.prior_kl(), where the network is linear in "
    "them; elbo(data) has the divergence in it",
}
"""Where a GPNet has what SVGP has on the model."""


class InferenceNetworkModel(GPModel, ExternalDataTrainingLossMixin, abc.ABC):
    """A GP prior, a likelihood and the inference network that represents the posterior.

    Notation: N data (``num_data``), B rows of a batch, M measurement points, D inputs, P outputs,
    L latent GPs.

    >>> model = gpn.GPNet(kernel, likelihood, X, num_data=20)  # of an array, as SVGP
    >>> type(model.inference_network).__name__, model.prior_covariance(X).shape
    ('RFE', TensorShape([1, 20, 20]))
    """

    prediction_rows: int = 4096
    """Rows that eager predictions of marginals treat at a time, so that memory stays bounded."""

    max_covariance_gib: float = 16.0
    """The largest full covariance that predictions make, GiB; more is refused."""

    def __init__(
        self,
        kernel: Kernel,
        likelihood: Likelihood,
        inference_network: InferenceNetwork | TensorType | None = None,
        *,
        mean_function: MeanFunction | None = None,
        num_latent_gps: int = 1,
        num_data: TensorType | None = None,
        measurement: Any = None,
        num_measurement_points: int | None = None,
        scaling: Scaling | None = None,
        inducing_variable: Any = None,
    ) -> None:
        """
        :param kernel: prior covariance, any GPflow kernel.
        :param likelihood: any GPflow likelihood.
        :param inference_network: represents q(f); or an array [M, D], used as SVGP's inducing
            inputs are (or GPflow's InducingPoints, shared by the latent GPs): rows become
            measurement points, and the network is an :class:`RFE` of the
            kernel (:class:`InducingFeatures` where the kernel has no finite features).
        :param mean_function: prior mean, zero by default.
        :param num_latent_gps: L.
        :param num_data: N; scales the batch's log-likelihood by N / B. None: no scaling.
        :param measurement: c(x), a distribution of :mod:`gpflow_gpnet.measurement`, an array of
            points to draw from, or any callable n -> [n, D]. None: the batch's own inputs and
            kernel-smoothed copies of them, half each.
        :param num_measurement_points: M; by default as many as the batch has rows. For the prior
            correction of a linear network, by default no more than 200 or half its features.
        :param scaling: of inputs and targets inside the model: kernel, likelihood, mean function
            and network are then about scaled data, all else about the data as they are.
        :param inducing_variable: SVGP's name for inference_network, one of which is needed.
        :raises ValueError: naming the argument that does not fit.
        :raises TypeError: for a network that TensorFlow cannot track, or of the wrong type, and for
            none or two.
        """
        if default_float() == np.float16:
            raise ValueError(
                "GPflow's default float is float16, in which covariances are not positive "
                "definite: set float32 or float64 with gpflow.config.set_default_float."
            )
        if (inference_network is None) == (inducing_variable is None):
            raise TypeError(
                f"{type(self).__name__} takes inference_network or, as SVGP, inducing_variable: "
                f"got {'neither' if inference_network is None else 'both'}."
            )
        super().__init__(kernel, likelihood, mean_function, num_latent_gps)
        given = inducing_variable if inference_network is None else inference_network
        inference_network = _inducing_inputs(given)
        if not isinstance(inference_network, tf.Module) and not callable(inference_network):
            points = check_shape(inference_network, "inference_network")
            check_finite("inference_network", points)
            measurement = Empirical(points) if measurement is None else measurement
            if scaling is not None:
                points = scaling.inputs(points).numpy()
            inference_network = _network_from_points(kernel, points, num_latent_gps)
        check_module(inference_network)
        self.inference_network = inference_network
        self.num_data = num_data
        self.scaling = scaling
        self.measurement: MeasurementDistribution | None = measurement
        self.num_measurement_points = num_measurement_points
        # In a namespace, so that the model's parameters do not include the optimiser's state.
        self._training = SimpleNamespace(optimizer=None, points=None)
        self._check_latents()

    def _check_latents(self) -> None:
        expected = {
            f"kernel {type(self.kernel).__name__}": self.kernel.num_latent_gps
            if isinstance(self.kernel, MultioutputKernel)
            else None,
            f"inference_network {type(self.inference_network).__name__}": getattr(
                self.inference_network, "num_latent_gps", None
            ),
            f"likelihood {type(self.likelihood).__name__}": None
            if isinstance(self.kernel, LinearCoregionalization)
            or isinstance(self.likelihood, SwitchedLikelihood)
            else self.likelihood.latent_dim,
        }
        for owner, number in expected.items():
            if number is not None and number != self.num_latent_gps:
                raise ValueError(
                    f"num_latent_gps is {self.num_latent_gps}, but the {owner} has {number}: pass "
                    f"num_latent_gps={number} to the model (and to its inference network)."
                )

    @property
    def optimizer(self) -> Any:
        """The :class:`~gpflow_gpnet.FunctionalMirrorDescent` last bound to this model, or None."""
        return self._training.optimizer

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model and its :attr:`optimizer` to a file for :func:`gpflow_gpnet.load`."""
        save(self, path)

    def __setattr__(self, name: str, value: Any) -> None:
        """What is assigned is checked as what is given at first; a new kernel is also that of
        inducing features which were of the old one itself."""
        if name == "measurement":
            value = as_measurement(value)
        elif name == "num_data":
            value = _checked_num_data(value)
        elif name == "num_measurement_points" and value is not None and value < 1:
            raise ValueError(f"num_measurement_points must be at least 1, got {value}.")
        elif name in ("kernel", "likelihood", "scaling"):
            parts = self.__dict__ | {name: value}
            if parts.get("scaling") is not None:
                parts["scaling"].check_likelihood(parts["likelihood"])
                parts["scaling"].check_kernel(parts["kernel"])
        network = self.__dict__.get("inference_network")
        if name == "kernel" and isinstance(network, tf.Module):
            for part in (network, *network.submodules):
                if isinstance(part, InducingFeatures) and part.kernel is self.kernel:
                    part.kernel = value
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        """Called for what is missing only: say where SVGP's attributes are."""
        if name in _ELSEWHERE:
            raise AttributeError(
                f"{type(self).__name__} has no attribute {name!r}: {_ELSEWHERE[name]}."
            )
        return object.__getattribute__(self, name)  # raises what was raised before, its text kept

    # ------------------------------------------------------------------ prior and moments

    @property
    def mixing(self) -> tf.Tensor | None:
        """W [P, L] of a linear model of coregionalisation, None where f are the latent GPs."""
        return self.kernel.W if isinstance(self.kernel, LinearCoregionalization) else None

    @check_shapes("X: [batch..., N, D]", "return: [batch..., L, N, N]")
    def prior_covariance(self, X: TensorType) -> tf.Tensor:
        """Prior covariance of each latent GP at X."""
        shared = latent_covariance(self.kernel, X)
        shape = tf.concat([tf.shape(shared)[:-3], [self.num_latent_gps], tf.shape(shared)[-2:]], 0)
        return tf.broadcast_to(shared, shape)

    @check_shapes(
        "X: [batch..., N, D]",
        "mean: [batch..., N, L]",
        "variance: [batch..., N, L]",
        "return[0]: [batch..., N, P]",
        "return[1]: [batch..., N, P]",
    )
    def outputs(self, X: TensorType, mean: tf.Tensor, variance: tf.Tensor) -> MeanAndVariance:
        """Marginals of f = W g + m(X) from those of the latent GPs g."""
        if self.mixing is not None:
            mean, variance = mix_latent_gp(self.mixing, mean, variance, False, False)
        return mean + self.mean_function(X), variance

    @check_shapes("X: [B, D]", "mean: [B, L]", "variance: [B, L]", "Y: [B, P]", "return: []")
    def expected_log_likelihood(
        self, X: TensorType, mean: tf.Tensor, variance: tf.Tensor, Y: TensorType
    ) -> tf.Tensor:
        """Σ over the batch of E_q[log p(y | f)], nats, from the latent GPs' marginals.

        :param X: scaled, as all else here; the density is that of the targets as they are.
        """
        Fmu, Fvar = self.outputs(X, mean, variance)
        fit = tf.reduce_sum(self.likelihood.variational_expectations(X, Fmu, Fvar, Y))
        if self.scaling is None or not self.scaling.scales_targets:
            return fit
        times = observed(self.likelihood, Y)[1] * row_weights(self.likelihood, Y)
        return fit + tf.reduce_sum(self.scaling.log_jacobian(times))

    def likelihood_scale(self, X: TensorType) -> tf.Tensor:
        """N / B, or 1 where ``num_data`` is None."""
        if self.num_data is None:
            return to_default_float(1.0)
        return to_default_float(self.num_data) / to_default_float(tf.shape(X)[0])

    def initialise(self, X: TensorType) -> None:
        """Let a network that is still at the prior see the inputs [N, D], or a batch, once."""
        network = self.inference_network
        if hasattr(network, "initialise") and not getattr(network, "is_trained", False):
            network.initialise(np.asarray(self.scaled_inputs(X)))

    def redraw(self, number: tf.Tensor) -> None:
        """New random functions for networks whose moments are of samples: before each step.

        :param number: an integer [], of the step; it and a network's seed give the functions.
        """
        for part in (self.inference_network, *getattr(self.inference_network, "submodules", ())):
            if isinstance(part, InferenceNetwork):
                part.redraw(tf.cast(number, tf.int32))

    def scaled_inputs(self, X: TensorType) -> tf.Tensor:
        """Inputs [..., D] in the units of the kernel: the data's own, or :attr:`scaling`'s.

        :raises ValueError: for another D than the network's.
        """
        X = self._as_inputs(X)
        check_width(self, X)
        return X if self.scaling is None else self.scaling.inputs(X)

    def scaled(self, batch: RegressionData) -> RegressionData:
        """A batch of tensors in the units of kernel and likelihood.

        :raises ValueError: for another D than the network's.
        """
        X, Y = batch
        X = self._of_known_width(X)
        check_width(self, X)
        if self.scaling is None:
            return X, Y
        return self.scaling.inputs(X), self.scaling.targets(Y, self.likelihood)

    def checked(self, data: Any) -> RegressionData:
        """Data as tensors; values are checked too where they are known (eagerly).

        :raises ValueError: for shapes, values or targets that the model cannot be trained on.
        """
        batch = to_tensors(data, self.likelihood)
        if tf.executing_eagerly():
            check_batch(self, batch)
        return batch

    # ------------------------------------------------------------------ measurement points

    @check_shapes("X: [B, D]", "return: [M, D]")
    def measurement_points(
        self, X: TensorType, seed: tf.Tensor | None = None, limit: int | None = None
    ) -> tf.Tensor:
        """M points from c(x).

        :param X: inputs of the batch, scaled.
        :param seed: stateless seed [2]; by default a function of the batch's bits, so that a loss
            of the same batch is always the same number, and another batch measures elsewhere.
        :param limit: at most so many, where ``num_measurement_points`` does not say.
        """
        X = tf.convert_to_tensor(X, default_float())
        if seed is None:
            seed = tf.stack([tf.reduce_sum(tf.bitcast(X, tf.int32)), tf.shape(X)[0]])
        number = self.num_measurement_points
        if number is None:
            number = X.shape[0] if X.shape[0] is not None else tf.shape(X)[0]
            if limit is not None:
                number = min(number, limit) if X.shape[0] is not None else tf.minimum(number, limit)
        measurement = self.measurement
        if measurement is None:
            measurement = Mixture(BatchInputs(), KernelSmoothed(None, self.kernel))
        elif self.scaling is not None:
            measurement = measurement.mapped(self.scaling.inputs, self.scaling.original_inputs)
        return tf.stop_gradient(measurement.sample(number, seed, X))

    @check_shapes("X: [B, D]", "return: [M, D]")
    def objective_points(self, X: TensorType) -> tf.Tensor:
        """The measurement points of the objective at a batch's inputs, scaled.

        Those of a closure of one batch stay where they were when it was made: smoothed ones follow
        the kernel's lengthscales, and gradients do not know of it.
        """
        fixed = self._training.points
        return self._objective_points(X) if fixed is None else fixed

    def _objective_points(self, X: TensorType) -> tf.Tensor:
        return self.measurement_points(X)

    # ------------------------------------------------------------------ objective

    @check_shapes("return: []")  # of data, to_tensors says more
    def elbo(self, data: RegressionData) -> tf.Tensor:
        """The objective in nats, summed over ``num_data``."""
        return self.elbo_part(WHOLE, *self.scaled(self.checked(data)))

    @abc.abstractmethod
    @check_shapes("X: [B, D]", "Y: [B, P]", "return: []")
    def elbo_part(self, share: Share, X: TensorType, Y: TensorType) -> tf.Tensor:
        """A replica's part of the objective, nats: parts of all replicas add up to it.

        :param X: inputs of the whole batch, scaled; Y: targets.
        """

    @check_shapes("X: [B, D]", "Y: [B, P]", "points: [J, D]", "return: []")
    def functional_elbo(
        self, X: TensorType, Y: TensorType, points: TensorType, share: Share = WHOLE
    ) -> tf.Tensor:
        """The bound with the divergence taken at J points, of which the first B are the batch's.

        :param share: a replica's, whose part of the bound it then is.
        """
        network = self.inference_network
        if share.number > 1 and isinstance(network, InferenceNetwork):
            mean, cov = network.shared_moments(points, share)
        else:
            mean, cov = network(points, full_cov=True)
        batch = tf.shape(X)[0]
        variance = tf.linalg.matrix_transpose(tf.linalg.diag_part(cov))
        fit = self.expected_log_likelihood(X, mean[:batch], variance[:batch], Y)
        bound = self.likelihood_scale(X) * fit - self.functional_kl(points, mean, cov)
        return bound / share.number

    @check_shapes("points: [J, D]", "mean: [J, L]", "cov: [L, J, J]", "return: []")
    def functional_kl(self, points: TensorType, mean: tf.Tensor, cov: tf.Tensor) -> tf.Tensor:
        """KL[q(f_J) ‖ p(f_J)] in nats, summed over latent GPs; both with a nugget."""
        prior = self.prior_covariance(points)
        jitter = gaussians.nugget(prior)
        mean = tf.transpose(mean)
        return tf.reduce_sum(
            gaussians.kl_divergence(
                mean,
                gaussians.add_diagonal(cov, jitter),
                tf.zeros_like(mean),
                gaussians.add_diagonal(prior, jitter),
            )
        )

    @check_shapes("return: []")
    def log_prior_density(self) -> tf.Tensor:
        """Of the trainable parameters, in nats; they need not be of one float type."""
        densities = [parameter.log_prior_density() for parameter in self.trainable_parameters]
        return sum((tf.cast(value, default_float()) for value in densities), to_default_float(0.0))

    # Data are an argument here and absent in the base class; GPflow's models do the same.
    @check_shapes("return: []")  # of data, to_tensors says more
    def maximum_log_likelihood_objective(self, data: RegressionData) -> tf.Tensor:
        """:meth:`elbo`."""
        return self.elbo(data)

    def training_loss(self, data: RegressionData) -> tf.Tensor:
        """-elbo(data) - log prior density of the parameters, nats.

        :param data: X [B, D] and Y [B, P].
        :raises ValueError: for shapes, values or targets that the model cannot be trained on.
        """
        return self._training_loss(self.checked(data))

    def training_loss_part(self, share: Share, data: RegressionData) -> tf.Tensor:
        """A replica's part of :meth:`training_loss`, nats.

        :param data: the whole batch.
        """
        objective = self.elbo_part(share, *self.scaled(self.checked(data)))
        return -objective - self.log_prior_density() / share.number

    def training_loss_closure(self, data: Any, *, compile: bool = True) -> Callable[[], tf.Tensor]:
        """A closure of the training loss for GPflow's and Keras's optimisers.

        Of one batch it is one function of the parameters, as line searches need: the measurement
        points are those of the kernel as it is now.

        :param data: one batch (X, Y), or an iterator that gives a new one each call.
        :raises ValueError: for data that the model cannot be trained on, or minibatches without
            ``num_data``. The closure of minibatches raises it inside ``gpflow.optimizers.Scipy``.
        """
        if hasattr(data, "__next__"):
            if self.num_data is None:
                raise ValueError(
                    "num_data is None: minibatches need the number of data N, pass num_data=N."
                )
            if hasattr(data, "element_spec"):  # a dataset's iterator
                return _minibatch_closure(super().training_loss_closure(data, compile=compile))
            loss = self._training_loss
            if compile:
                loss = tf.function(loss, autograph=False, reduce_retracing=True)
            return _minibatch_closure(lambda: loss(self.checked(next(data))))
        if isinstance(data, tf.data.Dataset):
            return self.training_loss_closure(iter(data), compile=compile)
        batch = to_tensors(data, self.likelihood)
        check_batch(self, batch)
        inputs = self.scaled_inputs(batch[0])
        check_far_from_origin(self, np.asarray(inputs))
        points = self.objective_points(inputs)

        def loss_at_points() -> tf.Tensor:
            self._training.points = points
            try:
                return self._training_loss(batch)
            finally:
                self._training.points = None

        return tf.function(loss_at_points, autograph=False) if compile else loss_at_points

    # ------------------------------------------------------------------ predictions

    @property
    def _float_type(self) -> tf.DType:
        """That of the parameters, which need not be the default's; the widest of frozen ones."""

        def leaves(kind: Callable[[Any], bool]) -> Iterator[Any]:
            return chain(
                self.kernel._flatten(predicate=kind),
                self.inference_network._flatten(predicate=kind),
            )

        parameter = next(leaves(lambda leaf: isinstance(leaf, Parameter)), None)
        if parameter is not None:
            return parameter.dtype
        types = {leaf.dtype for leaf in leaves(tf.is_tensor) if leaf.dtype.is_floating}
        return max(types, key=lambda dtype: dtype.size, default=tf.as_dtype(default_float()))

    def _as_inputs(self, X: TensorType) -> tf.Tensor:
        dtype = self._float_type
        X = tf.cast(X, dtype) if tf.is_tensor(X) else tf.convert_to_tensor(X, dtype)
        return self._of_known_width(X)

    def _of_known_width(self, X: tf.Tensor) -> tf.Tensor:
        """Inputs of which a function's signature left the width open, or the rank too: [N, D]."""
        width = getattr(self.inference_network, "input_dim", None)
        if width is None or (X.shape.rank is not None and X.shape[-1] is not None):
            return X
        rows = [None] if X.shape.rank is None else X.shape[:-1]
        return tf.ensure_shape(X, [*rows, width])

    @inherit_check_shapes
    def predict_f(
        self, Xnew: InputData, full_cov: bool = False, full_output_cov: bool = False
    ) -> MeanAndVariance:
        """Mean and (co)variance of f; raises ValueError for a full covariance larger than
        :attr:`max_covariance_gib`."""
        Xnew = self.scaled_inputs(Xnew)
        if full_cov:
            self._check_covariance_size(Xnew)
            mean, cov = self._predict_scaled_f(Xnew, full_cov, full_output_cov)
        else:
            predict = self._predict_scaled_f
            mean, cov = self._in_chunks(lambda X: predict(X, False, full_output_cov), Xnew)
        if self.scaling is None:
            return mean, cov
        return self.scaling.original_mean(mean), self.scaling.original_covariance(
            cov, full_cov, full_output_cov
        )

    def _predict_scaled_f(
        self, X: tf.Tensor, full_cov: bool = False, full_output_cov: bool = False
    ) -> MeanAndVariance:
        mean, cov = self.inference_network(X, full_cov=full_cov)
        if self.mixing is not None:
            cov = _latents_first(cov) if full_cov else cov
            mean, cov = mix_latent_gp(self.mixing, mean, cov, full_cov, full_output_cov)
        elif full_output_cov:
            cov = _independent_outputs(cov, full_cov)
        return mean + self.mean_function(X), cov

    def posterior(
        self, precompute_cache: PrecomputeCacheType | str | None = PrecomputeCacheType.TENSOR
    ) -> NetworkPosterior:
        """GPflow's posterior object; always up to date, since there is nothing to cache.

        :param precompute_cache: "tensor", "variable", "nocache" or None, as for SVGP.
        """
        return NetworkPosterior(self, precompute_cache)

    def _check_covariance_size(self, Xnew: tf.Tensor) -> None:
        if not Xnew.shape.is_fully_defined():
            return
        *batch, rows, _ = Xnew.shape
        entries = np.prod(batch, dtype=float) * self.num_latent_gps * float(rows) ** 2
        size = entries * Xnew.dtype.size / _GIB
        if size > self.max_covariance_gib:
            raise ValueError(
                f"full_cov=True for Xnew of shape {tuple(Xnew.shape)} needs a covariance of "
                f"{size:.3g} GiB, more than max_covariance_gib={self.max_covariance_gib:g}: ask "
                "for marginals (full_cov=False) or fewer rows, or raise max_covariance_gib."
            )

    def _in_chunks(
        self, predict: Callable[..., Any], *arrays: tf.Tensor, rows_axis: int = 0
    ) -> Any:
        """Apply to :attr:`prediction_rows` rows at a time; in one piece inside ``tf.function``.

        :param rows_axis: the axis of what is predicted that has the rows.
        """
        rows, size = arrays[0].shape[0], self.prediction_rows
        if size < 1:
            raise ValueError(f"prediction_rows must be at least 1, got {size}.")
        if not tf.executing_eagerly() or arrays[0].shape.rank != 2 or rows <= size:
            return predict(*arrays)
        parts = [
            predict(*(array[start : start + size] for array in arrays))
            for start in range(0, rows, size)
        ]
        return tf.nest.map_structure(lambda *pieces: tf.concat(pieces, rows_axis), *parts)

    @inherit_check_shapes
    def predict_y(
        self, Xnew: InputData, full_cov: bool = False, full_output_cov: bool = False
    ) -> MeanAndVariance:
        """Mean and variance of new observations at each row."""
        assert_params_false(self.predict_y, full_cov=full_cov, full_output_cov=full_output_cov)

        def predict(X: tf.Tensor) -> MeanAndVariance:
            return predict_mean_and_var(self.likelihood, X, *self._predict_scaled_f(X))

        mean, variance = self._in_chunks(predict, self.scaled_inputs(Xnew))
        if self.scaling is None:
            return mean, variance
        return self.scaling.original_mean(mean), self.scaling.original_covariance(variance)

    def predict_log_density(
        self, data: RegressionData, full_cov: bool = False, full_output_cov: bool = False
    ) -> tf.Tensor:
        """log p(y | data) at each row [batch..., N], nats, how exact see
        :func:`~gpflow_gpnet.predictive_density.predictive_log_density`.

        :param data: X [batch..., N, D] and Y [batch..., N, P]; row data are those of training, or
            left out: weights do not matter here, and noise variances are then 0.
        :raises NotImplementedError: for full covariances.
        :raises ValueError: for shapes that do not fit the model, and targets that are not finite or
            outside the likelihood's support (row-data likelihoods look at neither).
        """
        assert_params_false(
            self.predict_log_density, full_cov=full_cov, full_output_cov=full_output_cov
        )
        likelihood = self.likelihood
        X, Y = to_tensors(data, likelihood, dtype=self._float_type, batched=True)
        if isinstance(likelihood, RowDataLikelihood) and Y.shape[-1] == num_targets(self):
            Y = likelihood.join(Y, tf.ones_like(Y[..., :1]) * likelihood.default_row_data)
        check_columns(self, Y)
        if tf.executing_eagerly() and not isinstance(likelihood, RowDataLikelihood):
            check_targets(likelihood, np.reshape(Y, [-1, Y.shape[-1]]))

        def density(X: tf.Tensor, Y: tf.Tensor) -> tf.Tensor:
            X, Y = self.scaled((X, Y))
            values = predictive_log_density(likelihood, X, *self._predict_scaled_f(X), Y)
            if self.scaling is None or not self.scaling.scales_targets:
                return values
            return values + self.scaling.log_jacobian(observed(likelihood, Y)[1])

        return self._in_chunks(density, X, Y)

    @check_shapes("Xnew: [batch..., N, D]", "return: [Q, batch..., N, P]")
    def predict_quantiles(self, Xnew: InputData, levels: Any) -> tf.Tensor:
        """Quantiles of p(y | x, data), new observations: the smallest y with CDF ≥ level.

        How exact, see :func:`~gpflow_gpnet.quantiles.predictive_quantiles`. Bounded in memory as
        :meth:`predict_y` is.

        :param levels: numbers [Q] strictly between 0 and 1, in any order.
        :raises ValueError: for other levels, and for likelihoods of unordered classes.
        :raises NotImplementedError: for likelihoods that
            :data:`~gpflow_gpnet.observations.conditional_distribution` does not know.
        """

        likelihood = base_likelihood(self.likelihood)

        def quantiles(X: tf.Tensor) -> tf.Tensor:
            return predictive_quantiles(likelihood, X, *self._predict_scaled_f(X), levels)

        Xnew = self.scaled_inputs(Xnew)
        predict: Callable[[tf.Tensor], tf.Tensor] = quantiles
        if tf.executing_eagerly():
            spec = tf.TensorSpec([*Xnew.shape[:-2], None, Xnew.shape[-1]], Xnew.dtype)
            predict = tf.function(quantiles, autograph=False).get_concrete_function(spec)
        values = self._in_chunks(predict, Xnew, rows_axis=1)
        return values if self.scaling is None else self.scaling.original_mean(values)

    @check_shapes("Xnew: [N, D]", "return: [S, N, P]")
    def predict_y_samples(
        self, Xnew: InputData, num_samples: int, seed: int | None = None
    ) -> tf.Tensor:
        """Samples of p(y | x, data) at each row.

        Rows are independent, as are outputs: f is drawn from its marginals. For observations of
        one function see :meth:`sample_functions`.

        :param seed: None: drawn from TensorFlow's global generator.
        :raises NotImplementedError: as :meth:`predict_quantiles`.
        """
        X = self.scaled_inputs(Xnew)
        if seed is None:  # drawn in the graph, so that each call of a compiled function is new
            key = tf.random.uniform([2], maxval=2**31 - 1, dtype=tf.int32)
        else:
            key = _key(seed)
        values = sample_observations(
            base_likelihood(self.likelihood), X, *self._predict_scaled_f(X), num_samples, key
        )
        return values if self.scaling is None else self.scaling.original_mean(values)

    def sample_functions(
        self, num_samples: int, seed: int | None = None
    ) -> Callable[[TensorType], tf.Tensor]:
        """Whole functions from q, drawn once: a callable X [N, D] to f [S, N, P].

        :param seed: None: drawn from TensorFlow's global generator.
        :raises NotImplementedError: for networks that have no function samples.
        """
        network = self.inference_network
        if not hasattr(network, "sample_functions"):
            raise NotImplementedError(f"{type(network).__name__} gives no function samples.")
        key = _key(random_numbers.draw_seed() if seed is None else seed)
        latent = network.sample_functions(num_samples, key)

        def functions(X: TensorType) -> tf.Tensor:
            X = self.scaled_inputs(X)
            values = latent(X)
            if self.mixing is not None:
                values = tf.tensordot(values, self.mixing, [[-1], [-1]])
            values += self.mean_function(X)
            return values if self.scaling is None else self.scaling.original_mean(values)

        return functions


def _key(seed: int) -> tf.Tensor:
    """Stateless seed [2] of any number."""
    return tf.constant(np.random.default_rng(seed).integers(0, 2**31 - 1, size=2), tf.int32)


def _minibatch_closure(closure: Callable[[], tf.Tensor]) -> Callable[[], tf.Tensor]:
    """A loss that is another function at each call, and says so to who needs one function."""

    @tf.autograph.experimental.do_not_convert
    def minibatch_loss() -> tf.Tensor:
        check_not_in_scipy()
        return closure()

    return minibatch_loss


def _independent_outputs(cov: tf.Tensor, full_cov: bool) -> tf.Tensor:
    """[..., N, L] to [..., N, L, L], or [..., L, N, N] to [..., N, L, N, L] if full_cov."""
    if not full_cov:
        return tf.linalg.diag(cov)
    rank = len(cov.shape)
    rows_first = tf.transpose(cov, [*range(rank - 3), rank - 2, rank - 1, rank - 3])
    return tf.transpose(
        tf.linalg.diag(rows_first), [*range(rank - 3), rank - 3, rank - 1, rank - 2, rank]
    )


def _latents_first(cov: tf.Tensor) -> tf.Tensor:
    """[batch..., L, N, N] to [L, batch..., N, N], what GPflow's helpers take."""
    rank = len(cov.shape)
    return tf.transpose(cov, [rank - 3, *range(rank - 3), rank - 2, rank - 1])


def _network_from_points(kernel: Kernel, points: np.ndarray, num_latents: int) -> LinearNetwork:
    frequencies = int(np.clip(len(points), 100, 500))
    try:
        return RFE(kernel, points.shape[1], frequencies, num_latent_gps=num_latents)
    except NoSpectralMeasureError:
        return InducingFeatures(kernel, points, num_latent_gps=num_latents)


def _inducing_inputs(network: Any) -> Any:
    """Z of GPflow's inducing points, their own or shared; anything else as it is."""
    shared = (FallbackSharedIndependentInducingVariables, SharedIndependentInducingVariables)
    points = network.inducing_variable if isinstance(network, shared) else network
    return points.Z.numpy() if isinstance(points, InducingPoints) else network


def _checked_num_data(num_data: TensorType | None) -> TensorType | None:
    if num_data is not None and np.asarray(num_data).dtype.kind not in "iuf":
        raise TypeError(f"num_data must be a number, got {num_data!r}.")
    if num_data is not None and np.any(np.asarray(num_data) <= 0):
        raise ValueError(f"num_data must be positive, got {num_data}.")
    return num_data
