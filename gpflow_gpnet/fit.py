"""The training loop, for GPNet and any other GPflow model that takes its data as an argument."""

from __future__ import annotations

import re
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from gpflow.base import RegressionData
from gpflow.keras import tf_keras
from gpflow.models import SVGP, BayesianModel, ExternalDataTrainingLossMixin
from gpflow.optimizers import NaturalGradient
from gpflow.utilities import parameter_dict
from tqdm.auto import tqdm

from . import random_numbers
from .batches import ArrayBatches, StreamBatches, held_out_rows, num_held_out
from .callbacks import Callback, EarlyStopping
from .checkpoints import Checkpoints, TrainingState
from .checks import check_batch, to_tensors
from .diagnostics import WatchedRows, warn_of_overfitting, warn_of_scale
from .gpnet import GPNet
from .history import History
from .mirror_descent import FunctionalMirrorDescent
from .model import InferenceNetworkModel
from .replicas import Replicas, Share
from .saving import named_variables
from .shards import ShardBatches, Shards
from .step_sizes import InverseSqrt

__all__ = ["fit"]

_LEARNING_RATE = InverseSqrt(0.01, 0.05)
"""Falls whatever ``num_steps`` is, so that training in two goes ends where one does."""
_HELD_OUT_ROWS = 256
_PREDICTION_ROWS = 4096


_EXCHANGED = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)


_Rows: TypeAlias = ArrayBatches | ShardBatches


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
    keep_checkpoints: int = 3,
    log_every: int = 10,
    strategy: tf.distribute.Strategy | None = None,
) -> History:
    """Train a model on minibatches.

    >>> history = gpn.fit(model, (X, Y), num_steps=3, batch_size=10, seed=0, progress=False)
    >>> int(history["step"][-1]), sorted(history)
    (3, ['loss', 'seconds', 'step'])

    :param model: a :class:`GPNet`, or any GPflow model with data as an argument (SVGP, …).
    :param data: X [N, D] and Y [N, P] as arrays, tensors or DataFrames, shuffled anew each epoch
        (and third what a likelihood of :mod:`gpflow_gpnet.likelihoods` knows of each row); files of
        rows, :func:`gpflow_gpnet.datasets.stream`, shuffled likewise; or a ``tf.data.Dataset`` or
        an iterable of such batches, taken as they come.
    :param optimizer: :class:`FunctionalMirrorDescent` (default for GPNet: the one that has trained
        it so far, which then goes on, or a new one with learning rate 0.01 / (1 + 0.05 √t)) or a
        Keras optimiser (default for others: Adam, learning rate 0.01) on ``training_loss``; or a
        function of the model that makes a step of your own, batch -> loss.
    :param num_steps: steps to train; with a checkpoint, those already done count.
    :param batch_size: B, for arrays and files.
    :param validation_data: (X, Y) whose mean negative log predictive density is recorded. By
        default the held-out rows, where there are any.
    :param callbacks: called with the step number after each step; one that returns True stops
        training. :class:`~gpflow_gpnet.callbacks.Callback` objects see model and history;
        ``gpflow.monitor.Monitor`` works.
    :param checkpoint_dir: a folder for checkpoints, of this run alone. A run that was killed, at
        any moment, goes on from the latest when called again in the same way, on a CPU to the same
        parameters bit for bit as if it had never stopped: model, optimiser, position in the data,
        history, early stopping and the global generators of NumPy and TensorFlow are in it. (Not
        where steps draw from TensorFlow's stateful operations, such as those of GPflow's Monte
        Carlo likelihoods, whose state is out of reach, or where callbacks of your own have state
        that :meth:`Callback.state <gpflow_gpnet.callbacks.Callback.state>` does not give.) Files
        that are damaged or of another model are named in a warning and left alone.
    :param seed: fixes batch order, held-out rows, measurement points and TensorFlow's generator;
        by default that of the checkpoint, or one drawn from that generator.
    :param progress: show a progress bar on terminals and in notebooks.
    :param held_out: fraction of the rows (2,000 at most) kept out of the steps where the
        optimiser's ``noise`` is "held-out", or "auto" and there are 1,000 rows or more. They
        return for the final polishing.
    :param polish: whether to end with an exact pass over arrays or files, where steps are natural
        (:meth:`FunctionalMirrorDescent.polish`).
    :param polish_every: also after every so many steps, for features that move faster than
        minibatches can follow: such steps average over features already gone.
    :param validate_every: steps between validations; by default a fiftieth of ``num_steps``.
    :param checkpoint_every: steps between checkpoints.
    :param keep_checkpoints: how many of them to keep, the newest.
    :param log_every: steps between looks at the loss, each of which waits for the device.
    :param strategy: share each step out among the replicas of a MirroredStrategy (devices of one
        host) or MultiWorkerMirroredStrategy (processes, hosts): the same parameters as one replica
        gives for the whole batch, up to rounding (and draws of GPflow's Monte Carlo likelihoods,
        such as Softmax). Model, optimiser and this call stay outside
        ``strategy.scope()``. Processes all make the same call, with the same data; the chief's
        parameters and seed count, and it alone writes checkpoints, which all of them must see.
    :return: history with columns step, seconds, loss (nats, mean since the last row) and
        validation_nlpd (nats per datum).
    :raises ValueError: before the first step, for data, settings or ``num_data`` that do not fit.
    :raises FloatingPointError: when loss or parameters are not finite or a factorisation fails,
        naming the step, the parameters and the last good checkpoint.
    :raises OSError: when a checkpoint cannot be written; the one before it stays.
    """
    if not isinstance(model, ExternalDataTrainingLossMixin):
        raise TypeError(
            f"fit needs a model that takes data as an argument, got {type(model).__name__}."
        )
    for name, value in (
        ("num_steps", num_steps),
        ("batch_size", batch_size),
        ("polish_every", polish_every),
        ("validate_every", validate_every),
        ("checkpoint_every", checkpoint_every),
        ("keep_checkpoints", keep_checkpoints),
        ("log_every", log_every),
    ):
        if value is not None and not hasattr(value, "__index__"):
            raise TypeError(f"{name} must be an integer, got {value!r}.")
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}.")
    callbacks = tuple(callbacks)
    for callback in callbacks:
        if isinstance(callback, type) or not callable(callback):
            raise TypeError(
                f"callbacks must be functions of the step or objects, got {callback!r}."
            )
    replicas = Replicas(strategy)
    if strategy is not None:
        _check_replicas(replicas, model, batch_size, optimizer)
    if optimizer is None:
        optimizer = getattr(model, "optimizer", None)
    trained_before = isinstance(optimizer, FunctionalMirrorDescent)
    made = optimizer is None
    if optimizer is None:
        optimizer = (
            FunctionalMirrorDescent(
                learning_rate=_LEARNING_RATE,
            )
            if isinstance(model, GPNet)
            else tf_keras.optimizers.Adam(0.01)
        )
    mirror = isinstance(optimizer, FunctionalMirrorDescent)
    keras = hasattr(optimizer, "apply_gradients")
    if isinstance(optimizer, NaturalGradient) or not (mirror or keras or callable(optimizer)):
        raise TypeError(
            "optimizer must be a FunctionalMirrorDescent, a Keras optimiser or a function of the "
            f"model that makes a step, got {type(optimizer).__name__}."
        )
    checked = _checked_rows(model, data, batch_size, optimizer)
    known = 0
    if checked is not None and (checkpoint_dir is not None or replicas.in_several_processes):
        known = _checksum(checked)
    if replicas.in_several_processes:  # also waits for a checkpoint that the chief still writes
        replicas.check_same(known, "data: give all the same rows, of which each takes its share")
    if (mirror or keras) and not model.trainable_variables:
        warnings.warn(
            "The model has no trainable parameters: training leaves it as it is.",
            UserWarning,
            stacklevel=2,
        )
    if mirror:
        optimizer.build(model)
    elif keras:
        _build(optimizer, model.trainable_variables)

    history = History()
    state = checkpoints = saved = None
    if checkpoint_dir is not None:
        if not (mirror or keras):
            raise ValueError(
                "checkpoint_dir needs an optimizer whose state can be saved, a "
                "FunctionalMirrorDescent or a Keras optimiser: got a function of the model."
            )
        state = TrainingState(model, optimizer, history, callbacks)
        checkpoints = Checkpoints(checkpoint_dir, keep_checkpoints)
        saved = checkpoints.newest(state.refuse)
    first = 0 if saved is None else int(saved[0]["step"])
    replicas.check_same(
        first, "the step of the checkpoint found: give all processes one checkpoint_dir, shared"
    )
    if checkpoints and saved and seed not in (None, saved[0]["seed"]):
        warnings.warn(
            f"Training goes on from {checkpoints.last}, which began with seed="
            f"{saved[0]['seed']}, with seed={seed}: the result is that of neither.",
            UserWarning,
            stacklevel=2,
        )
    if checkpoints and saved and saved[0].get("data", known) != known:
        warnings.warn(
            f"Training goes on from {checkpoints.last}, which began with other data: the result is "
            "that of neither. A checkpoint_dir is for one run alone.",
            UserWarning,
            stacklevel=2,
        )
    if seed is not None:
        tf.random.set_seed(seed)
    elif saved is not None:
        seed = int(saved[0]["seed"])
    elif trained_before:
        seed = optimizer.seed
    else:
        seed = random_numbers.draw_seed()
    if replicas.in_several_processes:
        seed = int(replicas.from_chief([tf.constant(seed, tf.int64)])[0])
    if made and mirror:
        optimizer.seed = seed

    source: Callable[[int], RegressionData]
    rows = everything = held = None
    if checked is None:
        stream = StreamBatches(data, first)
        source = lambda step: _checked(model, stream(step))  # noqa: E731
    else:
        known_rows = data if isinstance(data, Shards) else checked
        rows, everything, held = _sources(model, known_rows, batch_size, seed, held_out, optimizer)
        source = rows
    if validation_data is not None:
        validation: Any = _checked(model, validation_data, "validation_data: ")
    else:
        validation = None if held is None else held.data
    if validation is None and _stops_early(callbacks):
        raise ValueError("EarlyStopping needs validation scores: give fit validation_data.")
    if mirror:
        train_step = optimizer.compiled_step(held is not None, strategy)
    elif callable(optimizer):
        train_step = optimizer(model)
    else:
        train_step = _loss_step(model, optimizer, replicas)
    natural = mirror and optimizer.takes_natural_steps
    if polish_every is not None and not (natural and rows is not None):
        raise ValueError("polish_every needs natural steps and data as arrays.")

    if state is not None and saved is not None:
        state.restore(*saved)
    # An optimiser that has trained before goes on in the order of the batches too.
    before = int(optimizer.t) - first if mirror else 0
    if first == 0 and isinstance(model, InferenceNetworkModel):
        model.initialise((source(before) if checked is None else checked)[0])
    if replicas.in_several_processes:
        _take_over_from_chief(replicas, model, optimizer)
        replicas.check_same(before, "the optimiser's step: begin with new ones everywhere")
    may_stop = sum(replicas.everyones(len(callbacks))) > 0

    for callback in callbacks:
        if isinstance(callback, Callback):
            callback.on_start(model, history)
    if state is not None and saved is not None:
        state.restore_callbacks(saved[1])
    if any(isinstance(callback, Callback) and callback.has_stopped for callback in callbacks):
        first = num_steps
    validate_every = validate_every or max(1, num_steps // 50)
    score = _compiled_score(model)
    started = time.perf_counter() - (0.0 if saved is None else float(saved[0]["seconds"]))
    losses: list[tf.Tensor] = []
    watched: WatchedRows | None = None
    number = first
    shapes = None if saved is None else saved[0].get("shapes")

    # disable=None: no bar where nobody watches (not a terminal); leave=None: an inner one goes.
    silent = None if progress and replicas.is_chief else True
    with tqdm(total=num_steps, initial=first, disable=silent, unit="step", leave=None) as bar:
        for step in range(first, num_steps):
            batch, number, last = source(before + step), step + 1, step + 1 == num_steps
            rest = () if held is None else (_held_out_batch(held, seed, before + step),)
            if step == first and isinstance(model, InferenceNetworkModel):
                watched = WatchedRows(model, batch)
            if shapes is None:
                shapes = [values.shape.as_list() for values in batch]
            elif step == first:
                _trace(train_step, shapes, batch, *rest)
            validating = validation is not None and (number % validate_every == 0 or last)
            saving = checkpoints is not None and (number % checkpoint_every == 0 or last)
            row = {}
            with _step_named(number, model, checkpoints):
                losses.append(train_step(batch, *rest))
                if rows is not None and polish_every is not None and number % polish_every == 0:
                    optimizer.polish(rows.in_order(), strategy=strategy)
                if number % log_every == 0 or validating or saving or last:
                    row["loss"], losses = _mean_loss(losses, number), []
                if saving:
                    _check_parameters(model, number)
            if row:
                if validating:
                    row["validation_nlpd"] = score(validation)
                history.append(step=number, seconds=time.perf_counter() - started, **row)
                bar.set_postfix({name: f"{value:.4g}" for name, value in row.items()})
            bar.update()
            # A list, so that each callback runs at each step.
            stopping = any([_says_stop(callback(number)) for callback in callbacks])
            if may_stop:  # if one process does, all do
                stopping = any(replicas.everyones(int(stopping)))
            if stopping and losses:  # since the last look
                seconds, loss = time.perf_counter() - started, _mean_loss(losses, number)
                history.append(step=number, seconds=seconds, loss=loss)
            if state is not None and checkpoints is not None and (saving or stopping):
                if replicas.is_chief:
                    seconds = time.perf_counter() - started
                    checkpoints.save(*state.gather(number, seed, seconds, shapes, known))
            if stopping:
                break
    for callback in callbacks:
        if isinstance(callback, Callback):
            callback.on_end()
    if not _stops_early(callbacks):
        warn_of_overfitting(history)
    if polish and natural and everything is not None:
        with _step_named(number, model, checkpoints):
            optimizer.polish(everything.in_order(), strategy=strategy)
    if watched is not None:
        watched.warn_of_divergence()
    return history


def _stops_early(callbacks: Iterable[Any]) -> bool:
    return any(isinstance(callback, EarlyStopping) for callback in callbacks)


def _check_replicas(
    replicas: Replicas, model: BayesianModel, batch_size: int, optimizer: Any
) -> None:
    if not isinstance(model, (InferenceNetworkModel, SVGP)):
        raise TypeError(
            "strategy is for GPNet, FBNN and gpflow.models.SVGP, whose objectives fit knows to "
            f"share out, got {type(model).__name__}."
        )
    if model.num_data is None:
        raise ValueError("num_data is None: with a strategy the model needs the number of data N.")
    if batch_size < replicas.number:
        raise ValueError(
            f"batch_size={batch_size} gives some of the strategy's {replicas.number} replicas no "
            "row: take a larger batch."
        )
    keras = hasattr(optimizer, "apply_gradients")
    if not (optimizer is None or keras or isinstance(optimizer, FunctionalMirrorDescent)):
        raise ValueError(
            "strategy needs a FunctionalMirrorDescent or a Keras optimiser, got a function of the "
            "model, whose steps fit cannot share out."
        )
    replicas.check(model, *(() if optimizer is None else (optimizer,)))


def _checksum(data: RegressionData) -> int:
    """Of all bytes of the data in their order."""
    value = 0
    for values in data:
        value = zlib.crc32(np.ascontiguousarray(values).data, value)
    return value


def _take_over_from_chief(replicas: Replicas, model: BayesianModel, optimizer: Any) -> None:
    """All processes begin with the same parameters and optimiser's state."""
    variables = list(named_variables(model).values())
    if isinstance(optimizer, FunctionalMirrorDescent):
        variables += optimizer.state_variables().values()
    else:
        own = optimizer.variables
        variables += own() if callable(own) else own
    variables = [v for v in variables if tf.as_dtype(v.dtype) in _EXCHANGED]
    for variable, value in zip(variables, replicas.from_chief(variables), strict=True):
        variable.assign(value)


def _checked_rows(
    model: BayesianModel, data: Any, batch_size: int, optimizer: Any
) -> RegressionData | None:
    """Data as tensors, or a sample of them, None for streams of which no more is known."""
    if isinstance(data, Shards):
        sample = _checked(model, data.sample)
        _check_num_data(model, data.num_data, batch_size)
        warn_of_scale(model, sample)
        return sample
    if not _is_arrays(data):
        streams = hasattr(data, "__iter__") or hasattr(data, "__getitem__")
        if not streams or isinstance(data, str) or hasattr(data, "shape"):
            raise TypeError(
                "data must be (X, Y), files of rows or an iterable of batches (X, Y), got "
                f"{type(data).__name__}."
            )
        if getattr(optimizer, "noise", None) == "held-out":
            raise ValueError(
                'noise="held-out" needs data as arrays, of which fit can hold some out.'
            )
        if getattr(model, "num_data", None) is None:
            raise ValueError("num_data is None: streams need the number of data N in the model.")
        return None
    batch = _checked(model, data)
    _check_num_data(model, len(batch[0]), batch_size)
    warn_of_scale(model, batch)
    return batch


def _sources(
    model: BayesianModel,
    data: RegressionData | Shards,
    batch_size: int,
    seed: int,
    fraction: float,
    optimizer: Any,
) -> tuple[_Rows, _Rows, ArrayBatches | None]:
    """Batches of the rows trained on, of all rows, and of held-out rows."""
    total = data.num_data if isinstance(data, Shards) else int(data[0].shape[0])
    number = 0
    if (
        isinstance(optimizer, FunctionalMirrorDescent)
        and isinstance(model, GPNet)
        and optimizer.holds_out(model.likelihood, total)
    ):
        if not 0.0 < fraction < 1.0:
            raise ValueError(
                f"held_out must be between 0 and 1, got {fraction}: rows are held out to learn the "
                'noise from, but for FunctionalMirrorDescent(noise="training").'
            )
        number = num_held_out(total, fraction)
        if number >= total:
            raise ValueError(
                f'noise="held-out" needs rows to hold out, but the data have {total}: '
                'use noise="training".'
            )
    if isinstance(data, Shards):
        # Of files only a sample is known to fit the model before they are read.
        check = partial(_checked, model)
        shards = ShardBatches(data, batch_size, seed, check=check)
        if not number:
            return shards, shards, None
        rest = ShardBatches(data, batch_size, seed, data.sample_numbers[:number], check)
        held = _checked(model, tuple(values[:number] for values in data.sample))
        return rest, shards, ArrayBatches(held, number, seed)
    arrays = ArrayBatches(data, batch_size, seed)
    if not number:
        return arrays, arrays, None
    training, held = (arrays.rows(part) for part in held_out_rows(total, number, seed))
    return ArrayBatches(training, batch_size, seed), arrays, ArrayBatches(held, number, seed)


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


def _trace(
    step: Any, shapes: list[list[int]], batch: RegressionData, *rest: RegressionData
) -> None:
    """Trace a step for the shapes that it saw first, before others give a trace without shapes.

    Which traces there are decides the last bits of the results.
    """
    if hasattr(step, "get_concrete_function"):
        specs = [tf.TensorSpec(s, values.dtype) for s, values in zip(shapes, batch, strict=True)]
        step.get_concrete_function(tuple(specs), *rest)


def _checked(model: BayesianModel, data: Any, owner: str = "") -> RegressionData:
    try:
        batch = to_tensors(data, model.likelihood)
        check_batch(model, batch)
    except ValueError as error:
        if not owner:
            raise
        raise ValueError(f"{owner}{error}") from error
    return batch


def _says_stop(returned: Any) -> bool:
    """Whether a callback returned True, of Python, NumPy or TensorFlow; a number is no answer."""
    is_bool = getattr(returned, "dtype", type(returned)) in (bool, tf.bool)
    return is_bool and np.ndim(returned) == 0 and bool(returned)


def _check_num_data(model: BayesianModel, rows: int, batch_size: int) -> None:
    num_data = getattr(model, "num_data", None)
    if num_data is None and (batch_size < rows or isinstance(model, GPNet)):
        raise ValueError(f"num_data is None, but the data have {rows} rows: pass num_data={rows}.")
    if num_data is not None and int(num_data) != rows:
        raise ValueError(f"num_data is {int(num_data)}, but the data have {rows} rows.")


def _loss_step(
    model: BayesianModel, optimizer: Any, replicas: Replicas
) -> Callable[[RegressionData], tf.Tensor]:
    """One step of a Keras optimiser, of either Keras."""
    variables = model.trainable_variables

    def step(batch: RegressionData) -> tf.Tensor:
        def part(share: Share) -> tuple[tf.Tensor, list[tf.Tensor]]:
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(variables)
                loss = _training_loss_part(model, share, batch)
            return loss, tape.gradient(loss, variables)

        if isinstance(model, InferenceNetworkModel):
            model.redraw(tf.convert_to_tensor(optimizer.iterations))
        loss, gradients = replicas.sum(part)
        pairs = zip(gradients, variables, strict=True)
        optimizer.apply_gradients([(g, v) for g, v in pairs if g is not None])
        return loss

    # A partial, since TensorFlow takes functions with one code, of several models, for retraces.
    return tf.function(partial(step), autograph=False, reduce_retracing=True)


def _training_loss_part(model: BayesianModel, share: Share, batch: RegressionData) -> tf.Tensor:
    """A replica's part of the training loss."""
    if share.number == 1:
        return model.training_loss(batch)
    if isinstance(model, InferenceNetworkModel):
        return model.training_loss_part(share, batch)
    # SVGP's is the mean over rows of a loss that scales each by N: parts weigh as many rows.
    X, Y = batch
    size = tf.shape(X)[0]
    start, stop = share.bounds(size)
    own = slice(start, tf.maximum(stop, start + 1))  # of no weight, where there is no row
    return tf.cast((stop - start) / size, X.dtype) * model.training_loss((X[own], Y[own]))


def _build(optimizer: Any, variables: list[tf.Variable]) -> None:
    """Make slots outside the compiled step, and notice an optimiser made for other variables."""
    known = getattr(optimizer, "_trainable_variables", None)  # Keras 3
    index = getattr(optimizer, "_index_dict", None)  # tf_keras
    if index:
        known = [v for v in variables if optimizer._var_key(v) in index]
    built = bool(known or index)
    if built and not {id(v) for v in variables} <= {id(v) for v in known or ()}:
        raise ValueError(
            f"{type(optimizer).__name__} was built for other variables than the model now trains: "
            "make a new optimiser after set_trainable, and one for each model."
        )
    if not built and hasattr(optimizer, "build"):
        optimizer.build(variables)
    elif not built:  # legacy: no harm in making slots twice
        optimizer._create_all_weights(variables)


def _compiled_score(model: BayesianModel) -> Callable[[RegressionData], float]:
    """Mean negative log predictive density, nats per datum, in bounded memory."""
    density = tf.function(
        partial(lambda X, Y: model.predict_log_density((X, Y))),
        autograph=False,
        reduce_retracing=True,
    )

    def score(data: RegressionData) -> float:
        X, Y = data
        total = 0.0
        for start in range(0, len(X), _PREDICTION_ROWS):
            rows = slice(start, start + _PREDICTION_ROWS)
            total += float(tf.reduce_sum(density(X[rows], Y[rows])))
        return -total / len(X)

    return score


def _check_parameters(model: BayesianModel, step: int) -> None:
    """A finite loss says nothing of the parameters after its step, which checkpoints keep."""
    if _not_finite(model):
        raise FloatingPointError(f"Parameters are not finite after step {step}.")


def _not_finite(model: BayesianModel) -> list[str]:
    return [
        path
        for path, parameter in parameter_dict(model).items()
        if parameter.trainable and not np.isfinite(np.asarray(parameter)).all()
    ]


@contextmanager
def _step_named(
    number: int, model: BayesianModel, checkpoints: Checkpoints | None
) -> Iterator[None]:
    """Failures of arithmetic say at which step, and where the last good state is."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        message = f"Step {number} failed. {_assertion(error.message)}"
        raise FloatingPointError(_with_last_good(message, model, checkpoints)) from error
    except FloatingPointError as error:
        raise FloatingPointError(_with_last_good(f"{error}", model, checkpoints)) from None


def _with_last_good(message: str, model: BayesianModel, checkpoints: Checkpoints | None) -> str:
    """A failure's message, and where the last good state is."""
    names = _not_finite(model)
    if names:
        message += f" Parameters with NaN or infinite values: {', '.join(names)}."
    if checkpoints is None:
        return f"{message} With checkpoint_dir=... the last good state would have been kept."
    return f"{message} {checkpoints.advice()}"


def _assertion(message: str) -> str:
    """What an assertion says, without TensorFlow's trace of the graph and quoting."""
    text = re.split(r"assertion failed: |Summarized data: ", message, maxsplit=1)[-1]
    text = text.split("\n\t [[")[0].rsplit("\n\n", 1)[-1]
    quoted = re.fullmatch(r"""(?:b(["'])|\[)(.*)(?:\1|\])\s+\[?([\d\s,]+)\]?""", text, re.DOTALL)
    if quoted is None:
        return text
    said = quoted[2].encode().decode("unicode_escape").encode("latin-1").decode()
    return f"{said} {', '.join(re.findall(r'[0-9]+', quoted[3]))}."


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
