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
from gpflow.base import RegressionData
from gpflow.kernels import Kernel
from gpflow.likelihoods import Gaussian, Likelihood, StudentT
from gpflow.mean_functions import MeanFunction

from .callbacks import TimeLimit
from .checks import check_shape, to_tensors
from .fit import fit
from .gpnet import GPNet
from .history import History
from .hyperparameters import fit_hyperparameters
from .inference_networks import RFE, AdaptiveBasis, InferenceNetwork
from .likelihoods import base_likelihood
from .mirror_descent import FunctionalMirrorDescent
from .scaling import Scaling
from .spectral import NoSpectralMeasureError, is_stationary
from .step_sizes import LinearDecay

__all__ = ["Candidate", "Recipe", "defaults"]

BATCH_SIZE = 500
FEW_ROWS = 1000
"""With fewer rows the posterior is near the exact GP's, and candidates are about that."""

_EPOCHS = 200
_STEPS = (400, 6000)
_TIMED_STEPS = 10


@dataclass(frozen=True)
class Candidate:
    """A network and how it is trained."""

    name: str
    network: Callable[[Kernel, int, int, int], InferenceNetwork]
    """From the prior's kernel, D, L and a seed."""
    learning_rate: float
    prior_correction: bool
    max_steps: int = _STEPS[1]


def _basis(**settings: Any) -> Callable[[Kernel, int, int, int], InferenceNetwork]:
    return lambda kernel, input_dim, num_latent_gps, seed: AdaptiveBasis(
        kernel=kernel, input_dim=input_dim, num_latent_gps=num_latent_gps, seed=seed, **settings
    )


def _random_features(**settings: Any) -> Callable[[Kernel, int, int, int], InferenceNetwork]:
    return lambda kernel, input_dim, num_latent_gps, seed: RFE(
        kernel, input_dim, num_latent_gps=num_latent_gps, seed=seed, **settings
    )


MANY = (
    Candidate("adaptive basis", _basis(hidden_units=(200, 200, 200)), 0.003, False),
    Candidate(
        "wide adaptive basis",
        _basis(hidden_units=(256, 256, 256), activation="swish", weight_prior=False),
        0.003,
        False,
    ),
)
"""For many rows: bodies that learn features, one held to its prior, one free to."""

FEW = (
    Candidate("random features", _random_features(num_features=1000), 0.001, True, max_steps=20),
    Candidate(
        "warped random features", _random_features(num_features=200, warp=(100, 100)), 0.01, True
    ),
)
"""For few rows: the exact GP in all but name, and one with a warp of the inputs."""


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

    Inputs, and targets of Gaussian and Student-t likelihoods, are scaled inside the model; the
    kernel is about scaled data, and for a Gaussian likelihood its hyperparameters and the noise
    start from an exact GP on at most 1,000 rows. :meth:`Recipe.fit` then trains a few candidate
    networks and keeps the one that predicts held-out training rows best.

    :param kernel: the prior's; it is copied.
    :param X: [N, D]; Y: [N, P]; in any units.
    :param likelihood: Gaussian by default; it is copied.
    :param mean_function: of scaled inputs; zero by default.
    :param seed: of all that is random.
    :raises ValueError: for shapes or values that do not fit.
    """
    check_shape(X, "X")
    check_shape(Y, "Y")
    kernel = deepcopy(kernel)
    likelihood = Gaussian(0.1) if likelihood is None else deepcopy(likelihood)
    scales_targets = isinstance(base_likelihood(likelihood), (Gaussian, StudentT))
    scaling = Scaling.from_data((X, Y), targets=scales_targets)
    data = to_tensors((X, Y), likelihood)
    if isinstance(base_likelihood(likelihood), Gaussian):
        fit_hyperparameters(
            kernel,
            likelihood,
            scaling(data, likelihood),
            mean_function=mean_function,
            seed=seed,
        )
        gpflow.set_trainable(kernel, False)
    return Recipe(kernel, likelihood, mean_function, scaling, data, seed)


@dataclass(eq=False)
class Recipe:
    """What :func:`defaults` chose, and the model once it is fitted."""

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
        few = len(self.data[0]) < FEW_ROWS
        candidates = (*FEW, MANY[0]) if few else MANY
        takes = tuple(candidate for candidate in candidates if self._takes(candidate))
        return takes or MANY

    def _takes(self, candidate: Candidate) -> bool:
        if "warped" in candidate.name and not is_stationary(self.kernel):
            return False
        try:
            self._network(candidate)
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

        :param seconds: to spend in all, about; by default 200 epochs for each candidate, between
            400 and 6,000 steps.
        :param progress: show a progress bar.
        :param callbacks: called after each step of each candidate.
        :return: the kept candidate's history.
        """
        end = None if seconds is None else time.perf_counter() + seconds
        candidates = self.candidates
        few = len(self.data[0]) < FEW_ROWS
        best: tuple[float, str] | None = None
        trained: dict[str, tuple[GPNet, History]] = {}
        training, validation = self._parts() if few else (self.data, self.data)
        for index, candidate in enumerate(candidates):
            left = len(candidates) - index + few
            share = None if end is None else max(end - time.perf_counter(), 0.0) / left
            model, history = self._train(candidate, training, share, progress, callbacks)
            score = _nlpd(model, validation) if few else history["validation_nlpd"][-1]
            self.validation_nlpd[candidate.name] = float(score)
            if best is None or score < best[0]:
                best = float(score), candidate.name
                trained[candidate.name] = model, history
        assert best is not None  # there is always a candidate
        self.network = best[1]
        if few:  # what was held out returns
            candidate = next(each for each in candidates if each.name == self.network)
            share = None if end is None else max(end - time.perf_counter(), 0.0)
            trained[self.network] = self._train(candidate, self.data, share, progress, callbacks)
        self._model, history = trained[self.network]
        return history

    def _parts(self) -> tuple[RegressionData, RegressionData]:
        """Nine tenths of the rows, and one tenth."""
        X, Y = self.data
        rows = np.random.default_rng([self.seed, 7]).permutation(len(X))
        number = max(1, len(X) // 10)
        parts = [
            tuple(tf.gather(values, np.sort(part)) for values in (X, Y))
            for part in (rows[number:], rows[:number])
        ]
        return parts[0], parts[1]

    def _network(self, candidate: Candidate) -> InferenceNetwork:
        X, Y = self.data
        latents = self.likelihood.latent_dim or getattr(self.kernel, "num_latent_gps", None)
        return candidate.network(self.kernel, X.shape[1], latents or Y.shape[1], self.seed)

    def _train(
        self,
        candidate: Candidate,
        data: RegressionData,
        seconds: float | None,
        progress: bool,
        callbacks: Iterable[Callable[[int], Any]],
    ) -> tuple[GPNet, History]:
        rows = len(data[0])
        network = self._network(candidate)

        def start() -> GPNet:
            return GPNet(
                deepcopy(self.kernel),
                deepcopy(self.likelihood),
                deepcopy(network),
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
        steps = min(steps, candidate.max_steps)
        history = train(model, steps, progress=progress, callbacks=callbacks)
        return model, history


def _nlpd(model: GPNet, data: RegressionData) -> float:
    return -float(tf.reduce_mean(model.predict_log_density(data)))
