"""What training can call as it goes. Any callable of the step number is a callback too."""

from __future__ import annotations

import abc
import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from gpflow import Module
from tensorflow.compat.v1 import SummaryMetadata

from .history import History
from .saving import named_variables

__all__ = ["Callback", "EarlyStopping", "TensorBoard", "TimeLimit"]


class Callback(abc.ABC):
    """A callback that needs more than the step number.

    >>> class Enough(gpn.callbacks.Callback):
    ...     def __call__(self, step):
    ...         loss = self.history.last("loss", step)
    ...         return loss is not None and loss < 1.0
    >>> enough, history = Enough(), gpn.History()  # gpn.fit(..., callbacks=[enough]) does the rest:
    >>> enough.on_start(model, history)
    >>> history.append(step=10, loss=0.5)
    >>> enough(10), enough(11)
    (True, False)
    """

    def on_start(self, model: Module, history: History) -> None:
        """Before the first step."""
        self.model = model
        self.history = history

    @abc.abstractmethod
    def __call__(self, step: int) -> bool | None:
        """After each step; True stops training."""

    def on_end(self) -> None:  # noqa: B027
        """After the last step, before the final polishing."""

    def state(self) -> Mapping[str, Any]:
        """Numbers and arrays that a checkpoint keeps, by name."""
        return {}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:  # noqa: B027
        """Go on from a checkpoint's :meth:`state`; called after :meth:`on_start`."""

    @property
    def has_stopped(self) -> bool:
        """Whether the restored state says that training is over."""
        return False


class EarlyStopping(Callback):
    """Stop when the validation score has not improved for a while; go back to the best step.

    >>> stop, history = gpn.callbacks.EarlyStopping(patience=1), gpn.History()
    >>> stop.on_start(model, history)  # gpn.fit(..., validation_data=..., callbacks=[stop]) does
    >>> for step, nlpd in (1, 0.9), (2, 0.5), (3, 0.7):
    ...     history.append(step=step, validation_nlpd=nlpd)
    ...     print(step, stop(step))
    1 None
    2 None
    3 True
    >>> stop.best_step
    2
    """

    def __init__(
        self, patience: int | None = 10, *, min_delta: float = 0.0, restore_best: bool = True
    ) -> None:
        """
        :param patience: validations without improvement before stopping; None never stops early.
        :param min_delta: what counts as an improvement, nats per datum.
        :param restore_best: whether the model ends with the parameters of its best validation.
        :raises ValueError: for a patience below 1.
        """
        if patience is not None and patience < 1:
            raise ValueError(f"patience must be at least 1 or None, got {patience}.")
        self.patience = patience
        self.min_delta = min_delta
        self.restore_best = restore_best

    def on_start(self, model: Module, history: History) -> None:
        super().on_start(model, history)
        self.best_step: int | None = None
        self._best = np.inf
        self._waited = 0
        self._snapshot: dict[str, tf.Tensor] = {}

    def __call__(self, step: int) -> bool | None:
        score = self.history.last("validation_nlpd", step)
        if score is None:
            return None
        if score < self._best - self.min_delta:
            self._best, self.best_step, self._waited = score, step, 0
            if self.restore_best:
                named = named_variables(self.model)
                self._snapshot = {name: tf.identity(v) for name, v in named.items()}
            return None
        self._waited += 1
        return self.has_stopped

    @property
    def has_stopped(self) -> bool:
        return self.patience is not None and self._waited >= self.patience

    def state(self) -> Mapping[str, Any]:
        if self.best_step is None:
            return {}
        snapshot = {f"snapshot/{name}": value for name, value in self._snapshot.items()}
        return {
            "best": self._best,
            "best_step": self.best_step,
            "waited": self._waited,
            **snapshot,
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        self._best = float(state["best"])
        self.best_step, self._waited = int(state["best_step"]), int(state["waited"])
        self._snapshot = {
            name.removeprefix("snapshot/"): tf.constant(value)
            for name, value in state.items()
            if name.startswith("snapshot/")
        }

    def on_end(self) -> None:
        """Restore the best step's parameters, if any step was validated."""
        if self._snapshot:
            for name, variable in named_variables(self.model).items():
                variable.assign(self._snapshot[name])


class TensorBoard(Callback):
    """Write what the history records as scalars ``fit/loss``, ``fit/validation_nlpd``, …

    The files can be read by TensorBoard, during training and later, and are written without it.
    ``gpflow.monitor``'s tasks may share the folder.

    >>> import tempfile
    >>> board, history = gpn.callbacks.TensorBoard(tempfile.mkdtemp()), gpn.History()
    >>> board.on_start(model, history)  # gpn.fit(..., callbacks=[board]) does
    >>> history.append(step=1, loss=0.5)
    >>> board(1)
    """

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        """
        :param log_dir: made if there is none; a resumed run adds to it. Training raises
            NotADirectoryError where it is a file.
        """
        self.log_dir = log_dir

    def on_start(self, model: Module, history: History) -> None:
        super().on_start(model, history)
        if os.path.exists(self.log_dir) and not os.path.isdir(self.log_dir):
            raise NotADirectoryError(
                f"log_dir of TensorBoard must be a folder, but {os.fspath(self.log_dir)} is a file."
            )
        self._writer = tf.summary.create_file_writer(os.fspath(self.log_dir))
        self._written = history.num_rows

    def __call__(self, step: int) -> None:
        rows = self.history.rows[self._written :]
        self._written = self.history.num_rows
        with self._writer.as_default():
            for row in rows:
                for name in row.keys() - {"step"}:
                    # What tf.summary.scalar does, which needs TensorBoard installed.
                    tf.summary.write(
                        f"fit/{name}", row[name], step=int(row["step"]), metadata=_SCALARS
                    )
        if rows:
            self._writer.flush()

    def on_end(self) -> None:
        self(0)  # what was recorded after the last step
        self._writer.close()


_SCALARS = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="scalars"))


class TimeLimit(Callback):
    """Stop after so many seconds of training, compiling included; a resumed run counts anew.

    >>> limit = gpn.callbacks.TimeLimit(0.0)
    >>> limit.on_start(model, gpn.History())  # gpn.fit(..., callbacks=[limit]) does
    >>> limit(1)
    True
    """

    def __init__(self, seconds: float) -> None:
        """
        :param seconds: from the first step's start; one step is always taken.
        :raises ValueError: for no number, or a negative one.
        """
        if not seconds >= 0.0:
            raise ValueError(f"seconds must not be negative, got {seconds}.")
        self.seconds = seconds

    def on_start(self, model: Module, history: History) -> None:
        super().on_start(model, history)
        self._end = time.perf_counter() + self.seconds

    def __call__(self, step: int) -> bool | None:
        return time.perf_counter() >= self._end
