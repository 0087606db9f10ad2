"""Data sets of OpenML, with scikit-learn's fetch replaced: nothing is downloaded."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from gpflow_gpnet import datasets, openml


@pytest.fixture
def fetched(monkeypatch):
    """What is asked of scikit-learn; ``bunch`` is what it answers."""
    asked = SimpleNamespace(bunch=None, calls=[])

    def fetch_openml(**kwargs):
        asked.calls.append(kwargs)
        if isinstance(asked.bunch, Exception):
            raise asked.bunch
        return asked.bunch

    module = ModuleType("sklearn.datasets")
    module.fetch_openml = fetch_openml
    monkeypatch.setitem(sys.modules, "sklearn", ModuleType("sklearn"))
    monkeypatch.setitem(sys.modules, "sklearn.datasets", module)
    monkeypatch.delenv("GPNET_DATA", raising=False)
    return asked


def yacht(rng, rows=308):
    data = pd.DataFrame(rng.normal(size=(rows, 6)))
    data[3] = pd.Categorical([str(row % 2) for row in range(rows)])  # as OpenML has yes or no
    return SimpleNamespace(data=data, target=pd.Series(rng.normal(size=rows)))


def test_what_the_folder_lacks_is_fetched(rng, fetched, tmp_path):
    fetched.bunch = yacht(rng)
    dataset = datasets.load("yacht", tmp_path)
    assert fetched.calls[0]["data_id"] == 42370
    assert fetched.calls[0]["target_column"] == "Residuary.resistance"
    np.testing.assert_array_equal(dataset.X[:, 3], np.arange(308) % 2)
    np.testing.assert_array_equal(dataset.X[:, 0], fetched.bunch.data[0])
    np.testing.assert_array_equal(dataset.Y[:, 0], fetched.bunch.target)


def test_files_come_first(rng, fetched, tmp_path):
    np.savez(tmp_path / "yacht.npz", X=[[1.0]], Y=[[2.0]])
    assert datasets.load("yacht", tmp_path, verify=False).Y.item() == 2.0
    assert not fetched.calls


def test_other_data_of_that_number_are_refused(rng, fetched):
    fetched.bunch = yacht(rng, rows=307)
    with pytest.raises(ValueError, match=r"42370 has inputs of shape \(307, 6\).*\(308, 6\)"):
        openml.fetch("yacht")
    fetched.bunch = yacht(rng)
    fetched.bunch.data[1] = "word"
    with pytest.raises(ValueError, match="42370 is not numeric"):
        openml.fetch("yacht")


def test_a_site_that_cannot_be_reached_leaves_both_ways_in_the_message(fetched, tmp_path):
    fetched.bunch = ConnectionError("no route")
    with pytest.raises(
        FileNotFoundError, match="OpenML failed: ConnectionError: no route"
    ) as error:
        datasets.load("yacht", tmp_path)
    assert str(tmp_path / "uci" / "yacht.npz") in str(error.value)
    assert "GPNET_DATA" in str(error.value)


def test_data_that_openml_does_not_have_are_not_asked_for(fetched, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"Only boston, .* can be fetched"):
        datasets.load("kin40k", tmp_path)
    assert not fetched.calls


def test_scikit_learn_is_optional(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(FileNotFoundError, match=r"yacht\.npz is a file.*gpflow_gpnet\[openml\]"):
        datasets.load("yacht", tmp_path)
