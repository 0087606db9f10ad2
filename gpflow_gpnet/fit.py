"""The training loop, for GPNet and any other GPflow model that takes its data as an argument."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf
from gpflow.base import RegressionData
from gpflow.keras import tf_keras
from gpflow.likelihoods import Gaussian, StudentT
from gpflow.models import BayesianModel, ExternalDataTrainingLossMixin
from tqdm.auto import tqdm

from .batches import ArrayBatches, StreamBatches
from .callbacks import Callback, EarlyStopping
from .checks import check_batch, to_tensors
from .gpnet import GPNet
from .history import History
from .likelihoods import KnownNoise, base_likelihood, observed
from .mirror_descent import FunctionalMirrorDescent
from .model import InferenceNetworkModel
from .spectral import is_stationary, smoothing_lengthscales
from .step_sizes import InverseSqrt

__all__ = ["fit"]

HELD_OUT_LIMIT = 2000
_LEARNING_RATE = InverseSqrt(0.01, 0.05)
"""Falls whatever ``num_steps`` is, so that training in two goes ends where one does."""
_HELD_OUT_ROWS = 256
_PREDICTION_ROWS = 4096
_LARGE_TARGETS = 30.0
_WIDE_INPUTS = 1000.0
_OVERFITTING = 0.05
"""Nats per datum by which the validation NLPD must have risen to warn."""


def fit(
    model: BayesianModel,
    data: Any,
    *,
    optimizer: Any = None,
    num_steps: int,
    batch_size: int = 500,
    validation_data: Any = None,
    callbacks: Iterable[Callable[[int], Any]] = (),
    checkpoint_dir: str | None = None,
    seed: int | None = None,
    progress: bool = True,
    held_out: float = 0.1,
    polish: bool = True,
    polish_every: int | None = None,
    validate_every: int | None = None,
    checkpoint_every: int = 100,
    log_every: int = 10,
) -> History:
    """Train a model on minibatches.

    >>> history = gpn.fit(model, (X, Y), num_steps=3, batch_size=10, seed=0, progress=False)
    >>> int(history["step"][-1]), sorted(history)
    (3, ['loss', 'seconds', 'step'])

    :param model: a :class:`GPNet`, or any GPflow model with data as an argument (SVGP, …).
    :param data: X [N, D] and Y [N, P] as arrays, tensors or DataFrames, shuffled anew each epoch
        (and third what a likelihood of :mod:`gpflow_gpnet.likelihoods` knows of each row); or a
        ``tf.data.Dataset`` or an iterable of such batches, taken as they come.
    :param optimizer: :class:`FunctionalMirrorDescent` (default for GPNet: the one that has trained
        it so far, which then goes on, or a new one with learning rate 0.01 / (1 + 0.05 √t)) or a
        Keras optimiser (default for others: Adam, learning rate 0.01) on ``training_loss``; or a
        function of the model that makes a step of your own, batch -> loss.
    :param num_steps: steps to train; with a checkpoint, those already done count.
    :param batch_size: B, for arrays.
    :param validation_data: (X, Y) whose mean negative log predictive density is recorded. By
        default the held-out rows, where there are any.
    :param callbacks: called with the step number after each step; one that returns True stops
        training. :class:`~gpflow_gpnet.callbacks.Callback` objects see model and history;
        ``gpflow.monitor.Monitor`` works.
    :param checkpoint_dir: where to save model, optimiser and step; training continues from the
        latest checkpoint found there.
    :param seed: fixes batch order, held-out rows, measurement points and TensorFlow's generator.
    :param progress: show a progress bar on terminals and in notebooks.
    :param held_out: fraction of the arrays' rows (2,000 at most) kept out of the steps where the
        optimiser's ``noise`` is "held-out", or "auto" and there are 1,000 rows or more. They
        return for the final polishing.
    :param polish: whether to end with an exact pass over arrays, where steps are natural
        (:meth:`FunctionalMirrorDescent.polish`).
    :param polish_every: also after every so many steps, for features that move faster than
        minibatches can follow: such steps average over features already gone.
    :param validate_every: steps between validations; by default a fiftieth of ``num_steps``.
    :param checkpoint_every: steps between checkpoints.
    :param log_every: steps between looks at the loss, each of which waits for the device.
    :return: history with columns step, seconds, loss (nats, mean since the last row) and
        validation_nlpd (nats per datum).
    :raises ValueError: before the first step, for data, settings or ``num_data`` that do not fit.
    :raises FloatingPointError: when the loss is not finite or a factorisation fails, naming the
        step.
    """
    if not isinstance(model, ExternalDataTrainingLossMixin):
        raise TypeError(
            f"fit needs a model that takes data as an argument, got {type(model).__name__}."
        )
    for name, value in (
        ("num_steps", num_steps),
        ("polish_every", polish_every),
        ("validate_every", validate_every),
        ("checkpoint_every", checkpoint_every),
        ("log_every", log_every),
    ):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}.")
    if optimizer is None:
        optimizer = getattr(model, "optimizer", None)
    if seed is None:
        goes_on = isinstance(optimizer, FunctionalMirrorDescent)
        seed = optimizer.seed if goes_on else int(np.random.default_rng().integers(2**31 - 1))
    else:
        tf.random.set_seed(seed)
    if optimizer is None:
        optimizer = (
            FunctionalMirrorDescent(
                learning_rate=_LEARNING_RATE,
                seed=seed,
            )
            if isinstance(model, GPNet)
            else tf_keras.optimizers.Adam(0.01)
        )
    mirror = isinstance(optimizer, FunctionalMirrorDescent)

    source, rows, everything, held = _sources(model, data, batch_size, seed, held_out, optimizer)
    if validation_data is not None:
        validation: Any = _checked(model, validation_data)
    else:
        validation = None if held is None else held.data
    if mirror:
        optimizer.build(model)
        train_step = optimizer.compiled_step(held is not None)
    elif callable(optimizer):
        train_step = optimizer(model)
    else:
        train_step = _loss_step(model, optimizer)
    natural = mirror and optimizer.takes_natural_steps
    if polish_every is not None and not (natural and rows is not None):
        raise ValueError("polish_every needs natural steps and data as arrays.")

    step_done = tf.Variable(0, dtype=tf.int64, trainable=False)
    manager = None
    if checkpoint_dir is not None:
        checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, step=step_done)
        manager = tf.train.CheckpointManager(checkpoint, str(checkpoint_dir), max_to_keep=3)
        manager.restore_or_initialize()
    first = int(step_done)
    # An optimiser that has trained before goes on in the order of the batches too.
    before = int(optimizer.t) - first if mirror else 0
    if first == 0 and isinstance(model, InferenceNetworkModel):
        model.initialise(source(before)[0] if everything is None else everything.data[0])

    history = History()
    callbacks = tuple(callbacks)
    for callback in callbacks:
        if isinstance(callback, Callback):
            callback.on_start(model, history)
    validate_every = validate_every or max(1, num_steps // 50)
    score = _compiled_score(model)
    started = time.perf_counter()
    losses: list[tf.Tensor] = []

    # disable=None: no bar where nobody watches (not a terminal); leave=None: an inner one goes.
    with tqdm(
        total=num_steps, initial=first, disable=None if progress else True, unit="step", leave=None
    ) as bar:
        for step in range(first, num_steps):
            batch, number, last = source(before + step), step + 1, step + 1 == num_steps
            rest = () if held is None else (_held_out_batch(held, seed, before + step),)
            try:
                losses.append(train_step(batch, *rest))
                if rows is not None and polish_every is not None and number % polish_every == 0:
                    optimizer.polish(rows.in_order())
            except tf.errors.InvalidArgumentError as error:
                raise FloatingPointError(f"Step {number} failed. {error.message}") from error
            step_done.assign(number)
            validating = validation is not None and (number % validate_every == 0 or last)
            saving = manager is not None and (number % checkpoint_every == 0 or last)
            if number % log_every == 0 or validating or saving or last:
                row = {"loss": _mean_loss(losses, number)}
                losses = []
                if validating:
                    row["validation_nlpd"] = score(validation)
                history.append(step=number, seconds=time.perf_counter() - started, **row)
                bar.set_postfix({name: f"{value:.4g}" for name, value in row.items()})
            bar.update()
            # A list, so that each callback runs at each step.
            stopping = any([callback(number) is True for callback in callbacks])
            if manager is not None and (saving or stopping):
                manager.save(number)
            if stopping:
                if losses:  # since the last look
                    seconds, loss = time.perf_counter() - started, _mean_loss(losses, number)
                    history.append(step=number, seconds=seconds, loss=loss)
                break
    for callback in callbacks:
        if isinstance(callback, Callback):
            callback.on_end()
    if not any(isinstance(callback, EarlyStopping) for callback in callbacks):
        _warn_of_overfitting(history)
    if polish and natural and everything is not None:
        optimizer.polish(everything.in_order())
    return history


def _sources(
    model: BayesianModel, data: Any, batch_size: int, seed: int, fraction: float, optimizer: Any
) -> tuple[
    Callable[[int], RegressionData],
    ArrayBatches | None,
    ArrayBatches | None,
    ArrayBatches | None,
]:
    """Batches by step; for arrays: those trained on, all rows, and held-out rows."""
    if not _is_arrays(data):
        if getattr(optimizer, "noise", None) == "held-out":
            raise ValueError(
                'noise="held-out" needs data as arrays, of which fit can hold some out.'
            )
        if getattr(model, "num_data", None) is None:
            raise ValueError("num_data is None: streams need the number of data N in the model.")
        stream = StreamBatches(data)
        return (lambda step: _checked(model, stream(step))), None, None, None

    batch = _checked(model, data)
    _check_num_data(model, len(batch[0]), batch_size)
    _warn_of_scale(model, batch)
    everything = ArrayBatches(batch, batch_size, seed)
    if not (
        isinstance(optimizer, FunctionalMirrorDescent)
        and isinstance(model, GPNet)
        and optimizer.holds_out(model, everything.num_rows)
    ):
        return everything, everything, everything, None
    if not 0.0 < fraction < 1.0:
        raise ValueError(f"held_out must be between 0 and 1, got {fraction}.")
    number = min(int(np.ceil(fraction * everything.num_rows)), HELD_OUT_LIMIT)
    if number >= everything.num_rows:
        raise ValueError(
            f'noise="held-out" needs rows to hold out, but the data have {everything.num_rows}: '
            'use noise="training".'
        )
    order = np.random.default_rng([seed, 2**31]).permutation(everything.num_rows)
    training = ArrayBatches(everything.rows(np.sort(order[number:])), batch_size, seed)
    held = ArrayBatches(everything.rows(order[:number]), number, seed)
    return training, training, everything, held


def _is_arrays(data: Any) -> bool:
    """Whether data are (X, Y) or (X, Y, row data), not a stream such as a list of two batches."""
    if not (isinstance(data, (tuple, list)) and len(data) in (2, 3)):
        return False
    first = data[0]
    batches = isinstance(first, (tuple, list)) and len(first) in (2, 3) and np.ndim(first[0]) == 2
    return not batches and np.ndim(first) != 0


def _held_out_batch(held: ArrayBatches, seed: int, step: int) -> RegressionData:
    """Always as many rows, so that the compiled step sees one shape."""
    number = min(_HELD_OUT_ROWS, held.num_rows)
    rows = np.random.default_rng([seed, step, 1]).choice(held.num_rows, number, replace=False)
    return held.rows(rows)


def _checked(model: BayesianModel, data: Any) -> RegressionData:
    batch = to_tensors(data, model.likelihood)
    check_batch(model, batch)
    return batch


def _check_num_data(model: BayesianModel, rows: int, batch_size: int) -> None:
    num_data = getattr(model, "num_data", None)
    if num_data is None and (batch_size < rows or isinstance(model, GPNet)):
        raise ValueError(f"num_data is None, but the data have {rows} rows: pass num_data={rows}.")
    if num_data is not None and int(num_data) != rows:
        raise ValueError(f"num_data is {int(num_data)}, but the data have {rows} rows.")


def _warn_of_overfitting(history: History) -> None:
    if "validation_nlpd" not in history:
        return
    scored = np.isfinite(history["validation_nlpd"])
    steps, loss, nlpd = (history[name][scored] for name in ("step", "loss", "validation_nlpd"))
    best = int(np.argmin(nlpd))
    if nlpd[-1] > nlpd[best] + _OVERFITTING and loss[-1] < loss[best]:
        warnings.warn(
            f"The model over-fits: its validation NLPD was {nlpd[best]:.4g} nats per datum at step "
            f"{steps[best]:.0f} and is {nlpd[-1]:.4g} at step {steps[-1]:.0f}, while the training "
            "loss has fallen. Stop at the best step (callbacks.EarlyStopping), learn the noise "
            'from rows held out (FunctionalMirrorDescent(noise="held-out")), or take a less '
            "flexible network.",
            UserWarning,
            stacklevel=3,
        )


def _warn_of_scale(model: BayesianModel, batch: RegressionData) -> None:
    """Data on another scale than the prior's are the commonest reason for a useless fit."""
    _warn_of_lengthscales(model, batch[0])
    if not isinstance(base_likelihood(model.likelihood), (Gaussian, StudentT, KnownNoise)):
        return
    X, Y = model.scaled(batch) if isinstance(model, InferenceNetworkModel) else batch
    X, Y = X[:1000], Y[:1000]
    prior_sd = float(tf.sqrt(tf.reduce_mean(model.kernel(X, full_cov=False))))
    targets, times = observed(model.likelihood, Y)
    squares = tf.reduce_sum(times * tf.square(targets - model.mean_function(X)))
    size = float(tf.sqrt(squares / tf.maximum(tf.reduce_sum(times), 1.0)))
    if size > _LARGE_TARGETS * prior_sd:
        warnings.warn(
            f"Targets have size {size:.3g} (root mean square about the mean function), but the "
            f"prior's standard deviation is {prior_sd:.3g}: standardise Y (a GPNet does it itself "
            "with scaling=Scaling.from_data(data)), or set the kernel's variance and the mean "
            "function to the scale of the targets.",
            UserWarning,
            stacklevel=4,
        )


def _warn_of_lengthscales(model: BayesianModel, X: tf.Tensor) -> None:
    if not is_stationary(model.kernel):
        return
    X = model.scaled_inputs(X) if isinstance(model, InferenceNetworkModel) else X
    lengthscales = np.asarray(smoothing_lengthscales(model.kernel, X.shape[1]))
    spread = np.ptp(np.asarray(X), axis=0)
    # An input without a lengthscale, such as an output's index, has 0.
    wide = np.flatnonzero((lengthscales > 0.0) & (spread > _WIDE_INPUTS * lengthscales))
    if wide.size:
        column = wide[0]
        warnings.warn(
            f"X columns {wide.tolist()} are very wide for the kernel (column {column}: range "
            f"{spread[column]:.3g}, lengthscale {lengthscales[column]:.3g}), so that the posterior "
            "would be the prior almost everywhere: standardise X (a GPNet does it itself with "
            "scaling=Scaling.from_data(data)), or start from longer lengthscales "
            "(fit_hyperparameters).",
            UserWarning,
            stacklevel=5,
        )


def _loss_step(model: BayesianModel, optimizer: Any) -> Callable[[RegressionData], tf.Tensor]:
    """One step of a Keras optimiser, of either Keras."""
    variables = model.trainable_variables
    if not hasattr(optimizer, "apply_gradients"):
        raise TypeError(
            "optimizer must be a FunctionalMirrorDescent or a Keras optimiser, got "
            f"{type(optimizer).__name__}."
        )
    if hasattr(optimizer, "build"):
        _build(optimizer, variables)

    @tf.function(autograph=False, reduce_retracing=True)
    def step(batch: RegressionData) -> tf.Tensor:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            loss = model.training_loss(batch)
        gradients = tape.gradient(loss, variables)
        pairs = zip(gradients, variables, strict=True)
        optimizer.apply_gradients([(g, v) for g, v in pairs if g is not None])
        return loss

    return step


def _build(optimizer: Any, variables: list[tf.Variable]) -> None:
    """Make slots outside the compiled step, and notice an optimiser made for other variables."""
    known = getattr(optimizer, "_trainable_variables", None)  # Keras 3
    index = getattr(optimizer, "_index_dict", None)  # tf_keras
    if index:
        known = [v for v in variables if optimizer._var_key(v) in index]
    if known and not {id(v) for v in variables} <= {id(v) for v in known}:
        raise ValueError(
            f"{type(optimizer).__name__} was built for other variables than the model now trains: "
            "make a new optimiser after set_trainable, and one for each model."
        )
    if not known:
        optimizer.build(variables)


def _compiled_score(model: BayesianModel) -> Callable[[RegressionData], float]:
    """Mean negative log predictive density, nats per datum, in bounded memory."""
    density = tf.function(lambda X, Y: model.predict_log_density((X, Y)), reduce_retracing=True)

    def score(data: RegressionData) -> float:
        X, Y = data
        total = 0.0
        for start in range(0, len(X), _PREDICTION_ROWS):
            rows = slice(start, start + _PREDICTION_ROWS)
            total += float(tf.reduce_sum(density(X[rows], Y[rows])))
        return -total / len(X)

    return score


def _mean_loss(losses: list[tf.Tensor], step: int) -> float:
    values = np.array([float(loss) for loss in losses])
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise FloatingPointError(
            f"The training loss is {values[bad[0]]} at step {step - len(values) + bad[0] + 1}. "
            "Likely causes: a learning rate that is too large, inputs or targets that are not "
            "scaled, or a noise variance near 0."
        )
    return float(values.mean())
