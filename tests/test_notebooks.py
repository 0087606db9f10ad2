"""The notebooks run, with few steps, and are what their scripts say."""

import importlib.util
import os
import re
from pathlib import Path

import jupytext
import matplotlib
import matplotlib.pyplot as plt
import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
SCRIPTS = sorted(FOLDER.glob("[0-9][0-9]_*.py"))

spec = importlib.util.spec_from_file_location("run", FOLDER / "run.py")
run = importlib.util.module_from_spec(spec)
spec.loader.exec_module(run)

scripts = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)


@scripts
@pytest.mark.filterwarnings("ignore:The model over-fits")
def test_a_script_runs(script, monkeypatch):
    """In short, without the user's data sets; in this process, which has TensorFlow already."""
    text = script.read_text()
    if "import trieste" in text:
        pytest.importorskip("trieste")
    monkeypatch.delenv("GPNET_DATA", raising=False)
    monkeypatch.chdir(FOLDER)
    with matplotlib.rc_context():
        exec(compile(run.shortened(text), script, "exec"), {"__name__": "__main__"})
        plt.close("all")


def test_short_values_are_taken():
    script = "A = 100  # short: 3\nB = (1, 2)  # short: (1,)\nC = 5  # long\n"
    assert run.shortened(script) == "A = 3\nB = (1,)\nC = 5  # long\n"
    assert all("# short: " in script.read_text() for script in SCRIPTS)


@scripts
def test_a_notebook_is_its_script_executed(script):
    wanted = jupytext.read(script).cells
    cells = jupytext.read(script.with_suffix(".ipynb")).cells
    assert [(cell.cell_type, cell.source) for cell in cells] == [
        (cell.cell_type, cell.source) for cell in wanted
    ], "execute it: python notebooks/run.py " + script.name[:2]
    code = [cell for cell in cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not any(
        output.output_type == "error" or output.get("name") == "stderr" for output in outputs
    )
    assert os.path.getsize(script.with_suffix(".ipynb")) < 400_000


@scripts
def test_a_notebook_says_when_not_to_use_it(script):
    """Or what is approximate: no tutorial is only praise."""
    assert re.search(
        r"^# ## (When not|Fair|What this package adds|Limits)", script.read_text(), re.M
    )
