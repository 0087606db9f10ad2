"""Short fits of random combinations: is each finite and right, or refused by a clear error?

Hypothesis draws cases: kernel, likelihood, network, how to train, float type, and what is wrong
with the data. Each is fitted for a few steps, and then

* survives: parameters, loss and predictions are finite, variances and covariances positive
  (semi-)definite, shapes right; where noise is Gaussian and steps are natural, without the prior
  correction, the posterior is also compared with the exact one, in NumPy, float64;
* or warns that the float type rounds the prior or distances away: variances may be wrong;
* or is refused: ValueError before the first step, or FloatingPointError that names the step.

Everything else is a fault and is printed: a silent wrong result, or another error.

    python benchmarks/fuzz.py --fits 1000 --seed 0 --out fuzz.csv
    python benchmarks/fuzz.py --case '{"kernel": "Matern12", ...}'      # one, with its traceback

Rows are appended as fits end, and cases that are in the file already are not run again.
"""

from __future__ import annotations

import argparse
import collections
import csv
import gc
import json
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gpflow
import hypothesis
import numpy as np
import tensorflow as tf
from gpflow import kernels as K
from gpflow import likelihoods as lik
from hypothesis import strategies as st

import gpflow_gpnet as gpn
from gpflow_gpnet import mirror_descent
from gpflow_gpnet.latent_prior import latent_variance
from gpflow_gpnet.likelihoods import (
    KnownNoise,
    MissingTargets,
    Ordinal,
    Weighted,
    base_likelihood,
    observed,
    row_weights,
)
from gpflow_gpnet.spectral import is_stationary

__all__ = ["Case", "Outcome", "cases", "run"]

Data = tuple[np.ndarray, np.ndarray]

_HELD_OUT = 10
_FAR = 1e3
_GAUSSIAN = ("Gaussian", "weights", "known noise", "missing targets")
_EXP = ("Poisson", "Exponential", "Gamma", "heteroskedastic")

# A fit ends with an average over so many draws: two do here, where most time would go into them.
mirror_descent._POLISH_DRAWS = 2


# ---------------------------------------------------------------------- what a case is made of


def _stationary(kind: type) -> Callable[[int, float, float], Any]:
    def make(dim: int, variance: float, lengthscale: float) -> Any:
        return kind(variance, np.full(dim, lengthscale))

    return make


KERNELS: dict[str, Callable[[int, float, float], Any]] = {
    **{
        kind.__name__: _stationary(kind)
        for kind in (
            K.SquaredExponential,
            K.Matern12,
            K.Matern32,
            K.Matern52,
            K.RationalQuadratic,
            K.Exponential,
        )
    },
    "one lengthscale": lambda dim, variance, lengthscale: K.Matern52(variance, lengthscale),
    "Linear": lambda dim, variance, lengthscale: K.Linear(np.full(dim, variance)),
    "Polynomial": lambda dim, variance, lengthscale: K.Polynomial(2, variance),
    "Periodic": lambda dim, variance, lengthscale: K.Periodic(
        K.SquaredExponential(variance, np.full(dim, lengthscale))
    ),
    "ArcCosine": lambda dim, variance, lengthscale: K.ArcCosine(0, variance),
    "sum": lambda dim, variance, lengthscale: (
        K.SquaredExponential(variance, np.full(dim, lengthscale)) + K.Linear(0.1)
    ),
    "product": lambda dim, variance, lengthscale: (
        K.SquaredExponential(variance, np.full(dim, lengthscale)) * K.Matern32(1.0, 2.0)
    ),
    "Constant + White": lambda dim, variance, lengthscale: (
        K.Matern32(variance, np.full(dim, lengthscale)) + K.Constant(variance) + K.White(0.01)
    ),
}

LIKELIHOODS: dict[str, Callable[[float], tuple[Any, int]]] = {
    "Gaussian": lambda noise: (lik.Gaussian(noise), 1),
    "StudentT": lambda noise: (lik.StudentT(np.sqrt(noise)), 1),
    "Bernoulli": lambda noise: (lik.Bernoulli(), 1),
    "Poisson": lambda noise: (lik.Poisson(), 1),
    "Exponential": lambda noise: (lik.Exponential(), 1),
    "Gamma": lambda noise: (lik.Gamma(), 1),
    "Beta": lambda noise: (lik.Beta(), 1),
    "Ordinal": lambda noise: (Ordinal(np.array([-0.5, 0.5])), 1),
    "MultiClass": lambda noise: (lik.MultiClass(3), 3),
    "Softmax": lambda noise: (lik.Softmax(3), 3),
    "heteroskedastic": lambda noise: (lik.HeteroskedasticTFPConditional(), 2),
    "missing targets": lambda noise: (MissingTargets(lik.Gaussian(noise)), 1),
    "weights": lambda noise: (Weighted(lik.Gaussian(noise)), 1),
    "known noise": lambda noise: (KnownNoise(noise), 1),
}

NETWORKS: dict[str, Callable[[Any, np.ndarray, int], Any]] = {
    "array": lambda kernel, X, latents: X[:10],
    "RFE": lambda kernel, X, latents: gpn.RFE(kernel, X.shape[1], 10, num_latent_gps=latents),
    "RFE diag": lambda kernel, X, latents: gpn.RFE(
        kernel, X.shape[1], 10, "diag", num_latent_gps=latents
    ),
    "RFE rank 2": lambda kernel, X, latents: gpn.RFE(
        kernel, X.shape[1], 10, 2, num_latent_gps=latents
    ),
    "RFE kronecker": lambda kernel, X, latents: gpn.RFE(
        kernel, X.shape[1], 10, "kronecker", num_latent_gps=latents
    ),
    "RFE warp": lambda kernel, X, latents: gpn.RFE(
        kernel, X.shape[1], 10, warp=(5,), num_latent_gps=latents
    ),
    "RFE shared": lambda kernel, X, latents: gpn.RFE(
        kernel, X.shape[1], 10, share_hyperparameters=True, num_latent_gps=latents
    ),
    "InducingFeatures": lambda kernel, X, latents: gpn.InducingFeatures(
        kernel, X, num_latent_gps=latents
    ),
    "InducingFeatures diag": lambda kernel, X, latents: gpn.InducingFeatures(
        kernel, X[:10], "diag", num_latent_gps=latents
    ),
    "AdaptiveBasis": lambda kernel, X, latents: gpn.AdaptiveBasis(
        (8, 6), kernel=kernel, input_dim=X.shape[1], num_latent_gps=latents
    ),
    "NTK": lambda kernel, X, latents: gpn.NTK(
        (5,), kernel=kernel, input_dim=X.shape[1], num_latent_gps=latents
    ),
    "NTK kronecker": lambda kernel, X, latents: gpn.NTK(
        (5,), kernel=kernel, input_dim=X.shape[1], covariance="kronecker", num_latent_gps=latents
    ),
    "LinearisedNTK": lambda kernel, X, latents: gpn.LinearisedNTK(
        gpn.NTK((4,), kernel=kernel, input_dim=X.shape[1], num_latent_gps=latents)
    ),
    "BNN": lambda kernel, X, latents: gpn.BNN(
        (5,), 10, kernel=kernel, input_dim=X.shape[1], num_latent_gps=latents
    ),
    "RFE + AdaptiveBasis": lambda kernel, X, latents: (
        gpn.RFE(kernel, X.shape[1], 8, num_latent_gps=latents)
        + gpn.AdaptiveBasis((5,), kernel=kernel, input_dim=X.shape[1], num_latent_gps=latents)
    ),
}

TRAINING = ("natural", "gradient", "Adam", "FBNN")


def _duplicates(X: np.ndarray, f: np.ndarray, rng: np.random.Generator) -> Data:
    rows = rng.integers(max(1, len(X) // 4), size=len(X))
    return X[rows], f[rows]


def _contradictions(X: np.ndarray, f: np.ndarray, rng: np.random.Generator) -> Data:
    """The same input with different targets."""
    return X[rng.integers(max(1, len(X) // 4), size=len(X))], f


def _outlier(X: np.ndarray, f: np.ndarray, rng: np.random.Generator) -> Data:
    f = f.copy()
    f[0] = 1e8
    return X, f


def _constant_column(X: np.ndarray, f: np.ndarray, rng: np.random.Generator) -> Data:
    X = X.copy()
    X[:, -1] = 0.7
    return X, f


PATHOLOGIES: dict[str, Callable[[np.ndarray, np.ndarray, np.random.Generator], Data]] = {
    "none": lambda X, f, rng: (X, f),
    "one row": lambda X, f, rng: (X[:1], f[:1]),
    "two rows": lambda X, f, rng: (X[:2], f[:2]),
    "duplicate rows": _duplicates,
    "contradictory rows": _contradictions,
    "constant column": _constant_column,
    "constant inputs": lambda X, f, rng: (np.full_like(X, 0.7), f),
    "constant targets": lambda X, f, rng: (X, np.full_like(f, 0.7)),
    "zero targets": lambda X, f, rng: (X, np.zeros_like(f)),
    "inputs + 1e6": lambda X, f, rng: (X + 1e6, f),
    "targets + 1e6": lambda X, f, rng: (X, f + 1e6),
    "inputs * 1e6": lambda X, f, rng: (1e6 * X, f),
    "targets * 1e6": lambda X, f, rng: (X, 1e6 * f),
    "inputs * 1e-6": lambda X, f, rng: (1e-6 * X, f),
    "targets * 1e-6": lambda X, f, rng: (X, 1e-6 * f),
    "huge inputs": lambda X, f, rng: (1e30 * X, f),
    "huge targets": lambda X, f, rng: (X, 1e30 * f),
    "Cauchy inputs": lambda X, f, rng: (rng.standard_cauchy(size=X.shape), f),
    "Cauchy targets": lambda X, f, rng: (X, f + rng.standard_cauchy(size=f.shape)),
    "outlier": _outlier,
}


@dataclass(frozen=True)
class Case:
    """One fit: names of the tables above, and numbers."""

    kernel: str
    likelihood: str
    network: str
    training: str
    pathologies: tuple[str, ...]
    dtype: str
    dim: int
    rows: int
    variance: float
    lengthscale: float
    noise: float
    fixed: bool
    """Whether only the weights are trained, where they have a Gaussian of their own."""
    scaling: bool
    prior_correction: bool
    batch_size: int
    num_steps: int
    learning_rate: float
    compiled: bool
    seed: int

    @classmethod
    def from_json(cls, text: str) -> Case:
        values = json.loads(text)
        return cls(**{**values, "pathologies": tuple(values["pathologies"])})

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def _names(table: Any) -> st.SearchStrategy[str]:
    return st.sampled_from(list(table))


def _mostly(usual: Any, *others: Any) -> st.SearchStrategy[Any]:
    """The usual value in half of the cases."""
    return st.one_of(st.just(usual), st.sampled_from(others))


def _has_features(case: Case) -> bool:
    """Only one case in ten asks for features of a kernel that has none, which is refused."""
    featureless = case.kernel in ("Periodic", "ArcCosine", "Constant + White")
    return not (featureless and case.network.startswith("RFE")) or case.seed % 10 == 0


CASES = st.builds(
    Case,
    kernel=_names(KERNELS),
    likelihood=st.one_of(st.just("Gaussian"), _names(LIKELIHOODS)),
    network=_names(NETWORKS),
    training=st.one_of(st.just("natural"), st.sampled_from(TRAINING)),
    pathologies=st.lists(_names(PATHOLOGIES), min_size=1, max_size=2, unique=True).map(tuple),
    dtype=st.sampled_from(["float64", "float32"]),
    dim=_mostly(1, 1, 2, 5, 200),
    rows=_mostly(20, 3, 40, 120),
    variance=_mostly(1.0, 1e-6, 1e-3, 1e3, 1e6),
    lengthscale=_mostly(1.0, 1e-6, 1e-2, 1e2, 1e6),
    noise=_mostly(0.1, 1.1e-6, 1e-4, 10.0, 1e6),
    fixed=st.booleans(),
    scaling=st.booleans(),
    prior_correction=_mostly(False, True),
    batch_size=st.sampled_from([500, 500, 8, 3]),
    num_steps=st.integers(3, 8),
    learning_rate=_mostly(0.01, 1e-3, 0.1, 1.0),
    compiled=st.integers(0, 15).map(lambda number: number == 15),
    seed=st.integers(0, 2**16),
).filter(_has_features)


def cases(number: int, seed: int) -> Iterator[Case]:
    """So many cases, the same ones for the same seed.

    Each is the second of a run of its own: a run's first is the simplest case, and its later ones
    are variations of those before.
    """
    drawn: list[Case] = []

    @hypothesis.settings(
        max_examples=2,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(CASES)
    def draw(case: Case) -> None:
        drawn.append(case)

    for index in range(number):
        drawn.clear()
        hypothesis.seed(1_000_003 * seed + index)(draw)()
        yield drawn[-1]


# ---------------------------------------------------------------------- one fit


@dataclass(frozen=True)
class Outcome:
    """What became of a case."""

    kind: str
    """"survived", "warned" (of rounding), "refused", "stopped" or "fault"."""
    message: str = ""
    checked: bool = False
    """Whether the posterior was compared with the exact one."""


class WrongResultError(AssertionError):
    """A fit that ended as if all were well, and is not."""


def run(case: Case) -> Outcome:
    """Fit a case and look at what comes out."""
    jitter = 1e-6 if case.dtype == "float64" else 1e-4
    config = gpflow.config.Config(float=np.dtype(case.dtype).type, jitter=jitter)
    tf.config.run_functions_eagerly(not case.compiled)
    try:
        with (
            gpflow.config.as_context(config),
            warnings.catch_warnings(record=True) as caught,
        ):
            warnings.simplefilter("ignore")
            for start in ("The weights' precision has entries of", "X is so wide for the kernel"):
                warnings.filterwarnings("always", message=start)
            return _run(case, caught)
    finally:
        tf.config.run_functions_eagerly(False)


def _run(case: Case, caught: list[Any]) -> Outcome:
    steps_done = [0]

    def count(step: int) -> None:
        steps_done[0] = step

    try:
        data = _data(case)
        model = _model(case, data)
        optimizer = _optimizer(case, model)
        history = gpn.fit(
            model,
            data,
            optimizer=optimizer,
            num_steps=case.num_steps,
            batch_size=case.batch_size,
            callbacks=[count],
            seed=case.seed,
            progress=False,
            log_every=1,
        )
    except (ValueError, NotImplementedError) as error:
        if steps_done[0]:
            return _fault(error)
        return Outcome("refused", f"{type(error).__name__}: {error}")
    except FloatingPointError as error:
        if "step" not in str(error).lower():
            return _fault(error)
        return Outcome("stopped", f"{error}")
    except Exception as error:
        return _fault(error)
    try:
        _check_result(case, model, data, history)
        if caught:  # a posterior that is not exact, and said so
            return Outcome("warned", f"{caught[0].message}")
        return Outcome("survived", checked=_check_posterior(case, model, data))
    except WrongResultError as error:
        if caught and "finite" not in str(error):
            return Outcome("warned", f"{error}. {caught[0].message}")
        return Outcome("fault", f"silent: {error}")
    except Exception as error:
        return _fault(error)


def _fault(error: BaseException) -> Outcome:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(f"{error}".split())[:400]
    return Outcome("fault", f"{type(error).__name__} in {Path(frame.filename).name}: {text}")


def _data(case: Case) -> tuple[Any, ...]:
    rng = np.random.default_rng(case.seed)
    X = rng.uniform(-2.0, 2.0, size=(case.rows, case.dim))
    f = np.sin(2.0 * X[:, :1]) + 0.1 * rng.normal(size=(case.rows, 1))
    for name in case.pathologies:
        X, f = PATHOLOGIES[name](X, f, rng)
    return _observed(case, X, f, rng)


def _observed(case: Case, X: np.ndarray, f: np.ndarray, rng: np.random.Generator) -> tuple:
    """Targets in the likelihood's support that follow f."""
    if case.likelihood == "missing targets":
        return X, np.where(rng.uniform(size=f.shape) < 0.3, np.nan, f)
    if case.likelihood == "weights":
        return X, f, rng.uniform(0.0, 2.0, size=len(f))
    if case.likelihood == "known noise":
        return X, f, rng.uniform(0.01, 1.0, size=len(f))
    if case.likelihood == "Bernoulli":
        return X, (f > 0.0).astype(float)
    if case.likelihood in ("Ordinal", "MultiClass", "Softmax"):
        return X, np.digitize(f, [-0.5, 0.5]).astype(float)
    if case.likelihood == "Poisson":
        return X, np.floor(np.abs(f))
    if case.likelihood == "Exponential":
        return X, np.abs(f)
    if case.likelihood == "Gamma":
        return X, np.abs(f) + 1e-6
    if case.likelihood == "Beta":
        return X, np.clip(0.5 + 0.5 * np.tanh(f), 1e-4, 1.0 - 1e-4)
    return X, f


def _model(case: Case, data: tuple[Any, ...]) -> Any:
    X = np.asarray(data[0])
    likelihood, latents = LIKELIHOODS[case.likelihood](case.noise)
    kernel = KERNELS[case.kernel](case.dim, case.variance, case.lengthscale)
    scaling = None
    if case.scaling:
        targets = case.likelihood in ("Gaussian", "StudentT", "missing targets", "weights")
        scaling = gpn.Scaling.from_data(data, targets=targets)
    points = X if scaling is None or case.network == "array" else scaling.inputs(X).numpy()
    network = NETWORKS[case.network](kernel, points, latents)
    kind = gpn.FBNN if case.training == "FBNN" else gpn.GPNet
    model = kind(
        kernel,
        likelihood,
        network,
        num_latent_gps=latents,
        num_data=len(X),
        scaling=scaling,
    )
    network = model.inference_network
    if case.fixed and hasattr(network, "q_mu") and hasattr(network, "q_sqrt"):
        gpflow.set_trainable(model, False)
        gpflow.set_trainable([network.q_mu, network.q_sqrt], True)
    return model


def _optimizer(case: Case, model: Any) -> Any:
    if case.training in ("Adam", "FBNN"):
        return gpflow.keras.tf_keras.optimizers.legacy.Adam(case.learning_rate)
    return gpn.FunctionalMirrorDescent(
        learning_rate=case.learning_rate,
        natural="auto" if case.training == "natural" else False,
        prior_correction=case.prior_correction,
        seed=case.seed,
    )


def _inputs(case: Case, data: tuple[Any, ...]) -> np.ndarray:
    """Some rows of the data, some near them, and one far from all."""
    rng = np.random.default_rng([case.seed, 1])
    X = np.asarray(data[0])
    spread = X.std(axis=0) + 1e-3 * np.abs(X).mean(axis=0) * (X.std(axis=0) == 0.0)
    rows = X[rng.integers(len(X), size=2 * _HELD_OUT)]
    rows[_HELD_OUT:] += 0.1 * spread * rng.normal(size=rows[_HELD_OUT:].shape)
    largest = 0.1 * float(np.finfo(case.dtype).max)
    return np.clip(np.concatenate([rows, X[:1] + _FAR * spread]), -largest, largest)


# ---------------------------------------------------------------------- what must hold


def _check_result(case: Case, model: Any, data: tuple[Any, ...], history: Any) -> None:
    def require(holds: Any, what: str) -> None:
        if not np.all(holds):
            raise WrongResultError(what)

    for name, value in gpflow.utilities.parameter_dict(model).items():
        require(np.isfinite(value.numpy()), f"parameter {name} is not finite")
    require(np.isfinite(history["loss"]), "the loss is not finite")
    Xnew = _inputs(case, data)
    rows, latents = len(Xnew), model.num_latent_gps
    tolerance = 1e-6 if case.dtype == "float64" else 1e-3

    mean, var = (np.asarray(values, float) for values in model.predict_f(Xnew))
    require(mean.shape == var.shape == (rows, latents), f"predict_f has shape {mean.shape}")
    require(np.isfinite(mean) & np.isfinite(var), "predict_f is not finite")
    require(var >= 0.0, f"predict_f has a variance of {var.min():.3g}")
    full_mean, cov = (np.asarray(v, float) for v in model.predict_f(Xnew, full_cov=True))
    require(cov.shape == (latents, rows, rows), f"the covariance has shape {cov.shape}")
    require(np.isfinite(full_mean) & np.isfinite(mean), "predict_f, full_cov, is not finite")
    # GPflow's own kernels: squared distances cancel, and some are NaN for a distance that overflows
    # (Matern: 0 times infinity) or for rounding (ArcCosine). Inducing points cannot better that.
    scaled = model.scaled_inputs(Xnew)
    kernel_cov = np.asarray(model.prior_covariance(scaled))
    kernel = np.diagonal(kernel_cov, axis1=1, axis2=2)
    prior = latent_variance(model.kernel, scaled)
    inducing = isinstance(model.inference_network, gpn.InducingFeatures)
    excused = inducing & ~np.isfinite(kernel_cov)
    require(np.isfinite(cov) | excused, "the covariance is not finite")
    if np.any(excused):
        cov = np.stack([np.diag(column) for column in var.T])
    size = np.abs(cov).max(axis=(1, 2)) + 1e-300
    lowest = np.linalg.eigvalsh(0.5 * (cov + np.swapaxes(cov, 1, 2)) / size[:, None, None])[:, 0]
    rounding = float(np.max(np.nan_to_num(np.abs(kernel - prior))))
    if inducing:
        # The prior minus what features explain of it, whose solves have this condition number.
        condition = len(model.inference_network.Z.numpy()) / gpflow.config.default_jitter()
        rounding += 0.1 * condition * float(np.finfo(case.dtype).eps) * float(np.max(prior))
    if model.scaling is not None:  # the covariance is in the units of the data
        rounding *= float(np.max(model.scaling.target_scale)) ** 2
    tolerance += 10 * rounding / size.min()
    require(lowest > -tolerance, f"the covariance has eigenvalue {lowest.min():.3g} of its size")
    gap = np.abs(np.diagonal(cov, axis1=1, axis2=2).T - var)
    require(gap <= 10 * tolerance * size, "the covariance's diagonal is not the variance")
    y_mean, y_var = (np.asarray(values, float) for values in model.predict_y(Xnew))
    require(y_mean.shape[0] == rows, f"predict_y has shape {y_mean.shape}")
    # exp(f), and its square, may well be infinite.
    largest = 0.5 * np.log(np.finfo(case.dtype).max)
    fits = np.all(mean + 10.0 * np.sqrt(var) < largest, axis=1) | (case.likelihood not in _EXP)
    require(np.isfinite(y_mean[fits]) & np.isfinite(y_var[fits]), "predict_y is not finite")
    require(y_var[fits] >= 0.0, f"predict_y has a variance of {np.min(y_var):.3g}")
    if case.likelihood in ("Gaussian", "weights"):
        require(y_var > 0.0, "predict_y has a variance of 0")
    density = np.asarray(model.predict_log_density(data))
    require(density.shape == (len(data[0]),), f"log densities have shape {density.shape}")
    if case.likelihood in _EXP:  # of exp(f) = 0 it is infinity less infinity
        data_mean = np.asarray(model.predict_f(data[0])[0], float)
        density = density[np.all(data_mean > -largest, axis=1)]
    require(~np.isnan(density), "a log density is NaN")
    require(density < np.inf, "a log density is infinite")


def _check_posterior(case: Case, model: Any, data: tuple[Any, ...]) -> bool:
    """Compare with the exact posterior; False where there is none to compare with.

    That is Bayesian linear regression on the network's features as they are now, or the exact GP
    for inducing points at all inputs, fixed hyperparameters, and noise and variance well above
    GPflow's jitter; in NumPy, float64. Data are those
    that the model got, in its float type.
    """
    natural = case.training == "natural" and getattr(model.optimizer, "takes_natural_steps", False)
    network = model.inference_network
    corrected = natural and case.prior_correction and not network.represents(model.kernel)
    if not natural or corrected or case.likelihood not in _GAUSSIAN:
        return False
    X, Y = model.scaled(model.checked(data))
    Xnew = model.scaled_inputs(_inputs(case, data)[:-1])
    mean, var = (np.asarray(v, float) for v in model._predict_scaled_f(Xnew))
    targets, noise = _targets_and_noise(model, Y)
    # Like SVGP's, inducing points have GPflow's jitter, which must be small beside the noise.
    least = np.finfo(case.dtype).eps * len(targets) * case.variance
    jitter = max(gpflow.config.default_jitter(), least)
    # Nor may GPflow's kernel round away what tells rows apart, as ArcCosine's does far from 0.
    prior_variance = np.asarray(model.kernel(X, full_cov=False))
    rounded = np.abs(np.diagonal(model.kernel(X)) - prior_variance).max()
    if case.network == "InducingFeatures" and rounded > 1e-3 * noise.min():
        return False
    clear = min(noise.min(), case.variance) >= 1e3 * jitter
    if case.network == "InducingFeatures" and case.fixed and clear:
        expected, expected_var = _exact_gp(case, X, targets, Xnew, noise)
    else:
        features, at_new = (network.latent_features(rows)[0] for rows in (X, Xnew))
        offset, at_new_offset = (
            0.0 if network.offset(rows) is None else np.asarray(network.offset(rows), float)
            for rows in (X, Xnew)
        )
        expected, expected_var = _regression(
            np.asarray(features, float), targets - offset, np.asarray(at_new, float), noise
        )
        expected = expected + at_new_offset
        rest = network.residual_covariance(Xnew, at_new[None], full_cov=False)
        if rest is not None:
            expected_var = expected_var + np.asarray(rest, float).T
    smallest = noise.min()
    sd = np.sqrt(expected_var) + 1e-3 * np.sqrt(smallest)
    loose = 0.05 if case.dtype == "float64" else 0.3
    # Relative errors of the mean, from solves with this condition number, and of the jitter.
    condition = len(targets) * case.variance / smallest
    rounding = (1e-6 if case.dtype == "float64" else 1e-2) * np.abs(expected).max()
    rounding += np.finfo(case.dtype).eps * condition * np.abs(expected).max()
    if case.network == "InducingFeatures":
        rounding += jitter / min(smallest, case.variance) * np.abs(expected).max()
    gap = np.max((np.abs(mean - expected) - rounding) / sd)
    if gap > loose:
        raise WrongResultError(f"the mean is {gap:.3g} sd from the exact posterior's")
    ratio = np.sqrt((var + 1e-6 * smallest) / (expected_var + 1e-6 * smallest))
    if not (1.0 / (1.0 + loose) < ratio.min() and ratio.max() < 1.0 + loose):
        raise WrongResultError(
            f"sd is {ratio.min():.3g} to {ratio.max():.3g} times the exact posterior's"
        )
    return True


def _targets_and_noise(model: Any, Y: Any) -> Data:
    """Targets [N, 1] and their noise variances [N, 1]; where there is none, infinite."""
    likelihood = model.likelihood
    targets, there = (np.asarray(values, float) for values in observed(likelihood, Y))
    noise = float(np.asarray(base_likelihood(likelihood).variance)) * np.ones_like(targets)
    if isinstance(likelihood, KnownNoise):
        noise += np.asarray(likelihood.split(Y)[1], float)
    there = there * np.asarray(row_weights(likelihood, Y), float)
    with np.errstate(divide="ignore"):
        return targets, noise / there


def _regression(Phi: np.ndarray, Y: np.ndarray, at_new: np.ndarray, noise: np.ndarray) -> Data:
    """Bayesian linear regression with w ~ N(0, I), by singular values."""
    Phi, Y = Phi / np.sqrt(noise), Y / np.sqrt(noise)
    U, s, Vt = np.linalg.svd(Phi, full_matrices=True)
    squares = np.zeros(Phi.shape[1])
    squares[: len(s)] = s**2
    rotated = at_new @ Vt.T
    mean = rotated[:, : len(s)] @ (s[:, None] * (U[:, : len(s)].T @ Y) / (s**2 + 1.0)[:, None])
    return mean, np.sum(rotated**2 / (squares + 1.0), axis=1)[:, None]


def _exact_gp(case: Case, X: Any, Y: np.ndarray, Xnew: Any, noise: np.ndarray) -> Data:
    with gpflow.config.as_context(gpflow.config.Config(float=np.float64)):
        kernel = KERNELS[case.kernel](case.dim, case.variance, case.lengthscale)
        X, Xnew = (tf.cast(values, tf.float64) for values in (X, Xnew))
        if is_stationary(kernel):  # squared distances cancel far from 0
            centre = tf.reduce_mean(X, axis=0)
            X, Xnew = X - centre, Xnew - centre
        cov, cross = kernel(X).numpy(), kernel(X, Xnew).numpy()
        prior = kernel(Xnew, full_cov=False).numpy()[:, None]
    precision = 1.0 / np.sqrt(noise)
    values, vectors = np.linalg.eigh(precision * cov * precision.T)
    values = np.maximum(values, 0.0) + 1.0
    rotated = vectors.T @ (precision * cross)
    mean = rotated.T @ ((vectors.T @ (precision * Y)) / values[:, None])
    return mean, np.maximum(prior - np.sum(rotated**2 / values[:, None], axis=0)[:, None], 0.0)


# ---------------------------------------------------------------------- the campaign


def _kind_of(message: str) -> str:
    """A message without its numbers, to count by."""
    words = message.split(": ", 1)[-1] if message.startswith("ValueError") else message
    words = "".join("#" if c.isdigit() else c for c in words.split(". Likely")[0])
    while "##" in words:
        words = words.replace("##", "#")
    return words[:100]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fits", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, help="stop after so long, to go on another time")
    parser.add_argument("--out", type=Path, help="CSV to append to")
    parser.add_argument("--case", help="run one case, as JSON")
    arguments = parser.parse_args()
    if arguments.case is not None:
        outcome = run(Case.from_json(arguments.case))
        print(outcome)
        sys.exit(outcome.kind == "fault")

    done: dict[str, dict[str, str]] = {}
    if arguments.out is not None and arguments.out.exists():
        with arguments.out.open(newline="") as file:
            done = {row["case"]: row for row in csv.DictReader(file)}
    kinds: collections.Counter[str] = collections.Counter()
    errors: collections.Counter[str] = collections.Counter()
    checked, began = 0, time.perf_counter()
    for case in cases(arguments.fits, arguments.seed):
        text = case.to_json()
        if text not in done:
            if arguments.minutes and time.perf_counter() - began > 60.0 * arguments.minutes:
                break
            start = time.perf_counter()
            outcome = run(case)
            row = {
                "outcome": outcome.kind,
                "checked": str(outcome.checked),
                "seconds": f"{time.perf_counter() - start:.2f}",
                "message": outcome.message,
                "case": text,
            }
            done[text] = row
            if arguments.out is not None:
                new = not arguments.out.exists()
                with arguments.out.open("a", newline="") as file:
                    writer = csv.DictWriter(file, row)
                    if new:
                        writer.writeheader()
                    writer.writerow(row)
            if len(done) % 20 == 0:
                gc.collect()
        row = done[text]
        kinds[row["outcome"]] += 1
        checked += row["checked"] == "True"
        if row["outcome"] in ("warned", "refused", "stopped"):
            errors[f"{row['outcome']}: {_kind_of(row['message'])}"] += 1
        if row["outcome"] == "fault":
            print(f"FAULT: {row['message']}\n    --case '{text}'", flush=True)
    print(
        f"{sum(kinds.values())} fits: {kinds['survived']} survived ({checked} of them compared "
        f"with the exact posterior), {kinds['warned']} warned of rounding, {kinds['refused']} "
        f"refused before training, {kinds['stopped']} stopped with the step named, "
        f"{kinds['fault']} faults."
    )
    for message, number in errors.most_common():
        print(f"{number:5d}  {message}")
    sys.exit(kinds["fault"] > 0)


if __name__ == "__main__":
    main()
