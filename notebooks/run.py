"""Execute the notebooks: each percent script NN_name.py becomes NN_name.ipynb beside it.

    python notebooks/run.py            all, in fresh kernels (`make notebooks`)
    python notebooks/run.py 01 07      those whose names begin so
    python notebooks/run.py --text     keep outputs, take over prose; code must be what was executed

GPNET_SHORT=1 takes the values after `# short:` in place of those before, to see quickly whether the
code runs; nothing is written then. The scripts know nothing of it.
"""

from __future__ import annotations

import argparse
import base64
import io
import os
import re
import time
from pathlib import Path
from typing import Any

import jupytext
from PIL import Image

FOLDER = Path(__file__).parent
SCRIPTS = sorted(FOLDER.glob("[0-9][0-9]_*.py"))
SHORT = os.environ.get("GPNET_SHORT") == "1"
RETRACING = re.compile(r"WARNING:tensorflow:.* triggered tf.function retracing.*\n")
"""What TensorFlow says when one cell trains several models."""
KERNEL = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}


def shortened(text: str) -> str:
    """The script with each `NAME = value  # short: other` made `NAME = other`."""
    return re.sub(r"^(\w+ = ).*?  # short: (.*)$", r"\1\2", text, flags=re.MULTILINE)


def kept(output: Any) -> bool:
    """All but nothing, and what TensorFlow says of the machine when it is imported."""
    return output.get("text") != "" and not (
        output.get("name") == "stderr" and "absl::InitializeLog" in output["text"]
    )


def tidied(output: Any, script: Path) -> Any:
    """The same output with a small figure; a warning is an error."""
    if output.get("name") == "stderr":
        raise RuntimeError(f"{script.name} wrote to stderr: {output['text']}")
    if "image/png" in output.get("data", {}):
        image = Image.open(io.BytesIO(base64.b64decode(output["data"]["image/png"])))
        file = io.BytesIO()
        image.convert("RGB").quantize(128).save(file, "png", optimize=True)
        output["data"]["image/png"] = base64.b64encode(file.getvalue()).decode()
    return output


def execute(script: Path) -> None:
    """Run a script's cells in a fresh kernel and, unless short, write the notebook."""
    from nbclient import NotebookClient  # of the extra "notebooks"; pairing does not need it

    text = script.read_text()
    notebook = jupytext.reads(shortened(text) if SHORT else text, fmt="py:percent")
    notebook.metadata = KERNEL
    started = time.perf_counter()
    NotebookClient(
        notebook, timeout=1800, startup_timeout=300, resources={"metadata": {"path": str(FOLDER)}}
    ).execute()
    print(f"{script.name}: {time.perf_counter() - started:.0f} s", flush=True)
    if not SHORT:
        write(notebook, script)


def write(notebook: Any, script: Path) -> None:
    """Write a notebook, tidied, beside its script."""
    notebook.metadata = KERNEL
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"  # in place of random ones, so that runs can be compared
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            for output in cell.outputs:
                if "text" in output:
                    output["text"] = RETRACING.sub("", output["text"])
            cell.outputs = [tidied(output, script) for output in cell.outputs if kept(output)]
    jupytext.write(notebook, script.with_suffix(".ipynb"), fmt="ipynb")


def take_over_text(script: Path) -> None:
    """Write the notebook with a script's prose and the outputs that it has.

    :raises ValueError: if the code is another than what was executed.
    """
    notebook = jupytext.read(script)
    executed = code_cells(jupytext.read(script.with_suffix(".ipynb")))
    if [cell.source for cell in code_cells(notebook)] != [cell.source for cell in executed]:
        raise ValueError(f"{script.name} has other code than its notebook: execute it.")
    for cell, old in zip(code_cells(notebook), executed, strict=True):
        cell.outputs, cell.execution_count = old.outputs, old.execution_count
    write(notebook, script)


def code_cells(notebook: Any) -> list[Any]:
    """Those of a notebook."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="beginnings of names; all by default")
    parser.add_argument("--text", action="store_true", help="take over prose, execute nothing")
    options = parser.parse_args()
    for script in SCRIPTS:
        if script.name.startswith(tuple(options.names) or ""):
            (take_over_text if options.text else execute)(script)


if __name__ == "__main__":
    main()
