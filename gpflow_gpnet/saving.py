"""A model and its optimiser in one file, from which training goes on as if never interrupted."""

from __future__ import annotations

import json
import os
import pickle
import tempfile
from pathlib import Path
from typing import Any

import cloudpickle
import gpflow
import tensorflow as tf
from gpflow.config import default_float

from ._version import __version__

__all__ = ["load", "save"]

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
    path = Path(path)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_MAGIC + json.dumps(header).encode() + b"\n")
            file.write(len(payload).to_bytes(8, "little") + payload)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def load(path: str | os.PathLike[str]) -> Any:
    """The model that :func:`save` wrote; its optimiser is ``model.optimizer``.

    Like every pickle, a file can run code when loaded: load files that you trust.

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
        header = json.loads(file.readline())
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
    if len(payload) != size:
        raise ValueError(f"{path} is cut short: {len(payload)} of {size} bytes are there.")
    return pickle.loads(payload)


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
