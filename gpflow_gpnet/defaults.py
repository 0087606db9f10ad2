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
from .fit import HELD_OUT_LIMIT, fit
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
    """A network and how it is trained.

    >>> from gpflow_gpnet.defaults import FEW
    >>> FEW[0].name, FEW[0].network(kernel, 1, 1, 0).features(X).shape  # of kernel, D, L and a seed
    ('random features', TensorShape([20, 1000]))
    """

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


_WARPED = _random_features(num_features=200, warp=(100, 100))
_WIDE = {"hidden_units": (256, 256, 256), "activation": "swish", "weight_prior": False}

MANY = (
    Candidate("warped random features", _WARPED, 0.01, False, max_steps=3000),
    Candidate("adaptive basis", _basis(hidden_units=(200, 200, 200)), 0.003, False),
    Candidate("free adaptive basis", _basis(**_WIDE), 0.003, False, max_steps=5000),
)
"""For many rows: networks that learn features, from the one nearest to the kernel to the freest."""

FEW = (
    Candidate("random features", _random_features(num_features=500), 0.001, True, max_steps=20),
    Candidate("warped random features", _WARPED, 0.01, True),
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

    >>> recipe = gpn.defaults(kernel, X, Y)  # then recipe.fit(seconds=60) and recipe.model
    >>> [candidate.name for candidate in recipe.candidates]
    ['random features', 'warped random features']

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
        few = len(self.data[0]) < FEW_ROWS
        takes = tuple(each for each in (FEW if few else MANY) if self._takes(each))
        return takes or MANY[1:]

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
        candidates = {candidate.name: candidate for candidate in self.candidates}
        few = len(self.data[0]) < FEW_ROWS
        # Training then holds rows out itself, to learn the noise from, and scores them.
        spares = not few and isinstance(base_likelihood(self.likelihood), Gaussian)
        training, validation = (self.data, self.data) if spares else self._parts()
        best: tuple[GPNet, History] | None = None

        def train(candidate: Candidate, data: RegressionData, left: int) -> tuple[GPNet, History]:
            share = None if end is None else max(end - time.perf_counter(), 0.0) / left
            return self._train(candidate, data, share, progress, tuple(callbacks))

        for index, (name, candidate) in enumerate(candidates.items()):
            model, history = train(candidate, training, len(candidates) - index + few)
            self.validation_nlpd[name] = (
                float(history["validation_nlpd"][-1])
                if spares
                else -float(tf.reduce_mean(model.predict_log_density(validation)))
            )
            if name == min(self.validation_nlpd, key=self.validation_nlpd.__getitem__):
                self.network, best = name, (model, history)
        assert self.network is not None and best is not None  # there is always a candidate
        if few:  # what was held out returns
            best = train(candidates[self.network], self.data, 1)
        self._model, history = best
        return history

    def _parts(self) -> tuple[RegressionData, RegressionData]:
        """Nine tenths of the rows, and one tenth."""
        X, Y = self.data
        rows = np.random.default_rng([self.seed, 7]).permutation(len(X))
        number = min(max(1, len(X) // 10), HELD_OUT_LIMIT)
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
        callbacks: tuple[Callable[[int], Any], ...],
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
