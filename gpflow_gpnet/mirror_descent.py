"""Stochastic functional mirror descent: the optimiser of a GPNet (Shi et al. 2019, algorithm 1)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Container, Hashable, Iterable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf
from gpflow.base import RegressionData
from gpflow.config import default_float
from gpflow.keras import tf_keras
from gpflow.likelihoods import Gaussian, Likelihood

from . import gaussians
from .gpnet import GPNet
from .inference_networks import FullGaussian, LinearNetwork
from .likelihoods import KnownNoise, base_likelihood, observed, row_weights
from .natural_parameters import (
    NaturalParameters,
    Site,
    correction_parameters,
    coupling,
    frozen,
    longest_step,
    plus_prior,
)
from .noise_variance import assign_noise_variance, noise_parameter, noise_variance
from .replicas import Replicas, Share
from .step_sizes import InverseSqrt, Schedule, as_schedule, check_step_size

__all__ = ["FunctionalMirrorDescent"]


_POLISH_DRAWS = 32
"""Draws of the measurement points that polishing averages the prior correction over, at least."""


_SITE_ITERATIONS = 20
"""For new rows' sites to reach their fixed point."""

_SCHEDULES = ("step_size", "learning_rate", "hyper_learning_rate")

_HALVINGS = 10
"""Of steps that would lower the bound, before the weights stay where they are."""


_ROWS_TO_SPARE = 1000
"""With fewer rows, holding some out costs more than a noise variance that is too small."""


class FunctionalMirrorDescent(tf.Module):
    r"""Tracks :math:`q_{t+1}(f) ∝ p(y_B|f)^{Nβ/B} p(f)^β q_t(f)^{1-β}` with an inference network.

    * **Natural steps**, for networks linear in their weights with a full covariance: the mirror
      step in closed form in weight space, :math:`Λ ← (1-β) Λ + β [I + \frac{N}{B} Φ^\top R^{-1} Φ +
      C_M]`, with sites from the gradients of the expected log-likelihood for any likelihood (Khan
      and Lin 2017) and the prior correction C_M of the measurement points. Features and
      hyperparameters take Adam steps on the same objective, from the same forward pass.
    * **Gradient steps**, for every network (the published algorithm): one Adam step on
      :math:`KL[q_γ(f_M) ‖ \hat q_{t+1}(f_M)]`, whose target is in closed form for a Gaussian
      likelihood (``conjugate``), else on the functional evidence lower bound at the batch and
      measurement points, which has the same gradient up to β.

    Frozen parameters stay, q_mu and q_sqrt too: a frozen mean lets the covariance alone move.

    One object optimises one model. Its state (t, slots, natural parameters) is in a
    ``tf.train.Checkpoint``.

    >>> optimizer = gpn.FunctionalMirrorDescent(gpn.InverseSqrt(1.0, 1.0), learning_rate=0.01)
    >>> loss = optimizer.minimize(model, (X, Y))  # one step, on a batch
    >>> loss.shape, int(optimizer.t), optimizer.takes_natural_steps
    (TensorShape([]), 1, True)
    """

    _natural_parameters: NaturalParameters
    """Made by :meth:`build`, where steps are natural."""

    def __init__(
        self,
        step_size: float | Schedule = InverseSqrt(beta0=1.0, xi=1.0),
        learning_rate: float | Schedule = 3e-3,
        hyper_learning_rate: float | Schedule | None = None,
        natural: bool | str = "auto",
        *,
        conjugate: bool | str = "auto",
        prior_correction: bool = True,
        noise: str = "auto",
        noise_decay: float = 0.95,
        staleness: float = 0.0,
        scale_hyper_bound: bool = True,
        seed: int = 0,
        jit_compile: bool | None = None,
    ) -> None:
        """
        :param step_size: β_t, a number or a callable of t, in (0, 1].
        :param learning_rate: of Adam on the network's parameters (but natural ones).
        :param hyper_learning_rate: of Adam on kernel, mean function and likelihood parameters; by
            default the learning rate.
        :param natural: whether to take natural steps; "auto": where the network allows them.
        :param conjugate: whether gradient steps use the Gaussian target in closed form; "auto":
            where the likelihood is Gaussian and latent GPs are not mixed.
        :param prior_correction: whether natural steps correct for features that do not reproduce
            the kernel. Without it the kernel's own hyperparameters get no gradient.
        :param noise: how a Gaussian likelihood's variance is learned while it is trainable:
            "objective", by gradient; "training", a moving average of squared residual plus
            variance on the batch, the bound's maximiser; "held-out", of squared residual minus
            variance on held-out rows, which over-fitting cannot shrink; "auto":
            "objective" where the variance has a prior, else "held-out" where steps are given such
            rows (``fit`` does from 1,000 rows on), else "training" where steps are natural, else
            "objective".
        :param noise_decay: of the moving average, per step.
        :param staleness: how much of the weights' covariance may be out of date in natural steps:
            it is factorised anew, O(F³), once the step sizes since sum to more. Until then the mean
            takes conjugate-gradient iterations, O(F²). 0: at every step.
        :param scale_hyper_bound: whether the bound for hyperparameters of the conjugate gradient
            step scales the likelihood by N / B; False as published.
        :param seed: of the measurement points, which depend on (seed, t) alone.
        :param jit_compile: compile the step with XLA, anew for each size that batches have.
        :raises ValueError: for arguments out of range.
        """
        super().__init__(name="FunctionalMirrorDescent")
        if natural not in (True, False, "auto"):
            raise ValueError(f'natural must be True, False or "auto", got {natural!r}.')
        if conjugate not in (True, False, "auto"):
            raise ValueError(f'conjugate must be True, False or "auto", got {conjugate!r}.')
        if noise not in ("auto", "objective", "training", "held-out"):
            raise ValueError(
                f'noise must be "auto", "objective", "training" or "held-out", got {noise!r}.'
            )
        if not 0.0 <= noise_decay < 1.0:
            raise ValueError(f"noise_decay must be in [0, 1), got {noise_decay}.")
        if not 0.0 <= staleness < 1.0:
            raise ValueError(f"staleness must be in [0, 1), got {staleness}.")
        self.step_size: Schedule = as_schedule(step_size)
        self.learning_rate: Schedule = as_schedule(learning_rate)
        self.hyper_learning_rate: Schedule = (
            self.learning_rate if hyper_learning_rate is None else as_schedule(hyper_learning_rate)
        )
        self.natural = natural
        self.conjugate = conjugate
        self.prior_correction = prior_correction
        self.noise = noise
        self.noise_decay = noise_decay
        self.staleness = staleness
        self.scale_hyper_bound = scale_hyper_bound
        self.seed = seed
        self.jit_compile = jit_compile
        self.t = tf.Variable(0, dtype=tf.int64, trainable=False, name="t")
        self._adam = self._new_adam("learning_rate")
        self._hyper_adam = self._new_adam("hyper_learning_rate")
        self._built_for: GPNet | None = None
        # In a namespace, since tf.Module would track a plain dict and refuse to save its keys.
        self._compiled = SimpleNamespace(
            network=None, step={}, polish={}, absorb=None, unpickled=None
        )

    def __setattr__(self, name: str, value: Any) -> None:
        """Settings may be assigned between steps, which then are compiled anew."""
        if name in _SCHEDULES:
            value = as_schedule(value)
        if name == "step_size":
            check_step_size(value)
        super().__setattr__(name, value)

    def _new_adam(self, rate: str) -> Any:
        # The legacy class makes slots for variables it has not seen, so unfreezing goes on.
        return tf_keras.optimizers.legacy.Adam(
            lambda: tf.cast(getattr(self, rate)(self.t), default_float())
        )

    # ------------------------------------------------------------------ public steps

    def minimize(
        self,
        model: GPNet,
        batch: RegressionData,
        held_out: RegressionData | None = None,
        *,
        strategy: tf.distribute.Strategy | None = None,
    ) -> tf.Tensor:
        """One step on one batch. Returns the training loss before it, nats.

        :param model: always the same one.
        :param batch: X [B, D] and Y [B, P].
        :param held_out: rows that no step trains on, for ``noise="held-out"``.
        :param strategy: whose replicas share the work, as for :func:`~gpflow_gpnet.fit`: called
            in each process with the same whole batch, by models that are equal.
        :raises ValueError: for data or settings that the model cannot be trained with.
        """
        self._restore()
        bound = self._built_for is not None
        self.build(model)
        batch = model.checked(batch)
        if not bound:
            model.initialise(batch[0])
        held_out = model.checked(held_out) if held_out is not None else None
        return self.compiled_step(held_out is not None, strategy)(batch, held_out)

    def build(self, model: GPNet) -> None:
        """Bind to the model and make all state, so that a checkpoint can be restored into it.

        :raises ValueError: if bound to another model, without ``num_data``, or if natural steps
            are asked of a network that has none.
        """
        self._restore()
        if self._built_for is model and self._compiled.network is model.inference_network:
            return
        if self._built_for not in (None, model):
            raise ValueError("This optimiser belongs to another model: make a new one.")
        if not isinstance(model, GPNet):
            raise TypeError(
                f"FunctionalMirrorDescent optimises a GPNet, got {type(model).__name__}."
            )
        if model.num_data is None:
            raise ValueError("num_data is None: training needs the number of data N.")
        if self.natural is True and not _has_natural_steps(model):
            raise ValueError(
                f"natural=True needs a network linear in its weights with a full covariance, got "
                f"{type(model.inference_network).__name__}."
            )
        if self.noise in ("training", "held-out"):
            parameter = noise_parameter(model.likelihood)
            if parameter is None:
                raise ValueError(
                    f'noise="{self.noise}" needs a Gaussian likelihood with one variance, got '
                    f"{type(model.likelihood).__name__}."
                )
            if parameter.trainable and parameter.prior is not None:
                raise ValueError(
                    f'noise="{self.noise}" follows the residuals and would ignore the prior of the '
                    'likelihood\'s variance: use noise="objective", or set the prior to None.'
                )
        if self.conjugate is True and not _is_conjugate(model):
            raise ValueError(
                "conjugate=True needs a Gaussian likelihood and unmixed latent GPs, got "
                f"{type(model.likelihood).__name__}."
            )
        self._bind(model)

    def _bind(self, model: GPNet) -> None:
        self._built_for = model
        self._compiled.network = model.inference_network
        model._training.optimizer = self
        if self.takes_natural_steps:
            self._natural_parameters = NaturalParameters(model.inference_network)

    @property
    def _model(self) -> GPNet:
        self._restore()
        if self._built_for is None:
            raise ValueError("This optimiser has no model yet: call build(model) first.")
        if self._compiled.network is not self._built_for.inference_network:
            self.build(self._built_for)  # natural parameters of the new one
        return self._built_for

    # ------------------------------------------------------------------ copies

    def __getstate__(self) -> dict[str, Any]:
        """Settings and state as arrays: what ``pickle``, ``deepcopy`` and ``model.save`` keep."""
        if self._compiled.unpickled is not None:
            return self._compiled.unpickled
        state: dict[str, Any] = {
            "settings": self._settings,
            "t": self.t.numpy(),
            "model": self._built_for,
            "network": self._compiled.network,
        }
        if self._built_for is not None:
            variables = self.state_variables()
            state["variables"] = {name: v.numpy() for name, v in variables.items()}
        return state

    @property
    def _settings(self) -> dict[str, Any]:
        own = inspect.signature(type(self).__init__).parameters
        names = {name for name, each in own.items() if each.kind != each.VAR_KEYWORD}
        if len(names) < len(own):  # a subclass that hands **kwargs on
            names |= set(inspect.signature(FunctionalMirrorDescent.__init__).parameters)
        return {name: getattr(self, name) for name in sorted(names - {"self"})}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state["settings"])  # type: ignore[misc]
        self.t.assign(state["t"])
        # The model holds the optimiser too and may not be whole yet.
        self._compiled.unpickled = state

    def _restore(self) -> None:
        """Take up the state of the pickled optimiser, once its model is whole."""
        state, self._compiled.unpickled = self._compiled.unpickled, None
        if state is None or state["model"] is None:
            return
        self._bind(state["model"])
        if state["network"] is not self._compiled.network:
            return  # what is left is of one that has been replaced since
        for name, variable in self.state_variables(state["variables"]).items():
            variable.assign(state["variables"][name])

    def state_variables(self, slots: Container[str] = ()) -> dict[str, tf.Variable]:
        """What steps on the bound model leave behind for the next: t, Adam's state, Λ and θ.

        :param slots: names of Adam's slots to make, beside those that steps have made.
        """
        state = {"t": self.t}
        for owner, adam in (("adam", self._adam), ("hyper_adam", self._hyper_adam)):
            state[f"{owner}/iterations"] = adam.iterations
            for index, variable in enumerate(self._model.variables):
                for slot in ("m", "v"):
                    name = f"{owner}/{index}/{slot}"
                    if name in slots:
                        adam.add_slot(variable, slot)
                    try:
                        state[name] = adam.get_slot(variable, slot)
                    except KeyError:  # never trained
                        continue
        if self.takes_natural_steps:
            for name in ("precision", "shift", "age", "fingerprint"):
                state[f"natural/{name}"] = getattr(self._natural_parameters, name)
        return state

    @property
    def takes_natural_steps(self) -> bool:
        """Whether steps on the bound model are natural."""
        return bool(self.natural) and _has_natural_steps(self._model)

    @property
    def _corrects_prior(self) -> bool:
        model = self._model
        return self.prior_correction and not model.inference_network.represents(model.kernel)

    def compiled_step(
        self, held_out: bool = False, strategy: tf.distribute.Strategy | None = None
    ) -> Callable[..., tf.Tensor]:
        """The step (batch, held_out=None) -> loss on the bound model, for tensors already checked.

        :param held_out: whether it will be given held-out rows.
        :param strategy: as for :meth:`minimize`.
        :raises TypeError: for a strategy of another kind.
        :raises ValueError: for a model made in a strategy's scope, or ``jit_compile`` with one.

        One function for each set of trainable variables, of settings and of parts and number of
        data of the model, so that freezing, unfreezing, new parts and new data between steps work:
        ask again after ``set_trainable`` and after ``model.num_data`` or another has changed.
        """
        noise = self._noise_rule(held_out)
        network_variables, hyper_variables = self._variables(noise)
        key = (
            noise,
            id(strategy),
            _captured(self._model),
            _hashable(self._settings.values()),
            self.takes_natural_steps and frozen(self._model.inference_network),
            *(id(variable) for variable in (*network_variables, *hyper_variables)),
        )
        if key not in self._compiled.step:
            self._adam._create_all_weights(network_variables)
            self._hyper_adam._create_all_weights(hyper_variables)
            # A second batch size gives a second, shape-free trace and no third, but under XLA,
            # which needs shapes: there each size has its own.
            self._compiled.step[key] = tf.function(
                partial(self._step, noise, self._replicas(strategy)),
                autograph=False,
                reduce_retracing=not self.jit_compile,
                jit_compile=self.jit_compile,
            )
        return self._compiled.step[key]

    def _replicas(self, strategy: tf.distribute.Strategy | None) -> Replicas:
        replicas = Replicas(strategy)
        if strategy is not None:
            replicas.check(self._model, self)
            if self.jit_compile:
                raise ValueError(
                    "jit_compile=True is for steps on one device: XLA does not compile what "
                    "replicas exchange. Leave strategy or jit_compile out."
                )
        return replicas

    def polish(
        self,
        batches: Iterable[RegressionData],
        *,
        strategy: tf.distribute.Strategy | None = None,
    ) -> None:
        """One natural step on all data, everything but the weights' Gaussian frozen.

        For Gaussian noise exact, the same as a pass with β_t = 1 / (t + 1): the weights' posterior
        for the features at hand, free of minibatch noise and of features long gone. For others
        the longest β, β/2, β/4, … with which the bound on all data does not fall, from β = 1 or
        what mixed latent GPs allow. The prior correction is averaged over draws of the measurement
        points. Mixed latent GPs (LinearCoregionalization) with Gaussian noise take O(L³ F³).

        :param batches: that together are the data, each row once.
        :param strategy: as for :meth:`minimize`.
        :raises ValueError: if steps are not natural.
        """
        if not self.takes_natural_steps:
            raise ValueError("polish needs natural steps.")
        traced_for = _captured(self._model), id(strategy), self.prior_correction
        if not self._compiled.polish or self._compiled.polish["traced_for"] != traced_for:
            replicas = self._replicas(strategy)
            self._compiled.polish = {
                name: tf.function(
                    partial(function, replicas), autograph=False, reduce_retracing=True
                )
                for name, function in (
                    ("evidence", self._whole_evidence),
                    ("fit", self._whole_fit),
                    ("correction", self._correction),
                )
            } | {"traced_for": traced_for}
        compiled = self._compiled.polish
        if not isinstance(batches, Collection):
            batches = list(batches)
        evidence: tuple[Any, ...] = ()
        rows, draws, correction = 0, 0, (0.0, 0.0)
        for X, Y in batches:
            parts = tuple(X.shape[0] * part for part in compiled["evidence"](X, Y))
            evidence = tuple(map(sum, zip(evidence, parts, strict=True))) if evidence else parts
            rows += X.shape[0]
            for _ in range(-(-_POLISH_DRAWS // len(batches)) if self._corrects_prior else 0):
                draw = compiled["correction"](X, tf.constant([self.seed, -1 - draws]))
                correction = tuple(a + b for a, b in zip(correction, draw, strict=True))
                draws += 1
        correction = tuple(
            tf.zeros_like(part) + total / max(draws, 1)
            for part, total in zip(evidence, correction, strict=False)
        )
        prior = plus_prior(correction[0], 1), correction[1]

        def fit() -> float:
            return float(sum(X.shape[0] * compiled["fit"](X, Y) for X, Y in batches)) / rows

        self._ascend(prior, tuple(part / rows for part in evidence), fit)
        self._natural_parameters.warn_of_rounding()

    def absorb(self, rows: RegressionData, iterations: int | None = None) -> None:
        r"""Bayes' rule for new rows alone: the weights' posterior so far is their prior.

        :math:`Λ ← Λ + Φ^\top R^{-1} Φ, θ ← θ + Φ^\top R^{-1} y`, and ``num_data`` grows by the
        number of rows; old rows are not needed. For Gaussian noise this is exact: in any chunks and
        any order the posterior of all rows at once (of mixed latent GPs, which are independent in
        q, the best such posterior for each chunk). For other likelihoods the new rows' sites are
        iterated to their fixed point with the old posterior held, and sites of old rows stay
        (streaming variational Bayes, Broderick et al. 2013; Bui, Nguyen and Turner 2017).

        It holds for the features, hyperparameters, noise and :attr:`GPNet.scaling` that the old
        rows were absorbed with, so nothing but the weights may have moved since: ``fit`` ends
        that way, by polishing; single steps do not. The prior correction stays that of the old
        rows' measurement points. A model at the prior, which has seen no row, starts from N(0, I),
        without the correction, and counts its rows from 0.

        >>> optimizer = gpn.FunctionalMirrorDescent()
        >>> history = gpn.fit(
        ...     model, (X, Y), optimizer=optimizer, num_steps=3, seed=0, progress=False
        ... )
        >>> optimizer.absorb((X + 1.0, np.sin(X + 1.0)))  # 20 rows more
        >>> model.num_data
        40

        :param rows: X [B, D] and Y [B, P] (and row data), new ones, all at once in memory with
            their features [B, F].
        :param iterations: of the sites, at most; by default 1 where that is exact, and 20
            elsewhere.
        :raises ValueError: before :meth:`build`, if steps are not natural, if all of the weights'
            Gaussian is frozen, or for data that do not fit the model.
        """
        model = self._model
        if not self.takes_natural_steps:
            raise ValueError(
                "absorb needs natural steps, of a network linear in its weights with a full "
                f"covariance, got {type(model.inference_network).__name__}."
            )
        if all(frozen(model.inference_network)):
            raise ValueError("absorb needs q_mu or q_sqrt to be trainable, but both are frozen.")
        if iterations is not None and iterations < 1:
            raise ValueError(f"iterations must be at least 1, got {iterations}.")
        X, Y = model.checked(rows)
        seen = (model.num_data or 0) if model.inference_network.is_trained else 0
        model.initialise(X)
        if iterations is None:
            iterations = 1 if self._is_exact else _SITE_ITERATIONS
        traced_for = _captured(model)[1:]
        if self._compiled.absorb is None or self._compiled.absorb["traced_for"] != traced_for:
            self._compiled.absorb = {
                name: tf.function(
                    partial(lambda function, X, Y: function(*model.scaled((X, Y))), function),
                    autograph=False,
                    reduce_retracing=True,
                )
                for name, function in (("evidence", self._evidence), ("fit", self._fit))
            } | {"traced_for": traced_for}
        compiled = self._compiled.absorb
        prior = self._natural_parameters.present()
        for _ in range(iterations):
            evidence = compiled["evidence"](X, Y)
            if not self._ascend(prior, evidence, lambda: compiled["fit"](X, Y)):
                break
        self._natural_parameters.warn_of_rounding()
        total = int(X.shape[0]) + seen
        if isinstance(model.num_data, tf.Variable):
            model.num_data.assign(tf.cast(total, model.num_data.dtype))
        else:
            model.num_data = total

    @property
    def _is_exact(self) -> bool:
        """Whether sites are Gaussian, so that the best q(w) is known from where it is now."""
        return isinstance(base_likelihood(self._model.likelihood), (Gaussian, KnownNoise))

    def _ascend(
        self,
        prior: tuple[tf.Tensor, tf.Tensor],
        evidence: tuple[tf.Tensor, ...],
        fit: Callable[[], Any],
    ) -> bool:
        """To prior times sites, by the longest step β, β/2, β/4, … that does not lower the bound.

        :param prior: Λ and θ of what q(w) diverges from; evidence: :meth:`_evidence`.
        :param fit: the expected log-likelihood, for q(w) as it then is.
        :return: whether the bound rose by more than rounding.
        """
        weights = self._natural_parameters
        sites, coupled = (evidence[0], evidence[1]), evidence[2:]
        if self._is_exact:
            weights.jump(prior, sites, *coupled)
            return True
        target = prior[0] + sites[0], prior[1] + sites[1]

        def bound() -> float:
            return float(fit() - weights.divergence(*prior))

        start, before = weights.present(), bound()
        rounding = 1e3 * float(np.finfo(default_float()).eps) * abs(before)
        longest = 1.0 if self._model.mixing is None else float(longest_step(self._model.mixing))
        for halvings in range(_HALVINGS):
            beta = longest * 0.5**halvings
            precision, shift = (
                (1.0 - beta) * old + beta * new for old, new in zip(start, target, strict=True)
            )
            weights.mix(1.0, precision, shift)
            gain = bound() - before
            if gain >= -rounding:
                return gain > rounding
        weights.mix(1.0, *start)
        return False

    # ------------------------------------------------------------------ the compiled step

    def holds_out(self, likelihood: Likelihood, rows: int) -> bool:
        """Whether training on so many rows should keep some for the noise."""
        parameter = noise_parameter(likelihood)
        learns = parameter is not None and parameter.trainable and parameter.prior is None
        return self.noise == "held-out" or (
            self.noise == "auto" and learns and rows >= _ROWS_TO_SPARE
        )

    def _noise_rule(self, held_out: bool) -> str:
        """:attr:`noise` as it is for a step: "objective" (no tracking) for a frozen variance."""
        parameter = noise_parameter(self._model.likelihood)
        if parameter is None or not parameter.trainable:
            return "objective"
        if self.noise != "auto":
            return self.noise
        if parameter.prior is not None:  # which a moving average would not see
            return "objective"
        if held_out:
            return "held-out"
        return "training" if self.takes_natural_steps else "objective"

    def _variables(self, noise: str) -> tuple[list[tf.Variable], list[tf.Variable]]:
        """Trainable variables that take Adam steps: the network's, and hyperparameters."""
        model = self._model
        hyper: list[tf.Variable] = []
        for module in (model.kernel, model.mean_function, model.likelihood):
            hyper += getattr(module, "trainable_variables", ())  # a mean may be a plain function
        skip: set[int] = {id(variable) for variable in hyper}
        if self.takes_natural_steps:
            network = model.inference_network
            skip |= {id(p.unconstrained_variable) for p in (network.q_mu, network.q_sqrt)}
        tracked = noise_parameter(model.likelihood)
        if noise != "objective" and tracked is not None:
            hyper = [v for v in hyper if v is not tracked.unconstrained_variable]
        network_variables = [
            v for v in model.inference_network.trainable_variables if id(v) not in skip
        ]
        return network_variables, hyper

    def _step(
        self,
        noise: str,
        replicas: Replicas,
        batch: RegressionData,
        held_out: RegressionData | None = None,
    ) -> tf.Tensor:
        self._model.redraw(self.t)
        batch = self._model.scaled(batch)
        if noise == "held-out":
            if held_out is None:
                raise ValueError('noise="held-out" needs held_out rows at each step.')
            rows = self._model.scaled(held_out)
            self._track_noise(*replicas.sum(lambda share: self._errors(*share.of(rows), sign=-1.0)))
        take = self._natural_step if self.takes_natural_steps else self._gradient_step
        loss = take(noise, replicas, *batch)
        self.t.assign_add(1)
        return loss

    def _measurement_seed(self) -> tf.Tensor:
        return tf.stack([tf.constant(self.seed, tf.int32), tf.cast(self.t, tf.int32)])

    def _apply(self, noise: str, gradients: Sequence[tf.Tensor]) -> None:
        network_variables, hyper_variables = self._variables(noise)
        split = len(network_variables)
        for adam, grads, variables in (
            (self._adam, gradients[:split], network_variables),
            (self._hyper_adam, gradients[split:], hyper_variables),
        ):
            pairs = [(g, v) for g, v in zip(grads, variables, strict=True) if g is not None]
            if pairs:
                adam.apply_gradients(pairs)

    def _natural_step(
        self, noise: str, replicas: Replicas, X: tf.Tensor, Y: tf.Tensor
    ) -> tf.Tensor:
        """Move everything by gradients at the present weights, from one pass.

        Gradients at weights that have just absorbed the batch learn faster at first, but from
        residuals that are too small, and end worse (measured on kin8nm).
        """
        loss, gradients, precision, shift, errors = replicas.sum(
            lambda share: self._natural_sums(noise, share, X, Y)
        )
        beta = self.step_size(self.t)
        if self._model.mixing is not None:
            beta = tf.minimum(beta, longest_step(self._model.mixing))
        self._natural_parameters.mix(beta, precision, shift, self.staleness)
        self._apply(noise, gradients)
        if errors is not None:
            self._track_noise(*errors)
        return loss

    def _natural_sums(
        self, noise: str, share: Share, X: tf.Tensor, Y: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor], tf.Tensor, tf.Tensor, Any]:
        """A replica's part of loss, its gradients, Λ's and θ's targets, and what noise tracks."""
        model, network = self._model, self._model.inference_network
        network_variables, hyper_variables = self._variables(noise)
        variables = network_variables + hyper_variables
        own_X, own_Y = share.of((X, Y))
        batch = tf.shape(own_X)[0]
        corrected = self._corrects_prior
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            points = model.correction_points(X, self._measurement_seed()) if corrected else X[:0]
            features = network.latent_features(tf.concat([own_X, points], axis=0))
            rows, measured = features[..., :batch, :], features[..., batch:, :]
            mean, variance = network.marginals(rows, own_X)
            tape.watch([mean, variance])
            fit = model.expected_log_likelihood(own_X, mean, variance, own_Y)
            divergence = network.prior_kl() - model.log_prior_density()
            factors = None
            if corrected:
                offset = network.offset(points)
                factors = model.prior_factors(points, measured)
                divergence += model.prior_correction(measured, factors, offset)
            loss = divergence / share.number - model.likelihood_scale(X) * fit
        *gradients, d_mean, d_variance = tape.gradient(loss, [*variables, mean, variance])
        site = Site.from_gradients(network.weights.mean(rows), d_mean, d_variance)
        precision, shift = site.parameters(rows)
        precision = plus_prior(precision, share.number)
        if factors is not None:
            correction = correction_parameters(measured, factors, offset, share)
            precision, shift = precision + correction[0], shift + correction[1]
        errors = self._errors(own_X, own_Y, (mean, variance)) if noise == "training" else None
        return loss, gradients, precision, shift, errors

    def _whole_evidence(
        self, replicas: Replicas, X: tf.Tensor, Y: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        """:meth:`_evidence` of a batch, scaled to all data."""
        batch = self._model.scaled((X, Y))
        scale = self._model.likelihood_scale(X)
        parts = replicas.sum(lambda share: self._evidence(*share.of(batch)))
        return tuple(scale * part for part in parts)

    def _whole_fit(self, replicas: Replicas, X: tf.Tensor, Y: tf.Tensor) -> tf.Tensor:
        """A batch's expected log-likelihood, scaled to all data."""
        batch = self._model.scaled((X, Y))
        fit = replicas.sum(lambda share: self._fit(*share.of(batch)))
        return self._model.likelihood_scale(X) * fit

    def _fit(self, X: tf.Tensor, Y: tf.Tensor) -> tf.Tensor:
        """Expected log-likelihood of scaled rows, nats."""
        mean, variance = self._model.inference_network(X)
        return self._model.expected_log_likelihood(X, mean, variance, Y)

    def _evidence(self, X: tf.Tensor, Y: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Natural parameters of the own sites of scaled rows, features frozen.

        And, where Gaussian noise is on mixed latent GPs, the joint precision [L, F, L, F].
        """
        model, network = self._model, self._model.inference_network
        rows = network.latent_features(X)
        mean, variance = network.marginals(rows, X)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([mean, variance])
            loss = -model.expected_log_likelihood(X, mean, variance, Y)
        gradients = tape.gradient(loss, [mean, variance])
        parameters = Site.from_gradients(network.weights.mean(rows), *gradients).parameters(rows)
        if model.mixing is None or not self._is_exact:
            return parameters
        Fmu, Fvar = model.outputs(X, mean, variance)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(Fvar)
            loss = -tf.reduce_sum(model.likelihood.variational_expectations(X, Fmu, Fvar, Y))
        of_outputs = 2.0 * tape.gradient(loss, Fvar)  # [B, P]
        return *parameters, coupling(rows, model.mixing, of_outputs)

    def _correction(
        self, replicas: Replicas, X: tf.Tensor, seed: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        model, network = self._model, self._model.inference_network
        points = model.correction_points(model.scaled_inputs(X), seed)

        def part(share: Share) -> tuple[tf.Tensor, tf.Tensor]:
            features = network.latent_features(points)
            factors = model.prior_factors(points, features)
            return correction_parameters(features, factors, network.offset(points), share)

        return replicas.sum(part)

    def _gradient_step(
        self, noise: str, replicas: Replicas, X: tf.Tensor, Y: tf.Tensor
    ) -> tf.Tensor:
        loss, gradients = replicas.sum(lambda share: self._gradients(noise, share, X, Y))
        self._apply(noise, gradients)
        if noise == "training":
            self._track_noise(*replicas.sum(lambda share: self._errors(*share.of((X, Y)))))
        return loss

    def _gradients(
        self, noise: str, share: Share, X: tf.Tensor, Y: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """A replica's part of the loss and its gradients."""
        model = self._model
        network_variables, hyper_variables = self._variables(noise)
        variables = network_variables + hyper_variables
        seed = self._measurement_seed()
        conjugate = bool(self.conjugate) and _is_conjugate(model)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            points = model.measurement_points(X, seed)
            if conjugate:
                loss = self._conjugate_loss(share, X, Y, points, bool(hyper_variables))
            else:
                loss = -model.functional_elbo(X, Y, tf.concat([X, points], axis=0), share)
            loss -= model.log_prior_density() / share.number
        return loss, tape.gradient(loss, variables)

    def _conjugate_loss(
        self,
        share: Share,
        X: tf.Tensor,
        Y: tf.Tensor,
        points: tf.Tensor,
        learn_hyperparameters: bool,
    ) -> tf.Tensor:
        """KL of the network from the mirror step's target at the measurement points, nats,
        minus the bound that hyperparameters maximise: a share's part."""
        model = self._model
        batch = tf.shape(X)[0]
        old_mean, old_cov, mean, cov = model.inference_network.joint_moments(X, points, share)
        old_mean, mean = tf.transpose(old_mean), tf.transpose(mean)
        prior = tf.stop_gradient(model.prior_covariance(tf.concat([X, points], axis=0)))
        jitter = gaussians.nugget(prior)
        target_mean, target_cov = mirror_step_target(
            model,
            X,
            Y,
            self.step_size(self.t),
            gaussians.add_diagonal(prior, jitter),
            old_mean,
            gaussians.add_diagonal(old_cov, jitter),
        )
        loss = tf.reduce_sum(
            gaussians.kl_divergence(
                mean, gaussians.add_diagonal(cov, jitter), target_mean, target_cov
            )
        )
        if learn_hyperparameters:
            loss -= self._hyper_bound(X, Y, old_mean[:, :batch], old_cov[:, :batch, :batch])
        return loss / share.number

    def _hyper_bound(
        self, X: tf.Tensor, Y: tf.Tensor, mean: tf.Tensor, cov: tf.Tensor
    ) -> tf.Tensor:
        """Σ_B E_q[log p(y|f)] - KL[q(f_B) ‖ p(f_B)], the sum times N / B unless as published."""
        model = self._model
        variance = tf.transpose(tf.linalg.diag_part(cov))
        fit = model.expected_log_likelihood(X, tf.transpose(mean), variance, Y)
        if self.scale_hyper_bound:
            fit *= model.likelihood_scale(X)
        return fit - model.functional_kl(X, tf.transpose(mean), cov)

    # ------------------------------------------------------------------ noise

    def _errors(
        self,
        X: tf.Tensor,
        Y: tf.Tensor,
        moments: tuple[tf.Tensor, tf.Tensor] | None = None,
        sign: float = 1.0,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Sum of squared residual + sign * variance over the observed targets, and their number.

        :param moments: the network's at X, where they are known.
        """
        model = self._model
        mean, variance = model.outputs(
            X, *(model.inference_network(X) if moments is None else moments)
        )
        targets, there = observed(model.likelihood, Y)
        times = there * row_weights(model.likelihood, Y)
        squares = times * (tf.square(targets - mean) + sign * variance)
        return tf.reduce_sum(squares), tf.reduce_sum(times)

    def _track_noise(self, squares: tf.Tensor, number: tf.Tensor) -> None:
        """Move the likelihood's variance towards the mean of :meth:`_errors`, from the second step
        on."""
        old = noise_variance(self._model.likelihood)
        # Held-out residuals can undercut the variance by chance: never shrink tenfold in a step.
        estimate = tf.maximum(tf.math.divide_no_nan(squares, number), 0.1 * old)
        new = self.noise_decay * old + (1.0 - self.noise_decay) * estimate
        learns = tf.logical_and(self.t > 0, number > 0.0)
        assign_noise_variance(self._model.likelihood, tf.where(learns, new, old))


def mirror_step_target(
    model: GPNet,
    X: tf.Tensor,
    Y: tf.Tensor,
    beta: tf.Tensor,
    prior_cov: tf.Tensor,
    mean: tf.Tensor,
    cov: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Moments of q̂_{t+1} at the measurement points for a Gaussian likelihood (paper, equation 8).

    :param X: batch inputs [B, D]; Y: targets [B, L].
    :param prior_cov: prior covariance at batch and measurement points [L, J, J].
    :param mean: the network's mean there [L, J] (zero prior mean); cov: covariance [L, J, J].
    :return: mean [L, M] and covariance [L, M, M].
    """
    bridge_mean, bridge_cov = gaussians.bridge(beta, tf.zeros_like(mean), prior_cov, mean, cov)
    shape = tf.concat([tf.shape(X)[:1], [1]], axis=0)
    noise = model.likelihood._variance(X) + tf.zeros(shape, X.dtype)  # [B, 1], or [B, L] by output
    precision = tf.transpose(model.likelihood_scale(X) * beta / noise)
    residual = tf.transpose(Y - model.mean_function(X))
    target_mean, target_cov = gaussians.condition(bridge_mean, bridge_cov, residual, precision)
    return tf.stop_gradient(target_mean), tf.stop_gradient(target_cov)


def _captured(model: GPNet) -> tuple[Any, ...]:
    """What a compiled step holds of the model, but for values of variables."""
    variable = isinstance(model.num_data, tf.Variable)
    number = None if variable else float(np.asarray(model.num_data))
    parts = model.kernel, model.mean_function, model.likelihood, model.inference_network
    measuring = model.measurement, model.num_measurement_points
    return _hashable((number, *parts, model.scaling, *measuring))


def _hashable(values: Iterable[Any]) -> tuple[Any, ...]:
    """To be keys; such as dataclasses that are not frozen stand for themselves alone."""
    return tuple(value if isinstance(value, Hashable) else id(value) for value in values)


def _has_natural_steps(model: GPNet) -> bool:
    network = model.inference_network
    return isinstance(network, LinearNetwork) and isinstance(network.weights, FullGaussian)


def _is_conjugate(model: GPNet) -> bool:
    return isinstance(model.likelihood, Gaussian) and model.mixing is None
