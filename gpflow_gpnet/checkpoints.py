"""Checkpoints of a training run, from which it goes on to the same parameters bit for bit."""

from __future__ import annotations

import os
import re
import secrets
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from .array_files import read_arrays, write_arrays
from .callbacks import Callback
from .history import History
from .mirror_descent import FunctionalMirrorDescent
from .saving import named_variables, unlike

__all__ = ["Checkpoints", "TrainingState"]

_NAME = re.compile(r"step-(\d+)(?:-(\d+))?\.npz")
_HEADER = {"run", "step", "seed", "seconds", "history", "numpy", "kept"}


class Checkpoints:
    """Files ``step-000000100.npz`` in a folder, of which the newest few are kept.

    A file that cannot be used is named in a warning and left where it is; what this run, or the one
    that it continues, has not written is never deleted.
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int) -> None:
        """
        :param folder: made if there is none.
        :param keep: how many checkpoints to keep, at least 1.
        """
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.keep = keep
        self._kept: list[str] = []
        self._run = secrets.token_hex(8)

    @property
    def last(self) -> Path | None:
        """The checkpoint last written or gone on from."""
        return self.folder / self._kept[-1] if self._kept else None

    def newest(
        self, refuse: Callable[[dict[str, Any], dict[str, np.ndarray]], str | None]
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
        """Header and arrays of the newest checkpoint that is whole and not refused, or None.

        :param refuse: gives the reason against a checkpoint, or None.
        """
        found = [(order, path) for path in self.folder.iterdir() if (order := _order(path))]
        for _, path in sorted(found, reverse=True):
            try:
                header, arrays = read_arrays(path)
                reason = refuse(header, arrays)
            except ValueError as error:
                reason = str(error)
            if reason is None:
                self._run = header["run"]
                kept = [name for name in header["kept"] if self._is_of_this_run(name)]
                self._kept = [*kept, path.name]
                return header, arrays
            warnings.warn(
                f"The checkpoint {path} is not used, and left where it is: {reason}.",
                UserWarning,
                stacklevel=3,
            )
        return None

    def _is_of_this_run(self, name: str) -> bool:
        """A file from elsewhere must not choose what is deleted."""
        if not _NAME.fullmatch(name):
            return False
        try:
            header, _ = read_arrays(self.folder / name)
        except (OSError, ValueError):
            return False
        return header.get("run") == self._run

    def save(self, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Write a checkpoint, then delete the oldest of this run beyond those to keep.

        :param header: with ``step``.
        :raises OSError: naming the last good checkpoint, which stays.
        """
        path = self.folder / f"step-{header['step']:09d}.npz"
        number = 0
        while path.exists():  # one that was refused
            number += 1
            path = self.folder / f"step-{header['step']:09d}-{number}.npz"
        kept = self._kept[max(0, len(self._kept) - self.keep + 1) :] if self.keep > 1 else []
        try:
            write_arrays(path, {**header, "run": self._run, "kept": kept}, arrays)
        except OSError as error:
            raise OSError(
                error.errno,
                f"{error.strerror}: the checkpoint {path} could not be written, and training "
                f"stopped at step {header['step']}. {self.advice()}",
            ) from error
        dropped, self._kept = self._kept[: len(self._kept) - len(kept)], [*kept, path.name]
        for name in dropped:
            (self.folder / name).unlink(missing_ok=True)

    def advice(self) -> str:
        """Where the last good state is, for errors."""
        if self.last is None:
            return "There is no checkpoint yet."
        return (
            f"The last good checkpoint is {self.last}: the same call goes on from there, and "
            "gpflow_gpnet.load_into(model, path) gives its parameters."
        )


class TrainingState:
    """All that training depends on from one step to the next.

    The model's variables, the optimiser's, the callbacks' state, the history, the seed of the
    batches, and NumPy's and TensorFlow's global generators.
    """

    def __init__(
        self,
        model: tf.Module,
        optimizer: Any,
        history: History,
        callbacks: Iterable[Callable[[int], Any]],
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._history = history
        self._callbacks = {
            f"callbacks/{index} {type(callback).__name__}": callback
            for index, callback in enumerate(callbacks)
            if isinstance(callback, Callback)
        }

    def gather(
        self,
        step: int,
        seed: int,
        seconds: float,
        shapes: list[list[int]] | None = None,
        data: int = 0,
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Header and arrays of a checkpoint.

        :param step: steps done.
        :param seed: of the batches.
        :param seconds: that training has taken.
        :param shapes: of the first batch.
        :param data: a checksum of the data.
        """
        numpy_state, tensorflow = np.random.get_state(legacy=False), _global_generator()
        arrays = {name: np.asarray(variable) for name, variable in self._variables().items()}
        for owner, callback in self._callbacks.items():
            state = callback.state()
            arrays |= {f"{owner}/{name}": np.asarray(value) for name, value in state.items()}
        if tensorflow is not None:
            arrays["random/tensorflow"] = tensorflow.state.numpy()
        arrays["random/numpy"] = numpy_state["state"].pop("key")
        header = {
            "step": step,
            "seed": seed,
            "seconds": seconds,
            "shapes": shapes,
            "data": data,
            "history": self._history.rows,
            "numpy": numpy_state,
        }
        return header, arrays

    def refuse(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> str | None:
        """Why a checkpoint is not one of this model and optimiser, or None."""
        if not header.keys() >= _HEADER or "random/numpy" not in arrays:
            return "it is not a checkpoint of fit"
        saved = {name: a for name, a in arrays.items() if name.startswith(("model/", "optimizer/"))}
        return unlike(self._variables(saved), saved)

    def restore(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Take up what :meth:`gather` gave; the callbacks' state, see :meth:`restore_callbacks`."""
        for name, variable in self._variables(arrays).items():
            variable.assign(arrays[name])
        self._history.rows = header["history"]
        numpy_state, tensorflow = header["numpy"], _global_generator()
        if tensorflow is not None and "random/tensorflow" in arrays:
            tensorflow.reset(arrays["random/tensorflow"])
        numpy_state["state"]["key"] = arrays["random/numpy"]
        np.random.set_state(numpy_state)

    def restore_callbacks(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Give callbacks that have started their state; new ones have none."""
        for owner, callback in self._callbacks.items():
            prefix = f"{owner}/"
            state = {n[len(prefix) :]: a for n, a in arrays.items() if n.startswith(prefix)}
            if state:
                callback.restore(state)

    def _variables(self, saved: Iterable[str] = ()) -> dict[str, Any]:
        """Model's and optimiser's variables, with the slots that a checkpoint has."""
        optimizer, prefix = self._optimizer, "optimizer/"
        if isinstance(optimizer, FunctionalMirrorDescent):
            named = optimizer.state_variables(
                {name[len(prefix) :] for name in saved if name.startswith(prefix)}
            )
        else:
            variables = optimizer.variables
            variables = variables() if callable(variables) else variables  # tf_keras's legacy ones
            named = {f"{index}": variable for index, variable in enumerate(variables)}
        return {
            f"model/{name}": variable for name, variable in named_variables(self._model).items()
        } | {f"{prefix}{name}": variable for name, variable in named.items()}


def _order(path: Path) -> tuple[int, int] | None:
    """Of a checkpoint by its name: step, and number among those of the step. None for others."""
    match = _NAME.fullmatch(path.name)
    return (int(match[1]), int(match[2] or 0)) if match else None


def _global_generator() -> tf.random.Generator | None:
    try:
        return tf.random.get_global_generator()
    except RuntimeError:  # op determinism is on, and nobody has set one
        return None
