"""Every name in the API reference has an example, and the examples give what they say."""

import doctest
import importlib
import importlib.util
import inspect
import re
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "api"
REFERENCE = "\n".join(page.read_text() for page in sorted(FOLDER.glob("*.md")))
START = re.search(r"```python\n(.*?)```", (FOLDER / "index.md").read_text(), re.DOTALL).group(1)
"""What the page says that examples begin with."""

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def documented() -> list[str]:
    """Names of the classes and functions that the reference shows."""
    names = re.findall(r"\.\. auto(?:class|function):: (\S+)", REFERENCE)
    names = [name if "." in name else f"gpflow_gpnet.{name}" for name in names]
    for module in re.findall(r"\.\. automodule:: (\S+)", REFERENCE):
        if module.endswith("bayesian_optimisation") and not importlib.util.find_spec("trieste"):
            continue
        public = importlib.import_module(module).__all__
        names += [f"{module}.{name}" for name in public]
    return sorted(name for name in names if is_class_or_function(resolve(name)))


def resolve(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def is_class_or_function(value: Any) -> bool:
    return inspect.isfunction(value) or (
        inspect.isclass(value) and value.__module__.startswith("gpflow_gpnet")
    )


@pytest.mark.parametrize("name", documented())
@pytest.mark.filterwarnings("ignore:distutils|pkg_resources:DeprecationWarning")
def test_a_name_has_an_example_that_runs(name):
    """Shapes are in it, or in what check_shapes adds to the docstring."""
    scope: dict = {}
    exec(START, scope)
    text = inspect.getdoc(resolve(name))
    test = doctest.DocTestParser().get_doctest(text, scope, name, None, 0)
    assert test.examples, f"{name} has no example"
    said: list[str] = []
    doctest.DocTestRunner(optionflags=FLAGS).run(test, out=said.append)
    plt.close("all")
    assert not said, "".join(said)


def test_the_reference_has_many_names():
    assert len(documented()) > 80
