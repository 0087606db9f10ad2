"""A GPNet with every setting chosen from the training data."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.base import AnyNDArray, RegressionData
from gpflow.kernels import Kernel
from gpflow.likelihoods import Gaussian, Likelihood, StudentT
from gpflow.mean_functions import MeanFunction

from .batches import held_out_rows, num_held_out
from .callbacks import TimeLimit
from .checks import check_finite, check_shape, check_targets, index_columns, to_tensors
from .fit import fit
from .gpnet import GPNet
from .history import History
from .hyperparameters import NO_NOISE, fit_from_starts, has_independent_outputs
from .inference_networks import (
    RFE,
    AdaptiveBasis,
    InducingFeatures,
    InferenceNetwork,
    LinearNetwork,
)
from .likelihoods import KnownNoise, RowDataLikelihood, base_likelihood, target_columns
from .mirror_descent import FunctionalMirrorDescent
from .scaling import Scaling
from .spectral import NoSpectralMeasureError, is_stationary
from .step_sizes import LinearDecay

__all__ = ["Candidate", "Recipe", "defaults"]

BATCH_SIZE = 500
FEW_ROWS = 1000
"""With fewer rows each of them is an inducing input, which is the exact GP."""

_EPOCHS = 200
_STEPS = (400, 6000)
_STEPS_OF_WEIGHTS = 20
"""Where natural steps have nothing but the weights to learn; the exact pass at the end does it."""
_TIMED_STEPS = 10

MakeNetwork = Callable[[Kernel, AnyNDArray, int, int], InferenceNetwork]
"""From the prior's kernel, scaled inputs [N, D], L and a seed."""


@dataclass(frozen=True)
class Candidate:
    """A network and how it is trained.

    >>> from gpflow_gpnet.defaults import FEW
    >>> FEW[0].name, FEW[0].network(kernel, X, 1, 0).features(X).shape  # of kernel, X, L, a seed
    ('inducing features', TensorShape([20, 20]))
    """

    name: str
    network: MakeNetwork
    learning_rate: float
    prior_correction: bool
    max_steps: int = _STEPS[1]


def _basis(kernel: Kernel, X: AnyNDArray, num_latent_gps: int, seed: int) -> AdaptiveBasis:
    return AdaptiveBasis(
        (200, 200, 200),
        kernel=kernel,
        input_dim=X.shape[1],
        num_latent_gps=num_latent_gps,
        weight_prior=False,
        seed=seed,
    )


def _warped(kernel: Kernel, X: AnyNDArray, num_latent_gps: int, seed: int) -> RFE:
    return RFE(
        kernel,
        X.shape[1],
        num_features=200,
        warp=(100, 100),
        num_latent_gps=num_latent_gps,
        seed=seed,
    )


def _inducing(kernel: Kernel, X: AnyNDArray, num_latent_gps: int, seed: int) -> InducingFeatures:
    rows = np.random.default_rng([seed, 11]).permutation(np.unique(X, axis=0))[:FEW_ROWS]
    network = InducingFeatures(kernel, rows, num_latent_gps=num_latent_gps)
    gpflow.set_trainable(network.Z, False)
    return network


FEW = (
    Candidate("inducing features", _inducing, 0.01, False, max_steps=1000),
    Candidate("warped random features", _warped, 0.01, True),
)
"""For few rows: the exact GP in all but name, and one with a warp of the inputs."""

MANY = (
    FEW[0],
    Candidate("warped random features", _warped, 0.01, False, max_steps=3000),
    Candidate("adaptive basis", _basis, 0.01, False),
)
"""For many rows: the kernel's own, then networks that learn features, the freest last."""


def defaults(
    kernel: Kernel,
    X: Any,
    Y: Any,
    *,
    likelihood: Likelihood | None = None,
    mean_function: MeanFunction | None = None,
    seed: int = 0,
) -> Recipe:
    """A GPNet for these data, without settings of one's own: one recipe for all data sets.

    Inputs, and targets of Gaussian, Student-t and KnownNoise likelihoods, are scaled inside the
    model; the kernel is about scaled data, and for a Gaussian likelihood its hyperparameters and
    the noise start from an exact GP on at most 1,000 rows (for KnownNoise the hyperparameters, from
    one whose noise is the mean of the known). :meth:`Recipe.fit` then trains a few candidate
    networks and keeps the one that predicts held-out training rows best, or one nearer to the
    kernel that is worse by less than a standard error (Breiman et al. 1984, section 3.4.3).

    >>> recipe = gpn.defaults(kernel, X, Y)  # then recipe.fit(seconds=60) and recipe.model
    >>> [candidate.name for candidate in recipe.candidates]
    ['inducing features', 'warped random features']

    :param kernel: the prior's; it is copied.
    :param X: [N, D]; Y: [N, P]; in any units.
    :param likelihood: Gaussian by default; it is copied.
    :param mean_function: of scaled inputs; zero by default.
    :param seed: of all that is random.
    :raises ValueError: for shapes or values that do not fit.
    """
    check_shape(X, "X")
    check_shape(Y, "Y")
    kernel, mean_function = deepcopy(kernel), deepcopy(mean_function)
    likelihood = Gaussian(0.1) if likelihood is None else deepcopy(likelihood)
    base = base_likelihood(likelihood)
    data = to_tensors((X, Y), likelihood)
    if len(data[0]) < 2:
        raise ValueError(
            f"defaults needs 2 rows or more, to train and to choose by, got {len(data[0])}."
        )
    check_finite("X", data[0].numpy())
    if not isinstance(likelihood, RowDataLikelihood):
        check_targets(likelihood, data[1].numpy())
    targets = target_columns(likelihood, data[1])
    scaling = Scaling.from_data(
        (data[0], targets),
        targets=isinstance(base, (Gaussian, StudentT, KnownNoise)),
        unscaled=[column for column, _ in index_columns(kernel, data[0].shape[1])],
    )
    if isinstance(base, (Gaussian, KnownNoise)) and has_independent_outputs(kernel):
        scaled = scaling(data, likelihood)
        known = isinstance(base, KnownNoise)
        fit_from_starts(
            kernel,
            _of_mean_noise(likelihood, scaled[1]) if known else likelihood,
            (scaled[0], target_columns(likelihood, scaled[1])) if known else scaled,
            mean_function=mean_function,
            seed=seed,
        )
        gpflow.set_trainable(kernel, False)
    return Recipe(kernel, likelihood, mean_function, scaling, data, seed)


def _of_mean_noise(likelihood: Likelihood, Y: tf.Tensor) -> Gaussian:
    """Of the same variance for all rows, the mean of the known ones, to start a kernel by."""
    while not isinstance(likelihood, KnownNoise):
        Y = likelihood.split(Y)[0] if isinstance(likelihood, RowDataLikelihood) else Y
        likelihood = likelihood.base
    noise = Gaussian(max(float(np.nanmean(likelihood.split(Y)[1])), NO_NOISE))
    gpflow.set_trainable(noise, likelihood.variance is not None)
    return noise


@dataclass(eq=False)
class Recipe:
    """What :func:`defaults` chose, and the model once it is fitted.

    >>> recipe = gpn.defaults(kernel, X, Y)
    >>> recipe.likelihood.variance.shape, recipe.network is None  # no candidate is chosen yet
    (TensorShape([]), True)
    >>> recipe.model
    Traceback (most recent call last):
    ...
    ValueError: There is no model yet: call fit first.
    """

    kernel: Kernel
    likelihood: Likelihood
    mean_function: MeanFunction | None
    scaling: Scaling
    data: RegressionData
    seed: int
    validation_nlpd: dict[str, float] = field(default_factory=dict)
    """Of each candidate on held-out training rows, nats per datum."""
    network: str | None = None
    """The name of the candidate that was kept."""
    _model: GPNet | None = None

    @property
    def model(self) -> GPNet:
        """The fitted model.

        :raises ValueError: before :meth:`fit`.
        """
        if self._model is None:
            raise ValueError("There is no model yet: call fit first.")
        return self._model

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """Those for so many rows, but of these the ones that take the kernel."""
        return tuple(each for each in (FEW if self._few else MANY) if self._takes(each))

    @property
    def _few(self) -> bool:
        return len(self.data[0]) < FEW_ROWS

    @property
    def _spares(self) -> bool:
        """Whether training holds rows out by itself, to learn the noise from."""
        rows = len(self.data[0])
        return not self._few and FunctionalMirrorDescent().holds_out(self.likelihood, rows)

    def _takes(self, candidate: Candidate) -> bool:
        if "warped" in candidate.name and not is_stationary(self.kernel):
            return False
        try:
            self._network(candidate, self.kernel)
        except NoSpectralMeasureError:
            return False
        return True

    def fit(
        self,
        seconds: float | None = None,
        *,
        progress: bool = True,
        callbacks: Iterable[Callable[[int], Any]] = (),
    ) -> History:
        """Train the candidates in turn and keep the best.

        :param seconds: to spend in all, about, and no less than compiling takes, a few seconds for
            each candidate; by default 200 epochs for each, between 400 and 6,000 steps.
        :param progress: show a progress bar.
        :param callbacks: called after each step of each candidate.
        :return: the kept candidate's history.
        """
        end = None if seconds is None else time.perf_counter() + seconds
        callbacks, candidates, few = tuple(callbacks), self.candidates, self._few
        number = num_held_out(len(self.data[0]))
        staying, held = held_out_rows(len(self.data[0]), number, self.seed)
        validation = self._rows(held)
        training = self.data if self._spares else self._rows(staying)
        trained: list[tuple[GPNet, History]] = []
        log_densities: list[AnyNDArray] = []

        def train(candidate: Candidate, data: RegressionData, left: int) -> tuple[GPNet, History]:
            share = None if end is None else max(end - time.perf_counter(), 0.0) / left
            return self._train(candidate, data, share, progress, callbacks)

        for index, candidate in enumerate(candidates):
            trained.append(train(candidate, training, len(candidates) - index + few))
            log_densities.append(trained[-1][0].predict_log_density(validation).numpy())
            self.validation_nlpd[candidate.name] = -float(np.mean(log_densities[-1]))
        kept = _nearest_to_best(log_densities)
        self.network = candidates[kept].name
        # Of few rows, those held out return.
        self._model, history = train(candidates[kept], self.data, 1) if few else trained[kept]
        return history

    def _rows(self, rows: AnyNDArray) -> RegressionData:
        X, Y = self.data
        return tf.gather(X, rows), tf.gather(Y, rows)

    def _network(self, candidate: Candidate, kernel: Kernel) -> InferenceNetwork:
        X, Y = self.scaling(self.data, self.likelihood)[:2]
        likelihood = base_likelihood(self.likelihood)
        latents = getattr(kernel, "num_latent_gps", None) or likelihood.latent_dim
        if latents is None:
            if isinstance(self.likelihood, RowDataLikelihood):
                Y, _ = self.likelihood.split(Y)
            latents = GPNet.calc_num_latent_gps(kernel, likelihood, Y.shape[1])
        return candidate.network(kernel, X.numpy(), latents, self.seed)

    def _train(
        self,
        candidate: Candidate,
        data: RegressionData,
        seconds: float | None,
        progress: bool,
        callbacks: tuple[Callable[[int], Any], ...],
    ) -> tuple[GPNet, History]:
        rows = len(data[0])

        def start() -> GPNet:
            kernel = deepcopy(self.kernel)
            network = self._network(candidate, kernel)
            return GPNet(
                kernel,
                deepcopy(self.likelihood),
                network,
                mean_function=deepcopy(self.mean_function),
                num_latent_gps=int(network.num_latent_gps or 1),
                num_data=rows,
                scaling=self.scaling,
            )

        def train(model: GPNet, steps: int, **kwargs: Any) -> History:
            optimizer = FunctionalMirrorDescent(
                learning_rate=LinearDecay(candidate.learning_rate, steps),
                prior_correction=candidate.prior_correction,
                seed=self.seed,
            )
            return fit(
                model,
                data,
                optimizer=optimizer,
                num_steps=steps,
                batch_size=BATCH_SIZE,
                seed=self.seed,
                **kwargs,
            )

        steps = int(np.clip(_EPOCHS * rows / BATCH_SIZE, *_STEPS))
        if seconds is not None:
            begun = time.perf_counter()
            times = train(start(), _TIMED_STEPS, progress=False, polish=False, log_every=1)
            a_step = np.median(np.diff(times["seconds"]))
            left = seconds - (time.perf_counter() - begun) - times["seconds"][0]
            steps = max(_TIMED_STEPS, int(left / a_step))
            callbacks = (*callbacks, TimeLimit(max(left, 0.0)))
        model = start()
        if _only_weights_learn(model):
            steps = min(steps, _STEPS_OF_WEIGHTS)
        history = train(
            model, min(steps, candidate.max_steps), progress=progress, callbacks=callbacks
        )
        return model, history


def _nearest_to_best(log_densities: list[AnyNDArray]) -> int:
    """The first candidate within a standard error of the one with the highest mean.

    :param log_densities: of the same rows, by candidate, the one nearest to the kernel first.
    """
    best = max(log_densities, key=np.mean)
    for index, values in enumerate(log_densities):
        difference = best - values
        if np.mean(difference) <= np.std(difference) / np.sqrt(len(difference)):
            return index
    raise ValueError("The log densities of held-out rows are not finite.")


def _only_weights_learn(model: GPNet) -> bool:
    """Whether natural steps and the tracked noise are all there is to train."""
    network = model.inference_network
    if not isinstance(network, LinearNetwork):
        return False
    known = (network.q_mu, network.q_sqrt, *model.likelihood.trainable_parameters)
    weights = {id(each.unconstrained_variable) for each in known}
    return isinstance(base_likelihood(model.likelihood), Gaussian) and all(
        id(variable) in weights for variable in model.trainable_variables
    )
