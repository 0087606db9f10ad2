"""The documentation site: `make docs`. Warnings are errors."""

from __future__ import annotations

import shutil
from pathlib import Path

import gpflow_gpnet

HERE = Path(__file__).parent

project = "gpflow_gpnet"
author = "the authors of gpflow_gpnet"
copyright = "the authors of gpflow_gpnet, Apache 2.0"
release = gpflow_gpnet.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "sphinx-mathjax-offline"]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"gpflow_gpnet {release}"
html_show_sphinx = False

myst_enable_extensions = ["amsmath", "colon_fence", "dollarmath"]
myst_heading_anchors = 3  # so that links to sections are checked

# The tutorials are the notebooks as they were executed, beside their scripts in notebooks/.
nb_execution_mode = "off"
for notebook in HERE.parent.glob("notebooks/*.ipynb"):
    shutil.copy(notebook, HERE / "tutorials")

autodoc_mock_imports = ["trieste"]  # an extra that the documentation does not need
autoclass_content = "both"  # what __init__ says of its arguments too
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_preserve_defaults = True

# Every reference to a name of this package must be found; those to other packages and to
# private names are left alone.
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!gpflow_gpnet).*|.*\._\w+")]
