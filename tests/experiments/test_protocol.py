"""The protocol: what is run, what is kept, and what is not run again."""

import argparse
import json

import gpflow
import numpy as np
import pandas as pd
import pytest

from gpflow_gpnet.datasets import Dataset
from gpflow_gpnet.experiments import protocol
from gpflow_gpnet.experiments.methods import Method
from gpflow_gpnet.experiments.protocol import Problem

RNG = np.random.default_rng(0)
DATASET = Dataset("made", RNG.normal(size=(30, 2)), RNG.normal(3.0, 2.0, size=(30, 1)))


class Recorder:
    """A method that notes its tasks; its model is GP regression as it starts."""

    def __init__(self):
        self.tasks = []

    def __call__(self, task):
        self.tasks.append(task)
        return gpflow.models.GPR(task.data, gpflow.kernels.SquaredExponential()), None


def failing(task):
    raise ValueError("not today")


def options(out, *arguments):
    parser = argparse.ArgumentParser()
    protocol.add_arguments(parser, ["first", "second"], "nowhere", "3", steps=11)
    return parser.parse_args(["--out", str(out), *arguments])


def test_every_result_is_kept_and_none_done_twice(tmp_path):
    first, second = Recorder(), Recorder()
    methods = {"first": Method(first), "second": Method(second)}
    load = lambda splits: lambda: [Problem(DATASET, splits)]  # noqa: E731
    chosen = options(tmp_path / "deep", "--methods", "first")
    protocol.run(load([4]), methods, chosen)
    [results] = protocol.run(load([4, 5]), methods, options(tmp_path / "deep"))
    assert [task.seed for task in first.tasks] == [task.seed for task in second.tasks] == [4, 5]
    assert (results.name, results.num_rows, results.num_inputs) == ("made", 30, 2)
    assert results.comparison.methods == ("first", "second")
    for task in first.tasks:
        assert (task.dataset, task.steps, task.seconds) == ("made", 11, None)
        np.testing.assert_allclose(task.Y.mean(), 0.0, atol=1e-12)
    table = pd.read_csv(tmp_path / "deep" / "made.csv")
    assert table[["method", "split"]].values.tolist() == [
        ["first", 4],
        ["second", 4],
        ["first", 5],
        ["second", 5],
    ]
    [reported] = protocol.run(load([4, 5]), methods, options(tmp_path / "deep", "--report"))
    pd.testing.assert_frame_equal(reported.comparison.results, results.comparison.results)
    assert len(first.tasks) == 2
    records = (tmp_path / "deep" / "runs.jsonl").read_text().splitlines()
    assert len(records) == 2 and json.loads(records[0])["methods"] == "['first']"


def test_results_of_other_settings_are_not_mixed(tmp_path):
    methods = {"first": Method(Recorder()), "second": Method(Recorder())}
    load = lambda: [Problem(DATASET, [0])]  # noqa: E731
    protocol.run(load, methods, options(tmp_path), extra=1)
    protocol.run(load, methods, options(tmp_path), extra=1)
    for arguments, extra in ((["--steps", "12"], 1), (["--budget", "3"], 1), ([], 2)):
        with pytest.raises(ValueError, match=r"made\.csv holds results for other data or settings"):
            protocol.run(load, methods, options(tmp_path, *arguments), extra=extra)


def test_results_of_other_settings_are_shown_beside(tmp_path):
    methods = {"first": Method(Recorder()), "second": Method(Recorder())}
    load = lambda splits: lambda: [Problem(DATASET, splits)]  # noqa: E731
    here, there = tmp_path / "here", tmp_path / "there"
    protocol.run(load([0, 1]), methods, options(here, "--methods", "first"))
    protocol.run(load([1, 2]), methods, options(there, "--methods", "second", "--steps", "12"))
    both = options(here, "--report", "--beside", str(there))
    [shown] = protocol.run(load([0]), methods, both)
    assert shown.comparison.methods == ("first", "second")
    pair = shown.comparison.paired("first", "nlpd").loc["second"]
    assert (pair["splits"], pair["difference"]) == (1, 0.0)
    [alone] = protocol.run(load([0]), methods, options(tmp_path, "--report", "--beside", str(here)))
    assert alone.comparison.methods == ("first",)
    with pytest.raises(ValueError, match=r"\['first'\] are in both comparisons"):
        protocol.run(load([0]), methods, options(here, "--report", "--beside", str(here)))
    with pytest.raises(ValueError, match=r"--beside .*absent: there is no such folder"):
        protocol.run(load([0]), methods, options(here, "--beside", str(tmp_path / "absent")))


def test_too_many_rows_and_failures_stop_nothing(tmp_path, capsys):
    large = Recorder()
    methods = {"first": Method(large, max_rows=26), "second": Method(failing)}
    problem = Problem(DATASET, [0, 1], num_test=2)
    assert problem.num_train == 28 and Problem(DATASET, [0]).num_train == 27
    [results] = protocol.run(lambda: [problem], methods, options(tmp_path))
    assert not large.tasks and results.comparison.methods == ("second",)
    assert (results.comparison.results["error"] == "ValueError: not today").all()
    said = capsys.readouterr().out
    assert "first is left out, 28 training rows > 26" in said
    assert "made, split 1, second: ValueError: not today" in said


def test_a_report_of_nothing_is_empty(tmp_path):
    assert protocol.run(lambda: [Problem(DATASET, [0])], {}, options(tmp_path, "--report")) == []


@pytest.mark.parametrize("arguments", [["--splits", "0"], ["--steps", "-1"], ["--methods", "no"]])
def test_wrong_options_are_refused(tmp_path, arguments, capsys):
    with pytest.raises(SystemExit):
        options(tmp_path, *arguments)
    assert arguments[0] in capsys.readouterr().err
