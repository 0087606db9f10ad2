"""Command line of the experiments."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and run one experiment."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    parser = argparse.ArgumentParser(
        prog="python -m gpflow_gpnet.experiments", description="The paper's experiments."
    )
    experiments = parser.add_subparsers(dest="experiment", required=True)
    # Imported here, after TensorFlow's log level is set.
    from . import snelson

    snelson.add_arguments(
        experiments.add_parser("snelson", help=snelson.SUMMARY, description=snelson.__doc__)
    )
    options = parser.parse_args(arguments)
    {"snelson": snelson.run}[options.experiment](options)


if __name__ == "__main__":
    main()
