"""What a benchmark ran on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import gpflow
import tensorflow as tf

__all__ = ["describe_machine"]


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
