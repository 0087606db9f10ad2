"""Kill training at random moments and resume it: is the result the same bit for bit?

One process imports the package and forks for each run, so that a kill costs a tiny training and no
import. Half of the kills come at a random time, half at a random call inside the writing of a
checkpoint. What a run leaves behind, parameters, predictions and history but for its seconds, is
compared with that of a run that nobody killed.

    python benchmarks/kills.py --kills 100
"""

from __future__ import annotations

import argparse
import collections
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.likelihoods import Gaussian

import gpflow_gpnet as gpn
from gpflow_gpnet.saving import named_variables

_ROWS, _STEPS = 30, 24


def _data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, size=(_ROWS, 1))
    return X, np.sin(2.0 * X) + 0.1 * rng.normal(size=X.shape)


def _gpnet(covariance: str = "full", **kwargs: Any) -> gpn.GPNet:
    kernel = gpflow.kernels.SquaredExponential()
    network = gpn.RFE(kernel, 1, 4, covariance=covariance)
    return gpn.GPNet(kernel, Gaussian(0.1), network, num_data=_ROWS, **kwargs)


def _natural() -> dict[str, Any]:
    optimizer = gpn.FunctionalMirrorDescent(noise="held-out", staleness=0.5)
    stopping = gpn.callbacks.EarlyStopping(None)
    return dict(model=_gpnet(), optimizer=optimizer, callbacks=[stopping], polish_every=7)


def _gradient() -> dict[str, Any]:
    def points(number: int) -> np.ndarray:  # draws from NumPy's global generator
        return np.random.uniform(-2.0, 2.0, size=(number, 1))

    stopping = gpn.callbacks.EarlyStopping(2, min_delta=1.0)  # stops before the last step
    return dict(
        model=_gpnet("diag", measurement=points, num_measurement_points=6), callbacks=[stopping]
    )


def _svgp() -> dict[str, Any]:
    kernel = gpflow.kernels.SquaredExponential()
    points = np.linspace(-2.0, 2.0, 3)[:, None]
    return dict(model=gpflow.models.SVGP(kernel, Gaussian(), points, num_data=_ROWS))


def _stream() -> dict[str, Any]:
    batches = tf.data.Dataset.from_tensor_slices(_data()).shuffle(7, seed=1).batch(8)
    return dict(model=_gpnet(), data=batches)


_SCENARIOS: dict[str, Callable[[], dict[str, Any]]] = {
    "natural": _natural,
    "gradient": _gradient,
    "svgp": _svgp,
    "stream": _stream,
}


def _train(scenario: str, folder: Path) -> None:
    """What a user's script does: make a model, fit, keep the result."""
    np.random.seed(0)
    settings = {"data": _data(), **_SCENARIOS[scenario]()}
    history = gpn.fit(
        **settings,
        num_steps=_STEPS,
        batch_size=8,
        validation_data=_data(),
        validate_every=2,
        checkpoint_dir=folder / "checkpoints",
        checkpoint_every=3,
        keep_checkpoints=2,
        log_every=2,
        seed=1,
        progress=False,
    )
    model = settings["model"]
    result = {name: variable.numpy() for name, variable in named_variables(model).items()}
    result["predictions"] = np.stack(model.predict_f(_data()[0]))
    for name in sorted(set(history) - {"seconds"}):
        result[f"history {name}"] = history[name]
    np.savez(folder / "result.npz", **result)


def _die_at_call(number: int) -> None:
    """Kill this process at the n-th call that touches a checkpoint's file."""
    left = [number]

    def deadly(function: Callable[..., Any], where: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            mine = where == "always" or ".partial" in str(args[0] if args else "")
            if mine:
                left[0] -= 1
                if left[0] <= 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    os.fsync = deadly(os.fsync, "always")
    os.replace = deadly(os.replace, "always")
    Path.unlink = deadly(Path.unlink, "always")
    np.lib.format.write_array = deadly(np.lib.format.write_array, "always")


def _run(scenario: str, folder: Path, after: float | None = None, call: int | None = None) -> bool:
    """Train in a child; whether it was killed.

    :param after: seconds after which it is killed.
    :param call: of those that write checkpoints, the one in which it is killed.
    """
    child = os.fork()
    if child == 0:
        status = 1
        try:
            warnings.simplefilter("error", UserWarning)  # a checkpoint that is refused, say
            if call is not None:
                _die_at_call(call)
            _train(scenario, folder)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    if after is not None:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    if os.WEXITSTATUS(status):
        raise RuntimeError(f"Training of {scenario} failed.")
    return False


def _difference(one: Path, other: Path) -> str | None:
    """The first array that differs in a bit, or None."""
    with np.load(one) as results, np.load(other) as others:
        if results.files != others.files:
            return f"arrays {set(results.files) ^ set(others.files)}"
        for name in results.files:
            if results[name].tobytes() != others[name].tobytes():
                return name
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--scenarios", nargs="+", choices=_SCENARIOS, default=list(_SCENARIOS))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    rng = np.random.default_rng(arguments.seed)
    kills: collections.Counter[str] = collections.Counter()
    resumed, different, began = 0, [], time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        seconds = {}
        for scenario in arguments.scenarios:
            folder = Path(temporary, scenario)
            folder.mkdir()
            start = time.perf_counter()
            _run(scenario, folder)
            seconds[scenario] = time.perf_counter() - start
        while sum(kills.values()) < arguments.kills:
            scenario = arguments.scenarios[resumed % len(arguments.scenarios)]
            folder = Path(temporary, "killed")
            folder.mkdir()
            step = "none"
            while True:  # killed again one time in three
                if rng.uniform() < 0.5:
                    kind, how = "time", {"after": rng.uniform(0.3, 1.0) * seconds[scenario]}
                else:
                    kind, how = "write", {"call": int(rng.integers(1, 200))}
                if _run(scenario, folder, **how):
                    kills[kind] += 1
                written = sorted(folder.glob("checkpoints/*.npz"))
                step = f"{step}, {written[-1].name if written else 'before the first'}"
                if rng.uniform() < 2 / 3:
                    break
            _run(scenario, folder)
            resumed += 1
            name = _difference(folder / "result.npz", Path(temporary, scenario, "result.npz"))
            if name is not None:
                different.append(f"{scenario} ({step}): {name}")
                print(f"DIFFERENT: {different[-1]}", flush=True)
            shutil.rmtree(folder)
    minutes = (time.perf_counter() - began) / 60.0
    print(
        f"{sum(kills.values())} kills ({kills['time']} at a random time, {kills['write']} while "
        f"writing a checkpoint), {resumed} runs to the end, {len(different)} of them different "
        f"from the one never killed, {minutes:.1f} minutes."
    )
    sys.exit(bool(different))


if __name__ == "__main__":
    main()
