"""Checkpoints: what is kept, what is refused by name, and what a kill leaves."""

import errno
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import gpflow
import numpy as np
import pytest
from gpflow.keras import tf_keras
from line_model import Line

import gpflow_gpnet as gpn
from gpflow_gpnet import array_files
from gpflow_gpnet.checkpoints import Checkpoints

CAMPAIGN = Path(__file__).parents[1] / "benchmarks" / "kills.py"


def accept(header, arrays):
    return None


def save(checkpoints, *steps):
    for step in steps:
        checkpoints.save({"step": step}, {"value": np.array(float(step))})


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_newest_is_found_and_the_oldest_of_the_run_go(tmp_path):
    folder = tmp_path / "new" / "folder"
    checkpoints = Checkpoints(folder, 2)
    assert checkpoints.newest(accept) is None and checkpoints.last is None
    save(checkpoints, 1, 2, 30)
    assert names(folder) == ["step-000000002.npz", "step-000000030.npz"]
    resumed = Checkpoints(folder, 2)
    header, arrays = resumed.newest(accept)
    assert header["step"] == 30 and arrays["value"] == 30.0
    assert resumed.last == folder / "step-000000030.npz"
    save(resumed, 31)
    assert names(folder) == ["step-000000030.npz", "step-000000031.npz"]
    save(Checkpoints(tmp_path / "one", 1), 1, 2)
    assert names(tmp_path / "one") == ["step-000000002.npz"]


def test_what_cannot_be_used_is_named_and_never_deleted(tmp_path):
    save(Checkpoints(tmp_path, 3), 1, 2, 3, 4)
    whole = (tmp_path / "step-000000004.npz").read_bytes()
    (tmp_path / "step-000000004.npz").write_bytes(whole[:-50])
    (tmp_path / "step-000000009.npz").write_bytes(b"somebody else's")
    (tmp_path / "notes.npz").write_bytes(b"none of ours")
    checkpoints = Checkpoints(tmp_path, 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        refuse = {3: "it is of another model"}
        header, _ = checkpoints.newest(lambda header, arrays: refuse.get(header["step"]))
    assert header["step"] == 2
    told = [str(warning.message) for warning in caught]
    assert [re.search(r"step-0*(\d)\.npz", text)[1] for text in told] == ["9", "4", "3"]
    assert "damaged" in told[0] and "damaged" in told[1] and "it is of another model" in told[2]
    save(checkpoints, 3, 4, 9, 10)
    assert names(tmp_path) == [
        "notes.npz",
        "step-000000003.npz",
        "step-000000004.npz",
        "step-000000009.npz",
        "step-000000010.npz",
    ]
    assert (tmp_path / "step-000000004.npz").read_bytes() == whole[:-50]


def test_a_checkpoint_from_elsewhere_runs_and_deletes_nothing(tmp_path):
    """One whose header names files of others as its own, and one that holds an object."""
    folder, precious = tmp_path / "run", tmp_path / "precious.npz"
    precious.write_bytes(b"mine")
    checkpoints = Checkpoints(folder, 1)
    save(Checkpoints(folder, 1), 0)  # another run's
    kept = ["../precious.npz", str(precious), "step-1/../../precious.npz", "step-000000000.npz"]
    header = {"run": "elsewhere", "step": 1, "kept": kept}
    array_files.write_arrays(folder / "step-000000001.npz", header, {})
    assert checkpoints.newest(accept)[0]["step"] == 1
    save(checkpoints, 2)
    others = "step-000000000.npz"
    assert precious.read_bytes() == b"mine" and names(folder) == [others, "step-000000002.npz"]

    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    np.savez(folder / "step-000000003.npz", value=np.array([Trap()], object))
    with pytest.warns(UserWarning, match=r"step-000000003\.npz is not used.*damaged or no file"):
        assert checkpoints.newest(accept)[0]["step"] == 2
    assert not (tmp_path / "sprung").exists()


def test_beside_a_refused_one_of_the_same_step_the_new_one_counts(tmp_path):
    (tmp_path / "step-000000004.npz").write_bytes(b"damaged")
    save(Checkpoints(tmp_path, 3), 4)
    assert names(tmp_path) == ["step-000000004-1.npz", "step-000000004.npz"]
    assert Checkpoints(tmp_path, 3).newest(accept)[0]["step"] == 4  # and warns of none


def test_a_full_disk_is_an_error_that_names_the_last_good_one(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path, 1)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(array_files.os, "fsync", full)
        with pytest.raises(OSError, match=r"No space left on device.* There is no checkpoint yet"):
            save(checkpoints, 1)
    save(checkpoints, 1)
    with monkeypatch.context() as patch:
        patch.setattr(array_files.os, "fsync", full)
        with pytest.raises(OSError, match=r"stopped at step 2.*step-000000001\.npz") as caught:
            save(checkpoints, 2)
        assert caught.value.errno == errno.ENOSPC
    assert names(tmp_path) == ["step-000000001.npz"]
    assert Checkpoints(tmp_path, 1).newest(accept)[0]["step"] == 1


X = np.linspace(-1.0, 1.0, 8)[:, None]


def fit(model, folder, num_steps=4, optimizer=None):
    gpn.fit(
        model,
        (X, 9 * X),
        optimizer=optimizer,
        num_steps=num_steps,
        batch_size=8,
        checkpoint_dir=folder,
        progress=False,
        seed=1,
        polish=False,
    )


def test_checkpoints_of_another_model_or_optimizer_are_refused(tmp_path):
    def gpnet(num_features):
        kernel = gpflow.kernels.SquaredExponential()
        network = gpn.RFE(kernel, 1, num_features)
        return gpn.GPNet(kernel, gpflow.likelihoods.Gaussian(0.1), network, num_data=8)

    fit(gpnet(3), tmp_path)
    other = gpnet(4)
    with pytest.warns(UserWarning, match=r"step-000000004\.npz is not used.*float64 \[.*here"):
        fit(other, tmp_path)
    assert names(tmp_path) == ["step-000000004-1.npz", "step-000000004.npz"]
    with pytest.warns(UserWarning, match="which is not here") as caught:
        fit(Line(8), tmp_path, 3, tf_keras.optimizers.Adam(0.1))
    assert len(caught) == 2
    again = gpnet(4)
    fit(again, tmp_path)  # the newest is its own
    np.testing.assert_array_equal(again.predict_f(X)[0], other.predict_f(X)[0])


@pytest.mark.parametrize(
    "kills", [1, pytest.param(100, marks=pytest.mark.slow)], ids=["few", "campaign"]
)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_runs_end_where_the_one_never_killed_ends(kills):
    """Real kills, at random times and inside the writing; all arrays equal to the bit."""
    scenarios = ["--scenarios", "natural"] if kills < 10 else []
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, CAMPAIGN, "--kills", str(kills), *scenarios],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 of them different" in done.stdout
