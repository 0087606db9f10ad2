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
    from . import ablation, airline, images, snelson, uci

    modules = {
        "snelson": snelson,
        "uci": uci,
        "airline": airline,
        "images": images,
        "ablation": ablation,
    }
    for name, module in modules.items():
        module.add_arguments(
            experiments.add_parser(
                name,
                help=module.SUMMARY,
                description=module.__doc__,
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
        )
    options = parser.parse_args(arguments)
    modules[options.experiment].run(options)


if __name__ == "__main__":
    main()
