"""The methods of the regression tables: from training rows to a trained model.

All start from the same hyperparameters, an exact GP's on 1,000 random training rows, but where the
paper says otherwise of its own. The fit of these starts from lengthscales √D.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow.base import AnyNDArray, RegressionData
from gpflow.keras import tf_keras

import gpflow_gpnet as gpn

from . import published

__all__ = ["Method", "Task", "METHODS"]

EXACT_ROWS = 10_000
"""Most training rows that the exact GP is run with."""

EXACT_ITERATIONS = 20
"""Of L-BFGS on all rows, from the hyperparameters of the subset."""

KMEANS_ROWS = 20_000

_ENDLESS = 10**9
"""Steps where the time is what ends training."""


@dataclass(frozen=True)
class Task:
    """Standardised training rows, and what a method may spend on them."""

    X: AnyNDArray
    Y: AnyNDArray
    dataset: str
    seed: int
    steps: int = published.NUM_STEPS
    seconds: float | None = None
    """In place of steps: from the making of the task, the fit of hyperparameters included."""
    progress: bool = False
    started: float = field(default_factory=time.perf_counter)

    @property
    def data(self) -> tuple[AnyNDArray, AnyNDArray]:
        """(X, Y)."""
        return self.X, self.Y

    @property
    def settings(self) -> published.Settings:
        """The paper's for the data set."""
        return published.SETTINGS.get(self.dataset, published.Settings())

    @property
    def seconds_left(self) -> float | None:
        """Of the time to spend; None where steps count."""
        if self.seconds is None:
            return None
        return max(0.0, self.started + self.seconds - time.perf_counter())

    def fit(self, model: Any, optimizer: Any, **kwargs: Any) -> gpn.History:
        """Train within the budget."""
        left = self.seconds_left
        return gpn.fit(
            model,
            self.data,
            optimizer=optimizer,
            num_steps=self.steps if left is None else _ENDLESS,
            batch_size=published.BATCH_SIZE,
            callbacks=() if left is None else [gpn.callbacks.TimeLimit(left)],
            seed=self.seed,
            progress=self.progress,
            **kwargs,
        )


Trained = tuple[Any, gpn.History | None]


@dataclass(frozen=True)
class Method:
    """How a model is made and trained."""

    train: Callable[[Task], Trained]
    max_rows: int | None = None
    """Most training rows that it is run with."""


# ------------------------------------------------------------------ priors


def kernel_of(task: Task, lengthscale: float = 1.0) -> gpflow.kernels.Kernel:
    """The paper's: squared exponential with a lengthscale for each input, all at the same."""
    dim = task.X.shape[1]
    return gpflow.kernels.SquaredExponential(lengthscales=np.full(dim, lengthscale))


def fitted_prior(task: Task) -> tuple[gpflow.kernels.Kernel, gpflow.likelihoods.Gaussian]:
    """Kernel and Gaussian likelihood, fitted to a subset by an exact GP."""
    kernel = kernel_of(task, np.sqrt(task.X.shape[1]))
    likelihood = gpflow.likelihoods.Gaussian(0.1)
    gpn.fit_hyperparameters(
        kernel, likelihood, task.data, num_points=published.FIT_ROWS, seed=task.seed
    )
    return kernel, likelihood


def student_t(noise: float) -> gpflow.likelihoods.Likelihood:
    """Student's t with 3 degrees of freedom, about as wide as a Gaussian fit."""
    return gpflow.likelihoods.StudentT(scale=np.sqrt(noise), df=3.0)


def heteroskedastic(noise: float) -> gpflow.likelihoods.Likelihood:
    """Normal whose standard deviation, the exponential of a second latent GP, starts at a fit's."""
    shift = tfp.bijectors.Shift(tf.constant(0.5 * np.log(noise), gpflow.default_float()))
    return gpflow.likelihoods.HeteroskedasticTFPConditional(
        distribution_class=tfp.distributions.Normal,
        scale_transform=tfp.bijectors.Chain([tfp.bijectors.Exp(), shift]),
    )


def prior(
    task: Task, make_likelihood: Callable[[float], gpflow.likelihoods.Likelihood] | None
) -> tuple[gpflow.kernels.Kernel, gpflow.likelihoods.Likelihood]:
    """A fitted kernel for each latent GP of a likelihood; Gaussian where none is given."""
    kernel, gaussian = fitted_prior(task)
    if make_likelihood is None:
        return kernel, gaussian
    likelihood = make_likelihood(gaussian.variance_at(task.X[:1]).numpy().item())
    number = likelihood.latent_dim
    if number is None or number == 1:
        return kernel, likelihood
    kernels = [deepcopy(kernel) for _ in range(number)]
    return gpflow.kernels.SeparateIndependent(kernels), likelihood


# ------------------------------------------------------------------ exact GP


def exact(task: Task) -> Trained:
    """GP regression with its hyperparameters at the marginal likelihood's maximum."""
    kernel, likelihood = fitted_prior(task)
    if len(task.X) > published.FIT_ROWS:
        gpn.fit_hyperparameters(
            kernel,
            likelihood,
            task.data,
            num_points=len(task.X),
            max_iterations=EXACT_ITERATIONS,
        )
    return gpflow.models.GPR(task.data, kernel, likelihood=likelihood), None


# ------------------------------------------------------------------ SVGP


class NaturalGradientAndAdam:
    """GPflow's steps for SVGP: NaturalGradient on q(u), Adam on the rest."""

    def __init__(self, gamma: float = 0.1, learning_rate: float = 0.01) -> None:
        """
        :param gamma: step size of the natural gradient.
        :param learning_rate: of Adam.
        """
        self.natural = gpflow.optimizers.NaturalGradient(gamma)
        self.adam = tf_keras.optimizers.Adam(learning_rate)

    def __call__(self, model: gpflow.models.SVGP) -> Callable[[RegressionData], tf.Tensor]:
        """The step (batch) -> loss; takes q(u) from the model's trainable variables."""
        q = (model.q_mu, model.q_sqrt)
        gpflow.set_trainable(q, False)
        variables = model.trainable_variables
        self.adam.build(variables)

        @tf.function(autograph=False, reduce_retracing=True)
        def step(batch: RegressionData) -> tf.Tensor:
            self.natural.minimize(lambda: model.training_loss(batch), [q])
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(variables)
                loss = model.training_loss(batch)
            self.adam.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return loss

        return step


def kmeans_centres(X: AnyNDArray, number: int, seed: int) -> AnyNDArray:
    """At most so many centres [M, D] of the distinct rows, of which a subset is looked at."""
    from scipy.cluster.vq import kmeans2

    rng = np.random.default_rng(seed)
    rows = np.unique(rng.permutation(X)[:KMEANS_ROWS], axis=0)
    if len(rows) <= number:
        return rows
    with warnings.catch_warnings():  # an empty cluster keeps its centre
        warnings.simplefilter("ignore", UserWarning)
        centres, _ = kmeans2(rows, rng.permutation(rows)[:number], iter=20, minit="matrix")
    return np.asarray(centres)


def svgp(
    task: Task,
    num_inducing: int,
    make_likelihood: Callable[[float], gpflow.likelihoods.Likelihood] | None = None,
) -> Trained:
    """SVGP with k-means inducing inputs."""
    kernel, likelihood = prior(task, make_likelihood)
    Z: Any = kmeans_centres(task.X, num_inducing, task.seed)
    if isinstance(kernel, gpflow.kernels.MultioutputKernel):
        inducing = gpflow.inducing_variables
        Z = inducing.SharedIndependentInducingVariables(inducing.InducingPoints(Z))
    model = gpflow.models.SVGP(
        kernel,
        likelihood,
        Z,
        num_latent_gps=likelihood.latent_dim or 1,
        num_data=len(task.X),
    )
    return model, task.fit(model, NaturalGradientAndAdam())


# ------------------------------------------------------------------ the paper's


def gradient_gpnet(task: Task, num_measured: int) -> Trained:
    """GPNet as published: gradient steps on an RFE network."""
    settings = task.settings
    model = _as_published(gpn.GPNet, task, num_measured, settings.learn_hyperparameters)
    optimizer = gpn.FunctionalMirrorDescent(
        gpn.InverseSqrt(settings.beta0, settings.xi),
        published.LEARNING_RATE,
        natural=False,
        noise="objective",
        scale_hyper_bound=False,
        seed=task.seed,
    )
    return model, task.fit(model, optimizer)


def fbnn(task: Task, num_measured: int) -> Trained:
    """The functional variational baseline, on the same network and measurement points."""
    learns = task.settings.fbnn_learns_hyperparameters
    if learns is None:
        learns = task.settings.learn_hyperparameters
    model = _as_published(gpn.FBNN, task, num_measured, learns)
    return model, task.fit(model, tf_keras.optimizers.Adam(published.LEARNING_RATE))


def _as_published(
    model_class: Any, task: Task, num_measured: int, learn_hyperparameters: bool
) -> Any:
    if task.settings.fit_first:
        kernel, likelihood = fitted_prior(task)
        still = deepcopy(kernel)
        gpflow.set_trainable(still, False)
        measurement: Any = gpn.measurement.KernelSmoothed(task.X, still)
    else:
        kernel, likelihood = kernel_of(task), gpflow.likelihoods.Gaussian(1.0)
        measurement = gpn.measurement.Empirical(task.X)
    gpflow.set_trainable((kernel, likelihood), learn_hyperparameters)
    dim = task.X.shape[1]
    return model_class(
        kernel,
        likelihood,
        gpn.RFE(kernel, dim, published.NUM_FREQUENCIES, seed=task.seed),
        num_data=len(task.X),
        measurement=measurement,
        num_measurement_points=min(num_measured, len(task.X)),
    )


# ------------------------------------------------------------------ the default


def natural_gpnet(
    task: Task,
    make_likelihood: Callable[[float], gpflow.likelihoods.Likelihood] | None = None,
) -> Trained:
    """GPNet with natural steps, in the one default setting for all data."""
    kernel: gpflow.kernels.Kernel = kernel_of(task)
    likelihood = None
    if make_likelihood is not None:
        kernel, likelihood = prior(task, make_likelihood)
    recipe = gpn.defaults(kernel, task.X, task.Y, likelihood=likelihood, seed=task.seed)
    history = recipe.fit(seconds=task.seconds_left, progress=task.progress)
    return recipe.model, history


# ------------------------------------------------------------------ names

METHODS = {
    "exact": Method(exact, EXACT_ROWS),
    **{f"SVGP-{M}": Method(partial(svgp, num_inducing=M)) for M in (100, 500)},
    **{f"GPNet-{M}": Method(partial(gradient_gpnet, num_measured=M)) for M in (100, 500)},
    **{f"FBNN-{M}": Method(partial(fbnn, num_measured=M)) for M in (100, 500)},
    "natural": Method(natural_gpnet),
    **{
        f"SVGP-500-{name}": Method(partial(svgp, num_inducing=500, make_likelihood=make))
        for name, make in (("student-t", student_t), ("heteroskedastic", heteroskedastic))
    },
    **{
        f"natural-{name}": Method(partial(natural_gpnet, make_likelihood=make))
        for name, make in (("student-t", student_t), ("heteroskedastic", heteroskedastic))
    },
}
"""By the names of the tables' columns."""
