"""What every test starts from: quiet TensorFlow, few threads, fixed seeds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

# TensorFlow and matplotlib read these when they are first imported, which is after this file:
# pytest-xdist's own process reads it too, and need not wait for TensorFlow.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
os.environ.setdefault("MPLBACKEND", "Agg")
if "PYTEST_XDIST_WORKER" in os.environ:
    # There is a process for each core already: more threads would only wait for each other.
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
    os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")


@pytest.fixture(autouse=True)
def fixed_seeds() -> None:
    """Start every test from the same global random state."""
    import tensorflow as tf

    np.random.seed(0)
    tf.random.set_seed(0)


@pytest.fixture
def rng() -> np.random.Generator:
    """A source of random numbers that is the same in every test."""
    return np.random.default_rng(0)


@pytest.fixture(params=[np.float64, np.float32], ids=["float64", "float32"])
def float_type(request: pytest.FixtureRequest) -> Iterator[Any]:
    """GPflow's default float type, set for one test: float64, then float32."""
    import gpflow

    with gpflow.config.as_context(gpflow.config.Config(float=request.param)):
        yield request.param
