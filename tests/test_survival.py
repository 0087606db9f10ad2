"""Fuzzed fits: each survives with a right result or is refused by a clear error."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gpflow_gpnet as gpn
from gpflow_gpnet import gaussians, model

_PATH = Path(__file__).parents[1] / "benchmarks" / "fuzz.py"
_SPEC = importlib.util.spec_from_file_location("fuzz", _PATH)
fuzz = importlib.util.module_from_spec(_SPEC)
sys.modules["fuzz"] = fuzz  # where dataclasses look their module up
_SPEC.loader.exec_module(fuzz)

FEW, MANY = 25, 300
CASES = list(fuzz.cases(FEW, seed=11))

PLAIN = fuzz.Case(
    kernel="Matern52",
    likelihood="Gaussian",
    network="RFE",
    training="natural",
    pathologies=("none",),
    dtype="float64",
    dim=1,
    rows=20,
    variance=1.0,
    lengthscale=1.0,
    noise=0.1,
    fixed=True,
    scaling=False,
    prior_correction=False,
    batch_size=500,
    num_steps=3,
    learning_rate=0.01,
    compiled=False,
    seed=0,
)


def assert_no_fault(case):
    outcome = fuzz.run(case)
    assert outcome.kind in ("survived", "warned", "refused", "stopped"), (
        f"{outcome.message}: {case}"
    )


@pytest.mark.parametrize("index", range(FEW))
def test_a_fuzzed_fit_survives_or_says_why_not(index):
    assert_no_fault(CASES[index])


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(10))
def test_many_fuzzed_fits(chunk):
    for case in list(fuzz.cases(MANY, seed=12))[chunk::10]:
        assert_no_fault(case)


def test_cases_are_the_same_for_the_same_seed():
    assert list(fuzz.cases(5, seed=11)) == CASES[:5] != list(fuzz.cases(5, seed=12))
    assert fuzz.Case.from_json(CASES[0].to_json()) == CASES[0]


@pytest.mark.parametrize("network", ["RFE", "InducingFeatures"])
def test_the_plain_case_is_compared_with_the_exact_posterior(network):
    assert fuzz.run(replace(PLAIN, network=network)) == fuzz.Outcome("survived", checked=True)


FOUND = {
    "inputs far from 0": dict(network="InducingFeatures", pathologies=("inputs + 1e6",)),
    "and in float32": dict(
        network="InducingFeatures", pathologies=("inputs + 1e6",), dtype="float32"
    ),
    "predicted beside a far row": dict(
        network="InducingFeatures", lengthscale=0.01, dtype="float32"
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_the_campaign_found_is_right_now(name):
    assert fuzz.run(replace(PLAIN, **FOUND[name])) == fuzz.Outcome("survived", checked=True)


@pytest.mark.parametrize("network", ["RFE", "InducingFeatures"])
def test_a_prior_that_rounding_swallows_is_warned_of(network):
    outcome = fuzz.run(replace(PLAIN, network=network, variance=1e6, noise=1e-3, dtype="float32"))
    assert outcome.kind == "warned" and "float32 rounds the prior's 1 away" in outcome.message


def test_distances_that_rounding_swallows_are_warned_of():
    outcome = fuzz.run(replace(PLAIN, lengthscale=1e-6, dtype="float32"))
    assert outcome.kind == "warned" and "float32 rounds squared distances" in outcome.message
    assert fuzz.run(replace(PLAIN, lengthscale=1e-6)).kind == "survived"


def faulty(name, change):
    """A function of the package whose result is changed."""
    right = getattr(gaussians, name)
    return lambda *args: change(right(*args))


def test_the_campaign_sees_faults(monkeypatch):
    """Silent ones, and errors that are not documented."""
    with monkeypatch.context() as patch:
        wrong = faulty("lower_root_of_inverse", lambda root: 1.1 * root)
        patch.setattr(gaussians, "lower_root_of_inverse", wrong)
        assert "silent" in fuzz.run(PLAIN).message
    with monkeypatch.context() as patch:
        right = model.InferenceNetworkModel.predict_f
        for change in (-1.0, np.nan):
            patch.setattr(
                gpn.GPNet,
                "predict_f",
                lambda *args, change=change, **kwargs: (
                    right(*args, **kwargs)[0],
                    change * right(*args, **kwargs)[1],
                ),
            )
            assert "silent: predict_f" in fuzz.run(PLAIN).message
    with monkeypatch.context() as patch:
        patch.setattr(gaussians, "lower_root_of_inverse", lambda *args: 1 / 0)
        assert fuzz.run(PLAIN).message.startswith("ZeroDivisionError in test_survival.py")
