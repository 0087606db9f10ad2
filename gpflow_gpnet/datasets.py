"""Regression data sets: load one by name, split and standardise it, or stream it from files.

A named data set is a file ``<name>.npz`` with two arrays, ``X`` and ``Y``. The one-dimensional set
``snelson`` comes with the package; all others are read from a folder of the user's, or fetched from
OpenML where it has the same data.
"""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import openml
from .scaling import column_moments
from .shards import Shards

__all__ = ["Dataset", "Split", "load", "split", "stream"]

FloatArray = NDArray[np.float64]

FOLDER_VARIABLE = "GPNET_DATA"
"""The environment variable that names the folder of data sets."""

_INPUT_COLUMNS_THAT_LEAK = {
    # Counts of casual and of registered users: Y is the centred logarithm of their sum.
    "bike": (15, 16),
}


@dataclass(frozen=True, eq=False)
class Dataset:
    """Inputs and targets of one regression problem, in the units of their source.

    Notation: N rows, D inputs. Arrays are converted to float64.

    :raises ValueError: if a shape is not the one given below, if X and Y differ in their number
        of rows, if there are none, or if a value is not finite.

    >>> dataset = gpn.datasets.Dataset("line", X, Y)
    >>> dataset.X.shape, dataset.Y.shape
    ((20, 1), (20, 1))
    """

    name: str
    X: FloatArray
    """Inputs, [N, D]."""
    Y: FloatArray
    """Targets, [N, 1]."""

    def __post_init__(self) -> None:
        for key in ("X", "Y"):
            object.__setattr__(self, key, np.asarray(getattr(self, key), dtype=np.float64))
        if self.X.ndim != 2 or self.Y.ndim != 2 or self.Y.shape[1] != 1:
            raise ValueError(
                f"Data set '{self.name}' needs X of shape [N, D] and Y of shape [N, 1], "
                f"but they are {self.X.shape} and {self.Y.shape}."
            )
        if len(self.X) != len(self.Y) or len(self.X) == 0:
            raise ValueError(
                f"Data set '{self.name}' needs as many rows in X as in Y, and at least one, "
                f"but they are {self.X.shape} and {self.Y.shape}."
            )
        for key, values in (("X", self.X), ("Y", self.Y)):
            bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
            if bad.size:
                raise ValueError(
                    f"Data set '{self.name}' has values that are not finite in {bad.size} rows "
                    f"of {key}, the first of them row {bad[0]}."
                )


@dataclass(frozen=True, eq=False)
class Split:
    """Training and test rows of a data set, standardised by the training rows.

    Each column has had the mean of its training rows subtracted and has been divided by their
    standard deviation, or by 1 where it does not vary among them. A prediction y is undone as

    .. math::  y_{original} = y_{std} \\, y + y_{mean},  \\qquad
               \\log p(y_{original}) = \\log p(y) - \\log y_{std}.

    Notation: n training rows, m test rows, D inputs.

    >>> part = gpn.datasets.split(gpn.datasets.load("snelson"), index=0)
    >>> [values.shape for values in (*part.train, *part.test)]
    [(180, 1), (180, 1), (20, 1), (20, 1)]
    """

    X_train: FloatArray
    """Standardised training inputs, [n, D]."""
    Y_train: FloatArray
    """Standardised training targets, [n, 1]."""
    X_test: FloatArray
    """Test inputs on the same scale, [m, D]."""
    Y_test: FloatArray
    """Test targets on the same scale, [m, 1]."""
    y_mean: float
    """Mean of the training targets, in their original units."""
    y_std: float
    """Standard deviation of the training targets in their original units; 1 if that is 0."""

    @property
    def train(self) -> tuple[FloatArray, FloatArray]:
        """``(X_train, Y_train)``, the pair that a model is trained on."""
        return self.X_train, self.Y_train

    @property
    def test(self) -> tuple[FloatArray, FloatArray]:
        """``(X_test, Y_test)``, the pair that a model is tested on."""
        return self.X_test, self.Y_test


def load(
    name: str, folder: str | os.PathLike[str] | None = None, *, verify: bool = True
) -> Dataset:
    """
    Load a regression data set by its name.

    ``snelson`` comes with the package. Any other is read from ``<folder>/<name>.npz`` or else
    from ``<folder>/uci/<name>.npz``, and where neither is a file, those of
    ``gpflow_gpnet.openml.DATASETS`` are fetched from OpenML by scikit-learn, which keeps a
    copy. Of ``bike``, the two input columns whose sum is the exponential of the target are left
    out.

    >>> dataset = gpn.datasets.load("snelson")
    >>> dataset.X.shape, dataset.Y.shape
    ((200, 1), (200, 1))

    :param name: the data set's name, such as ``"snelson"`` or ``"boston"``.
    :param folder: where the data sets are; if None, the environment variable ``GPNET_DATA``
        says it.
    :param verify: whether files of the names in ``data/checksums.sha256`` must be those files.
    :return: the data set, ``X`` [N, D] and ``Y`` [N, 1] in float64.
    :raises FileNotFoundError: if there is no such file, and OpenML does not have it, cannot be
        reached, or needs scikit-learn, which is not installed.
    :raises KeyError: if the file does not hold both ``X`` and ``Y``.
    :raises ValueError: if the file is damaged or another than is known by its name, if shapes are
        wrong or values not finite; see :class:`Dataset`.
    """
    if name == "snelson":
        return _read(name, (resources.files("gpflow_gpnet") / "data" / "snelson.npz").read_bytes())
    candidates = _candidates(name, folder)
    for path in candidates:
        if path.is_file():
            content = path.read_bytes()
            if verify:
                _verify(name, path, content)
            return _read(name, content)
    missing = (
        f"There is no data set '{name}': neither {candidates[0]} nor {candidates[1]} is a file."
    )
    if folder is None and not os.environ.get(FOLDER_VARIABLE):
        missing += f" No folder was given and {FOLDER_VARIABLE} is not set."
    advice = (
        f"Pass folder=... or set the environment variable {FOLDER_VARIABLE} to the folder that "
        "holds it."
    )
    if name not in openml.DATASETS:
        raise FileNotFoundError(
            f"{missing} {advice} Only {', '.join(openml.DATASETS)} can be fetched from OpenML."
        )
    try:
        return Dataset(name, *openml.fetch(name))
    except ImportError as error:
        raise FileNotFoundError(f"{missing} {advice} {error}") from error
    except OSError as error:
        raise FileNotFoundError(
            f"{missing} {advice} Fetching it from OpenML failed: {type(error).__name__}: {error}"
        ) from error


def stream(
    files: Any,
    inputs: str | Sequence[str] | None = None,
    targets: str | Sequence[str] | None = None,
    *,
    buffer_rows: int = 100_000,
    seed: int = 0,
) -> Shards:
    """
    Data larger than memory, in files of rows: NPZ, CSV with a header, or Parquet.

    One pass over the files counts rows and finds means and standard deviations. ``fit`` then takes
    the result in the place of arrays, a batch at a time, held-out rows and polishing included::

        data = gpn.datasets.stream("flights-*.parquet", targets="delay")
        model = gpn.GPNet(..., num_data=data.num_data, scaling=data.scaling())
        gpn.fit(model, data, num_steps=10_000, checkpoint_dir="run")

    >>> import tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> np.savez(folder / "part-0.npz", X=X, Y=Y)
    >>> np.savez(folder / "part-1.npz", X=X[:5], Y=Y[:5])
    >>> data = gpn.datasets.stream(folder / "part-*.npz")
    >>> data.num_data, data.counts
    (25, [20, 5])

    Rows are shuffled anew in each epoch, the files among each other and the rows within
    ``buffer_rows`` that then follow each other. The order is a function of ``fit``'s seed and the
    step, so that a resumed run goes on in it. Where files are sorted by something that matters to
    the targets, write them in random order first.

    :param files: a path, a pattern such as ``"part-*.npz"`` (in the order of the names), or a list
        of paths; all of one kind. CSV and Parquet need the extra ``arrow``.
    :param inputs: the columns of X; by default all but the targets. Of NPZ files the arrays, [n, D]
        each, that are put beside each other, by default ``X``.
    :param targets: the columns of Y, to be named but for NPZ files, where it is ``Y`` by default.
    :param buffer_rows: rows in memory at a time, in 8-byte numbers.
    :param seed: of the rows that can be held out of training.
    :raises FileNotFoundError: if there is no such file.
    :raises ImportError: if pyarrow is needed and not installed.
    :raises ValueError: naming the file, for columns that are missing, ragged or not of numbers,
        inputs that are not finite, other shapes than the first file's, or no rows.
    """
    return Shards(files, inputs, targets, buffer_rows=buffer_rows, seed=seed)


def split(
    dataset: Dataset, index: int, train_fraction: float = 0.9, *, num_test: int | None = None
) -> Split:
    """
    Split a data set at random into training and test rows, and standardise both.

    The rows are shuffled by ``numpy.random.RandomState(index)`` and the first
    ``int(train_fraction * N)`` are for training, so that an index stands for the same split
    everywhere.

    >>> part = gpn.datasets.split(gpn.datasets.load("snelson"), index=0, train_fraction=0.5)
    >>> part.X_train.shape, bool(abs(part.Y_train.mean()) < 1e-9)
    ((100, 1), True)

    :param dataset: the data set, with N rows.
    :param index: which of the random splits, 0, 1, 2, ...
    :param train_fraction: the part of the rows to train on, between 0 and 1.
    :param num_test: the number of rows for testing, in place of ``train_fraction``.
    :return: the standardised rows and what undoes the standardising.
    :raises ValueError: if the training or the test rows would be none.
    """
    num_rows = len(dataset.X)
    num_train = int(train_fraction * num_rows) if num_test is None else num_rows - num_test
    if not 0 < num_train < num_rows:
        choice = f"train_fraction = {train_fraction}" if num_test is None else f"{num_test = }"
        raise ValueError(
            f"{choice} leaves {num_train} of the {num_rows} rows of "
            f"'{dataset.name}' for training; at least one is needed there and one for testing."
        )
    order = np.arange(num_rows)
    np.random.RandomState(index).shuffle(order)
    train, test = order[:num_train], order[num_train:]

    x_mean, x_std = column_moments(dataset.X[train])
    y_mean, y_std = column_moments(dataset.Y[train])
    X = (dataset.X - x_mean) / x_std
    Y = (dataset.Y - y_mean) / y_std
    return Split(
        X_train=X[train],
        Y_train=Y[train],
        X_test=X[test],
        Y_test=Y[test],
        y_mean=y_mean.item(),
        y_std=y_std.item(),
    )


def _candidates(name: str, folder: str | os.PathLike[str] | None) -> tuple[Path, Path]:
    """The files that a data set may be in."""
    where = folder if folder is not None else os.environ.get(FOLDER_VARIABLE)
    root = Path(where) if where else Path("<folder>")
    return root / f"{name}.npz", root / "uci" / f"{name}.npz"


@cache
def _checksums() -> dict[str, str]:
    """SHA-256 by name of the data set."""
    text = (resources.files("gpflow_gpnet") / "data" / "checksums.sha256").read_text()
    pairs = (line.split() for line in text.splitlines())
    return {Path(path).stem: digest for digest, path in pairs}


def _verify(name: str, path: Path, content: bytes) -> None:
    expected, found = _checksums().get(name), hashlib.sha256(content).hexdigest()
    if expected is not None and found != expected:
        raise ValueError(
            f"{path} is damaged, or not the file that results of this package were computed on: "
            f"its SHA-256 is {found}, expected {expected}. Pass verify=False to take it as it is."
        )


def _read(name: str, content: bytes) -> Dataset:
    """Read the content of a .npz file."""
    try:
        arrays = np.load(io.BytesIO(content))
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"The file of data set '{name}' is not a whole .npz file.") from error
    if not isinstance(arrays, np.lib.npyio.NpzFile):
        raise ValueError(f"The file of data set '{name}' is not a .npz file.")
    missing = sorted({"X", "Y"} - set(arrays.files))
    if missing:
        raise KeyError(
            f"Data set '{name}' has no array {' and '.join(missing)}; "
            f"it holds {', '.join(arrays.files) or 'nothing'}."
        )
    X, Y = arrays["X"], arrays["Y"]
    leaks = _INPUT_COLUMNS_THAT_LEAK.get(name, ())
    if leaks:
        if X.ndim != 2 or X.shape[1] <= max(leaks):
            raise ValueError(
                f"Data set '{name}' should have its targets' parts in the input columns {leaks}, "
                f"which are left out, but X has shape {X.shape}."
            )
        X = np.delete(X, leaks, axis=1)
    return Dataset(name, X, Y)
