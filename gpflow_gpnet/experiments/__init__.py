"""The paper's experiments: ``python -m gpflow_gpnet.experiments --help``."""
