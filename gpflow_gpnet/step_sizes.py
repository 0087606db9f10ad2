"""Schedules: step sizes of mirror descent and learning rates, as functions of the step t."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real

import tensorflow as tf
from gpflow.utilities import to_default_float

__all__ = [
    "Constant",
    "InverseSqrt",
    "InverseTime",
    "LinearDecay",
    "Schedule",
    "as_schedule",
    "check_step_size",
]

Schedule = Callable[[tf.Tensor], tf.Tensor]
"""From the step t = 0, 1, … to a number; Keras's learning-rate schedules are such functions."""


@dataclass(frozen=True)
class Constant:
    """The same value at each step.

    >>> float(gpn.Constant(0.5)(tf.constant(7)))
    0.5
    """

    value: float

    def __post_init__(self) -> None:
        _check_non_negative("value", self.value)

    def __call__(self, t: tf.Tensor) -> tf.Tensor:
        return to_default_float(self.value)


@dataclass(frozen=True)
class InverseSqrt:
    """β_t = β0 / (1 + ξ √t), t = 0, 1, … (Shi et al. 2019, section 3.4).

    >>> [float(gpn.InverseSqrt(beta0=1.0, xi=1.0)(tf.constant(t))) for t in (0, 1, 4)]
    [1.0, 0.5, 0.333...]
    """

    beta0: float = 1.0
    xi: float = 1.0

    def __post_init__(self) -> None:
        _check_beta("beta0", self.beta0)
        _check_non_negative("xi", self.xi)

    def __call__(self, t: tf.Tensor) -> tf.Tensor:
        return to_default_float(self.beta0) / (
            1.0 + to_default_float(self.xi) * tf.sqrt(to_default_float(t))
        )


@dataclass(frozen=True)
class InverseTime:
    """β_t = 1 / (t + 1): one pass over the data gives the exact posterior of a conjugate model.

    >>> [float(gpn.InverseTime()(tf.constant(t))) for t in (0, 1, 3)]
    [1.0, 0.5, 0.25]
    """

    def __call__(self, t: tf.Tensor) -> tf.Tensor:
        return 1.0 / (to_default_float(t) + 1.0)


@dataclass(frozen=True)
class LinearDecay:
    """From ``initial`` to ``final`` over ``num_steps`` steps, then ``final``.

    >>> rate = gpn.LinearDecay(0.01, num_steps=100)
    >>> [float(rate(tf.constant(t))) for t in (0, 50, 100, 200)]
    [0.01, 0.005, 0.0, 0.0]
    """

    initial: float
    num_steps: int
    final: float = 0.0

    def __post_init__(self) -> None:
        _check_non_negative("initial", self.initial)
        _check_non_negative("final", self.final)
        if self.num_steps < 1:
            raise ValueError(f"num_steps must be at least 1, got {self.num_steps}.")

    def __call__(self, t: tf.Tensor) -> tf.Tensor:
        done = tf.minimum(to_default_float(t) / to_default_float(self.num_steps), 1.0)
        return to_default_float(self.initial) + done * to_default_float(self.final - self.initial)


def as_schedule(value: float | Schedule) -> Schedule:
    """A number as a constant schedule; a callable of t as it is.

    >>> gpn.step_sizes.as_schedule(0.1)
    Constant(value=0.1)

    :raises TypeError: for anything else.
    """
    if callable(value):
        return value
    if isinstance(value, Real):
        return Constant(float(value))
    raise TypeError(f"a schedule must be a number or a callable of the step t, got {value!r}.")


def check_step_size(schedule: Schedule) -> None:
    """Refuse a β outside (0, 1] at the first step.

    >>> gpn.step_sizes.check_step_size(gpn.InverseTime())

    :raises ValueError: naming it.
    """
    _check_beta("step_size", float(schedule(tf.constant(0, tf.int64))))


def _check_non_negative(name: str, value: float) -> None:
    if not value >= 0.0:
        raise ValueError(f"{name} must not be negative, got {value}.")


def _check_beta(name: str, value: float) -> None:
    if not 0.0 < value <= 1.0:
        raise ValueError(f"{name} must be in (0, 1], got {value}.")
