"""What the package promises as a whole: public names, documentation, light imports."""

import importlib
import importlib.util
import inspect
import pkgutil
import subprocess
import sys

import pytest

import gpflow_gpnet

MODULES = sorted(
    info.name
    for info in pkgutil.walk_packages(gpflow_gpnet.__path__, "gpflow_gpnet.")
    if not any(part.startswith("_") for part in info.name.split("."))
    and not info.name.startswith(("gpflow_gpnet.experiments", "gpflow_gpnet.plotting"))
    and (info.name != "gpflow_gpnet.bayesian_optimisation" or importlib.util.find_spec("trieste"))
)


@pytest.mark.parametrize("name", ["gpflow_gpnet", *MODULES])
def test_public_names_are_sorted_exist_and_are_documented(name):
    module = importlib.import_module(name)
    assert inspect.getdoc(module)
    names = module.__all__
    assert list(names) == sorted(set(names))
    for public in names:
        value = getattr(module, public)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, f"{name}.{public} has no docstring"
        if inspect.isclass(value) and value.__module__.startswith("gpflow_gpnet"):
            for method, function in vars(value).items():
                if not method.startswith("_") and callable(function):
                    text = inspect.getdoc(getattr(value, method))
                    assert text, f"{name}.{public}.{method} has no docstring"


def test_version_is_a_version():
    numbers = gpflow_gpnet.__version__.split(".")
    assert len(numbers) >= 2 and all(number[0].isdigit() for number in numbers)


def test_import_needs_no_optional_packages():
    """GPflow and Keras import some of them where they are installed: here they are not."""
    code = (
        "import sys\n"
        "optional = ['pandas', 'matplotlib', 'sklearn', 'trieste']\n"
        "sys.modules.update(dict.fromkeys(optional))\n"
        "import gpflow_gpnet\n"
        "print([m for m in optional if sys.modules[m]])\n"
        "try:\n"
        "    import gpflow_gpnet.bayesian_optimisation\n"
        "except ImportError as error:\n"
        "    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=gpflow_gpnet.__path__[0] + "/..",
    )
    loaded, message = done.stdout.splitlines()
    assert loaded == "[]"
    assert "pip install gpflow_gpnet[trieste]" in message
