"""Rows per second and peak memory of streaming files of rows, at any number of rows.

    python benchmarks/stream.py --rows 10000000 --formats npz parquet csv

Writes the files into a temporary folder first (8 (D + 1) bytes a row), then measures in a process
of its own for each format: the pass that counts and finds the moments, and one shuffled epoch.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from machine import describe_machine, write_rows

from gpflow_gpnet.datasets import stream
from gpflow_gpnet.shards import ShardBatches

_INPUTS = 8
_SHARD = 500_000


def _write(folder: Path, kind: str, rows: int) -> float:
    """Files of at most 500,000 rows; their size in GB."""
    for index, start in enumerate(range(0, rows, _SHARD)):
        rng = np.random.default_rng(index)
        X = rng.normal(size=(min(_SHARD, rows - start), _INPUTS))
        Y = np.sin(X[:, :1]) + 0.1 * rng.normal(size=(len(X), 1))
        path = folder / f"part-{index:05d}.{kind}"
        if kind == "npz":
            np.savez(path, X=X, Y=Y)
            continue
        import pyarrow as pa
        from pyarrow import csv, parquet

        columns = {f"x{column}": X[:, column] for column in range(_INPUTS)}
        table = pa.table({**columns, "y": Y[:, 0]})
        (csv.write_csv if kind == "csv" else parquet.write_table)(table, path)
    return sum(path.stat().st_size for path in folder.iterdir()) / 1e9


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _measure(folder: Path, kind: str, batch_size: int, buffer_rows: int) -> dict[str, Any]:
    before, start = _peak_mb(), time.perf_counter()
    targets = None if kind == "npz" else "y"
    data = stream(folder / f"*.{kind}", targets=targets, buffer_rows=buffer_rows)
    one_pass, after_pass = time.perf_counter() - start, _peak_mb()
    start = time.perf_counter()
    batches = ShardBatches(data, batch_size, seed=0)
    rows = sum(len(batches(step)[0]) for step in range(batches.batches_per_epoch))
    epoch = time.perf_counter() - start
    assert rows == data.num_data
    return {
        "format": kind,
        "rows": rows,
        "pass_rows_per_second": rows / one_pass,
        "epoch_rows_per_second": rows / epoch,
        "start_peak_mb": before,
        "pass_peak_mb": after_pass,
        "epoch_peak_mb": _peak_mb(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--formats", nargs="+", default=["npz", "parquet", "csv"])
    parser.add_argument("--batch-size", type=int, default=500)
    parser.add_argument("--buffer-rows", type=int, default=100_000)
    parser.add_argument("--out", type=Path, help="CSV to write")
    arguments = parser.parse_args()
    print(describe_machine())
    own_process = multiprocessing.get_context("spawn")
    measured = []
    for kind in arguments.formats:
        for rows in arguments.rows:
            with (
                tempfile.TemporaryDirectory() as folder,
                ProcessPoolExecutor(1, mp_context=own_process) as pool,
            ):
                size = _write(Path(folder), kind, rows)
                sizes = arguments.batch_size, arguments.buffer_rows
                row = pool.submit(_measure, Path(folder), kind, *sizes).result()
                print(
                    f"{kind:8s} {size:5.2f} GB {rows:11,d} rows   pass "
                    f"{row['pass_rows_per_second']:11,.0f} rows/s   epoch "
                    f"{row['epoch_rows_per_second']:11,.0f} rows/s   peak memory: start "
                    f"{row['start_peak_mb']:5.0f} MB, pass {row['pass_peak_mb']:5.0f} MB, epoch "
                    f"{row['epoch_peak_mb']:5.0f} MB",
                    flush=True,
                )
                measured.append({"gigabytes": size, **row})
    if arguments.out:
        write_rows(arguments.out, measured)


if __name__ == "__main__":
    main()
