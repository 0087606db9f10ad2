"""Table 1's protocol on two public sets of flights: delays in minutes.

airline_nyc2013: all flights out of New York in 2013, the eight inputs of Hensman et al. (2013);
airline_us2001: a million US flights of January to July 2001, five inputs. Neither is the paper's
slice, so that methods compare with each other only, all on the same rows: 700,000 random rows to
train on (all the others where there are fewer) and 100,000 to test on, standardised by the training
rows. M is the number of inducing or measurement points.

Beside table 1's methods: natural (GPNet with natural steps in its one default setting), and SVGP
and natural GPNet with a Student-t likelihood (3 degrees of freedom) and with a heteroskedastic one
(a second latent GP for the logarithm of the noise). Scores that need quantiles are those of 2,000
test rows.

Each result is added to <out>/<data set>.csv as soon as it is known, and a run that was killed goes
on from there; delete lines to have them done again. tables.md holds the tables, violins.png the
figure.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import numpy as np

from .. import datasets
from . import protocol, published, tables
from .methods import METHODS
from .protocol import Problem, Results

if TYPE_CHECKING:
    import pandas as pd

SUMMARY = "flight delays (table 1), with robust and heteroskedastic likelihoods"

DATASETS = ("airline_nyc2013", "airline_us2001")

REFERENCE = "SVGP-500"

TEST_ROWS = 100_000
TRAIN_ROWS = 700_000
QUANTILE_ROWS = 2000

CHOICES = (
    *published.AIRLINE,
    "natural",
    "SVGP-500-student-t",
    "natural-student-t",
    "SVGP-500-heteroskedastic",
    "natural-heteroskedastic",
)


TABLE_1 = "Table 1 of the paper: other flights, not to be compared with those above"


def table_1() -> pd.DataFrame:
    """As published."""
    import pandas as pd

    rows = [tables.RMSE.title, tables.LOG_LIKELIHOOD.title]
    return pd.DataFrame(published.AIRLINE, index=rows)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the experiment."""
    parser.add_argument(
        "--datasets", nargs="+", choices=DATASETS, default=DATASETS, help="default: both"
    )
    parser.add_argument(
        "--train-rows",
        type=int,
        default=TRAIN_ROWS,
        help="at most so many rows to train on (default: %(default)s, the paper's)",
    )
    protocol.add_arguments(parser, CHOICES, "results/airline", "1")


def run(options: argparse.Namespace) -> list[Results]:
    """Train and score what is not yet there; write tables.md and violins.png."""

    def load() -> list[Problem]:
        first = options.first_split
        splits = range(first, first + (options.splits or 1))
        return [
            problem(
                datasets.load(name, options.data, verify=not options.no_verify),
                splits,
                options.train_rows,
            )
            for name in options.datasets
        ]

    results = protocol.run(load, METHODS, options)
    tables.report(results, options.out, reference=REFERENCE, others={TABLE_1: table_1()})
    return results


def problem(dataset: datasets.Dataset, splits: range, train_rows: int = TRAIN_ROWS) -> Problem:
    """100,000 rows to test on where there are twice as many (else a tenth), and rows to train on.

    Which rows are looked at is random, and the same for all splits.
    """
    rows = len(dataset.X)
    num_test = TEST_ROWS if rows >= 2 * TEST_ROWS else rows - int(0.9 * rows)
    if rows > train_rows + num_test:
        chosen = np.random.RandomState(0).permutation(rows)[: train_rows + num_test]
        dataset = datasets.Dataset(dataset.name, dataset.X[chosen], dataset.Y[chosen])
    return Problem(dataset, splits, num_test, QUANTILE_ROWS)
