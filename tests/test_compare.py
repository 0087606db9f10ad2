"""Comparisons: scores against closed forms, the protocol, and results that survive."""

from __future__ import annotations

import sys

import gpflow
import matplotlib
import numpy as np
import pandas as pd
import pytest
from scipy import stats

import gpflow_gpnet as gpn
from gpflow_gpnet import plotting

matplotlib.use("Agg")
compare_module = sys.modules["gpflow_gpnet.compare"]

RNG = np.random.default_rng(0)
X = RNG.uniform(-2.0, 2.0, size=(60, 1))
Y = 50.0 + 10.0 * (np.sin(2.0 * X) + 0.1 * RNG.normal(size=X.shape))


def exact(X, Y):
    kernel = gpflow.kernels.SquaredExponential()
    return gpflow.models.GPR((X, Y), kernel, noise_variance=0.02)


def constant(X, Y):
    """The prior alone, which is N(0, 1) for standardised targets."""
    kernel = gpflow.kernels.SquaredExponential(variance=1e-6)
    return gpn.GPNet(kernel, gpflow.likelihoods.Gaussian(1.0), gpn.RFE(kernel, 1, 3), num_data=1)


def failing(X, Y):
    raise FloatingPointError("no\nluck")


def test_scores_are_those_of_the_predictive_normal():
    model = exact(X[:40], (Y[:40] - 50.0) / 10.0)
    test = X[40:], (Y[40:] - 50.0) / 10.0
    values = compare_module.scores(model, test, y_mean=50.0, y_std=10.0)
    mean, variance = (moment.numpy() for moment in model.predict_y(X[40:]))
    mean, sd = 50.0 + 10.0 * mean, 10.0 * np.sqrt(variance)
    error = Y[40:] - mean
    z = error / sd
    normal = stats.norm
    crps = sd * (z * (2.0 * normal.cdf(z) - 1.0) + 2.0 * normal.pdf(z) - 1.0 / np.sqrt(np.pi))
    expected = {
        "rmse": np.sqrt(np.mean(error**2)),
        "mae": np.mean(np.abs(error)),
        "nlpd": -np.mean(normal.logpdf(Y[40:], mean, sd)),
        "coverage_50": np.mean(np.abs(z) < normal.ppf(0.75)),
        "coverage_90": np.mean(np.abs(z) < normal.ppf(0.95)),
        "coverage_95": np.mean(np.abs(z) < normal.ppf(0.975)),
        "below_0.25": np.mean(z < normal.ppf(0.25)),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(values[name], value, rtol=1e-3, err_msg=name)
    np.testing.assert_allclose(values["crps"], crps.mean(), rtol=5e-3)  # of 100 levels


def test_scores_of_a_skewed_predictive_distribution():
    """Exponential with f known: CRPS, median and coverage in closed form."""
    kernel = gpflow.kernels.SquaredExponential(variance=1e-9)
    model = gpn.GPNet(
        kernel, gpflow.likelihoods.Exponential(), gpn.RFE(kernel, 1, 3), num_data=1
    )  # y ~ Exponential(1)
    targets = RNG.exponential(size=(50, 1))
    values = compare_module.scores(model, (np.zeros((50, 1)), targets))
    crps = targets - 2.0 * (1.0 - np.exp(-targets)) + 0.5
    np.testing.assert_allclose(values["crps"], crps.mean(), rtol=1e-2)
    np.testing.assert_allclose(values["mae"], np.mean(np.abs(targets - np.log(2.0))), rtol=1e-3)
    inside = (targets >= -np.log(0.95)) & (targets <= -np.log(0.05))
    np.testing.assert_allclose(values["coverage_90"], inside.mean(), atol=0.021)


def test_table_pairs_and_figures_over_splits():
    models = {"exact": exact, "prior": constant, "fails": failing}
    comparison = gpn.compare(models, (X, Y), splits=6, progress=False)
    results = comparison.results
    assert len(results) == 18
    fails = results[results["method"] == "fails"]
    assert (fails["error"] == "FloatingPointError: no").all() and fails["nlpd"].isna().all()
    assert (
        not results[results["method"] != "fails"][list(compare_module.METRICS)]
        .isna()
        .any(axis=None)
    )
    split = gpn.datasets.split(gpn.datasets.Dataset("data", X, Y), 3)
    by_hand = compare_module.scores(
        exact(*split.train), split.test, y_mean=split.y_mean, y_std=split.y_std
    )
    row = results[(results["method"] == "exact") & (results["split"] == 3)].iloc[0]
    for name, value in by_hand.items():
        np.testing.assert_allclose(row[name], value)

    values = results[results["method"] == "exact"]["rmse"]
    summary = comparison.summary()
    np.testing.assert_allclose(summary.loc["exact", ("rmse", "mean")], values.mean())
    np.testing.assert_allclose(summary.loc["exact", ("rmse", "se")], values.std() / np.sqrt(6))
    assert list(comparison.table(["rmse"]).index) == ["exact", "prior", "fails"]
    assert "±" in comparison.table().loc["exact", "rmse"] and "<table" in comparison._repr_html_()
    assert comparison.table().loc["fails", "rmse"] == "–"
    paired = comparison.paired("prior", "rmse").loc["exact"]
    assert paired["lower"] == paired["splits"] == 6 and paired["difference"] < 0.0
    np.testing.assert_allclose(paired["p"], 2.0 / 2**6)  # all signs equal
    with pytest.raises(ValueError, match="metric one of"):
        comparison.paired("prior", "speed")

    axes = plotting.violins(comparison, "rmse", ax=matplotlib.figure.Figure().subplots())
    assert [label.get_text() for label in axes.get_xticklabels()] == list(models)
    axes = plotting.calibration(comparison, ax=matplotlib.figure.Figure().subplots())
    assert len(axes.lines) == 4


def test_trained_models_are_scored_on_other_rows():
    trained = exact(X[:40], Y[:40] - 50.0)
    with pytest.raises(ValueError, match=r"\['GP'\] are models already"):
        gpn.compare({"GP": trained}, (X, Y))
    comparison = gpn.compare(
        {"GP": trained, "again": lambda X, Y: exact(X, Y)},
        (X[:40], Y[:40] - 50.0),
        test_data=(X[40:], Y[40:] - 50.0),
        progress=False,
    )
    assert comparison.results["nlpd"].nunique() == 1


def test_results_on_disk_are_not_done_again(tmp_path):
    path = tmp_path / "deep" / "results.csv"
    calls = []

    def counted(X, Y):
        calls.append(len(X))
        return exact(X, Y)

    settings = dict(splits=[0, 4], out=path, progress=False)
    first = gpn.compare({"GP": counted}, (X, Y), **settings)
    again = gpn.compare({"GP": counted, "bad": failing}, (X, Y), **settings)
    assert len(calls) == 2
    pd.testing.assert_frame_equal(
        first.results, again.results[again.results["method"] == "GP"], check_dtype=False
    )
    # Killed in the middle of a line: that result is done again, the others stay.
    text = path.read_text()
    path.write_text(text[: text.rindex("\n", 0, -1) + 30])
    gpn.compare({"GP": counted, "bad": failing}, (X, Y), **settings)
    assert len(calls) == 2 and path.read_text().count("\n") == text.count("\n")
    for data, more in (((X, Y + 1.0), {}), ((X, Y), {"settings": 2}), ((X, Y), {"num_test": 5})):
        with pytest.raises(ValueError, match="other data or settings"):
            gpn.compare({"GP": counted}, data, **settings, **more)


def test_results_are_read_back_and_told_as_they_come(tmp_path):
    path, rows = tmp_path / "results.csv", []
    settings = dict(out=path, settings={"steps": 3}, on_result=rows.append, progress=False)
    models = {"GP": exact, "bad": failing, "prior": constant}
    written = gpn.compare(models, (X, Y), splits=2, **settings)
    assert [(row["method"], row["split"]) for row in rows] == [
        (method, split) for split in (0, 1) for method in models
    ]
    read = compare_module.Comparison.from_csv(path)
    assert read.methods == tuple(models)
    pd.testing.assert_frame_equal(read.results, written.results, check_dtype=False)
    read = compare_module.Comparison.from_csv(path, ["prior", "absent", "GP"])
    assert read.methods == ("prior", "GP") and set(read.results["method"]) == {"prior", "GP"}
    for missing in (path, tmp_path / "absent.csv"):
        with pytest.raises(ValueError, match="holds no results"):
            compare_module.Comparison.from_csv(missing, ["absent"])


def test_steps_of_a_history_are_a_result():
    def trained(X, Y):
        history = gpn.History()
        history.append(step=7, loss=0.0)
        return exact(X, Y), history

    models = {"GP": exact, "trained": trained}
    results = gpn.compare(models, (X, Y), num_test=10, progress=False).results
    assert np.isnan(results["steps"][0]) and results["steps"][1] == 7
    assert results["nlpd"].nunique() == 1


def test_quantiles_of_some_rows_leave_the_other_scores():
    model = exact(X[:40], (Y[:40] - 50.0) / 10.0)
    test = X[40:], (Y[40:] - 50.0) / 10.0
    every = compare_module.scores(model, test)
    some = compare_module.scores(model, test, quantile_rows=5)
    for name in ("rmse", "nlpd"):
        assert some[name] == every[name]
    assert some["crps"] != every["crps"] and 5.0 * some["coverage_50"] in range(6)
    assert compare_module.scores(model, test, quantile_rows=20) == every


def test_memory_is_the_peak_over_the_start():
    with compare_module._PeakMemory() as memory:
        block = np.ones((40, 2**20 // 8))  # 40 MiB
        del block
    assert 30.0 < memory.mib < 200.0


def test_means_over_some_of_the_splits_say_so(tmp_path):
    tries = []

    def at_first(X, Y):
        tries.append(1)
        return failing(X, Y) if len(tries) > 1 else exact(X, Y)

    path = tmp_path / "results.csv"
    models = {"NA": exact, "at first": at_first}
    comparison = gpn.compare(models, (X, Y), splits=2, out=path, progress=False)
    table = compare_module.Comparison.from_csv(path).table(["rmse"])  # where "NA" is a name
    assert table.loc["at first", "rmse"].endswith(" (1 of 2)")
    assert "of" not in table.loc["NA", "rmse"]
    assert list(comparison.methods) == ["NA", "at first"]


def test_row_data_are_not_drawn():
    model = exact(X, Y)
    ax = plotting.posterior(model, np.linspace(-2, 2, 5)[:, None], (X, Y, np.ones(len(X))))
    assert len(ax.lines[-1].get_xdata()) == len(X)
