"""Models in files: whole ones with their optimiser, which pickle makes, or arrays alone.

A pickle can run any code when it is loaded. Arrays run none, and fit a model that is built already.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Mapping
from typing import Any

import cloudpickle
import gpflow
import numpy as np
import tensorflow as tf
from gpflow import Parameter
from gpflow.config import default_float

from ._version import __version__
from .array_files import read_arrays, whole_file, write_arrays

__all__ = ["load", "load_into", "named_variables", "save", "save_arrays", "unlike"]

_MAGIC = b"gpflow_gpnet model\n"
_FORMAT = 1


def save(model: tf.Module, path: str | os.PathLike[str]) -> None:
    """Write a model, and the optimiser that is bound to it, to one file.

    The file appears whole or not at all. Classes and functions of a script or notebook travel with
    it; those of modules must be importable where it is loaded.

    :raises TypeError: naming the attribute that cannot be saved.
    """
    header = {
        "format": _FORMAT,
        "gpflow_gpnet": __version__,
        "gpflow": gpflow.__version__,
        "tensorflow": tf.__version__,
        "float": tf.as_dtype(default_float()).name,
    }
    payload = _dumps(model)
    with whole_file(path) as file:
        file.write(_MAGIC + json.dumps(header).encode() + b"\n")
        file.write(len(payload).to_bytes(8, "little") + payload)


def load(path: str | os.PathLike[str]) -> Any:
    """The model that :func:`save` wrote; its optimiser is ``model.optimizer``.

    Like every pickle, a file can run any code when loaded: load only files that you trust.
    :func:`load_into` runs none.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.gpn"
    >>> model.save(path)
    >>> bool(np.all(gpn.load(path).predict_f(X)[1] == model.predict_f(X)[1]))
    True

    :raises ValueError: if the file is of another kind or format, cut short, or of another default
        float than the present one.
    """
    with open(path, "rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise ValueError(f"{path} is not a model saved by gpflow_gpnet.")
        line = file.readline()
        if not line.endswith(b"\n"):
            raise ValueError(f"{path} is cut short, in its header.")
        header = json.loads(line)
        if header["format"] > _FORMAT:
            raise ValueError(
                f"{path} was saved by gpflow_gpnet {header['gpflow_gpnet']} in format "
                f"{header['format']}, but {__version__} knows formats up to {_FORMAT}: upgrade."
            )
        if header["float"] != tf.as_dtype(default_float()).name:
            raise ValueError(
                f"{path} holds a {header['float']} model, but GPflow's default float is "
                f"{tf.as_dtype(default_float()).name}: set it with "
                f"gpflow.config.set_default_float first."
            )
        size = int.from_bytes(file.read(8), "little")
        payload = file.read()
    if len(payload) != size or not size:
        raise ValueError(f"{path} is cut short: {len(payload)} of {size} bytes are there.")
    return pickle.loads(payload)


def save_arrays(model: tf.Module, path: str | os.PathLike[str]) -> None:
    """Write the values of all variables of a model, and nothing else, for :func:`load_into`.

    The file is a .npz with their unconstrained values by name. It appears whole or not at all.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.npz"
    >>> gpn.save_arrays(model, path)
    >>> float(np.load(path)["model/inference_network/weights/q_mu"][0, 0])
    0.0
    """
    arrays = {f"model/{name}": v.numpy() for name, v in named_variables(model).items()}
    write_arrays(path, {}, arrays)


def load_into(model: tf.Module, path: str | os.PathLike[str]) -> None:
    """Give a model the values of :func:`save_arrays`, or of a checkpoint of ``fit``.

    No code of the file is run, whoever wrote it. The optimiser's state is not touched.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.npz"
    >>> gpn.save_arrays(model, path)
    >>> _ = model.likelihood.variance.assign(0.5)
    >>> gpn.load_into(model, path)
    >>> bool(model.likelihood.variance.numpy() == 0.5)
    False

    :param model: made by the same code as the one that was saved.
    :raises ValueError: if the file is damaged, has values that are not finite, or is of another
        model, naming what differs; the model is then as it was.
    """
    try:
        arrays = read_arrays(path)[1]
    except ValueError as error:
        raise ValueError(f"{path} cannot be loaded: {error}.") from error
    arrays = {name: array for name, array in arrays.items() if name.startswith("model/")}
    variables = {f"model/{name}": v for name, v in named_variables(model).items()}
    reason = unlike(variables, arrays)
    if reason is not None:
        raise ValueError(f"{path} does not fit this {type(model).__name__}: {reason}.")
    for name, array in arrays.items():
        if not np.all(np.isfinite(array)):
            raise ValueError(f"{path} cannot be loaded: {name} has NaN or infinite values.")
    for name, variable in variables.items():
        variable.assign(arrays[name])


def named_variables(module: tf.Module) -> dict[str, tf.Variable]:
    """All variables by the attributes that lead to each, always in the same order."""
    named: dict[str, tf.Variable] = {}
    seen: set[int] = set()
    leaves = module._flatten(
        predicate=lambda leaf: isinstance(leaf, (Parameter, tf.Variable)), with_path=True
    )
    for path, leaf in leaves:
        # Parameters come before the variables inside them, whose names are TensorFlow's affair.
        variable = leaf.unconstrained_variable if isinstance(leaf, Parameter) else leaf
        if id(variable) not in seen:
            seen.add(id(variable))
            named["/".join(map(str, path))] = variable
    return named


def unlike(variables: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str | None:
    """What keeps arrays from being the variables' values: names, shapes or types; else None."""
    for name in sorted(variables.keys() | arrays.keys()):
        if name not in arrays:
            return f"it has no {name}"
        if name not in variables:
            return f"it has {name}, which is not here"
        here, there = np.asarray(variables[name]), arrays[name]
        if here.shape != there.shape or here.dtype != there.dtype:
            return (
                f"{name} is {there.dtype} {list(there.shape)} in it, but {here.dtype} "
                f"{list(here.shape)} here"
            )
    return None


def _dumps(model: tf.Module) -> bytes:
    try:
        return cloudpickle.dumps(model)
    except Exception as error:
        for name, value in vars(model).items():
            try:
                cloudpickle.dumps(value)
            except Exception:
                raise TypeError(
                    f"{type(model).__name__}.{name}, a {type(value).__name__}, cannot be saved: "
                    f"remove it from the model first ({error})."
                ) from error
        raise
