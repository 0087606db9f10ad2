"""Initial hyperparameters from an exact GP on a random subset of the data."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from check_shapes import inherit_check_shapes
from gpflow import Parameter
from gpflow.base import AnyNDArray, TensorType
from gpflow.kernels import (
    IsotropicStationary,
    Kernel,
    MultioutputKernel,
    SeparateIndependent,
    SharedIndependent,
)
from gpflow.likelihoods import Gaussian, Likelihood
from gpflow.mean_functions import MeanFunction
from gpflow.models import GPR
from gpflow.optimizers import Scipy
from gpflow.utilities import multiple_assign, parameter_dict

from .checks import check_finite, check_kernel, to_tensors
from .latent_prior import latent_kernels
from .likelihoods import RowDataLikelihood, base_likelihood, target_columns
from .spectral import active_columns, kernel_leaves

__all__ = ["NO_NOISE", "fit_from_starts", "fit_hyperparameters", "has_independent_outputs"]

NO_NOISE = 1e-5
"""Of scaled targets; GPflow's least variance is 1e-6."""


def fit_hyperparameters(
    kernel: Kernel,
    likelihood: Likelihood,
    data: Any,
    *,
    mean_function: MeanFunction | None = None,
    num_points: int = 1000,
    max_iterations: int = 100,
    seed: int = 0,
) -> None:
    """Maximise the exact marginal likelihood of at most ``num_points`` random rows, in place.

    What the paper does before training on its larger data sets (appendix B.2). Parameters that are
    not trainable stay. Lengthscales that go to 0 stop where all values of an input are told apart.
    O(num_points³) an iteration.

    >>> gpn.fit_hyperparameters(kernel, likelihood, (X, Y), max_iterations=5)
    >>> bool(likelihood.variance.numpy() < 0.1)
    True

    :param kernel: its trainable Parameters are set.
    :param likelihood: Gaussian, or a wrapped one; its trainable variance is set.
    :param data: X [N, D] and Y [N, P], scaled if the model is to scale them
        (``scaling(data, likelihood)``), and row data, which are ignored, as rows without all
        targets are.
    :raises TypeError: if the likelihood is not Gaussian, or the kernel mixes latent GPs.
    :raises ValueError: if no row has all its targets, X has not the kernel's columns or is not
        finite.
    """
    given, likelihood = likelihood, base_likelihood(likelihood)
    if not isinstance(likelihood, Gaussian):
        raise TypeError(f"likelihood must be Gaussian, got {type(likelihood).__name__}.")
    if not has_independent_outputs(kernel):
        raise TypeError(
            "kernel must be that of one output, SharedIndependent or SeparateIndependent, got "
            f"{type(kernel).__name__}: fit its parts, or start training from values of your own."
        )
    X, Y = (values.numpy() for values in _targets_alone(data, given))
    check_kernel(kernel, X.shape[1])
    observed = ~np.isnan(Y).any(axis=1, keepdims=True)
    for name, values in (("X", X), ("Y", Y)):
        check_finite(name, np.where(observed, values, 0.0))
    whole = np.flatnonzero(observed)
    if not whole.size:
        raise ValueError(f"Y of shape {Y.shape} has no row without NaN.")
    rows = np.random.default_rng(seed).permutation(whole)[:num_points]
    models = _exact_models(kernel, (X[rows], Y[rows]), mean_function, likelihood)
    parameters = {id(each): each for model in models for each in model.trainable_parameters}
    variables = [each.unconstrained_variable for each in parameters.values()]

    def loss() -> tf.Tensor:
        priors = [
            each.log_prior_density() for each in parameters.values() if each.prior is not None
        ]
        return -tf.add_n([model.log_marginal_likelihood() for model in models] + priors)

    Scipy().minimize(loss, variables, options={"maxiter": max_iterations})
    for leaf in kernel_leaves(kernel):
        if isinstance(leaf, IsotropicStationary) and leaf.lengthscales.trainable:
            _keep_resolvable(leaf, X[rows])


def _targets_alone(data: Any, likelihood: Likelihood) -> tuple[tf.Tensor, tf.Tensor]:
    """X and targets, without row data in columns of Y or beside it."""
    X, Y = to_tensors(data[:2])
    if len(data) == 2 and isinstance(likelihood, RowDataLikelihood):
        return X, Y if Y.shape[1] < likelihood.num_columns(1) else target_columns(likelihood, Y)
    return X, Y


def has_independent_outputs(kernel: Kernel) -> bool:
    """Whether outputs have independent GPs of the kernel, or of a kernel each."""
    independent = isinstance(kernel, (SharedIndependent, SeparateIndependent))
    return independent or not isinstance(kernel, MultioutputKernel)


def _exact_models(
    kernel: Kernel, data: Any, mean_function: MeanFunction | None, likelihood: Likelihood
) -> list[GPR]:
    """Exact GPs that together are that of all outputs."""
    if not isinstance(kernel, SeparateIndependent):
        kernel = kernel.kernel if isinstance(kernel, SharedIndependent) else kernel
        return [GPR(data, kernel, mean_function, likelihood=likelihood)]
    X, Y = data
    if Y.shape[1] != len(kernel.kernels):
        raise ValueError(
            f"Y has {Y.shape[1]} columns, but the kernel has {len(kernel.kernels)} outputs."
        )
    return [
        GPR(
            (X, Y[:, [output]]),
            each,
            None if mean_function is None else _Column(mean_function, output),
            likelihood=likelihood,
        )
        for output, each in enumerate(kernel.kernels)
    ]


class _Column(MeanFunction):
    """One output of a mean function."""

    def __init__(self, whole: MeanFunction, output: int) -> None:
        super().__init__()
        self.whole, self.output = whole, output

    @inherit_check_shapes
    def __call__(self, X: TensorType) -> tf.Tensor:
        values = self.whole(X)
        return values if values.shape[-1] == 1 else values[..., self.output, None]


def _keep_resolvable(kernel: IsotropicStationary, X: AnyNDArray) -> None:
    """Raise lengthscales to a tenth of the smallest gap between values of their inputs, or to what
    leaves squared distances half their digits where that is more.

    For an input of few values the maximum can be at 0, where squared distances lose all digits.
    """
    columns = X[:, active_columns(kernel, X.shape[1])]
    gaps = np.array([np.diff(np.unique(column)).min(initial=np.inf) for column in columns.T])
    digits = np.finfo(X.dtype).eps ** 0.25 * np.ptp(columns, axis=0)
    values = kernel.lengthscales.numpy()
    if values.ndim == 0:  # shared by all inputs
        gaps, digits = gaps.min(), digits.max()
    least = np.maximum(np.where(np.isfinite(gaps), 0.1 * gaps, 0.0), digits)
    if (values < least).any():
        kernel.lengthscales.assign(np.maximum(values, least))


def fit_from_starts(kernel: Kernel, likelihood: Likelihood, data: Any, **settings: Any) -> None:
    """:func:`fit_hyperparameters` where no start is known, of a kernel about scaled inputs.

    Lengthscales at GPflow's 1 start from √D, since the mean square distance of scaled inputs is
    2 D: from 1 and in ten dimensions all rows start far apart, and repeated ones can lead to a
    maximum with no noise and no correlation. Where that ends without noise, for it has gone astray,
    they start from 1 after all.

    :param kernel: its trainable Parameters are set; lengthscales of other values start from these.
    :param likelihood: Gaussian, or a wrapped one.
    :param data: scaled X [N, D] and Y [N, P].
    :param settings: of :func:`fit_hyperparameters`, whose errors it raises.
    """
    modules = kernel, likelihood
    given = [
        {name: parameter.numpy() for name, parameter in parameter_dict(module).items()}
        for module in modules
    ]
    moved = [
        part.lengthscales
        for latent in latent_kernels(kernel)
        for part in getattr(latent, "kernels", [latent])
        if isinstance(getattr(part, "lengthscales", None), Parameter)
        and np.allclose(part.lengthscales, 1.0)
    ]
    for lengthscales in moved:
        lengthscales.assign(np.full(lengthscales.shape, np.sqrt(np.shape(data[0])[1])))
    fit_hyperparameters(kernel, likelihood, data, **settings)
    noise = base_likelihood(likelihood).variance
    if moved and isinstance(noise, Parameter) and noise.numpy() < NO_NOISE:
        for module, values in zip(modules, given, strict=True):
            multiple_assign(module, values)
        fit_hyperparameters(kernel, likelihood, data, **settings)
