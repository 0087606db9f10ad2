"""Data larger than memory: files of rows, read in pieces, in an order that a seed decides.

Notation: N rows in all, D inputs, P targets, B rows of a batch.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from glob import glob
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import tensorflow as tf
from gpflow.base import RegressionData
from gpflow.config import default_float

from .batches import Batches
from .scaling import Scaling, constant_scale

__all__ = ["ShardBatches", "Shards"]

Rows = tuple[np.ndarray, np.ndarray]
"""X [n, D] and Y [n, P], float64."""

_CHUNK = 65_536
"""Rows read at a time."""

_SAMPLE = 2000


class _Columns(NamedTuple):
    inputs: list[str]
    targets: list[str]


class Shards:
    """Files of rows, and what one pass over them has told: N, moments, a random sample.

    Made by :func:`gpflow_gpnet.datasets.stream`; ``fit`` takes it as data, arrays of which are
    never whole in memory.
    """

    def __init__(
        self,
        files: Any,
        inputs: str | Sequence[str] | None = None,
        targets: str | Sequence[str] | None = None,
        *,
        buffer_rows: int = 100_000,
        seed: int = 0,
    ) -> None:
        """See :func:`gpflow_gpnet.datasets.stream`."""
        if buffer_rows < 1:
            raise ValueError(f"buffer_rows must be at least 1, got {buffer_rows}.")
        self.paths = _paths(files)
        self._read = _reader(self.paths)
        self._columns = _columns(self._read, self.paths[0], inputs, targets)
        self.buffer_rows = buffer_rows
        self._pass(seed)

    def _pass(self, seed: int) -> None:
        moments: tuple[_Moments, _Moments] | None = None
        counts, keys, numbers = [], np.zeros(0), np.zeros(0, np.int64)
        sample: Rows | None = None
        first = 0
        for index, path in enumerate(self.paths):
            before = first
            rng = np.random.default_rng([seed, index])
            for X, Y in self.read(path):
                if moments is None or sample is None:
                    moments = _Moments(X.shape[1]), _Moments(Y.shape[1])
                    sample = X[:0], Y[:0]
                if (X.shape[1], Y.shape[1]) != (sample[0].shape[1], sample[1].shape[1]):
                    raise ValueError(
                        f"{path} has {X.shape[1]} inputs and {Y.shape[1]} targets, but "
                        f"{self.paths[0]} has {sample[0].shape[1]} and {sample[1].shape[1]}."
                    )
                bad = np.flatnonzero(~np.isfinite(X).all(axis=1))
                if bad.size or np.isinf(Y).any():
                    row = bad[0] if bad.size else np.flatnonzero(np.isinf(Y).any(axis=1))[0]
                    what = "NaN or infinite inputs" if bad.size else "infinite targets"
                    raise ValueError(f"{path} has {what}, row {first - before + row}.")
                for part, values in zip(moments, (X, Y), strict=True):
                    part.add(values)
                # The rows with the smallest of random keys are a sample without replacement.
                keys = np.concatenate([keys, rng.random(len(X))])
                numbers = np.concatenate([numbers, first + np.arange(len(X))])
                chosen = np.argsort(keys)[:_SAMPLE]
                keys, numbers = keys[chosen], numbers[chosen]
                whole = (np.concatenate(pair) for pair in zip(sample, (X, Y), strict=True))
                sample = tuple(values[chosen] for values in whole)
                first += len(X)
            counts.append(first - before)
        if moments is None or sample is None or first == 0:
            raise ValueError(f"{self.paths[0]} and {len(self.paths) - 1} more have no rows.")
        self.num_data = first
        """N, what ``num_data`` of a model is to be."""
        self.sample = sample
        """Rows drawn at random, X [n, D] and Y [n, P], at most 2,000."""
        self.sample_numbers = numbers
        """Which rows they are [n], counted through the files in order."""
        self.counts = counts
        """Rows of each file."""
        self._moments = moments

    def read(self, path: Path, start: int = 0) -> Iterator[Rows]:
        """Pieces of a file, from a row on.

        :raises ValueError: naming the file, if its columns, types or shapes are not as expected.
        """
        for X, Y in self._read(path, self._columns, start):
            if X.ndim != 2 or Y.ndim != 2 or len(X) != len(Y):
                raise ValueError(
                    f"{path} has X of shape {X.shape} and Y of shape {Y.shape}: both must be "
                    "matrices with as many rows."
                )
            yield X, Y

    def scaling(self, *, targets: bool = True) -> Scaling:
        """Mean and standard deviation of each column over all rows, NaN targets left out.

        :param targets: whether to scale targets too, as in :meth:`Scaling.from_data`.
        """
        inputs, outputs = self._moments
        return Scaling(*inputs.result(), *(outputs.result() if targets else ()))

    def dataset(self, batch_size: int, *, seed: int = 0, first: int = 0) -> tf.data.Dataset:
        """Batches without end, read ahead, for loops of your own.

        :param first: the batch to begin with; the order is a function of the seed alone.
        """
        batches = ShardBatches(self, batch_size, seed)
        signature = tuple(
            tf.TensorSpec([None, values.shape[1]], default_float()) for values in self.sample
        )

        def generate() -> Iterator[Rows]:
            step = first
            while True:
                yield batches(step)
                step += 1

        return tf.data.Dataset.from_generator(generate, output_signature=signature).prefetch(2)


class ShardBatches(Batches):
    """Shuffled batches of files; the last of an epoch is smaller where B does not divide N.

    The files' order is new in each epoch, and so is that of the rows within each ``buffer_rows``
    that follow each other there. It is a function of (seed, step) alone, and a run that goes on at
    a step reads nothing of what came before but, in the first file, of formats that must be read
    from their start.
    """

    def __init__(
        self,
        shards: Shards,
        batch_size: int,
        seed: int,
        without: np.ndarray | None = None,
        check: Callable[[RegressionData], RegressionData] = lambda batch: batch,
    ) -> None:
        """
        :param batch_size: B.
        :param without: numbers of rows to leave out.
        :param check: makes of each batch that is read what is given, or refuses it.
        :raises ValueError: unless B >= 1.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}.")
        self.shards = shards
        self.batch_size = batch_size
        self._seed = seed
        self._check = check
        self._starts = np.concatenate([[0], np.cumsum(shards.counts)])
        without = np.zeros(0, np.int64) if without is None else np.sort(without)
        ends = np.searchsorted(without, self._starts)
        self._without = [  # of each file, counted from its start
            without[begin:end] - start
            for begin, end, start in zip(ends[:-1], ends[1:], self._starts[:-1], strict=True)
        ]
        self.num_rows = shards.num_data - len(without)
        self._batches_per_block = -(-shards.buffer_rows // batch_size)
        self._blocks: Iterator[Rows] = iter(())
        self._next = self._here = (-1, -1)

    @property
    def batches_per_epoch(self) -> int:
        """Batches that hold each row once."""
        return -(-self.num_rows // self.batch_size)

    def __call__(self, step: int) -> RegressionData:
        epoch, position = divmod(step, self.batches_per_epoch)
        block, batch = divmod(position, self._batches_per_block)
        if self._here != (epoch, block):
            self._turn_to(epoch, block)
        rows = self._order[batch * self.batch_size : (batch + 1) * self.batch_size]
        return self._check(tuple(values[rows] for values in self._block))

    def _turn_to(self, epoch: int, block: int) -> None:
        size = self._batches_per_block * self.batch_size
        if self._next != (epoch, block):
            order = np.random.default_rng([self._seed, epoch]).permutation(len(self._without))
            self._blocks = _regrouped(self._rows(order, block * size), size)
        self._block = next(self._blocks)
        # Plus 1, since seeds that end in 0 are the same as without.
        rng = np.random.default_rng([self._seed, epoch, block + 1])
        self._order = rng.permutation(len(self._block[0]))
        self._here, self._next = (epoch, block), (epoch, block + 1)

    def in_order(self) -> Collection[RegressionData]:
        """Each row once, in the files' order, in batches."""
        return _InOrder(self)

    def _rows(self, order: Iterable[int], start: int = 0) -> Iterator[Rows]:
        """Pieces of the files in an order, after so many of the rows that are not left out."""
        for index in order:
            path, count = self.shards.paths[index], self.shards.counts[index]
            without = self._without[index]
            if start >= count - len(without):
                start -= count - len(without)
                continue
            # The row before which there are ``start`` rows that are not left out.
            ranks = without - np.arange(len(without))
            row = start + int(np.searchsorted(ranks, start, side="right"))
            start = 0
            for X, Y in self.shards.read(path, row):
                kept = ~np.isin(row + np.arange(len(X)), without)
                row += len(X)
                yield X[kept], Y[kept]
            if row != count:
                raise ValueError(f"{path} has {row} rows now, but had {count}: it has changed.")


class _InOrder(Collection[RegressionData]):
    def __init__(self, batches: ShardBatches) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return self._batches.batches_per_epoch

    def __iter__(self) -> Iterator[RegressionData]:
        order = range(len(self._batches.shards.paths))
        for rows in _regrouped(self._batches._rows(order), self._batches.batch_size):
            batch = tuple(tf.constant(values, default_float()) for values in rows)
            yield self._batches._check(batch)

    def __contains__(self, batch: object) -> bool:
        return any(batch is other for other in self)


class _Moments:
    """Mean and standard deviation of columns in one pass (Chan, Golub and LeVeque 1983)."""

    def __init__(self, num_columns: int) -> None:
        self._number = np.zeros(num_columns)
        self._mean = np.zeros(num_columns)
        self._squares = np.zeros(num_columns)
        self._low = np.full(num_columns, np.inf)
        self._high = np.full(num_columns, -np.inf)

    def add(self, values: np.ndarray) -> None:
        there = ~np.isnan(values)
        number = there.sum(axis=0)
        values = np.where(there, values, 0.0)
        mean = values.sum(axis=0) / np.maximum(number, 1)
        squares = (np.where(there, values - mean, 0.0) ** 2).sum(axis=0)
        total = np.maximum(self._number + number, 1)
        shift = mean - self._mean
        self._squares += squares + shift**2 * self._number * number / total
        self._mean += shift * number / total
        self._number += number
        self._low = np.minimum(self._low, np.where(there, values, np.inf).min(axis=0))
        self._high = np.maximum(self._high, np.where(there, values, -np.inf).max(axis=0))

    def result(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation; `constant_scale` for columns that do not vary."""
        if (self._number == 0).any():
            column = int(np.flatnonzero(self._number == 0)[0])
            raise ValueError(f"Column {column} of the targets has no value at all.")
        sd = np.sqrt(self._squares / self._number)
        return self._mean, np.where(self._low == self._high, constant_scale(self._mean), sd)


def _regrouped(pieces: Iterable[Rows], size: int) -> Iterator[Rows]:
    """The same rows in pieces of a size, the last one smaller."""
    parts: list[Rows] = []
    room = size
    for X, Y in pieces:
        while len(X):
            parts.append((X[:room], Y[:room]))
            X, Y, room = X[room:], Y[room:], room - len(parts[-1][0])
            if not room:
                yield _joined(parts)
                parts, room = [], size
    if parts:
        yield _joined(parts)


def _joined(parts: list[Rows]) -> Rows:
    X, Y = (np.concatenate(values) for values in zip(*parts, strict=True))
    return X, Y


# ---------------------------------------------------------------------- files


def _paths(files: Any) -> list[Path]:
    if isinstance(files, (str, os.PathLike)):
        # The name of a file may have what a pattern has, as "run[1].csv".
        names = [str(files)] if Path(files).is_file() else sorted(glob(str(files)))
        found = [Path(name) for name in names]
    else:
        found = [Path(path) for path in files]
    missing = [str(path) for path in found if not path.is_file()]
    if missing or not found:
        raise FileNotFoundError(f"There is no file {missing[0] if missing else files}.")
    return found


def _reader(paths: list[Path]) -> Callable[[Path, _Columns, int], Iterator[Rows]]:
    kinds = {path.suffix.lower() for path in paths}
    readers = {".npz": _read_npz, ".csv": _read_csv, ".parquet": _read_parquet}
    if len(kinds) != 1 or not kinds <= readers.keys():
        raise ValueError(
            f"files must all be .npz, all .csv or all .parquet, got {', '.join(sorted(kinds))}."
        )
    return readers[kinds.pop()]


def _columns(
    read: Callable[..., Any],
    path: Path,
    inputs: str | Sequence[str] | None,
    targets: str | Sequence[str] | None,
) -> _Columns:
    if read is _read_npz:
        return _Columns(_listed(inputs, "X"), _listed(targets, "Y"))
    if targets is None:
        raise ValueError(f"targets must name the columns of Y in tables such as {path}.")
    names = _listed(targets, "")
    there = _parquet(path).schema_arrow.names if read is _read_parquet else _csv_names(path)
    others = [name for name in there if name not in names]
    columns = _Columns(_listed(inputs, "") if inputs is not None else others, names)
    _check_columns(path, columns, there)
    return columns


def _listed(names: str | Sequence[str] | None, default: str) -> list[str]:
    if names is None:
        return [default]
    return [names] if isinstance(names, str) else list(names)


def _check_columns(path: Path, columns: _Columns, there: Collection[str]) -> None:
    for role, names in zip(columns._fields, columns, strict=True):
        if not names:
            raise ValueError(
                f"{role} must be one column or more of {path}, which has "
                f"{', '.join(map(repr, there))}: inputs {columns.inputs}, targets "
                f"{columns.targets}."
            )
    wanted = [*columns.inputs, *columns.targets]
    missing = [name for name in wanted if name not in there]
    if missing:
        raise ValueError(
            f"{path} has no {', '.join(map(repr, missing))}; it has {', '.join(map(repr, there))}."
        )
    if len(set(wanted)) < len(wanted):
        raise ValueError(f"inputs and targets name a column twice: {', '.join(wanted)}.")


def _read_npz(path: Path, columns: _Columns, start: int) -> Iterator[Rows]:
    """Arrays of an archive side by side, a piece at a time, compressed or not."""
    try:
        with zipfile.ZipFile(path) as archive:
            there = [name.removesuffix(".npy") for name in archive.namelist()]
            _check_columns(path, columns, there)
            sides = [
                [_array_pieces(archive.open(f"{name}.npy"), path, name, start) for name in names]
                for names in columns
            ]
            inputs, targets = (zip(*side, strict=True) for side in sides)
            # strict: arrays of other lengths have a piece of another size, or none, at the end.
            for X, Y in zip(inputs, targets, strict=True):
                yield np.hstack(X), np.hstack(Y)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, OSError) as error:
        raise ValueError(f"{path} is damaged or no .npz file: {error}.") from error
    except ValueError as error:
        if str(path) in str(error):
            raise
        raise ValueError(f"{path} has arrays with different numbers of rows.") from error


def _array_pieces(file: Any, path: Path, name: str, start: int) -> Iterator[np.ndarray]:
    version = np.lib.format.read_magic(file)
    header = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, fortran, dtype = header(file)
    if len(shape) != 2 or dtype.kind not in "fiub" or (fortran and shape[1] > 1):
        raise ValueError(
            f"{path}: {name} must be a matrix of numbers in C order, got shape {shape} of {dtype}"
            f"{' in Fortran order' if fortran else ''}."
        )
    row_size = shape[1] * dtype.itemsize
    _skip(file, start * row_size)
    for row in range(start, shape[0], _CHUNK):
        rows = min(_CHUNK, shape[0] - row)
        content = file.read(rows * row_size)
        yield np.frombuffer(content, dtype).reshape(rows, shape[1]).astype(np.float64)
    if file.read(1):  # which also looks at the CRC-32, known at the end alone
        raise ValueError(f"{path} is damaged: {name} has more than its shape {shape} says.")


def _skip(file: BinaryIO, size: int) -> None:
    # A member of an archive cannot jump, and one that has changed may end before.
    while size and (content := file.read(min(size, 2**24))):
        size -= len(content)


def _read_csv(path: Path, columns: _Columns, start: int) -> Iterator[Rows]:
    csv = _arrow("csv")
    _check_columns(path, columns, _csv_names(path))
    wanted = [*columns.inputs, *columns.targets]
    options = csv.ConvertOptions(
        include_columns=wanted, column_types=dict.fromkeys(wanted, "float64")
    )
    return _tables(path, columns, lambda: csv.open_csv(path, convert_options=options), start)


def _csv_names(path: Path) -> list[str]:
    csv = _arrow("csv")
    try:
        with csv.open_csv(path) as reader:
            return list(reader.schema.names)
    except (_arrow("lib").ArrowInvalid, OSError) as error:
        raise ValueError(f"{path} cannot be read: {error}.") from error


def _parquet(path: Path) -> Any:
    try:
        return _arrow("parquet").ParquetFile(path)
    except (_arrow("lib").ArrowInvalid, OSError) as error:
        raise ValueError(f"{path} cannot be read: {error}.") from error


def _read_parquet(path: Path, columns: _Columns, start: int) -> Iterator[Rows]:
    with _parquet(path) as file:
        _check_columns(path, columns, file.schema_arrow.names)
        groups = list(range(file.num_row_groups))
        while groups and start >= (rows := file.metadata.row_group(groups[0]).num_rows):
            start -= rows
            groups.pop(0)
        names = [*columns.inputs, *columns.targets]
        yield from _tables(
            path,
            columns,
            lambda: file.iter_batches(_CHUNK, row_groups=groups, columns=names),
            start,
        )


def _tables(
    path: Path, columns: _Columns, open_file: Callable[[], Iterable[Any]], start: int
) -> Iterator[Rows]:
    """Pieces of a file from Arrow's record batches."""
    try:
        for batch in open_file():
            if start >= batch.num_rows:
                start -= batch.num_rows
                continue
            batch, start = batch.slice(start), 0
            X, Y = (
                np.column_stack([_numbers(path, name, batch.column(name)) for name in names])
                for names in columns
            )
            yield X, Y
    except (_arrow("lib").ArrowInvalid, OSError) as error:
        raise ValueError(f"{path} cannot be read: {error}.") from error


def _numbers(path: Path, name: str, column: Any) -> np.ndarray:
    types = _arrow("types")
    kind = column.type
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        raise ValueError(f"{path}: column {name!r} must be of numbers, got {kind}.")
    return column.cast("float64").to_numpy(zero_copy_only=False)  # nulls become NaN


def _arrow(module: str) -> Any:
    try:
        import pyarrow
        from pyarrow import csv, lib, parquet, types
    except ImportError as error:
        raise ImportError(
            "CSV and Parquet files need pyarrow: pip install 'gpflow_gpnet[arrow]'."
        ) from error
    del pyarrow
    return {"csv": csv, "lib": lib, "parquet": parquet, "types": types}[module]
