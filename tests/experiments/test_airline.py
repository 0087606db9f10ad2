"""The airline experiment: which rows, and a run from the command line."""

import numpy as np
import pandas as pd

from gpflow_gpnet.datasets import Dataset
from gpflow_gpnet.experiments import airline
from gpflow_gpnet.experiments.__main__ import main


def dataset(rows):
    numbers = np.arange(float(rows))[:, None]
    return Dataset("flights", numbers, numbers)


def test_rows_to_test_on_are_100000_where_there_are_twice_as_many(monkeypatch):
    monkeypatch.setattr(airline, "TEST_ROWS", 10)
    assert airline.problem(dataset(19), range(1)).num_test == 2
    problem = airline.problem(dataset(20), range(1))
    assert problem.num_test == 10 and problem.num_train == 10
    assert problem.dataset.X.tolist() == dataset(20).X.tolist()


def test_rows_beyond_those_wanted_are_left_out_at_random(monkeypatch):
    monkeypatch.setattr(airline, "TEST_ROWS", 10)
    problem = airline.problem(dataset(1000), range(1), train_rows=40)
    assert problem.num_test == 10 and problem.num_train == 40
    chosen = problem.dataset.X[:, 0]
    assert len(set(chosen)) == 50 and 300 < chosen.mean() < 700
    np.testing.assert_array_equal(problem.dataset.Y[:, 0], chosen)
    again = airline.problem(dataset(1000), range(5), train_rows=40)
    np.testing.assert_array_equal(again.dataset.X, problem.dataset.X)


def test_a_run_from_the_command_line(tmp_path, rng):
    X = rng.normal(size=(60, 2)).astype(np.float32)
    Y = 20.0 * X[:, :1] + rng.standard_t(3, size=(60, 1))
    np.savez(tmp_path / "airline_nyc2013.npz", X=X, Y=Y, names=["a", "b"])
    arguments = ["--data", str(tmp_path), "--no-verify", "--datasets", "airline_nyc2013"]
    arguments += ["--methods", "SVGP-500-student-t", "--steps", "2"]
    main(["airline", *arguments, "--out", str(tmp_path / "out")])
    rows = pd.read_csv(tmp_path / "out" / "airline_nyc2013.csv")
    assert rows["method"].tolist() == ["SVGP-500-student-t"]
    assert rows["error"].isna().all() and np.isfinite(rows["nlpd"]).all()
    text = (tmp_path / "out" / "tables.md").read_text()
    assert "Table 1 of the paper" in text and "24.055" in text
