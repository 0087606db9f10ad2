"""Data sets of openml.org, fetched by scikit-learn: ``pip install gpflow_gpnet[openml]``."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gpflow.base import AnyNDArray

__all__ = ["DATASETS", "fetch"]


class Source(NamedTuple):
    """Where a data set is, and what it is known by."""

    data_id: int
    target: str
    shape: tuple[int, int]
    """Rows and inputs."""


DATASETS = {
    "boston": Source(531, "MEDV", (506, 13)),
    "concrete": Source(44959, "strength", (1030, 8)),
    "energy": Source(44960, "heating_load", (768, 8)),
    "kin8nm": Source(44980, "y", (8192, 8)),
    "naval": Source(44969, "gt_compressor_decay_state_coefficient", (11934, 14)),
    "protein": Source(44963, "RMSD", (45730, 9)),
    "wine": Source(44972, "quality", (1599, 11)),
    "yacht": Source(42370, "Residuary.resistance", (308, 6)),
}
"""Those with the same rows and units as the files that results of this package are computed on.

The order of rows may differ, and so what a split's index stands for; ``naval`` comes without its
two constant inputs.
"""


def fetch(name: str) -> tuple[AnyNDArray, AnyNDArray]:
    """Inputs [N, D] and targets [N, 1] of one of :data:`DATASETS`.

    :raises ImportError: without scikit-learn and pandas.
    :raises OSError: if the site cannot be reached.
    :raises ValueError: if what comes is not the data set that is known by this name.
    """
    try:
        import pandas  # noqa: F401  (scikit-learn reads the files with it)
        from sklearn.datasets import fetch_openml
    except ImportError as error:
        raise ImportError(
            "Fetching data sets from OpenML needs scikit-learn and pandas: "
            "pip install gpflow_gpnet[openml]"
        ) from error
    source = DATASETS[name]
    bunch: Any = fetch_openml(
        data_id=source.data_id, target_column=source.target, as_frame=True, parser="auto"
    )
    try:
        # Numbers that are categories, such as a yes or no, are strings there.
        X = np.stack([column.astype(float) for _, column in bunch.data.items()], axis=1)
        Y = np.asarray(bunch.target.astype(float))[:, None]
    except ValueError as error:
        raise ValueError(f"OpenML's data set {source.data_id} is not numeric: {error}.") from error
    if X.shape != source.shape:
        raise ValueError(
            f"OpenML's data set {source.data_id} has inputs of shape {X.shape}, but '{name}' has "
            f"{source.shape}."
        )
    return X, Y
