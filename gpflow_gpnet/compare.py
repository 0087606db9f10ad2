"""Models side by side on one data set, under one protocol. Needs pandas."""

from __future__ import annotations

import hashlib
import io
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from gpflow.base import AnyNDArray
from gpflow.models import BayesianModel, GPModel
from tqdm.auto import tqdm

from .checks import to_tensors
from .datasets import Dataset, Split, split
from .likelihoods import base_likelihood
from .model import InferenceNetworkModel
from .predictive_density import predictive_log_density
from .quantiles import predictive_quantiles

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Comparison", "METRICS", "compare", "scores"]

METRICS = (
    "rmse",
    "mae",
    "nlpd",
    "crps",
    "coverage_50",
    "coverage_90",
    "coverage_95",
    "calibration_error",
    "seconds",
    "memory_mib",
)
"""Columns of results, lower is better but for coverages, which should be what they say."""

_STEPS = "steps"

LEVELS = np.arange(0.5, 100.0) / 100.0
"""Quantile levels that scores are computed from."""

_CALIBRATION_LEVELS = np.arange(1, 20) / 20.0
_ROWS = 4096


def compare(
    models: Mapping[str, Any],
    data: Any,
    *,
    test_data: Any = None,
    splits: int | Iterable[int] = 1,
    train_fraction: float = 0.9,
    num_test: int | None = None,
    quantile_rows: int | None = None,
    out: str | os.PathLike[str] | None = None,
    settings: Any = None,
    on_result: Callable[[dict[str, Any]], Any] | None = None,
    progress: bool = True,
) -> Comparison:
    """Train models on the same rows and score them on the same others.

    A model that fails does not stop the rest: its row holds the error.

    >>> trained = gpflow.models.GPR((X, Y), kernel, noise_variance=0.1)
    >>> comparison = gpn.compare({"GP": trained}, (X, Y), test_data=(X, Y), progress=False)
    >>> comparison.results["rmse"].shape, bool(comparison.results["rmse"][0] < 1.0)
    ((1,), True)

    :param models: names, and either what trains a model, ``(X, Y) -> model`` with ``predict_f``,
        ``predict_y``, ``predict_log_density`` and a likelihood, as all GPflow models have (or
        ``(X, Y) -> (model, History)``, whose number of steps is then a result too); or a trained
        model, which is scored as it is (then with ``test_data``).
    :param data: X [N, D] and Y [N, 1] as arrays, or a :class:`~gpflow_gpnet.datasets.Dataset`.
    :param test_data: X and Y to score on; the models then see ``data`` as they are.
    :param splits: how many random splits, or which; without ``test_data``. Models see inputs and
        targets standardised by the training rows; scores are in the units of the data.
    :param train_fraction: of the rows of a split.
    :param num_test: how many rows of a split to score on, in place of ``train_fraction``.
    :param quantile_rows: at most so many test rows for the scores that need quantiles (all but
        RMSE and NLPD), which take long for likelihoods other than Gaussian; None: all.
    :param out: CSV file that each result is added to as soon as it is known. What is there already,
        for the same data and settings, is not done again.
    :param settings: whatever else results depend on, told apart by its ``repr``.
    :param on_result: called with each new row of results as soon as it is known.
    :param progress: show a progress bar on terminals and in notebooks.
    :raises ValueError: for a trained model without ``test_data``, or a file of other data or
        settings.
    """
    import pandas as pd

    if test_data is None:
        trained = [name for name, model in models.items() if isinstance(model, BayesianModel)]
        if trained:
            raise ValueError(
                f"{trained} are models already, which may have seen any row: pass test_data, or "
                "functions (X, Y) -> trained model."
            )
        dataset = data if isinstance(data, Dataset) else Dataset("data", *data)
        indices = list(range(splits)) if isinstance(splits, int) else list(splits)
        arrays = [dataset.X, dataset.Y]
    else:
        train, test = Dataset("data", *data), Dataset("test_data", *test_data)
        indices = [0]
        arrays = [train.X, train.Y, test.X, test.Y]

    def part(index: int) -> Split:
        if test_data is None:
            return split(dataset, index, train_fraction, num_test=num_test)
        return Split(train.X, train.Y, test.X, test.Y, y_mean=0.0, y_std=1.0)

    fingerprint = _fingerprint(arrays, (train_fraction, num_test, quantile_rows, settings))
    path = None if out is None else Path(out)
    rows = [] if path is None else _read(path)
    if any(row["data"] != fingerprint for row in rows):
        raise ValueError(f"{path} holds results for other data or settings: choose another file.")
    done = {(row["method"], row["split"]) for row in rows}
    todo = [(name, index) for index in indices for name in models if (name, index) not in done]
    with tqdm(todo, disable=None if progress else True, unit="model", leave=None) as bar:
        for name, index in bar:
            bar.set_postfix_str(f"{name}, split {index}")
            row = {"method": name, "split": index, "data": fingerprint}
            row |= _trained_and_scored(models[name], part(index), quantile_rows)
            rows.append(row)
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                pd.DataFrame([row]).to_csv(path, mode="a", header=not path.exists(), index=False)
            if on_result is not None:
                on_result(row)
    wanted = [row for row in rows if row["method"] in models and row["split"] in indices]
    return Comparison(pd.DataFrame(wanted), tuple(models))


def _trained_and_scored(model: Any, part: Split, quantile_rows: int | None) -> dict[str, Any]:
    result = dict.fromkeys((*METRICS, _STEPS, *_calibration_columns()), np.nan)
    started = time.perf_counter()
    try:
        with _PeakMemory() as memory:
            if not isinstance(model, BayesianModel):
                model = model(*part.train)
        result |= {"seconds": time.perf_counter() - started, "memory_mib": memory.mib}
        if isinstance(model, tuple):
            model, history = model
            result[_STEPS] = history["step"][-1]
        result |= scores(
            model, part.test, y_mean=part.y_mean, y_std=part.y_std, quantile_rows=quantile_rows
        )
    except Exception as error:
        return result | {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    return result | {"error": ""}


# ------------------------------------------------------------------ scores


def scores(
    model: Any,
    data: Any,
    *,
    y_mean: float = 0.0,
    y_std: float = 1.0,
    quantile_rows: int | None = None,
) -> dict[str, float]:
    """Scores of predictions at the rows of X, in the units that the targets had.

    RMSE and MAE (of the predictive median), mean negative log density (nats per datum), continuous
    ranked probability score (from 100 quantiles), the fraction of targets in central intervals, and
    the mean distance between levels and the fractions of targets below their quantiles.

    >>> from gpflow_gpnet.compare import scores
    >>> trained = gpflow.models.GPR((X, Y), kernel, noise_variance=0.1)
    >>> values = scores(trained, (X, Y))
    >>> sorted(values)[:3], 0.0 <= values["coverage_90"] <= 1.0
    (['below_0.05', 'below_0.10', 'below_0.15'], True)

    :param data: X [N, D] and Y [N, 1].
    :param y_mean: what the targets were shifted by, and y_std: divided by, before training.
    :param quantile_rows: as for :func:`compare`.
    """
    X, Y = (np.asarray(values) for values in data)
    chunks = [_predict(model, X[i : i + _ROWS], Y[i : i + _ROWS]) for i in range(0, len(X), _ROWS)]
    mean, density = (np.concatenate(parts) for parts in zip(*chunks, strict=True))
    values = {
        "rmse": np.sqrt(np.mean((y_std * (Y - mean)) ** 2)),
        "nlpd": np.log(y_std) - np.mean(density),
    }
    if quantile_rows is not None and quantile_rows < len(X):
        rows = np.random.default_rng(0).choice(len(X), quantile_rows, replace=False)
        X, Y = X[rows], Y[rows]
    quantiles = np.concatenate(
        [_quantiles(model, X[i : i + _ROWS]) for i in range(0, len(X), _ROWS)], axis=1
    )
    gaps = y_std * (Y[None] - quantiles)  # [Q, N, 1]
    levels = LEVELS[:, None, None]
    below = _fractions_below(Y, quantiles)
    values |= {
        "mae": np.mean(np.abs(y_std * (Y - _at(quantiles, 0.5)))),
        "crps": 2.0 * np.mean(np.maximum(levels * gaps, (levels - 1.0) * gaps)),
        "calibration_error": np.mean(np.abs(below - _CALIBRATION_LEVELS)),
    }
    for percent in (50, 90, 95):
        tail = 0.5 - percent / 200.0
        inside = (Y >= _at(quantiles, tail)) & (Y <= _at(quantiles, 1.0 - tail))
        values[f"coverage_{percent}"] = np.mean(inside)
    values |= dict(zip(_calibration_columns(), below, strict=True))
    return {name: float(value) for name, value in values.items()}


def _predict(model: Any, X: AnyNDArray, Y: AnyNDArray) -> tuple[AnyNDArray, AnyNDArray]:
    """Predictive mean [N, 1] and log densities [N]."""
    mean, _ = model.predict_y(X)
    if getattr(type(model), "predict_log_density", None) is GPModel.predict_log_density:
        # GPflow's own are not exact where noise is narrow; all models are scored alike.
        X, Y = to_tensors((X, Y), model.likelihood)
        Fmu, Fvar = model.predict_f(X)
        densities = predictive_log_density(model.likelihood, X, Fmu, Fvar, Y)
    else:
        densities = model.predict_log_density((X, Y))
    return np.asarray(mean), np.asarray(densities)


def _quantiles(model: Any, X: AnyNDArray) -> AnyNDArray:
    """Predictive quantiles [Q, N, 1]."""
    if isinstance(model, InferenceNetworkModel):
        return np.asarray(model.predict_quantiles(X, LEVELS))
    Fmu, Fvar = model.predict_f(X)
    likelihood = base_likelihood(model.likelihood)
    return np.asarray(predictive_quantiles(likelihood, X, Fmu, Fvar, LEVELS))


def _at(quantiles: AnyNDArray, level: float) -> AnyNDArray:
    """Quantile [N, 1] at a level between those that were computed."""
    position = np.interp(level, LEVELS, np.arange(len(LEVELS)))
    low = int(position)
    share = position - low
    return (
        quantiles[low] if not share else (1 - share) * quantiles[low] + share * quantiles[low + 1]
    )


def _fractions_below(Y: AnyNDArray, quantiles: AnyNDArray) -> AnyNDArray:
    return np.array([np.mean(Y <= _at(quantiles, level)) for level in _CALIBRATION_LEVELS])


def _calibration_columns() -> list[str]:
    return [f"below_{level:.2f}" for level in _CALIBRATION_LEVELS]


# ------------------------------------------------------------------ results


@dataclass(eq=False)
class Comparison:
    """Raw results, one row for each method and split, and what they say.

    >>> trained = gpflow.models.GPR((X, Y), kernel, noise_variance=0.1)
    >>> comparison = gpn.compare({"GP": trained}, (X, Y), test_data=(X, Y), progress=False)
    >>> list(comparison.table(["rmse", "nlpd"]).columns), comparison.methods
    (['rmse', 'nlpd'], ('GP',))
    """

    results: pd.DataFrame
    """Columns method, split, those of :data:`METRICS`, steps, below_0.05 … below_0.95 and error."""

    methods: tuple[str, ...]
    """In the order in which they were given."""

    @classmethod
    def from_csv(
        cls, path: str | os.PathLike[str], methods: Iterable[str] | None = None
    ) -> Comparison:
        """What :func:`compare` has written to ``out`` so far.

        :param methods: which, and in what order; those without results are left out. None: all.
        :raises ValueError: if there are none.
        """
        import pandas as pd

        rows = _read(Path(path))
        there = dict.fromkeys(row["method"] for row in rows)
        names = tuple(name for name in (there if methods is None else methods) if name in there)
        if not names:
            raise ValueError(f"{path} holds no results of {methods or 'any method'}.")
        return cls(pd.DataFrame([row for row in rows if row["method"] in names]), names)

    def beside(self, other: Comparison) -> Comparison:
        """These results and another's on the same splits of the same data.

        >>> trained = gpflow.models.GPR((X, Y), kernel, noise_variance=0.1)
        >>> a, b = (
        ...     gpn.compare({name: trained}, (X, Y), test_data=(X, Y), progress=False)
        ...     for name in ("a", "b")
        ... )
        >>> a.beside(b).paired("a", "rmse")["difference"].item()
        0.0

        :param other: that its rows are of the same data is not checked.
        :raises ValueError: for a method that both have.
        """
        import pandas as pd

        both = [name for name in self.methods if name in other.methods]
        if both:
            raise ValueError(f"{both} are in both comparisons: their results are ambiguous.")
        return Comparison(
            pd.concat([self.results, other.results], ignore_index=True),
            self.methods + other.methods,
        )

    def summary(self) -> pd.DataFrame:
        """Mean and standard error over splits: columns (metric, "mean" or "se")."""
        groups = self.results.groupby("method", sort=False)[list(METRICS)]
        return groups.agg(["mean", "sem"]).rename(columns={"sem": "se"}).loc[list(self.methods)]

    def table(self, metrics: Iterable[str] = METRICS) -> pd.DataFrame:
        """Text for reading: mean ± standard error, by method, and of how many splits if not all."""
        import pandas as pd

        summary = self.summary()
        splits = self.results["split"].nunique()
        counts = self.results.groupby("method")[list(METRICS)].count().loc[summary.index]
        columns = {}
        for metric in metrics:
            values = summary[metric]
            columns[metric] = [
                cell(mean, error) + (f" ({count} of {splits})" if 0 < count < splits else "")
                for mean, error, count in zip(
                    values["mean"], values["se"], counts[metric], strict=True
                )
            ]
        return pd.DataFrame(columns, index=summary.index)

    def paired(self, reference: str, metric: str = "nlpd") -> pd.DataFrame:
        """Differences from a reference method on the same splits.

        :return: for each other method the mean difference (negative: lower than the reference's),
            its standard error, on how many of the splits it is lower, and the p value of Wilcoxon's
            signed-rank test.
        :raises ValueError: for an unknown method or metric.
        """
        import pandas as pd
        from scipy.stats import wilcoxon

        if reference not in self.methods or metric not in METRICS:
            raise ValueError(
                f"reference must be one of {list(self.methods)} and metric one of {list(METRICS)}, "
                f"got {reference!r} and {metric!r}."
            )
        values = self.results.pivot(index="split", columns="method", values=metric)
        rows = {}
        for method in self.methods:
            if method == reference:
                continue
            difference = (values[method] - values[reference]).dropna()
            number = len(difference)
            rows[method] = {
                "difference": difference.mean(),
                "se": difference.sem() if number > 1 else np.nan,
                "lower": int((difference < 0.0).sum()),
                "splits": number,
                "p": wilcoxon(difference).pvalue if np.any(difference) and number > 1 else np.nan,
            }
        return pd.DataFrame.from_dict(rows, orient="index")

    def _repr_html_(self) -> str:
        return self.table().to_html()


def cell(mean: float, error: float) -> str:
    """Text of a mean and its standard error, either of which may be NaN."""
    if not np.isfinite(mean):
        return "–"
    return f"{mean:.4g}" if not np.isfinite(error) else f"{mean:.4g} ± {error:.2g}"


# ------------------------------------------------------------------ what has been done before


def _fingerprint(arrays: Iterable[AnyNDArray], settings: Any) -> str:
    digest = hashlib.sha256(repr(settings).encode())
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def _read(path: Path) -> list[dict[str, Any]]:
    import pandas as pd

    if not path.exists():
        return []
    text = path.read_text()
    if not text.endswith("\n"):  # killed while writing
        text = text[: text.rfind("\n") + 1]
        path.write_text(text)
    if not text:
        path.unlink()
        return []
    texts = ("method", "data", "error")  # a method may be called "NA"
    table = pd.read_csv(
        io.StringIO(text),
        dtype=dict.fromkeys(texts, str),
        keep_default_na=False,
        na_values={
            name: ["", "nan"] for name in text.split("\n", 1)[0].split(",") if name not in texts
        },
    )
    return table.to_dict("records")


# ------------------------------------------------------------------ memory


class _PeakMemory:
    """Most memory above what was in use at the start, looked at every hundredth of a second."""

    def __enter__(self) -> _PeakMemory:
        self.mib = np.nan
        self._start = self._peak = _resident_bytes()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(0.01):
            self._peak = max(self._peak, _resident_bytes())

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        self._thread.join()
        self.mib = (max(self._peak, _resident_bytes()) - self._start) / 2**20


def _resident_bytes() -> float:
    devices = tf.config.list_physical_devices("GPU")
    if devices:
        return float(tf.config.experimental.get_memory_info("GPU:0")["current"])
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:  # not Linux
        return np.nan
    return float(pages) * os.sysconf("SC_PAGE_SIZE")
