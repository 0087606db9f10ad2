"""The experiments run from the command line, at a budget of a few steps."""

import csv

import numpy as np
import pytest
from PIL import Image

from gpflow_gpnet.experiments import snelson
from gpflow_gpnet.experiments.__main__ import main


def test_snelson_writes_its_table(tmp_path):
    arguments = [
        "--methods",
        "GPNet, natural, full batch",
        "FBNN",
        "--points",
        "20",
        "--steps",
        "2",
    ]
    main(["snelson", "--out", str(tmp_path), *arguments])
    with (tmp_path / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == ["GPNet, natural, full batch", "FBNN"]
    assert all(np.isfinite(float(row["mean_gap_rms"])) and row["M"] == "20" for row in rows)


def test_the_exact_posterior_has_no_gap():
    problem = snelson.make_problem()
    gap = snelson.gap(problem, problem.exact, problem.exact)
    assert gap["mean_gap_max"] == 0.0
    assert gap["sd_ratio_min"] == gap["sd_ratio_max"] == 1.0
    noisier = snelson.gap(problem, problem.noisier, problem.exact)
    assert noisier["sd_ratio_min"] > 1.2


@pytest.mark.slow
def test_natural_gpnet_is_the_exact_posterior():
    """Full batch: mean within .05 exact sd (rms), sd ratio in [.97, 1.03]; .15, [.9, 1.1] else."""
    problem, budget = snelson.make_problem(), snelson.short_budget()
    for method, rms, low, high in (
        ("GPNet, natural, full batch", 0.05, 0.97, 1.03),
        ("GPNet, natural", 0.15, 0.9, 1.1),
    ):
        _, row = snelson.train(problem, method, 20, budget, seed=0, progress=False)
        assert row.mean_gap_rms < rms
        assert low < row.sd_ratio_min and row.sd_ratio_max < high


def test_snelson_with_other_networks(tmp_path):
    main(["snelson", "--out", str(tmp_path), "--networks", "NTK", "FBNN, BNN", "--steps", "2"])
    with (tmp_path / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == ["GPNet, NTK", "FBNN, BNN"]
    assert (tmp_path / "networks.png").stat().st_size > 10_000


def test_the_posterior_is_animated(tmp_path):
    main(["snelson", "--out", str(tmp_path), "--animate", "--steps", "3"])
    with Image.open(tmp_path / "posterior.gif") as image:
        assert image.n_frames == 1 + 3 and image.size == (480, 240)
