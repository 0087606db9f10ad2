"""The README's code runs as it stands."""

import re
from pathlib import Path

import matplotlib

import gpflow_gpnet as gpn

README = Path(__file__).parents[1] / "README.md"


def test_python_blocks_of_the_readme_run():
    matplotlib.use("Agg")
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert len(blocks) >= 3
    scope: dict = {}
    for block in blocks:
        block = re.sub(r"num_steps=\d+", "num_steps=2", block).replace("seconds=20", "seconds=0")
        exec(block, scope)
        if "class Quadratic" in block:
            X, Y = scope["X"][:100, :1], scope["Y"][:100]
            gpn.fit(scope["model"], (X, Y), num_steps=2, progress=False)
    assert scope["f"](scope["X"][:4]).shape == (10, 4, 1)
    assert "Quadratic" in scope
