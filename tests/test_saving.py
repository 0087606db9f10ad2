"""Saving and loading: what is loaded predicts the same and trains on to the same result."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from copy import deepcopy
from pathlib import Path

import gpflow
import numpy as np
import pytest
import tensorflow as tf

import gpflow_gpnet as gpn
from gpflow_gpnet.saving import named_variables

RNG = np.random.default_rng(0)
X = RNG.uniform(-1.0, 1.0, size=(40, 1))
Y = np.sin(3.0 * X) + 0.1 * RNG.normal(size=(40, 1))
XNEW = np.linspace(-2.0, 2.0, 5)[:, None]


def make_model(covariance: str = "full", num_data: int = 40) -> gpn.GPNet:
    kernel = gpflow.kernels.Matern32()
    network = gpn.RFE(kernel, 1, 8, covariance)
    return gpn.GPNet(kernel, gpflow.likelihoods.Gaussian(0.1), network, num_data=num_data)


def make_optimizer(kind: str) -> gpn.FunctionalMirrorDescent:
    return gpn.FunctionalMirrorDescent(
        natural=kind == "natural",
        learning_rate=gpn.LinearDecay(0.02, 20),
        noise="training",
        seed=3,
    )


def train(model: gpn.GPNet, steps: int, optimizer: gpn.FunctionalMirrorDescent | None = None):
    gpn.fit(
        model, (X, Y), optimizer=optimizer, num_steps=steps, batch_size=16, seed=5, progress=False,
        polish=False,
    )  # fmt: skip


def assert_equal_models(model: gpn.GPNet, other: gpn.GPNet) -> None:
    values, others = (gpflow.utilities.read_values(m) for m in (model, other))
    assert values.keys() == others.keys()
    for path, value in values.items():
        np.testing.assert_allclose(value, others[path], rtol=1e-12, atol=1e-14, err_msg=path)
    for moment, wanted in zip(model.predict_y(XNEW), other.predict_y(XNEW), strict=True):
        np.testing.assert_allclose(moment, wanted, rtol=1e-10)


@pytest.mark.parametrize("kind", ["natural", "diag"])
def test_training_goes_on_to_the_same_result(kind: str, tmp_path: Path) -> None:
    covariance = "diag" if kind == "diag" else "full"
    whole, parts = make_model(covariance=covariance), make_model(covariance=covariance)
    train(whole, 5, make_optimizer(kind))
    train(parts, 3, make_optimizer(kind))
    parts.save(tmp_path / "model.gpnet")
    loaded = gpn.load(tmp_path / "model.gpnet")
    assert_equal_models(loaded, parts)
    assert int(loaded.optimizer.t) == 3
    train(loaded, 2)
    assert_equal_models(loaded, whole)
    assert not np.allclose(loaded.predict_f(XNEW)[0], parts.predict_f(XNEW)[0], rtol=1e-6)


def test_unfrozen_parameters_keep_their_slots(tmp_path: Path) -> None:
    whole, parts = make_model(), make_model()
    for model in (whole, parts):
        optimizer = make_optimizer("natural")
        train(model, 2, optimizer)
        gpflow.set_trainable(model.kernel, False)
        train(model, 2)
    parts.save(tmp_path / "model")
    parts = gpn.load(tmp_path / "model")
    for model in (whole, parts):
        gpflow.set_trainable(model.kernel, True)
        train(model, 2)
    assert_equal_models(parts, whole)


@pytest.mark.parametrize("copy", [deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_has_an_optimizer_of_its_own(copy) -> None:
    model = make_model()
    assert model.optimizer is None
    train(model, 2, make_optimizer("natural"))
    other = copy(copy(model))  # the second copies one that was not used
    assert other.optimizer is not model.optimizer
    before = model.predict_f(XNEW)[0]
    train(other, 2)
    np.testing.assert_array_equal(model.predict_f(XNEW)[0], before)
    train(model, 2)
    assert_equal_models(other, model)


def test_the_optimizer_is_none_of_the_models_parameters() -> None:
    model = make_model()
    names = set(gpflow.utilities.parameter_dict(model))
    number = len(model.variables)
    train(model, 1)
    assert set(gpflow.utilities.parameter_dict(model)) == names
    assert len(model.variables) == number


def test_case_h10_in_another_process(tmp_path: Path) -> None:
    """300 steps of 1-D data, or 200, saved, loaded by a new process, and 100."""
    path = tmp_path / "model"
    inputs = RNG.uniform(-1.0, 1.0, size=(300, 1))
    targets = np.sin(3.0 * inputs) + 0.1 * RNG.normal(size=(300, 1))
    settings = dict(batch_size=50, progress=False, polish=False)
    whole, parts = make_model(num_data=300), make_model(num_data=300)
    gpn.fit(whole, (inputs, targets), seed=7, num_steps=300, **settings)
    gpn.fit(parts, (inputs, targets), seed=7, num_steps=200, **settings)
    expected = parts.predict_y(XNEW)[0]
    parts.save(path)
    np.savez(tmp_path / "data.npz", X=inputs, Y=targets, XNEW=XNEW, expected=expected)
    program = f"""
import numpy as np, gpflow_gpnet as gpn
settings = {settings}
data = np.load({str(tmp_path / "data.npz")!r})
model = gpn.load({str(path)!r})
np.testing.assert_allclose(model.predict_y(data["XNEW"])[0], data["expected"], rtol=1e-12)
gpn.fit(model, (data["X"], data["Y"]), num_steps=100, **settings)
model.save({str(path)!r})
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
    assert_equal_models(gpn.load(path), whole)


def test_models_with_users_own_parts(tmp_path: Path) -> None:
    class Kernel(gpflow.kernels.SquaredExponential):  # known here only
        pass

    kernel = Kernel()
    model = gpn.GPNet(kernel, gpflow.likelihoods.Gaussian(), gpn.RFE(kernel, 1, 3), num_data=40)
    model.note = lambda x: 2 * x
    model.save(tmp_path / "model")
    loaded = gpn.load(tmp_path / "model")
    assert loaded.note(2) == 4
    np.testing.assert_array_equal(loaded.predict_f(XNEW)[0], model.predict_f(XNEW)[0])


def test_what_cannot_be_saved_is_named(tmp_path: Path) -> None:
    model = make_model()
    model.lock = threading.Lock()
    with pytest.raises(TypeError, match=r"GPNet\.lock, a lock, cannot be saved"):
        model.save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_files_that_are_no_model_are_refused(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "model"
    model = make_model()
    model.save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    with pytest.raises(ValueError, match="cut short"):
        gpn.load(path)
    header = whole.index(b"\n", whole.index(b"{")) + 1
    for length in (header - 30, header - 1, header, header + 4, header + 8):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"model is cut short"):
            gpn.load(path)
    path.write_bytes(pickle.dumps(3))
    with pytest.raises(ValueError, match="not a model saved by gpflow_gpnet"):
        gpn.load(path)
    path.write_bytes(whole.replace(b'"format": 1', b'"format": 9'))
    with pytest.raises(ValueError, match="upgrade"):
        gpn.load(path)
    path.write_bytes(whole)
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32)):
        with pytest.raises(ValueError, match="float64 model"):
            gpn.load(path)

    def full_disk(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        model.save(path)
    assert path.read_bytes() == whole  # what was there stays
    assert list(tmp_path.iterdir()) == [path]


def test_other_models_can_be_saved(tmp_path: Path) -> None:
    kernel = gpflow.kernels.SquaredExponential()
    model = gpn.FBNN(kernel, gpflow.likelihoods.Gaussian(), gpn.RFE(kernel, 1, 3), num_data=40)
    model.save(tmp_path / "model")
    loaded = gpn.load(tmp_path / "model")
    assert loaded.optimizer is None
    tf.debugging.assert_equal(loaded.predict_f(XNEW)[1], model.predict_f(XNEW)[1])


def test_arrays_alone_go_into_a_model_built_by_the_same_code(tmp_path: Path) -> None:
    model, other = make_model(), make_model()
    train(model, 2)
    gpn.save_arrays(model, tmp_path / "arrays.npz")
    assert not np.allclose(other.predict_f(XNEW)[0], model.predict_f(XNEW)[0])
    gpn.load_into(other, tmp_path / "arrays.npz")
    tf.debugging.assert_equal(other.predict_f(XNEW)[1], model.predict_f(XNEW)[1])
    tf.debugging.assert_equal(other.predict_f(XNEW)[0], model.predict_f(XNEW)[0])
    train(other, 2)  # an optimiser of its own


def test_arrays_of_another_model_leave_it_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "arrays.npz"
    kernel = gpflow.kernels.Matern52()
    bigger = gpn.GPNet(kernel, gpflow.likelihoods.Gaussian(), gpn.RFE(kernel, 1, 7), num_data=40)
    gpn.save_arrays(bigger, path)
    model = make_model()
    before = gpflow.utilities.read_values(model)
    with pytest.raises(ValueError, match=r"arrays\.npz does not fit this GPNet: .*float64 \["):
        gpn.load_into(model, path)
    gpn.save_arrays(kernel, path)
    with pytest.raises(ValueError, match=r"does not fit this GPNet: it has no model/inference"):
        gpn.load_into(model, path)
    gpn.save_arrays(model, path)
    with np.load(path) as file:
        arrays = dict(file)
    arrays["model/inference_network/weights/q_mu"][0, 0] = np.nan
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=r"cannot be loaded: .*q_mu has NaN or infinite values"):
        gpn.load_into(model, path)
    model.save(path)
    with pytest.raises(ValueError, match=r"arrays\.npz cannot be loaded: it is damaged or no file"):
        gpn.load_into(model, path)
    for name, value in gpflow.utilities.read_values(model).items():
        np.testing.assert_array_equal(value, before[name])


def test_a_file_made_to_run_code_is_refused_and_runs_none(tmp_path: Path) -> None:
    """Arrays of a model in which one has become an object that acts when it is unpickled."""

    class Trap:
        def __reduce__(self) -> tuple:
            return os.mkdir, (str(tmp_path / "sprung"),)

    model, path = make_model(), tmp_path / "arrays.npz"
    gpn.save_arrays(model, path)
    with np.load(path) as file:
        arrays = dict(file)
    name = "model/inference_network/weights/q_mu"
    arrays[name] = np.full(arrays[name].shape, Trap(), object)
    np.savez(path, **arrays)
    before = model.inference_network.q_mu.numpy()
    with pytest.raises(ValueError, match=r"arrays\.npz cannot be loaded: .*allow_pickle=False"):
        gpn.load_into(model, path)
    np.testing.assert_array_equal(model.inference_network.q_mu, before)
    assert not (tmp_path / "sprung").exists()
    with np.load(path, allow_pickle=True) as file, pytest.raises(OSError):
        file[name], file[name]  # the trap works: twice, since a folder can be made once
    assert (tmp_path / "sprung").exists()


def test_variables_have_the_names_of_their_attributes() -> None:
    kernel = gpflow.kernels.SquaredExponential() + gpflow.kernels.White()
    models = [
        make_model(),
        gpflow.models.SVGP(kernel, gpflow.likelihoods.Gaussian(), XNEW),
        gpn.GPNet(kernel.kernels[0], gpflow.likelihoods.Gaussian(), gpn.BNN((3,), input_dim=1)),
    ]
    for model in models:
        named = named_variables(model)
        assert {id(v) for v in named.values()} == {id(v) for v in model.variables}
        assert list(named) == list(named_variables(deepcopy(model)))
    assert {"q_mu", "likelihood/variance", "kernel/kernels/0/lengthscales"} <= set(
        named_variables(models[1])
    )
