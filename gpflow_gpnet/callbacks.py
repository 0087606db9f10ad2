"""What training can call as it goes. Any callable of the step number is a callback too."""

from __future__ import annotations

import abc
import time

import numpy as np
import tensorflow as tf
from gpflow import Module

from .history import History

__all__ = ["Callback", "EarlyStopping", "TimeLimit"]


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
        self._snapshot: list[tf.Tensor] = []

    def __call__(self, step: int) -> bool | None:
        score = self.history.last("validation_nlpd", step)
        if score is None:
            return None
        if score < self._best - self.min_delta:
            self._best, self.best_step, self._waited = score, step, 0
            if self.restore_best:
                self._snapshot = [tf.identity(variable) for variable in self.model.variables]
            return None
        self._waited += 1
        return self.patience is not None and self._waited >= self.patience

    def on_end(self) -> None:
        """Restore the best step's parameters.

        :raises ValueError: if no validation score was ever recorded.
        """
        if self.best_step is None and self.history.num_rows:
            raise ValueError("EarlyStopping saw no validation score: give fit validation_data.")
        if self._snapshot:
            for variable, value in zip(self.model.variables, self._snapshot, strict=True):
                variable.assign(value)


class TimeLimit(Callback):
    """Stop after so many seconds of training, compiling included.

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
