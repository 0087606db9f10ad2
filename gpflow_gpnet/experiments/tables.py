"""Tables and a figure of results over several data sets, with published numbers beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from tabulate import tabulate

from ..compare import Comparison, cell
from .protocol import Results

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["LOG_LIKELIHOOD", "RMSE", "Score", "cost", "draw", "paired", "report", "scores"]


class Score(NamedTuple):
    """A column of results as tables show it."""

    title: str
    metric: str
    sign: float
    """Of what is shown against what is kept."""


RMSE = Score("RMSE", "rmse", 1.0)
LOG_LIKELIHOOD = Score("test log-likelihood", "nlpd", -1.0)

_AS_IT_IS = {"disable_numparse": True}

Published = Mapping[str, Mapping[str, tuple[float, float]]]
"""Mean and standard error (or NaN) by data set and method."""


def scores(results: Sequence[Results], score: Score, published: Published) -> pd.DataFrame:
    """Mean ± standard error over splits, in the units of the targets: methods by data sets.

    :param published: shown below the method of the same name, and the best of them below all.
    """
    import pandas as pd

    methods = dict.fromkeys(name for result in results for name in result.comparison.methods)
    columns = {}
    for result in results:
        summary = result.comparison.summary()[score.metric]
        known = published.get(result.name, {})
        column = {"N": str(result.num_rows), "D": str(result.num_inputs)}
        for method in methods:
            if method in summary.index:
                mean, error = summary.loc[method]
                column[method] = cell(score.sign * mean, error)
            if method in known:
                column[f"paper's {method}"] = cell(*known[method])
        if known:
            best = min(known.values(), key=lambda pair: score.sign * pair[0])
            column["paper's best"] = cell(*best)
        columns[result.name] = column
    names = (name for method in methods for name in (method, f"paper's {method}"))
    order = ["N", "D", *names, "paper's best"]
    table = pd.DataFrame(columns)
    return table.reindex([name for name in order if name in table.index]).fillna("–")


def paired(results: Sequence[Results], reference: str) -> pd.DataFrame:
    """Differences from a reference on the same splits, with Wilcoxon's signed-rank test.

    Data sets without the reference are left out.
    """
    import pandas as pd

    rows: dict[str, dict[str, str]] = {}
    for result in results:
        comparison = result.comparison
        if reference not in comparison.methods:
            continue
        for method in comparison.methods:
            if method == reference:
                continue
            row = {}
            for score in (RMSE, LOG_LIKELIHOOD):
                pair = comparison.paired(reference, score.metric).loc[method]
                row[f"{score.title} difference"] = cell(score.sign * pair["difference"], pair["se"])
                row[f"{score.title} better"] = f"{pair['lower']:.0f} of {pair['splits']:.0f}"
                row[f"{score.title} p"] = f"{pair['p']:.2g}" if np.isfinite(pair["p"]) else "–"
            rows[f"{result.name}, {method}"] = row
    return pd.DataFrame.from_dict(rows, orient="index")


def cost(results: Sequence[Results]) -> pd.DataFrame:
    """Splits, failures, steps, seconds and memory of each method."""
    import pandas as pd

    rows = {}
    for result in results:
        for method in result.comparison.methods:
            group = result.comparison.results.query("method == @method")
            rows[f"{result.name}, {method}"] = {
                "splits": len(group),
                "failed": int((group["error"] != "").sum()),
                **{
                    title: cell(group[column].mean(), group[column].sem())
                    for title, column in (
                        ("steps", "steps"),
                        ("seconds", "seconds"),
                        ("memory [MiB]", "memory_mib"),
                    )
                },
            }
    return pd.DataFrame.from_dict(rows, orient="index")


def report(
    results: Sequence[Results],
    out: Path,
    *,
    published: Mapping[str, Published] = MappingProxyType({}),
    reference: str,
    others: Mapping[str, pd.DataFrame] = MappingProxyType({}),
) -> None:
    """Write all tables to ``tables.md`` and the figure to ``violins.png``, and print the tables.

    :param published: by title of the score.
    :param reference: the method that others are paired with.
    :param others: more tables, by title.
    """
    if not results:
        print(f"There are no results in {out} yet.")
        return
    tables = {
        **{
            f"{score.title}, mean ± standard error": scores(
                results, score, published.get(score.title, {})
            )
            for score in (RMSE, LOG_LIKELIHOOD)
        },
        f"Against {reference}, on the same splits (p: Wilcoxon's signed-rank test)": paired(
            results, reference
        ),
        "Cost of training": cost(results),
        **others,
    }
    text = "\n".join(
        f"## {title}\n\n{tabulate(table, headers='keys', tablefmt='github', **_AS_IT_IS)}\n"
        for title, table in tables.items()
        if len(table)
    )
    (out / "tables.md").write_text(text)
    draw(results, published, out / "violins.png")
    print(f"{text}\nWritten to {out}.")


def draw(results: Sequence[Results], published: Mapping[str, Published], path: Path) -> None:
    """The paper's figure 4: violins over splits; diamonds with standard errors are the paper's.

    :param published: by title of the score.
    """
    import matplotlib.pyplot as plt

    from .. import plotting

    width = 0.45 * sum(len(result.comparison.methods) for result in results) + 1.5 * len(results)
    figure, axes = plt.subplots(2, len(results), figsize=(max(width, 4.0), 7.0), squeeze=False)
    for column, result in zip(axes.T, results, strict=True):
        for ax, score in zip(column, (RMSE, LOG_LIKELIHOOD), strict=True):
            signed = result.comparison.results.copy()
            signed[score.title] = score.sign * signed[score.metric]
            comparison = Comparison(signed, result.comparison.methods)
            plotting.violins(comparison, score.title, ax=ax)
            known = published.get(score.title, {}).get(result.name, {})
            for position, method in enumerate(comparison.methods, start=1):
                if method in known:
                    mean, error = known[method]
                    ax.errorbar(
                        position + 0.25, mean, error, fmt="D", ms=4, color=plotting.REFERENCE
                    )
            ax.tick_params(axis="x", rotation=90)
        column[0].set_title(result.name)
        column[0].set_xticklabels([])
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)
