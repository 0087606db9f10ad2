"""Schedules of step sizes and learning rates."""

import numpy as np
import pytest
import tensorflow as tf
from gpflow.keras import tf_keras

from gpflow_gpnet import FunctionalMirrorDescent
from gpflow_gpnet.step_sizes import Constant, InverseSqrt, InverseTime, LinearDecay, as_schedule


def at(schedule, *steps):
    return [float(schedule(tf.constant(step, tf.int64))) for step in steps]


def test_values_by_step():
    assert at(Constant(0.3), 0, 7) == pytest.approx([0.3, 0.3])
    assert at(InverseSqrt(0.5, 2.0), 0, 1, 9) == pytest.approx([0.5, 0.5 / 3, 0.5 / 7])
    assert at(InverseSqrt(), 0, 4) == pytest.approx([1.0, 1 / 3])
    assert at(InverseTime(), 0, 1, 9) == pytest.approx([1.0, 0.5, 0.1])
    assert at(LinearDecay(1.0, 4, 0.2), 0, 1, 4, 9) == pytest.approx([1.0, 0.8, 0.2, 0.2])
    assert at(LinearDecay(0.1, 10), 5, 10) == pytest.approx([0.05, 0.0])


@pytest.mark.parametrize(
    "schedule", [Constant(0.3), InverseSqrt(), InverseTime(), LinearDecay(1.0, 4)]
)
def test_values_have_the_default_float_type(schedule, float_type):
    assert schedule(tf.constant(3, tf.int64)).dtype == float_type
    compiled = tf.function(schedule)
    assert compiled(tf.constant(3, tf.int64)).numpy() == schedule(tf.constant(3, tf.int64)).numpy()


def test_schedules_are_values():
    assert InverseSqrt(0.5) == InverseSqrt(0.5, 1.0) != InverseSqrt(0.4)
    with pytest.raises(AttributeError):
        InverseSqrt().beta0 = 0.1


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Constant(-0.1), "value must not be negative, got -0.1"),
        (lambda: Constant(np.nan), "value must not be negative, got nan"),
        (lambda: InverseSqrt(0.0), r"beta0 must be in \(0, 1\], got 0.0"),
        (lambda: InverseSqrt(1.5), r"beta0 must be in \(0, 1\], got 1.5"),
        (lambda: InverseSqrt(1.0, -1.0), "xi must not be negative"),
        (lambda: LinearDecay(-1.0, 4), "initial must not be negative"),
        (lambda: LinearDecay(1.0, 4, -1.0), "final must not be negative"),
        (lambda: LinearDecay(1.0, 0), "num_steps must be at least 1, got 0"),
        (lambda: as_schedule(-0.1), "must not be negative"),
    ],
)
def test_values_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("value", [0.0, 1.5, LinearDecay(2.0, 4), lambda t: -1.0])
def test_step_sizes_of_mirror_descent_are_in_0_to_1(value):
    with pytest.raises(ValueError, match=r"step_size must be in \(0, 1\], got"):
        FunctionalMirrorDescent(step_size=value)
    optimizer = FunctionalMirrorDescent(step_size=LinearDecay(1.0, 4))
    with pytest.raises(ValueError, match=r"step_size must be in \(0, 1\], got"):
        optimizer.step_size = value
    assert optimizer.step_size == LinearDecay(1.0, 4)


def test_numbers_and_functions_are_schedules():
    assert as_schedule(1) == Constant(1.0)
    assert as_schedule(0.25) == Constant(0.25)
    assert as_schedule(np.float32(0.25)) == Constant(0.25)
    keras = tf_keras.optimizers.schedules.ExponentialDecay(1.0, 10, 0.5)
    assert as_schedule(keras) is keras
    assert at(as_schedule(keras), 10) == pytest.approx([0.5])
    with pytest.raises(TypeError, match="a number or a callable of the step t, got 'fast'"):
        as_schedule("fast")
