"""Run methods on splits of data sets, and keep every result: ``<out>/<data set>.csv``.

A run that was killed goes on where it stopped; rows of failed runs hold the error, and are done
again once their lines are deleted from the file.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.base import AnyNDArray
from tqdm.auto import tqdm

import gpflow_gpnet as gpn

from .. import datasets
from ..compare import Comparison
from . import published
from .methods import Method, Task, Trained

__all__ = ["Problem", "Results", "add_arguments", "run"]


@dataclass(frozen=True)
class Problem:
    """A data set and how it is split."""

    dataset: datasets.Dataset
    splits: Sequence[int]
    num_test: int | None = None
    """Rows to test on; None: a tenth."""
    quantile_rows: int | None = None
    """As for :func:`gpflow_gpnet.compare`."""

    @property
    def num_train(self) -> int:
        """Training rows of a split."""
        rows = len(self.dataset.X)
        return int(0.9 * rows) if self.num_test is None else rows - self.num_test


@dataclass(frozen=True)
class Results:
    """A data set's rows of the tables."""

    name: str
    num_rows: int
    num_inputs: int
    comparison: Comparison


def add_arguments(
    parser: argparse.ArgumentParser,
    methods: Iterable[str],
    out: str,
    splits: str,
    steps: int = published.NUM_STEPS,
) -> None:
    """Options that the regression experiments share, with some defaults."""
    methods = list(methods)
    parser.add_argument(
        "--data",
        help=f"folder of .npz files (default: ${datasets.FOLDER_VARIABLE}); what is missing there "
        "comes from OpenML where that has it",
    )
    parser.add_argument(
        "--no-verify",
        action="store_true",
        help="take files that are not those known by their SHA-256",
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        choices=methods,
        default=methods,
        metavar="METHOD",
        help=f"of {', '.join(methods)} (default: all)",
    )
    parser.add_argument(
        "--splits", type=positive, help=f"number of random splits (default: {splits})"
    )
    parser.add_argument(
        "--first-split", type=int, default=0, help="number of the first of them (default: 0)"
    )
    parser.add_argument(
        "--steps",
        type=positive,
        default=steps,
        help="of each training (default: %(default)s); the exact GP has none, and the default "
        "setting of natural GPNet chooses its own",
    )
    parser.add_argument(
        "--budget",
        type=float,
        metavar="SECONDS",
        help="wall-clock time of each training in place of steps, the same for all methods but the "
        "exact GP; fits of initial hyperparameters and compiling count",
    )
    parser.add_argument(
        "--out", type=Path, default=Path(out), help="output folder (default: %(default)s)"
    )
    parser.add_argument(
        "--report", action="store_true", help="write tables and figure of what is there; train none"
    )
    parser.add_argument(
        "--beside",
        nargs="+",
        type=Path,
        default=(),
        metavar="FOLDER",
        help="show in tables and figure the results in these folders too, of other methods with "
        "other steps or budgets",
    )


def positive(text: str) -> int:
    """An argument that counts something.

    :raises argparse.ArgumentTypeError: below 1.
    """
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return value


def positive_number(text: str) -> float:
    """An argument that is a size.

    :raises argparse.ArgumentTypeError: unless it is above 0.
    """
    value = float(text)
    if not value > 0.0:
        raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
    return value


def run(
    load: Callable[[], Sequence[Problem]],
    methods: Mapping[str, Method],
    options: argparse.Namespace,
    **settings: Any,
) -> list[Results]:
    """Train and score the chosen methods, split by split; what is there already stays.

    :param load: the data sets.
    :param methods: by name; those to run are in ``options.methods``.
    :param options: those of :func:`add_arguments`.
    :param settings: others that results depend on.
    :return: of the data sets that have any.
    :raises ValueError: where a folder of ``options.beside`` is missing, or has a method of another.
    """
    for folder in options.beside:
        if not folder.is_dir():
            raise ValueError(f"--beside {folder}: there is no such folder.")
    problems = load()
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.report:
        _write_record(options)
        with tqdm(
            total=sum(len(problem.splits) for problem in problems), unit="split", disable=None
        ) as bar:
            for problem in problems:
                _run_problem(problem, methods, options, settings, bar)
    results = []
    for problem in problems:
        comparison = _comparison(problem, options)
        if comparison is not None:
            rows, inputs = problem.dataset.X.shape
            results.append(Results(problem.dataset.name, rows, inputs, comparison))
    return results


def _comparison(problem: Problem, options: argparse.Namespace) -> Comparison | None:
    """What is in all the folders; None where that is nothing."""
    found = None
    for folder in (options.out, *options.beside):
        try:
            one = Comparison.from_csv(_path(problem, folder), options.methods)
        except ValueError:  # nothing yet
            continue
        found = one if found is None else found.beside(one)
    return found


def _path(problem: Problem, folder: Path) -> Path:
    return folder / f"{problem.dataset.name}.csv"


def _run_problem(
    problem: Problem,
    methods: Mapping[str, Method],
    options: argparse.Namespace,
    settings: dict[str, Any],
    bar: Any,
) -> None:
    name = problem.dataset.name
    bar.set_postfix_str(name)
    chosen = {}
    for method in options.methods:
        limit = methods[method].max_rows
        if limit is not None and problem.num_train > limit:
            bar.write(f"{name}: {method} is left out, {problem.num_train} training rows > {limit}.")
        else:
            chosen[method] = methods[method].train
    budget = {"steps": options.steps, "seconds": options.budget}
    for split in problem.splits:
        gpn.compare(
            {
                method: partial(_trained, train, dataset=name, seed=split, **budget)
                for method, train in chosen.items()
            },
            problem.dataset,
            splits=[split],
            num_test=problem.num_test,
            quantile_rows=problem.quantile_rows,
            out=_path(problem, options.out),
            settings=budget | settings,
            on_result=lambda row: bar.write(_line(name, row)),
        )
        bar.update()


def _trained(train: Callable[[Task], Trained], X: AnyNDArray, Y: AnyNDArray, **kwargs: Any) -> Any:
    gc.collect()  # graphs of the models before
    model, history = train(Task(X, Y, progress=True, **kwargs))
    return model if history is None else (model, history)


def _line(name: str, row: Mapping[str, Any]) -> str:
    """A result in words, for logs."""
    start = f"{name}, split {row['split']}, {row['method']}: "
    if row["error"]:
        return start + row["error"]
    return start + (
        f"RMSE {row['rmse']:.4g}, test log-likelihood {-row['nlpd']:.4g}, {row['seconds']:.0f} s"
    )


def _write_record(options: argparse.Namespace) -> None:
    """The command and the machine of each run, a line of JSON each."""
    record = {name: str(value) for name, value in vars(options).items()} | {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "gpus": len(tf.config.list_physical_devices("GPU")),
        "python": platform.python_version(),
        **{name: version(name) for name in ("gpflow", "tensorflow", "numpy")},
        "float": np.dtype(gpflow.default_float()).name,
    }
    with (options.out / "runs.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")
