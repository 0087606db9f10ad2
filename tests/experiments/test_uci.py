"""The uci experiment from the command line, on made-up data and a few steps."""

import argparse

import numpy as np
import pandas as pd
import pytest

from gpflow_gpnet.experiments import published, tables, uci
from gpflow_gpnet.experiments.__main__ import main


@pytest.fixture
def folder(tmp_path, rng):
    X = rng.normal(size=(40, 2))
    (tmp_path / "data" / "uci").mkdir(parents=True)
    np.savez(tmp_path / "data" / "uci" / "yacht.npz", X=X, Y=10.0 * np.sin(X[:, :1]))
    return tmp_path / "data"


def test_tables_figure_and_rows_are_written(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(published, "NUM_FREQUENCIES", 5)
    arguments = ["uci", "--data", str(folder), "--no-verify", "--datasets", "yacht"]
    arguments += ["--methods", "SVGP-500", "GPNet-100", "--steps", "2", "--splits", "1"]
    main([*arguments, "--out", str(tmp_path / "out")])
    rows = pd.read_csv(tmp_path / "out" / "yacht.csv")
    assert rows["error"].isna().all() and np.isfinite(rows[["rmse", "nlpd"]]).all(axis=None)
    assert rows["steps"].tolist() == [2, 2]
    assert (tmp_path / "out" / "violins.png").stat().st_size > 5_000
    text = (tmp_path / "out" / "tables.md").read_text()
    assert "yacht, GPNet-100" in text and "Against SVGP-500" in text
    assert "yacht, split 0, SVGP-500: RMSE" in capsys.readouterr().out
    report = ["uci", "--data", str(folder), "--no-verify", "--report", "--out"]
    main([*report, str(tmp_path / "out")])  # without --datasets, of what is there
    assert "yacht, GPNet-100" in capsys.readouterr().out


def test_other_files_need_a_word(folder):
    with pytest.raises(ValueError, match=r"yacht\.npz is damaged"):
        main(["uci", "--data", str(folder), "--datasets", "yacht"])


def test_splits_follow_the_size(folder, monkeypatch):
    parser = argparse.ArgumentParser()
    uci.add_arguments(parser)
    arguments = ["--data", str(folder), "--no-verify", "--datasets", "yacht"]
    assert uci._chosen(parser.parse_args([])) == uci.DATASETS[:7]
    [problem] = uci.load(parser.parse_args([*arguments, "--first-split", "3"]))
    assert problem.splits == range(3, 23) and problem.num_train == 36
    monkeypatch.setattr(uci, "LARGE", 40)
    [problem] = uci.load(parser.parse_args(arguments))
    assert problem.splits == range(5)


@pytest.mark.parametrize(
    "name, rmse, log_likelihood",
    [
        ("boston", 2.754, -2.421),
        ("concrete", 5.050, -3.027),
        ("energy", 0.439, -0.600),
        ("kin8nm", 0.067, 1.283),
        ("power", 3.791, -2.755),
        ("protein", 4.087, -2.821),
        ("wine", 0.614, -0.917),
    ],
)
def test_best_of_the_paper(name, rmse, log_likelihood):
    """Its best cells, as others have read them off."""
    assert min(pair[0] for pair in uci.PUBLISHED["RMSE"][name].values()) == rmse
    cells = uci.PUBLISHED[tables.LOG_LIKELIHOOD.title][name]
    assert max(pair[0] for pair in cells.values()) == log_likelihood
    assert list(cells) == list(published.METHODS)


@pytest.mark.parametrize("experiment", ["snelson", "uci", "airline", "ablation"])
def test_help_says_all(experiment, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([experiment, "--help"])
    text = capsys.readouterr().out
    assert "--out" in text and "default" in text
