"""Tables 3 and 4 and figure 4 of the paper: regression on UCI data sets.

Nine tenths of the rows, shuffled by the split's number, are for training; inputs and targets are
standardised by them, scores are in the units of the targets. Methods: exact (GP, up to 10,000
training rows), SVGP-100 and -500 (k-means inducing inputs, natural gradient and Adam), GPNet-100
and -500 (the paper's gradient steps and settings), FBNN-500, and natural (GPNet with natural steps
in its one default setting).

Each result is added to <out>/<data set>.csv as soon as it is known, and a run that was killed goes
on from there; delete lines to have them done again. tables.md holds means and standard errors with
the paper's own beside them, paired differences from SVGP-500 with Wilcoxon's test, and costs;
violins.png is the figure.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from .. import datasets
from . import protocol, published, tables
from .methods import METHODS
from .protocol import Problem, Results

SUMMARY = "regression on UCI data sets (tables 3 and 4, figure 4)"

DATASETS = (
    "boston",
    "concrete",
    "energy",
    "kin8nm",
    "power",
    "protein",
    "wine",
    "naval",
    "yacht",
    "kin40k",
    "elevators",
    "bike",
    "pol",
    "keggundirected",
)
"""The paper's seven first."""

REFERENCE = "SVGP-500"

LARGE = 5000
"""Rows from which 5 splits are run by default, else the paper's 20."""

SPLITS = f"20, or 5 of data sets with {LARGE} rows or more"

CHOICES = ("exact", *published.METHODS, "natural")


PUBLISHED: dict[str, tables.Published] = {
    score.title: {
        name: dict(zip(published.METHODS, cells, strict=True)) for name, cells in table.items()
    }
    for score, table in (
        (tables.RMSE, published.RMSE),
        (tables.LOG_LIKELIHOOD, published.LOG_LIKELIHOOD),
    )
}
"""By score, data set and method."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the experiment."""
    parser.add_argument(
        "--datasets",
        nargs="+",
        choices=DATASETS,
        metavar="NAME",
        help=f"of {', '.join(DATASETS)} (default: the paper's, which are the first seven; with "
        "--report those that have results)",
    )
    protocol.add_arguments(parser, CHOICES, "results/uci", SPLITS)


def load(options: argparse.Namespace) -> list[Problem]:
    """The chosen data sets and splits."""
    problems = []
    for name in _chosen(options):
        dataset = datasets.load(name, options.data, verify=not options.no_verify)
        number = options.splits or (5 if len(dataset.X) >= LARGE else 20)
        first = options.first_split
        problems.append(Problem(dataset, range(first, first + number)))
    return problems


def _chosen(options: argparse.Namespace) -> Sequence[str]:
    if options.datasets or not options.report:
        return options.datasets or DATASETS[:7]
    folders = (options.out, *options.beside)
    return [name for name in DATASETS if any((each / f"{name}.csv").exists() for each in folders)]


def run(options: argparse.Namespace) -> list[Results]:
    """Train and score what is not yet there; write tables.md and violins.png."""
    results = protocol.run(lambda: load(options), METHODS, options)
    tables.report(results, options.out, published=PUBLISHED, reference=REFERENCE)
    return results
