"""What a benchmark ran on, and the file of what it measured."""

from __future__ import annotations

import csv
import datetime
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gpflow
import tensorflow as tf

__all__ = ["describe_machine", "write_rows"]


def describe_machine() -> str:
    """Processor, cores and versions in one line."""
    name = platform.machine()
    cpus = Path("/proc/cpuinfo")
    if cpus.is_file():
        for line in cpus.read_text().splitlines():
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    return (
        f"{name}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"TensorFlow {tf.__version__}, GPflow {gpflow.__version__}"
    )


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]], machine: str | None = None) -> None:
    """A CSV file below a comment: day, machine and versions (``describe_machine()``)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        file.write(f"# {datetime.date.today()}, {machine or describe_machine()}\n")
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
