"""Tables against figures by hand."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from gpflow_gpnet.compare import METRICS, Comparison
from gpflow_gpnet.experiments import tables
from gpflow_gpnet.experiments.protocol import Results


def results(name, **values):
    """A data set's results from pairs (rmse, nlpd) of each split, by method."""
    rows = [
        dict.fromkeys(METRICS, 1.0)
        | {"method": method, "split": split, "rmse": rmse, "nlpd": nlpd, "steps": 5.0}
        | {"error": "" if np.isfinite(rmse) else "ValueError: no"}
        for method, pairs in values.items()
        for split, (rmse, nlpd) in enumerate(pairs)
    ]
    return Results(name, 50, 3, Comparison(pd.DataFrame(rows), tuple(values)))


BOSTON = results(
    "boston",
    ours=[(1.0, -2.0), (3.0, -4.0)],
    base=[(2.0, -1.0), (5.0, -2.0)],
    broken=[(np.nan, np.nan), (2.0, 2.0)],
)
OTHER = results("other", base=[(0.5, 1.0)])
PUBLISHED = {"boston": {"base": (2.5, 0.25), "theirs": (2.25, 0.5)}}


def test_scores_stand_beside_those_published():
    table = tables.scores([BOSTON, OTHER], tables.RMSE, PUBLISHED)
    assert table["boston"].to_dict() == {
        "N": "50",
        "D": "3",
        "ours": "2 ± 1",
        "base": "3.5 ± 1.5",
        "paper's base": "2.5 ± 0.25",
        "broken": "2",
        "paper's best": "2.25 ± 0.5",
    }
    assert table["other"]["base"] == "0.5"
    assert (table["other"][["ours", "paper's base", "paper's best"]] == "–").all()
    table = tables.scores([BOSTON], tables.LOG_LIKELIHOOD, PUBLISHED)
    assert table["boston"]["ours"] == "3 ± 1"
    assert table["boston"]["paper's best"] == "2.5 ± 0.25"  # the largest


def test_differences_are_those_on_the_same_splits():
    table = tables.paired([BOSTON, OTHER], "base")
    assert list(table.index) == ["boston, ours", "boston, broken"]
    ours = table.loc["boston, ours"]
    assert ours["RMSE difference"] == "-1.5 ± 0.5" and ours["RMSE better"] == "2 of 2"
    assert ours["test log-likelihood difference"] == "1.5 ± 0.5"
    assert ours["test log-likelihood better"] == "2 of 2"
    assert table.loc["boston, broken", "RMSE better"] == "1 of 1"
    assert tables.paired([OTHER], "absent").empty


def test_cost_counts_failures():
    table = tables.cost([BOSTON, OTHER])
    assert table.loc["boston, broken", ["splits", "failed"]].tolist() == [2, 1]
    assert table.loc["other, base", "steps"] == "5"


def test_figure_has_violins_and_published_points(tmp_path, monkeypatch):
    monkeypatch.setattr(plt, "close", lambda figure: None)
    published = {tables.LOG_LIKELIHOOD.title: PUBLISHED}
    tables.draw([BOSTON, OTHER], published, tmp_path / "violins.png")
    figure = plt.gcf()
    monkeypatch.undo()
    above, _, below, _ = figure.axes
    assert not above.containers
    [point] = below.containers
    np.testing.assert_allclose(point.lines[0].get_xydata(), [[2.25, 2.5]])
    drawn = [line.get_ydata() for line in below.lines if line.get_xdata()[0] == 1]
    np.testing.assert_allclose(drawn[0], [2.0, 4.0])  # log-likelihoods, not their negatives
    plt.close(figure)
    assert (tmp_path / "violins.png").stat().st_size > 5_000


def test_report_writes_what_it_prints(tmp_path, capsys):
    tables.report([BOSTON], tmp_path, reference="base", others={"More": pd.DataFrame({"a": [1]})})
    text = (tmp_path / "tables.md").read_text()
    assert text in capsys.readouterr().out
    for title in ("RMSE, mean", "test log-likelihood, mean", "Against base", "Cost", "More"):
        assert f"## {title}" in text
    tables.report([], tmp_path / "none", reference="base")
    assert "no results" in capsys.readouterr().out


@pytest.mark.parametrize("score", [tables.RMSE, tables.LOG_LIKELIHOOD])
def test_a_method_that_always_failed_has_a_dash(score):
    table = tables.scores([results("bad", broken=[(np.nan, np.nan)])], score, {})
    assert table["bad"]["broken"] == "–"
