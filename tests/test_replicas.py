"""Replicas that share out a step make the step of one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import gpflow
import numpy as np
import pytest
import tensorflow as tf

import gpflow_gpnet as gpn
from gpflow_gpnet.replicas import Share

ROOT = Path(__file__).parents[1]
WORKER = Path(__file__).with_name("replicas_worker.py")
TOLERANCE = 1e-9

NATURAL = ["natural", "gradient"]
SLOW = """natural, classification; natural, noise of held-out rows; natural, staleness;
natural, warp; natural, adaptive basis; natural, linearised NTK; natural, inducing features;
natural, sum; gradient, classification; gradient, noise of the batch; gradient, diagonal;
gradient, low rank; gradient, Kronecker; gradient, inducing features; gradient, NTK; gradient, BNN;
gradient, BNN, classification; gradient, sum; gradient, ConvNTK; Adam, RFE; Adam, BNN; Adam, FBNN;
Adam, FBNN, Stein; Adam, SVGP"""
SLOW = [name.strip() for name in SLOW.replace("\n", " ").split(";")]
AMONG_PROCESSES = ["natural", "gradient", "gradient, BNN", "Adam, SVGP"]


# ------------------------------------------------------------------ shares


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("size", [0, 1, 2, 5, 9])
def test_shares_are_all_rows_once_and_even(number, size):
    values = tf.range(size)
    shares = [Share(index, number).rows(values).numpy() for index in range(number)]
    np.testing.assert_array_equal(np.concatenate(shares), values)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_shares_of_another_axis():
    values = tf.reshape(tf.range(10), [2, 5])
    shares = [Share(index, 2).rows(values, -1) for index in range(2)]
    np.testing.assert_array_equal(tf.concat(shares, -1), values)


NETWORKS = {
    "RFE": lambda kernel: gpn.RFE(kernel, 1, 4),
    "diagonal": lambda kernel: gpn.RFE(kernel, 1, 4, "diag"),
    "AdaptiveBasis": lambda kernel: gpn.AdaptiveBasis((4,), kernel=kernel, input_dim=1),
    "InducingFeatures": lambda kernel: gpn.InducingFeatures(kernel, np.array([[0.0], [1.0]])),
    "sum": lambda kernel: gpn.RFE(kernel, 1, 4) + gpn.InducingFeatures(kernel, np.zeros([1, 1])),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("rows", [2, 7])  # fewer than replicas, and a number they do not divide
def test_parts_of_a_training_loss_add_up(rng, name, rows):
    kernel = gpflow.kernels.SquaredExponential()
    network = NETWORKS[name](kernel)
    network.q_mu.assign(rng.normal(size=network.q_mu.shape))
    model = gpn.GPNet(kernel, gpflow.likelihoods.Gaussian(0.1), network, num_data=20)
    data = (rng.normal(size=(rows, 1)), rng.normal(size=(rows, 1)))
    variables = model.trainable_variables
    with tf.GradientTape() as tape:
        whole = model.training_loss(data)
    gradients = tape.gradient(whole, variables, unconnected_gradients="zero")
    with tf.GradientTape() as tape:
        parts = [model.training_loss_part(Share(index, 3), data) for index in range(3)]
        total = tf.add_n(parts)
    np.testing.assert_allclose(total, whole, rtol=TOLERANCE)
    shared = tape.gradient(total, variables, unconnected_gradients="zero")
    for one, other in zip(gradients, shared, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-7, atol=1e-7)
    assert abs(float(parts[0] - parts[2])) > 1e-3  # of different rows


def test_one_replica_takes_the_steps_of_none(rng):
    """Bit for bit, polish included."""
    X = rng.uniform(-1, 1, size=(12, 1))
    results = []
    for strategy in (None, tf.distribute.MirroredStrategy(["CPU:0"])):
        kernel = gpflow.kernels.SquaredExponential()
        network = gpn.RFE(kernel, 1, 4)
        model = gpn.GPNet(kernel, gpflow.likelihoods.Gaussian(0.1), network, num_data=12)
        gpn.fit(model, (X, X), num_steps=3, batch_size=6, seed=0, strategy=strategy)
        results.append([v.numpy() for v in model.variables])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


# ------------------------------------------------------------------ errors


def make_model(**kwargs):
    kernel = gpflow.kernels.SquaredExponential()
    kwargs = {"num_data": 12} | kwargs
    return gpn.GPNet(kernel, gpflow.likelihoods.Gaussian(0.1), gpn.RFE(kernel, 1, 4), **kwargs)


def fit(model, strategy, **kwargs):
    X = np.linspace(-1.0, 1.0, 12)[:, None]
    kwargs = {"num_steps": 1, "batch_size": 5, "progress": False} | kwargs
    return gpn.fit(model, (X, X), strategy=strategy, **kwargs)


@pytest.fixture
def strategy():
    return tf.distribute.MirroredStrategy(["CPU:0"])


@pytest.mark.parametrize("wrong", ["GPU:0", tf.distribute.OneDeviceStrategy("CPU:0")])
def test_another_strategy_is_refused(wrong):
    with pytest.raises(TypeError, match=r"strategy must be a tf\.distribute\.MirroredStrategy"):
        fit(make_model(), wrong)


def test_a_model_made_in_the_scope_is_refused(strategy):
    with strategy.scope():
        model = make_model()
    with pytest.raises(ValueError, match=r"GPNet was made inside strategy\.scope\(\)"):
        fit(model, strategy)


def test_an_optimiser_made_in_the_scope_is_refused(strategy):
    with strategy.scope():
        optimizer = gpn.FunctionalMirrorDescent()
    with pytest.raises(ValueError, match="FunctionalMirrorDescent was made inside"):
        fit(make_model(), strategy, optimizer=optimizer)


def test_an_open_scope_is_refused(strategy):
    model = make_model()
    with strategy.scope(), pytest.raises(ValueError, match="train it outside"):
        fit(model, strategy)


def test_a_batch_smaller_than_the_replicas_is_refused(strategy, monkeypatch):
    monkeypatch.setattr(type(strategy), "num_replicas_in_sync", 6)
    with pytest.raises(ValueError, match="batch_size=5 gives some of the strategy's 6 replicas no"):
        fit(make_model(), strategy)


def test_a_model_that_fit_cannot_share_out_is_refused(strategy):
    class Mine(gpflow.models.BayesianModel, gpflow.models.ExternalDataTrainingLossMixin):
        def maximum_log_likelihood_objective(self, data):
            return tf.constant(0.0)

    with pytest.raises(TypeError, match="got Mine"):
        fit(Mine(), strategy)


def test_a_step_of_ones_own_is_refused(strategy):
    with pytest.raises(ValueError, match="a function of the model"):
        fit(make_model(), strategy, optimizer=lambda model: lambda batch: tf.constant(0.0))


def test_svgp_needs_the_number_of_data(strategy):
    model = gpflow.models.SVGP(
        gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(), np.zeros([1, 1])
    )
    with pytest.raises(ValueError, match="num_data is None: with a strategy"):
        fit(model, strategy, batch_size=12)


def test_xla_is_refused(strategy):
    optimizer = gpn.FunctionalMirrorDescent(jit_compile=True)
    with pytest.raises(ValueError, match="jit_compile=True is for steps on one device"):
        optimizer.minimize(make_model(), (np.zeros([2, 1]), np.zeros([2, 1])), strategy=strategy)


# ------------------------------------------------------------------ two devices, two processes


def environment(**variables):
    threads = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2"}
    path = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    return os.environ | threads | path | variables


def on_two_devices(folder, names):
    subprocess.run(
        [sys.executable, str(WORKER), str(folder), *names], check=True, env=environment()
    )
    return np.load(folder / "0.npz")


def free_ports(number):
    sockets = [socket.socket() for _ in range(number)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def in_two_processes(folder, names):
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(folder), *names],
            env=environment(
                TF_CONFIG=json.dumps(
                    {"cluster": cluster, "task": {"type": "worker", "index": index}}
                )
            ),
        )
        for index in range(2)
    ]
    try:
        codes = [process.wait(timeout=900) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert codes == [0, 0]
    return [np.load(folder / f"{index}.npz") for index in range(2)]


def check_equal(results, name):
    one, together = results[f"{name}/one"], results[f"{name}/all"]
    assert np.isfinite(one).all() and one.size > 10
    np.testing.assert_allclose(together, one, rtol=TOLERANCE, atol=TOLERANCE)


def test_two_devices_take_natural_and_gradient_steps_of_one(tmp_path):
    results = on_two_devices(tmp_path, NATURAL)
    for name in NATURAL:
        check_equal(results, name)


@pytest.fixture(scope="module")
def devices(tmp_path_factory):
    return on_two_devices(tmp_path_factory.mktemp("devices"), [*SLOW, "resume"])


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_two_devices_take_the_steps_of_one(devices, name):
    check_equal(devices, name)


@pytest.mark.slow
def test_two_devices_resume_bit_for_bit(devices):
    np.testing.assert_array_equal(devices["resume/all"], devices["resume/one"])


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    others = ["resume", "begin_apart", "stop_together", "differ_in_data"]
    return in_two_processes(tmp_path_factory.mktemp("processes"), [*AMONG_PROCESSES, *others])


@pytest.mark.slow
@pytest.mark.parametrize("name", AMONG_PROCESSES)
def test_two_processes_take_the_steps_of_one(processes, name):
    for results in processes:
        check_equal(results, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [f"{name}/all" for name in AMONG_PROCESSES] + ["begin_apart"])
def test_two_processes_end_with_the_same_parameters(processes, name):
    first, second = processes
    np.testing.assert_array_equal(first[name], second[name])


@pytest.mark.slow
def test_two_processes_resume_bit_for_bit(processes):
    for results in processes:
        np.testing.assert_array_equal(results["resume/all"], results["resume/one"])


@pytest.mark.slow
def test_processes_stop_together(processes):
    assert [int(results["stop_together"]) for results in processes] == [2, 2]


@pytest.mark.slow
def test_processes_with_different_data_are_refused(processes):
    for results in processes:
        assert "Processes differ in data" in str(results["differ_in_data"])


# ------------------------------------------------------------------ the launch example


@pytest.mark.slow
def test_the_launch_example_gives_the_same_with_one_and_two_processes():
    lines = []
    for processes in (1, 2):
        command = [str(ROOT / "examples" / "several_processes.py"), "--steps", "3"]
        done = subprocess.run(
            [sys.executable, *command, "--processes", str(processes)],
            env=environment(),
            capture_output=True,
            text=True,
            check=True,
            timeout=900,
        )
        lines += [line for line in done.stdout.splitlines() if line.startswith("replicas")]
    assert [line.split(",")[0] for line in lines] == ["replicas 1", "replicas 2"]
    assert len({line.partition(",")[2] for line in lines}) == 1
