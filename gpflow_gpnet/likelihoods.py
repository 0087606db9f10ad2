"""Observations that GPflow's likelihoods do not know: missing targets, weights, known noise.

They wrap or stand beside GPflow's likelihoods and work with any GPflow model. What a row has
besides its targets is in further columns of Y; GPNet and :func:`~gpflow_gpnet.fit` put it there
themselves when data are triples (X, Y, row data).
"""

from __future__ import annotations

import abc

import tensorflow as tf
from check_shapes import inherit_check_shapes
from gpflow import Parameter
from gpflow.base import MeanAndVariance, TensorType
from gpflow.likelihoods import Beta, Gaussian, Likelihood, ScalarLikelihood, Softmax
from gpflow.likelihoods import Ordinal as GPflowOrdinal
from gpflow.likelihoods import SwitchedLikelihood as Switched
from gpflow.likelihoods.utils import inv_probit
from gpflow.logdensities import gaussian as gaussian_log_density
from gpflow.utilities import positive

__all__ = [
    "KnownNoise",
    "MissingTargets",
    "Ordinal",
    "RowDataLikelihood",
    "Weighted",
    "base_likelihood",
    "observed",
    "row_weights",
    "target_columns",
]

_BEYOND_ANY_EDGE = 1e6
"""In units of sigma."""


class _Wrapper(Likelihood, abc.ABC):
    """Predictions of the wrapped likelihood, other data."""

    def __init__(self, base: Likelihood) -> None:
        if not isinstance(base, Likelihood):
            raise TypeError(f"base must be a likelihood, got {type(base).__name__}.")
        if isinstance(base, (_Wrapper, KnownNoise)) and not self._takes(base):
            raise TypeError(
                f"{type(self).__name__} cannot wrap {type(base).__name__}: wrap a likelihood of "
                "GPflow, and Weighted around MissingTargets where both are needed."
            )
        super().__init__(input_dim=base.input_dim, latent_dim=base.latent_dim, observation_dim=None)
        self.base = base

    def _takes(self, base: Likelihood) -> bool:
        return False

    @inherit_check_shapes
    def _conditional_mean(self, X: TensorType, F: TensorType) -> tf.Tensor:
        return self.base.conditional_mean(X, F)

    @inherit_check_shapes
    def _conditional_variance(self, X: TensorType, F: TensorType) -> tf.Tensor:
        return self.base.conditional_variance(X, F)

    @inherit_check_shapes
    def _predict_mean_and_var(
        self, X: TensorType, Fmu: TensorType, Fvar: TensorType
    ) -> MeanAndVariance:
        return self.base.predict_mean_and_var(X, Fmu, Fvar)


class MissingTargets(_Wrapper):
    """NaN in Y means not observed, and is left out: cell by cell for scalar likelihoods.

    For all others (several latents for one target, SwitchedLikelihood) a row that lacks any target
    is left out.

    >>> likelihood = gpn.likelihoods.MissingTargets(gpflow.likelihoods.Gaussian(1.0))
    >>> Y = np.array([[0.0, np.nan]])  # [N, P], the second not observed
    >>> float(likelihood.log_prob(X[:1], np.zeros([1, 2]), Y)[0])
    -0.918...
    """

    def __init__(self, base: Likelihood, placeholder: float | None = None) -> None:
        """
        :param base: of the targets that are there.
        :param placeholder: any value of the support, on which the likelihood is evaluated where no
            target is; without influence. By default 1, for Beta 1/2.
        :raises TypeError: if base is not a likelihood of GPflow's or the user's.
        """
        super().__init__(base)
        if placeholder is None:
            placeholder = 0.5 if isinstance(base, Beta) else 1.0
        self.placeholder = placeholder

    def _observed(self, Y: TensorType) -> tuple[tf.Tensor, tf.Tensor]:
        """Which cells are there, and Y without NaN."""
        Y = tf.convert_to_tensor(Y)
        there = tf.math.logical_not(tf.math.is_nan(Y))
        return there, tf.where(there, Y, tf.cast(self.placeholder, Y.dtype))

    @property
    def cell_by_cell(self) -> bool:
        """Whether cells of one row are there or not independently."""
        return isinstance(self.base, ScalarLikelihood) and not isinstance(self.base, Switched)

    def _rows(self, method: str, X: TensorType, moments: tuple, Y: TensorType) -> tf.Tensor:
        there, Y = self._observed(Y)
        values = getattr(self.base, method)(X, *moments, _as_labels(self.base, Y))
        return tf.where(tf.reduce_all(there, axis=-1), values, tf.zeros_like(values))

    def _cells(self, cells: tf.Tensor, there: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.where(there, cells, tf.zeros_like(cells)), axis=-1)

    @inherit_check_shapes
    def _log_prob(self, X: TensorType, F: TensorType, Y: TensorType) -> tf.Tensor:
        if not self.cell_by_cell:
            return self._rows("log_prob", X, (F,), Y)
        there, Y = self._observed(Y)
        return self._cells(self.base._scalar_log_prob(X, F, Y), there)

    @inherit_check_shapes
    def _variational_expectations(
        self, X: TensorType, Fmu: TensorType, Fvar: TensorType, Y: TensorType
    ) -> tf.Tensor:
        if not self.cell_by_cell or Y.shape[-1] == 1:
            return self._rows("variational_expectations", X, (Fmu, Fvar), Y)
        there, Y = self._observed(Y)
        base = self.base
        if isinstance(base, Gaussian):
            variance = base._variance(X)
            cells = gaussian_log_density(Y, Fmu, variance) - 0.5 * Fvar / variance
        else:
            cells = base.quadrature(base._quadrature_log_prob, Fmu, Fvar, X=X, Y=Y)
        return self._cells(cells, there)

    @inherit_check_shapes
    def _predict_log_density(
        self, X: TensorType, Fmu: TensorType, Fvar: TensorType, Y: TensorType
    ) -> tf.Tensor:
        if not self.cell_by_cell or Y.shape[-1] == 1:
            return self._rows("predict_log_density", X, (Fmu, Fvar), Y)
        there, Y = self._observed(Y)
        base = self.base
        if isinstance(base, Gaussian):
            cells = gaussian_log_density(Y, Fmu, Fvar + base._variance(X))
        else:
            cells = base.quadrature.logspace(base._quadrature_log_prob, Fmu, Fvar, X=X, Y=Y)
        return self._cells(cells, there)


class RowDataLikelihood(Likelihood, abc.ABC):
    """A likelihood whose Y has further columns, known for each row beside its targets.

    >>> likelihood = gpn.likelihoods.Weighted(gpflow.likelihoods.Gaussian())
    >>> isinstance(likelihood, gpn.likelihoods.RowDataLikelihood), likelihood.num_columns(1)
    (True, 2)
    """

    row_data: str
    """What they are, for messages."""

    default_row_data: float
    """Their value where predictions are scored on targets alone."""

    @abc.abstractmethod
    def join(self, Y: tf.Tensor, row_data: tf.Tensor) -> tf.Tensor:
        """Targets [N, P] and row data [N, 1] or [N, P] in one matrix.

        :raises ValueError: for other shapes.
        """

    @abc.abstractmethod
    def split(self, Y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Targets [N, P] and row data."""

    @abc.abstractmethod
    def num_columns(self, num_targets: int) -> int:
        """Columns of Y for P targets."""


class Weighted(_Wrapper, RowDataLikelihood):
    """Each row's log-likelihood times a known weight, as if it had been observed that often.

    Y has the weights as its last column. Predictions and their log densities are those of one
    observation, whatever its weight.

    >>> likelihood = gpn.likelihoods.Weighted(gpflow.likelihoods.Gaussian())
    >>> model = gpn.GPNet(kernel, likelihood, network, num_data=20)
    >>> weights = np.full(20, 2.0)  # [N]: each row counts twice
    >>> model.elbo((X, Y, weights)).shape
    TensorShape([])
    """

    row_data = "weights"
    default_row_data = 1.0

    def _takes(self, base: Likelihood) -> bool:
        return isinstance(base, MissingTargets)

    def join(self, Y: tf.Tensor, row_data: tf.Tensor) -> tf.Tensor:
        if row_data.shape[-1] != 1:
            raise ValueError(f"weights must have shape [N] or [N, 1], got {row_data.shape}.")
        return tf.concat([Y, row_data], axis=-1)

    def split(self, Y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return _as_labels(self.base, Y[..., :-1]), Y[..., -1:]

    def num_columns(self, num_targets: int) -> int:
        return num_targets + 1

    @inherit_check_shapes
    def _log_prob(self, X: TensorType, F: TensorType, Y: TensorType) -> tf.Tensor:
        targets, weights = self.split(Y)
        return weights[..., 0] * self.base.log_prob(X, F, targets)

    @inherit_check_shapes
    def _variational_expectations(
        self, X: TensorType, Fmu: TensorType, Fvar: TensorType, Y: TensorType
    ) -> tf.Tensor:
        targets, weights = self.split(Y)
        return weights[..., 0] * self.base.variational_expectations(X, Fmu, Fvar, targets)

    @inherit_check_shapes
    def _predict_log_density(
        self, X: TensorType, Fmu: TensorType, Fvar: TensorType, Y: TensorType
    ) -> tf.Tensor:
        return self.base.predict_log_density(X, Fmu, Fvar, self.split(Y)[0])


class KnownNoise(RowDataLikelihood):
    """y = f(x) + e with e ~ N(0, s + variance), s known for each row or cell.

    Y has the targets [N, P] and then the known variances s [N, P]. ``predict_y`` is about rows
    whose s is 0: it has ``variance`` alone, by default nothing, for noise.

    >>> model = gpn.GPNet(kernel, gpn.likelihoods.KnownNoise(), network, num_data=20)
    >>> variances = np.linspace(0.1, 0.2, 20)  # [N]
    >>> model.elbo((X, Y, variances)).shape
    TensorShape([])
    """

    row_data = "noise variances"
    default_row_data = 0.0

    def __init__(self, variance: float | None = None) -> None:
        """
        :param variance: of noise beyond the known one, a trainable Parameter; None: there is none.
        :raises ValueError: unless it is positive.
        """
        super().__init__(input_dim=None, latent_dim=None, observation_dim=None)
        if variance is not None and not variance > 0.0:
            raise ValueError(f"variance must be positive or None, got {variance}.")
        self.variance = None if variance is None else Parameter(variance, transform=positive())

    def join(self, Y: tf.Tensor, row_data: tf.Tensor) -> tf.Tensor:
        if row_data.shape[-1] not in (1, Y.shape[-1]):
            raise ValueError(
                "noise variances must have shape [N], [N, 1] or that of Y, got "
                f"{row_data.shape} for Y of shape {Y.shape}."
            )
        return tf.concat([Y, tf.broadcast_to(row_data, tf.shape(Y))], axis=-1)

    def split(self, Y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        targets, variances = tf.split(Y, 2, axis=-1)
        return targets, variances

    def num_columns(self, num_targets: int) -> int:
        return 2 * num_targets

    def _noise(self, known: tf.Tensor) -> tf.Tensor:
        return known if self.variance is None else known + self.variance

    @inherit_check_shapes
    def _log_prob(self, X: TensorType, F: TensorType, Y: TensorType) -> tf.Tensor:
        targets, known = self.split(Y)
        return tf.reduce_sum(gaussian_log_density(targets, F, self._noise(known)), axis=-1)

    @inherit_check_shapes
    def _conditional_mean(self, X: TensorType, F: TensorType) -> tf.Tensor:
        return tf.identity(F)

    @inherit_check_shapes
    def _conditional_variance(self, X: TensorType, F: TensorType) -> tf.Tensor:
        return self._noise(tf.zeros_like(F))

    @inherit_check_shapes
    def _predict_mean_and_var(
        self, X: TensorType, Fmu: TensorType, Fvar: TensorType
    ) -> MeanAndVariance:
        return tf.identity(Fmu), self._noise(Fvar)

    @inherit_check_shapes
    def _variational_expectations(
        self, X: TensorType, Fmu: TensorType, Fvar: TensorType, Y: TensorType
    ) -> tf.Tensor:
        targets, known = self.split(Y)
        noise = self._noise(known)
        cells = gaussian_log_density(targets, Fmu, noise) - 0.5 * Fvar / noise
        return tf.reduce_sum(cells, axis=-1)

    @inherit_check_shapes
    def _predict_log_density(
        self, X: TensorType, Fmu: TensorType, Fvar: TensorType, Y: TensorType
    ) -> tf.Tensor:
        targets, known = self.split(Y)
        return tf.reduce_sum(gaussian_log_density(targets, Fmu, Fvar + self._noise(known)), axis=-1)


class Ordinal(GPflowOrdinal):
    """GPflow's ordinal likelihood with finite outermost edges in place of infinite ones.

    TensorFlow's erf of infinity is NaN in some versions (2.21 in float64, on CPUs), and so then is
    the log probability of the first and the last label there.

    >>> likelihood = gpn.likelihoods.Ordinal(np.array([-1.0, 1.0]))  # three labels
    >>> labels = np.array([[0], [1], [2]])
    >>> likelihood.log_prob(X[:3], np.zeros([3, 1]), labels).shape
    TensorShape([3])
    """

    def _edges(self, F: TensorType) -> tuple[tf.Tensor, tf.Tensor]:
        """Upper and lower edge of each label, divided by sigma."""
        edges = tf.cast(self.bin_edges, F.dtype) / self.sigma
        far = tf.constant([_BEYOND_ANY_EDGE], F.dtype)
        return tf.concat([edges, far], 0), tf.concat([-far, edges], 0)

    @inherit_check_shapes
    def _scalar_log_prob(self, X: TensorType, F: TensorType, Y: TensorType) -> tf.Tensor:
        F = tf.convert_to_tensor(F)
        upper, lower = (tf.gather(edges, tf.cast(Y, tf.int32)) for edges in self._edges(F))
        mean = F / self.sigma
        return tf.math.log(inv_probit(upper - mean) - inv_probit(lower - mean) + 1e-6)

    @inherit_check_shapes
    def _make_phi(self, F: TensorType) -> tf.Tensor:
        F = tf.convert_to_tensor(F)
        mean = tf.reshape(F, [-1, 1]) / self.sigma
        upper, lower = self._edges(F)
        return inv_probit(upper - mean) - inv_probit(lower - mean)


def _as_labels(likelihood: Likelihood, Y: tf.Tensor) -> tf.Tensor:
    """Integers where the likelihood takes no others."""
    return tf.cast(Y, tf.int32) if isinstance(likelihood, Softmax) else Y


def base_likelihood(likelihood: Likelihood) -> Likelihood:
    """The likelihood of a target that is there, whatever wraps it.

    >>> wrapped = gpn.likelihoods.MissingTargets(gpflow.likelihoods.Poisson())
    >>> type(gpn.likelihoods.base_likelihood(wrapped)).__name__
    'Poisson'
    """
    while isinstance(likelihood, _Wrapper):
        likelihood = likelihood.base
    return likelihood


def target_columns(likelihood: Likelihood, Y: tf.Tensor) -> tf.Tensor:
    """Targets [N, P] of Y, without what is known of each row beside them; NaN stay.

    >>> likelihood = gpn.likelihoods.Weighted(gpflow.likelihoods.Poisson())
    >>> gpn.likelihoods.target_columns(likelihood, tf.constant([[3.0, 0.5]])).numpy()
    array([[3.]], dtype=float32)
    """
    if isinstance(likelihood, RowDataLikelihood):
        Y, _ = likelihood.split(Y)
    return target_columns(likelihood.base, Y) if isinstance(likelihood, _Wrapper) else Y


def observed(likelihood: Likelihood, Y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Targets [N, P], 0 where there is none, and 1 or 0, whether it is there [N, P].

    >>> likelihood = gpn.likelihoods.MissingTargets(gpflow.likelihoods.Gaussian())
    >>> targets, there = gpn.likelihoods.observed(likelihood, tf.constant([[1.0], [np.nan]]))
    >>> targets.numpy().tolist(), there.numpy().tolist()
    ([[1.0], [0.0]], [[1.0], [0.0]])
    """
    if isinstance(likelihood, Weighted):
        return observed(likelihood.base, likelihood.split(Y)[0])
    if isinstance(likelihood, MissingTargets):
        there = tf.math.logical_not(tf.math.is_nan(Y))
        return tf.where(there, Y, tf.zeros_like(Y)), tf.cast(there, Y.dtype)
    if isinstance(likelihood, RowDataLikelihood):
        Y = likelihood.split(Y)[0]
    return Y, tf.ones_like(Y)


def row_weights(likelihood: Likelihood, Y: tf.Tensor) -> tf.Tensor:
    """How often each row counts [N, 1].

    >>> likelihood = gpn.likelihoods.Weighted(gpflow.likelihoods.Gaussian())
    >>> gpn.likelihoods.row_weights(likelihood, tf.constant([[1.0, 2.0]])).numpy().tolist()
    [[2.0]]
    """
    if isinstance(likelihood, Weighted):
        return likelihood.split(Y)[1]
    return tf.ones_like(Y[..., :1])
